#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/runner/plugin_runner.h"
#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/launch/unit_program.h"

// Torch's kernels for a GPU, for ops that nothing else does: the plugin around libtorch (worker/targets/aten), where a
// libtorch for CUDA lies beside it. That is opened by the first op that needs it, which takes seconds.
namespace torch_remote::worker::cuda {

struct AtenSource {
  // Opens the plugin. Null: there is no libtorch for CUDA.
  std::function<Status(const tr_runner_api** api)> open;
  std::string library;  // with its kernels; empty: libtorch_cuda.so beside the libtorch_cpu.so of the plugin
  std::string found;    // its path, for people
  std::string missing;  // why there is none; behind "; " what to do
};

// The one in the folder of torch's libraries. `plugin`: path of the plugin.
AtenSource find_aten(const std::string& folder, const std::string& plugin);

class AtenKernels {
 public:
  AtenKernels(CudaDevice& device, AtenSource source) : device_(device), source_(std::move(source)) {}

  // Whether there may be such kernels: opens nothing.
  bool is_there() const { return source_.open != nullptr; }
  bool has_op(const char* name);
  // Why it does not do an op: the end of a sentence.
  std::string why_not(std::string_view op);

  // A node of a program, whose bytes and graph outlive it. What it cannot do is found out when it is asked.
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group,
                                  std::shared_ptr<const std::vector<uint8_t>> bytes);

  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program);
  CudaDevice& device() { return device_; }

 private:
  Status open();

  CudaDevice& device_;
  const AtenSource source_;
  bool opened_ = false;
  Status status_;  // then
  std::unique_ptr<Runner> runner_;
};

}  // namespace torch_remote::worker::cuda
