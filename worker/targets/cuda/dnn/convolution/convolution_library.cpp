#include "worker/targets/cuda/dnn/convolution/convolution_library.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "worker/targets/cuda/dnn/cudnn_descriptors.h"

namespace torch_remote::worker::cuda {
namespace {

using dnn::Attribute;
using dnn::AttributeType;
using dnn::DescriptorType;

enum Id : int64_t { kImageId = 1, kFilterId, kOutputId, kBiasId, kBetweenId };

}  // namespace

ConvolutionLibrary::ConvolutionLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options)
    : DeferredPlans(std::move(gpu), memory, std::move(options), "a convolution") {}

Status ConvolutionLibrary::open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                                std::unique_ptr<ConvolutionLibrary>* opened) {
  std::unique_ptr<ConvolutionLibrary> library(new ConvolutionLibrary(std::move(gpu), memory, std::move(options)));
  Status status = library->begin("convolutions");
  if (status.ok()) *opened = std::move(library);
  return status;
}

Status ConvolutionLibrary::prepare(const ConvolutionProblem& problem, Prepared* prepared) {
  *prepared = find(problem);
  wait(*prepared);
  return status(**prepared);
}

Status ConvolutionLibrary::describe(const ConvolutionProblem& problem, dnn::Handle handle,
                                    std::vector<dnn::Descriptor>* made_for, dnn::Descriptor* graph) const {
  const bool wide = problem.type == dnn::Type::kFloat64;
  const dnn::Type precision = wide ? dnn::Type::kFloat64 : dnn::Type::kFloat32;
  dnn::Builder builder(table(), made_for);
  const auto tensor = [&](Id id, const std::vector<int64_t>& sizes, dnn::Type type, int64_t alignment) {
    const bool is_virtual = id == kBetweenId;
    return builder.tensor(id, type, sizes, dnn::image_strides(sizes, problem.channels_last),
                          is_virtual ? std::optional(Attribute::kTensorIsVirtual) : std::nullopt, alignment);
  };
  const dnn::Descriptor image = tensor(kImageId, problem.image, problem.type, dnn::kAlignment);
  const dnn::Descriptor filter = tensor(kFilterId, problem.filter, problem.type, dnn::kAlignment);
  const dnn::Descriptor output = tensor(kOutputId, problem.output, problem.type, dnn::kAlignment);
  // The convolution's result, if a bias is added to it.
  const dnn::Descriptor made =
      problem.adds_bias ? tensor(kBetweenId, problem.output, precision, dnn::kAlignment) : output;
  builder.make(DescriptorType::kConvolution)
      .set_one(Attribute::kConvolutionType, AttributeType::kDataType, precision)
      .set_one(Attribute::kConvolutionMode, AttributeType::kConvolutionMode, dnn::ConvolutionMode::kCrossCorrelation)
      .set_one(Attribute::kConvolutionDims, AttributeType::kInt64, static_cast<int64_t>(problem.stride.size()))
      .set(Attribute::kConvolutionDilations, AttributeType::kInt64, problem.dilation)
      .set(Attribute::kConvolutionStrides, AttributeType::kInt64, problem.stride)
      .set(Attribute::kConvolutionPaddings, AttributeType::kInt64, problem.padding)
      .set(Attribute::kConvolutionPaddingsAfter, AttributeType::kInt64, problem.padding_after);
  const dnn::Descriptor convolution = builder.finish();
  DescriptorType kind = DescriptorType::kForward;
  Attribute first = Attribute::kForwardAlpha;
  if (problem.pass == ConvolutionPass::kBackwardData) {
    kind = DescriptorType::kBackwardData;
    first = Attribute::kBackwardDataAlpha;
  } else if (problem.pass == ConvolutionPass::kBackwardFilter) {
    kind = DescriptorType::kBackwardFilter;
    first = Attribute::kBackwardFilterAlpha;
  }
  const auto attribute = [&](int i) { return static_cast<Attribute>(static_cast<int>(first) + i); };
  builder.make(kind);
  for (const int i : {0, 1}) {  // 1 * the result + 0 * the previous content
    if (wide) {
      builder.set_one(attribute(i), AttributeType::kDouble, i == 0 ? 1.0 : 0.0);
    } else {
      builder.set_one(attribute(i), AttributeType::kFloat, i == 0 ? 1.0F : 0.0F);
    }
  }
  builder.set_one(attribute(2), AttributeType::kDescriptor, convolution)
      .set_one(attribute(3), AttributeType::kDescriptor, filter)
      .set_one(attribute(4), AttributeType::kDescriptor, image)
      .set_one(attribute(5), AttributeType::kDescriptor, made);
  std::vector<dnn::Descriptor> operations = {builder.finish()};
  if (problem.adds_bias) {
    std::vector<int64_t> sizes(problem.output.size(), 1);
    sizes[1] = problem.output[1];
    const dnn::Descriptor bias = tensor(kBiasId, sizes, problem.type, dnn::item_size(problem.type));
    builder.make(DescriptorType::kPointwise)
        .set_one(Attribute::kPointwiseMode, AttributeType::kPointwiseMode, dnn::PointwiseMode::kAdd)
        .set_one(Attribute::kPointwisePrecision, AttributeType::kDataType, precision);
    const dnn::Descriptor add = builder.finish();
    builder.make(DescriptorType::kPointwiseOperation)
        .set_one(Attribute::kPointwiseOperation, AttributeType::kDescriptor, add)
        .set_one(Attribute::kPointwiseLeft, AttributeType::kDescriptor, made)
        .set_one(Attribute::kPointwiseRight, AttributeType::kDescriptor, bias)
        .set_one(Attribute::kPointwiseResult, AttributeType::kDescriptor, output);
    operations.push_back(builder.finish());
  }
  *graph = builder.graph(handle, operations);
  return builder.status();
}

// --- plans -----------------------------------------------------------------------------------------------------------

// Rejects engines that round f32 unless tf32 is allowed. Only the last level accepts nondeterministic sums.
bool ConvolutionLibrary::suits(const ConvolutionProblem& problem, const std::vector<dnn::NumericalNote>& notes,
                               size_t level) const {
  return std::ranges::none_of(notes, [&](dnn::NumericalNote note) {
    if (note == dnn::NumericalNote::kNondeterministic) return level + 1 != levels();
    return note == dnn::NumericalNote::kDownConvertInputs && problem.type == dnn::Type::kFloat32 && !problem.tf32;
  });
}

Status ConvolutionLibrary::check(const ConvolutionProblem& problem, size_t level) const {
  if (!problem.deterministic || level + 1 != levels()) return {};
  // Torch's message.
  return {ErrorCode::kUnsupported,
          "A convolution of these sizes does not have a deterministic implementation, but you set "
          "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation",
          "RuntimeError"};
}

// --- calls -----------------------------------------------------------------------------------------------------------

Status ConvolutionLibrary::call(const ConvolutionProblem& problem, const dnn::Plan& plan,
                                const ConvolutionPointers& pointers, DevicePointer workspace, Stream stream) const {
  std::vector<int64_t> ids = {kImageId, kFilterId, kOutputId};
  std::vector<DevicePointer> addresses = {pointers.image, pointers.filter, pointers.output};
  if (problem.adds_bias) {
    ids.push_back(kBiasId);
    addresses.push_back(pointers.bias);
  }
  return dnn::execute(table(), handle(), plan.plan, ids, addresses, workspace, stream);
}

Status ConvolutionLibrary::run(const Prepared& prepared, const ConvolutionPointers& pointers) {
  const auto run_once = [&] {
    return run_plan(prepared, {pointers.image, pointers.filter, pointers.output, pointers.bias}, 0,
                    [this, prepared, pointers](const dnn::Plan& plan, DevicePointer workspace, Stream stream) {
                      return call(prepared->problem(), plan, pointers, workspace, stream);
                    });
  };
  Status done = run_once();
  if (done.ok() || state(*prepared) != State::kWaiting) return done;
  wait(prepared);
  done = status(*prepared);
  return done.ok() ? run_once() : done;
}

}  // namespace torch_remote::worker::cuda
