#pragma once

#include <memory>

#include "ir/status.h"
#include "worker/targets/cuda/dnn/batch_norm/batch_norm_graph.h"
#include "worker/targets/cuda/dnn/deferred_plans.h"

namespace torch_remote::worker::cuda {

// Addresses of the tensors that the problem's pass uses.
struct BatchNormPointers {
  DevicePointer input = 0, output = 0, scale = 0, bias = 0, mean = 0, inverse_std = 0;
  DevicePointer mean_before = 0, variance_before = 0, mean_after = 0, variance_after = 0;
  DevicePointer grad = 0, grad_input = 0, grad_scale = 0, grad_bias = 0;
  float epsilon = 0, momentum = 0;
};

// Batch norm with cuDNN.
class BatchNormLibrary final : public DeferredPlans<BatchNormProblem> {
 public:
  static Status open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                     std::unique_ptr<BatchNormLibrary>* library);
  ~BatchNormLibrary() override { close(); }

  // See DeferredPlans::run_plan. `mean_after` and `variance_after` must not be the memory of `mean_before` and
  // `variance_before`, because timing runs the call several times.
  Status run(const Prepared& prepared, const BatchNormPointers& pointers);

 private:
  BatchNormLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options);

  Status describe(const BatchNormProblem& problem, dnn::Handle handle, std::vector<dnn::Descriptor>* made,
                  dnn::Descriptor* graph) const override;
  bool suits(const BatchNormProblem& problem, const std::vector<dnn::NumericalNote>& notes,
             size_t level) const override;
  Status call(const BatchNormProblem& problem, const dnn::Plan& plan, const BatchNormPointers& pointers,
              DevicePointer memory, Stream stream) const;
};

}  // namespace torch_remote::worker::cuda
