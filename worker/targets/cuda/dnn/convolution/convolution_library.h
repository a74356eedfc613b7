#pragma once

#include <memory>
#include <vector>

#include "ir/status.h"
#include "worker/targets/cuda/dnn/convolution/convolution.h"
#include "worker/targets/cuda/dnn/deferred_plans.h"

namespace torch_remote::worker::cuda {

using PreparedConvolution = DeferredPlan<ConvolutionProblem>;

// Addresses on the GPU. ConvolutionProblem::pass says which tensor is computed from the other ones. `bias` is used only
// if the problem adds a bias.
struct ConvolutionPointers {
  DevicePointer image = 0, filter = 0, output = 0, bias = 0;
};

// Convolutions with cuDNN. No other runner executes them, so callers wait for the plan. DeferredPlanOptions::timed has
// no effect: up to kMaxPlans heuristic results get plans. Untuned problems use the others if memory is short.
class ConvolutionLibrary final : public DeferredPlans<ConvolutionProblem> {
 public:
  static Status open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                     std::unique_ptr<ConvolutionLibrary>* library);
  ~ConvolutionLibrary() override { close(); }

  // Waits until the problem's plans are built, which may take seconds. kUnsupported: cuDNN does not support the
  // problem. This answer is cached; after other errors, the next call tries again.
  Status prepare(const ConvolutionProblem& problem, Prepared* prepared);
  // See DeferredPlans::run_plan. If the plan named by the choice file fails, requests plans again and waits for them.
  Status run(const Prepared& prepared, const ConvolutionPointers& pointers);

 private:
  ConvolutionLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options);

  Status describe(const ConvolutionProblem& problem, dnn::Handle handle, std::vector<dnn::Descriptor>* made,
                  dnn::Descriptor* graph) const override;
  // Deterministic engines are preferred, even if they are slower.
  size_t levels() const override { return 2; }
  bool suits(const ConvolutionProblem& problem, const std::vector<dnn::NumericalNote>& notes,
             size_t level) const override;
  Status check(const ConvolutionProblem& problem, size_t level) const override;
  size_t max_plans(const ConvolutionProblem&) const override { return kMaxPlans; }
  bool is_only_runner() const override { return true; }
  Status call(const ConvolutionProblem& problem, const dnn::Plan& plan, const ConvolutionPointers& pointers,
              DevicePointer workspace, Stream stream) const;

  static constexpr size_t kMaxPlans = 4;
};

}  // namespace torch_remote::worker::cuda
