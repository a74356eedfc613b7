#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/lower/launch.h"
#include "ir/graph.h"
#include "ir/status.h"
#include "worker/device/buffer.h"
#include "worker/targets/cuda/device/cuda_device.h"

namespace torch_remote::worker::cuda {

// Makes dims that a caller would loop over dims of the kernel, as many as it may have (none if it reduces rows, which
// are others at each place of these dims), and has the kernel itself read what another caller would pack. What is left
// in `launch->outer` is looped over by whoever calls. kUnsupported: the kernel would be none.
Status take_in_loops(codegen::Launch* launch);

// Kernels that do a group, or one node, with all that a run of them needs beside buffers: made when sizes or strides
// change.
class GroupCall {
 public:
  // Asks for its kernels; returns at once. kUnsupported: none does it with these values.
  Status ask(CudaDevice& device, const ir::Graph& graph, const ir::Group& group, std::span<const int64_t> values);
  // Waits until they are compiled. kUnsupported: one cannot be.
  Status finish(CudaDevice& device, const ir::Graph& graph);
  // Numbers that are arguments as they are.
  void set_scalars(std::span<const int64_t> values);

  std::span<const codegen::Launch> launches() const { return launches_; }

  // Queues it; the GPU's context is current. Out of memory: kOutOfMemory.
  Status run(CudaDevice& device, std::span<const tr_buffer> buffers, uint64_t run_number) const;

 private:
  struct Prepared {
    KernelStore::Asked* asked = nullptr;
    const LoadedKernel* kernel = nullptr;
    std::vector<int64_t> strides, bounds;                        // of all operands
    uint64_t scratch = 0;                                        // bytes
    std::shared_ptr<const std::vector<IndexedOperand>> indexed;  // null: no operand is
  };
  Status prepare(CudaDevice& device, const ir::Graph& graph, const codegen::Launch& launch, Prepared* prepared);
  static Status run(CudaDevice& device, const codegen::Launch& launch, const Prepared& prepared,
                    std::span<const tr_buffer> buffers, uint64_t run_number);

  std::vector<codegen::Launch> launches_;
  std::vector<Prepared> prepared_;  // of each
};

}  // namespace torch_remote::worker::cuda
