#include "worker/targets/cuda/dnn/batch_norm/batch_norm_library.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace torch_remote::worker::cuda {

BatchNormLibrary::BatchNormLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options)
    : DeferredPlans(std::move(gpu), memory, std::move(options), "batch norm") {}

Status BatchNormLibrary::open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                              std::unique_ptr<BatchNormLibrary>* opened) {
  std::unique_ptr<BatchNormLibrary> library(new BatchNormLibrary(std::move(gpu), memory, std::move(options)));
  Status status = library->begin("batch norm");
  if (status.ok()) *opened = std::move(library);
  return status;
}

Status BatchNormLibrary::describe(const BatchNormProblem& problem, dnn::Handle handle,
                                  std::vector<dnn::Descriptor>* made, dnn::Descriptor* graph) const {
  return describe_batch_norm(table(), handle, problem, made, graph);
}

bool BatchNormLibrary::suits(const BatchNormProblem& problem, const std::vector<dnn::NumericalNote>& notes,
                             size_t /*level*/) const {
  return !problem.deterministic || std::ranges::count(notes, dnn::NumericalNote::kNondeterministic) == 0;
}

Status BatchNormLibrary::call(const BatchNormProblem& problem, const dnn::Plan& plan, const BatchNormPointers& pointers,
                              DevicePointer memory, Stream stream) const {
  using enum BatchNormId;
  std::vector<int64_t> ids;
  std::vector<DevicePointer> addresses;
  const auto add = [&](BatchNormId id, DevicePointer address) {
    ids.push_back(static_cast<int64_t>(id));
    addresses.push_back(address);
  };
  const auto number = [](const float& value) { return reinterpret_cast<DevicePointer>(&value); };
  add(kInput, pointers.input);
  add(kScale, pointers.scale);
  add(kMean, pointers.mean);
  add(kInverseStd, pointers.inverse_std);
  if (problem.backward) {
    add(kGrad, pointers.grad);
    add(kGradInput, pointers.grad_input);
    add(kGradScale, pointers.grad_scale);
    add(kGradBias, pointers.grad_bias);
  } else {
    add(kOutput, pointers.output);
    add(kBias, pointers.bias);
    add(kEpsilon, number(pointers.epsilon));
  }
  if (!problem.backward && problem.has_running_stats) {
    add(kMomentum, number(pointers.momentum));
    add(kMeanBefore, pointers.mean_before);
    add(kVarianceBefore, pointers.variance_before);
    add(kMeanAfter, pointers.mean_after);
    add(kVarianceAfter, pointers.variance_after);
  }
  return dnn::execute(table(), handle(), plan.plan, ids, addresses, memory, stream);
}

Status BatchNormLibrary::run(const Prepared& prepared, const BatchNormPointers& pointers) {
  return run_plan(prepared,
                  {pointers.input, pointers.output, pointers.scale, pointers.bias, pointers.mean, pointers.inverse_std,
                   pointers.mean_before, pointers.variance_before, pointers.mean_after, pointers.variance_after,
                   pointers.grad, pointers.grad_input, pointers.grad_scale, pointers.grad_bias,
                   std::bit_cast<uint32_t>(pointers.epsilon), std::bit_cast<uint32_t>(pointers.momentum)},
                  0, [this, prepared, pointers](const dnn::Plan& plan, DevicePointer memory, Stream stream) {
                    return call(prepared->problem(), plan, pointers, memory, stream);
                  });
}

}  // namespace torch_remote::worker::cuda
