#pragma once

#include <memory>

#include "ir/status.h"
#include "worker/targets/cuda/dnn/attention/attention_graph.h"
#include "worker/targets/cuda/dnn/deferred_plans.h"

namespace torch_remote::worker::cuda {

using PreparedAttention = DeferredPlan<AttentionProblem>;

// Addresses of the tensors that the problem's pass uses.
struct AttentionPointers {
  DevicePointer query = 0, key = 0, value = 0, out = 0, logsumexp = 0, bias = 0;
  DevicePointer grad = 0, grad_query = 0, grad_key = 0, grad_value = 0;
  float scale = 1;
};

// Attention with cuDNN.
class AttentionLibrary final : public DeferredPlans<AttentionProblem> {
 public:
  // kUnsupported: the library is too old.
  static Status open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                     std::unique_ptr<AttentionLibrary>* library);
  ~AttentionLibrary() override { close(); }

  // See DeferredPlans::run_plan.
  Status run(const Prepared& prepared, const AttentionPointers& pointers);

  static constexpr size_t kOldest = 91800;  // Older versions have known bugs.

 private:
  AttentionLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options);

  Status describe(const AttentionProblem& problem, dnn::Handle handle, std::vector<dnn::Descriptor>* made,
                  dnn::Descriptor* graph) const override;
  Status call(const AttentionProblem& problem, const dnn::Plan& plan, const AttentionPointers& pointers,
              DevicePointer memory, Stream stream) const;
};

}  // namespace torch_remote::worker::cuda
