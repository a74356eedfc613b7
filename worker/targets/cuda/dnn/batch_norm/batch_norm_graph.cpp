#include "worker/targets/cuda/dnn/batch_norm/batch_norm_graph.h"

#include <initializer_list>
#include <optional>
#include <utility>

#include "worker/targets/cuda/dnn/cudnn_descriptors.h"

namespace torch_remote::worker::cuda {
namespace {

using dnn::Attribute;
using dnn::AttributeType;
using dnn::Descriptor;
using dnn::DescriptorType;
using enum BatchNormId;

}  // namespace

std::string BatchNormProblem::key_of() const {
  std::string key = std::string(backward            ? "b"
                                : has_running_stats ? "r"
                                                    : "f") +
                    "t" + std::to_string(static_cast<int>(type)) + ":";
  for (const int64_t size : sizes) key += std::to_string(size) + ",";
  return key;
}

Status describe_batch_norm(const dnn::Table& table, dnn::Handle handle, const BatchNormProblem& problem,
                           std::vector<Descriptor>* made, Descriptor* graph) {
  dnn::Builder builder(table, made);
  const auto tensor = [&](BatchNormId id, const std::vector<int64_t>& sizes, dnn::Type type,
                          std::optional<Attribute> flag = {}) {
    return builder.tensor(static_cast<int64_t>(id), type, sizes, dnn::image_strides(sizes, true), flag);
  };
  const std::vector<int64_t> one(problem.sizes.size(), 1);
  std::vector<int64_t> channels = one;
  channels[1] = problem.sizes[1];
  const auto image = [&](BatchNormId id) { return tensor(id, problem.sizes, problem.type); };
  const auto of_channels = [&](BatchNormId id) { return tensor(id, channels, dnn::Type::kFloat32); };
  const auto number = [&](BatchNormId id) { return tensor(id, one, dnn::Type::kFloat32, Attribute::kTensorIsNumber); };

  std::vector<std::pair<Attribute, Descriptor>> tensors;
  if (problem.backward) {
    tensors = {{Attribute::kNormBackwardFrom, image(kInput)},
               {Attribute::kNormBackwardMean, of_channels(kMean)},
               {Attribute::kNormBackwardInverseStd, of_channels(kInverseStd)},
               {Attribute::kNormBackwardGrad, image(kGrad)},
               {Attribute::kNormBackwardScale, of_channels(kScale)},
               {Attribute::kNormBackwardGradScale, of_channels(kGradScale)},
               {Attribute::kNormBackwardGradBias, of_channels(kGradBias)},
               {Attribute::kNormBackwardTo, image(kGradInput)}};
  } else {
    tensors = {{Attribute::kNormForwardFrom, image(kInput)},
               {Attribute::kNormForwardMean, of_channels(kMean)},
               {Attribute::kNormForwardInverseStd, of_channels(kInverseStd)},
               {Attribute::kNormForwardScale, of_channels(kScale)},
               {Attribute::kNormForwardBias, of_channels(kBias)},
               {Attribute::kNormForwardEpsilon, number(kEpsilon)},
               {Attribute::kNormForwardTo, image(kOutput)}};
  }
  if (!problem.backward && problem.has_running_stats) {
    tensors.insert(tensors.end(), {{Attribute::kNormForwardMomentum, number(kMomentum)},
                                   {Attribute::kNormForwardMeanBefore, of_channels(kMeanBefore)},
                                   {Attribute::kNormForwardVarianceBefore, of_channels(kVarianceBefore)},
                                   {Attribute::kNormForwardMeanAfter, of_channels(kMeanAfter)},
                                   {Attribute::kNormForwardVarianceAfter, of_channels(kVarianceAfter)}});
  }
  if (problem.backward) {
    builder.make(DescriptorType::kNormBackward)
        .set_one(Attribute::kNormBackwardMode, AttributeType::kNormMode, dnn::NormMode::kBatch);
  } else {
    builder.make(DescriptorType::kNormForward)
        .set_one(Attribute::kNormForwardMode, AttributeType::kNormMode, dnn::NormMode::kBatch)
        .set_one(Attribute::kNormForwardPhase, AttributeType::kNormPhase, dnn::NormPhase::kTraining);
  }
  for (const auto& [attribute, descriptor] : tensors)
    builder.set_one(attribute, AttributeType::kDescriptor, descriptor);
  *graph = builder.graph(handle, {builder.finish()});
  return builder.status();
}

}  // namespace torch_remote::worker::cuda
