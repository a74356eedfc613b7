#pragma once

#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/Stream.h>

#include <cstdint>

#include "worker/runner/plugin.h"

// Runs ops on tensors of a GPU with the kernels of CUDA's libtorch. The library is opened at run time and is not
// needed to build this file: we call it through the dispatcher and the device interfaces of torch's core.
//
// The library's work runs on the stream of the plugin's host (tr_host). Its memory, for results and for temporaries of
// ops, comes from this host. Library and host use the GPU's primary context.
namespace torch_remote::worker::aten {

// The device of a program's tensors, and the dispatch key of its kernels.
struct Target {
  c10::Device device{c10::kCPU};
  c10::DispatchKey key = c10::DispatchKey::CPU;

  bool is_gpu() const { return !device.is_cpu(); }
};
Target target_of(const tr_host& host);

// Opens CUDA's libtorch and makes it allocate from the host, which must live until `close_gpu`. Throws c10::Error if
// the library cannot be used or the driver fails.
void open_gpu(const tr_host& host);
void close_gpu(const tr_host& host);

// While an object lives, this thread's calls use these math modes (ir/math_modes.h) and, if the host has a GPU, its
// stream. The modes are global to the process, so this must not be used in the user's process.
class MathModeScope {
 public:
  MathModeScope(const tr_host& host, uint32_t math_modes);
  ~MathModeScope();
  MathModeScope(const MathModeScope&) = delete;
  MathModeScope& operator=(const MathModeScope&) = delete;

 private:
  const bool is_gpu_;
  c10::Device device_{c10::kCPU};
  c10::Stream stream_;
};

}  // namespace torch_remote::worker::aten
