#pragma once

#include <memory>

#include "ir/graph.h"
#include "worker/runner/runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/kernels/kernel_images.h"
#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/launch/unit_program.h"
#include "worker/targets/cuda/ops/aten_kernels.h"
#include "worker/targets/cuda/ops/op_plan.h"

namespace torch_remote::worker::cuda {

// Nodes that kernels do that are written by hand.
class WrittenUnits {
 public:
  virtual ~WrittenUnits() = default;
  // Of one node. Null: there are no such kernels for its op.
  virtual std::unique_ptr<Unit> make(const ir::Graph& graph, const ir::Group& group) = 0;
  // Queues one of them, for who does the rest in another way: without parameters, or indices that may be wrong. The
  // GPU's context is current.
  virtual Status launch(const OpLaunch& launch, const RunMemory& memory) = 0;
};
// `kernels` and the device live longer.
std::shared_ptr<WrittenUnits> make_written_units(CudaDevice& device, KernelArchive kernels);

// The runner of ops that have kernels written by hand: random fills, scans, sorting, indices, joins, reductions, and
// results whose size depends on data. It is the last one: what it has no kernel for it accepts, too, and refuses when
// it runs, so that one such node does not refuse a program. Before that it asks torch's kernels, if there are any.
std::unique_ptr<Runner> make_op_runner(CudaDevice& device, std::shared_ptr<WrittenUnits> units,
                                       std::shared_ptr<AtenKernels> aten = nullptr);

}  // namespace torch_remote::worker::cuda
