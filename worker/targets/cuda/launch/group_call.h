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

// The kernels that execute a group or a single node, with everything that a run needs except buffers. Prepared anew
// when sizes or strides change.
class GroupCall {
 public:
  // Requests the kernels; returns at once. kUnsupported: there are no kernels for these values.
  Status request_kernels(CudaDevice& device, const ir::Graph& graph, const ir::Group& group,
                         std::span<const int64_t> values);
  // Waits until the kernels are compiled. kUnsupported: one cannot be compiled.
  Status finish(CudaDevice& device, const ir::Graph& graph);
  // Sets the scalar arguments, which do not affect the code.
  void set_scalars(std::span<const int64_t> values);

  std::span<const codegen::Launch> launches() const { return launches_; }

  // Queues the launches; the GPU's context must be current. Returns kOutOfMemory if there is no memory.
  Status run(CudaDevice& device, std::span<const tr_buffer> buffers, uint64_t run_number) const;

 private:
  struct Prepared {
    KernelStore::Request* request = nullptr;
    const LoadedKernel* kernel = nullptr;
    std::vector<int64_t> strides, bounds;                        // All operands' values, concatenated.
    uint64_t scratch = 0;                                        // Bytes.
    std::shared_ptr<const std::vector<IndexedOperand>> indexed;  // Null: no operand is indexed.
  };
  Status prepare(CudaDevice& device, const ir::Graph& graph, const codegen::Launch& launch, Prepared* prepared);
  static Status run(CudaDevice& device, const codegen::Launch& launch, const Prepared& prepared,
                    std::span<const tr_buffer> buffers, uint64_t run_number);

  std::vector<codegen::Launch> launches_;
  std::vector<Prepared> prepared_;  // One per launch.
};

}  // namespace torch_remote::worker::cuda
