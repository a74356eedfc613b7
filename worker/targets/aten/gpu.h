#pragma once

#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/Stream.h>

#include <cstdint>

#include "worker/runner/plugin.h"

// Tensors on a GPU, whose kernels are in CUDA's libtorch. That is opened here, at run time; nothing of it is needed to
// build this: it is asked through the dispatcher, and by what torch's core knows of devices.
//
// Its work goes to the host's stream, and its memory (of results, and while an op runs) comes from the host. The GPU's
// primary context is the one that the host uses, too.
namespace torch_remote::worker::aten {

// What a program's tensors are, and whose kernels do its ops.
struct Target {
  c10::Device device{c10::kCPU};
  c10::DispatchKey key = c10::DispatchKey::CPU;

  bool is_gpu() const { return !device.is_cpu(); }
};
Target target_of(const tr_host& host);

// Opens CUDA's libtorch, and gives it the memory of the host, which must live until `leave_gpu`. Throws what is wrong
// with it, and c10::Error of the driver's.
void open_gpu(const tr_host& host);
void leave_gpu(const tr_host& host);

// While it lives, what the thread calls is done with these modes (ir/math_modes.h), and on the stream of a host with a
// GPU. The modes are the process's: not for a process of the user's.
class OnTarget {
 public:
  OnTarget(const tr_host& host, uint32_t math);
  ~OnTarget();
  OnTarget(const OnTarget&) = delete;
  OnTarget& operator=(const OnTarget&) = delete;

 private:
  const bool is_gpu_;
  c10::Device device_{c10::kCPU};
  c10::Stream stream_;
};

}  // namespace torch_remote::worker::aten
