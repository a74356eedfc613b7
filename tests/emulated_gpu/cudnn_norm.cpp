#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "tests/emulated_gpu/cudnn_state.h"

// Batch norm in training mode and its gradients: which graphs are supported, and their evaluation.
namespace torch_remote::worker::cuda::emulated {
namespace {

using dnn::Attribute;
using dnn::Descriptor;
using dnn::DescriptorType;
using dnn::Type;
using Status = dnn::Result;
using enum dnn::Attribute;

Status fail(std::string* why, Status status, std::string text) {
  *why = std::move(text);
  return status;
}

enum class Is : uint8_t { kImage, kChannels, kNumber };
struct Rule {
  Attribute attribute;
  Is what;
  bool must, made;
};
constexpr Rule kForwardRules[] = {
    {kNormForwardFrom, Is::kImage, true, false},
    {kNormForwardMean, Is::kChannels, true, true},
    {kNormForwardInverseStd, Is::kChannels, true, true},
    {kNormForwardScale, Is::kChannels, true, false},
    {kNormForwardBias, Is::kChannels, true, false},
    {kNormForwardEpsilon, Is::kNumber, true, false},
    {kNormForwardMomentum, Is::kNumber, false, false},
    {kNormForwardMeanBefore, Is::kChannels, false, false},
    {kNormForwardVarianceBefore, Is::kChannels, false, false},
    {kNormForwardMeanAfter, Is::kChannels, false, true},
    {kNormForwardVarianceAfter, Is::kChannels, false, true},
    {kNormForwardTo, Is::kImage, true, true},
};
constexpr Rule kBackwardRules[] = {
    {kNormBackwardFrom, Is::kImage, true, false},          {kNormBackwardMean, Is::kChannels, true, false},
    {kNormBackwardInverseStd, Is::kChannels, true, false}, {kNormBackwardGrad, Is::kImage, true, false},
    {kNormBackwardScale, Is::kChannels, true, false},      {kNormBackwardGradScale, Is::kChannels, true, true},
    {kNormBackwardGradBias, Is::kChannels, true, true},    {kNormBackwardTo, Is::kImage, true, true},
};
std::span<const Rule> rules(bool backward) {
  if (backward) return kBackwardRules;
  return kForwardRules;
}

bool is_channels_last(const DnnTensor& tensor) {
  int64_t step = tensor.sizes[1];
  bool good = tensor.sizes[1] == 1 || tensor.strides[1] == 1;
  for (size_t d = tensor.sizes.size(); d-- > 2; step *= tensor.sizes[d])
    good = good && (tensor.sizes[d] == 1 || tensor.strides[d] == step);
  return good && (tensor.sizes[0] == 1 || tensor.strides[0] == step);
}

}  // namespace

bool DnnNorm::writes(Attribute attribute) const {
  return std::ranges::any_of(rules(backward),
                             [&](const Rule& rule) { return rule.attribute == attribute && rule.made; });
}

Status read_norm(const dnn::DescriptorState& operation, DnnNorm* norm, std::string* why) {
  norm->backward = operation.kind == DescriptorType::kNormBackward;
  const Attribute mode = norm->backward ? kNormBackwardMode : kNormForwardMode;
  if (get_scalar<dnn::NormMode>(operation, mode) != dnn::NormMode::kBatch)
    return fail(why, Status::kNotSupported, "another norm than that of batches");
  if (!norm->backward && get_scalar<dnn::NormPhase>(operation, kNormForwardPhase) != dnn::NormPhase::kTraining)
    return fail(why, Status::kNotSupported, "batch norm that does not train");
  for (const Rule& rule : rules(norm->backward)) {
    if (find(operation, rule.attribute) == nullptr) {
      if (rule.must) return fail(why, Status::kBadParam, "a tensor is missing");
      continue;
    }
    const Descriptor descriptor = get_scalar<Descriptor>(operation, rule.attribute);
    if (descriptor->kind != DescriptorType::kTensor) return fail(why, Status::kBadParamDescriptorType, "no tensor");
    norm->tensors[rule.attribute] = tensor_of(*descriptor);
  }
  const DnnTensor& image = norm->tensors.at(norm->backward ? kNormBackwardFrom : kNormForwardFrom);
  std::vector<int64_t> channels(image.sizes.size(), 1);
  channels[1] = image.sizes[1];
  std::set<int64_t> ids;
  for (const Rule& rule : rules(norm->backward)) {
    const DnnTensor* const tensor = norm->find(rule.attribute);
    if (tensor == nullptr) continue;
    if (!ids.insert(tensor->id).second) return fail(why, Status::kBadParamDuplicatedEntries, "an id twice");
    const bool fits = rule.what == Is::kImage      ? tensor->sizes == image.sizes
                      : rule.what == Is::kChannels ? tensor->sizes == channels
                                                   : tensor->count() == 1;
    if (!fits) return fail(why, Status::kBadParamShapeMismatch, "sizes do not fit");
    if (tensor->is_virtual || tensor->is_host_scalar != (rule.what == Is::kNumber))
      return fail(why, Status::kBadParam, "a number is one of the host's, and all else has memory");
  }
  const std::array running = {kNormForwardMomentum, kNormForwardMeanBefore, kNormForwardVarianceBefore,
                              kNormForwardMeanAfter, kNormForwardVarianceAfter};
  const auto given = std::ranges::count_if(running, [&](Attribute each) { return norm->find(each) != nullptr; });
  if (given != 0 && given != static_cast<std::ptrdiff_t>(running.size()))
    return fail(why, Status::kBadParam, "some of what statistics need that run");
  return Status::kSuccess;
}

Status supports_norm(const DnnNorm& norm, std::string* why) {
  const Type type = norm.tensors.at(norm.backward ? kNormBackwardFrom : kNormForwardFrom).type;
  if (type == Type::kFloat64) return fail(why, Status::kNotSupportedDataType, "f64");
  for (const Rule& rule : rules(norm.backward)) {
    const DnnTensor* const tensor = norm.find(rule.attribute);
    if (tensor == nullptr) continue;
    if (tensor->type != (rule.what == Is::kImage ? type : Type::kFloat32))
      return fail(why, Status::kNotSupportedDataType, "types differ");
    // The real library copies images in other layouts first.
    if (!is_channels_last(*tensor)) return fail(why, Status::kNotSupportedLayout, "not channels last");
    if (rule.what != Is::kNumber && tensor->alignment < 16)
      return fail(why, Status::kNotSupported, "an alignment below 16");
    if (rule.what == Is::kImage && tensor->sizes[1] * dnn::item_size(type) % 16 != 0)
      return fail(why, Status::kNotSupportedShape, "channels that are no multiple of 16 bytes");
  }
  return Status::kSuccess;
}

void compute(const DnnNorm& norm, const std::map<int64_t, std::byte*>& addresses,
             const std::map<int64_t, float>& numbers) {
  const auto at = [&](Attribute attribute) { return addresses.at(norm.tensors.at(attribute).id); };
  const auto number = [&](Attribute attribute) { return numbers.at(norm.tensors.at(attribute).id); };
  const DnnTensor& image = norm.tensors.at(norm.backward ? kNormBackwardFrom : kNormForwardFrom);
  const std::byte* const from = at(norm.backward ? kNormBackwardFrom : kNormForwardFrom);
  std::byte* const to = at(norm.backward ? kNormBackwardTo : kNormForwardTo);
  const int64_t channels = image.sizes[1], points = image.count() / channels;
  const auto each = [&](int64_t channel, const auto& f) {
    for (int64_t i = 0; i < points; ++i) f(static_cast<uint64_t>(i * channels + channel) * dnn::item_size(image.type));
  };
  const auto load = [](const std::byte* data, int64_t channel) {
    return static_cast<double>(load_element(Type::kFloat32, data + channel * 4));
  };
  const auto store = [](std::byte* data, int64_t channel, double value) {
    store_element(Type::kFloat32, static_cast<float>(value), data + channel * 4);
  };
  const auto element = [&](const std::byte* data, uint64_t place) {
    return static_cast<double>(load_element(image.type, data + place));
  };
  const auto count = static_cast<double>(points);
  for (int64_t channel = 0; channel < channels; ++channel) {
    double sum = 0, squares = 0;
    if (norm.backward) {
      const std::byte* const grad = at(kNormBackwardGrad);
      const double mean = load(at(kNormBackwardMean), channel), deviation = load(at(kNormBackwardInverseStd), channel);
      const double scale = load(at(kNormBackwardScale), channel);
      each(channel, [&](uint64_t place) {
        sum += element(grad, place);
        squares += element(grad, place) * (element(from, place) - mean) * deviation;
      });
      store(at(kNormBackwardGradScale), channel, squares);
      store(at(kNormBackwardGradBias), channel, sum);
      each(channel, [&](uint64_t place) {
        const double normed = (element(from, place) - mean) * deviation;
        const double made = scale * deviation * (element(grad, place) - sum / count - normed * squares / count);
        store_element(image.type, static_cast<float>(made), to + place);
      });
      continue;
    }
    each(channel, [&](uint64_t place) { sum += element(from, place); });
    const double mean = sum / count;
    each(channel, [&](uint64_t place) {
      const double x = element(from, place) - mean;
      squares += x * x;
    });
    const double deviation = 1 / std::sqrt(squares / count + static_cast<double>(number(kNormForwardEpsilon)));
    const double scale = load(at(kNormForwardScale), channel), bias = load(at(kNormForwardBias), channel);
    store(at(kNormForwardMean), channel, mean);
    store(at(kNormForwardInverseStd), channel, deviation);
    each(channel, [&](uint64_t place) {
      const double made = (element(from, place) - mean) * deviation * scale + bias;
      store_element(image.type, static_cast<float>(made), to + place);
    });
    if (norm.find(kNormForwardMomentum) == nullptr) continue;
    const double share = static_cast<double>(number(kNormForwardMomentum));
    const auto go_on = [&](Attribute before, Attribute after, double now) {
      store(at(after), channel, (1 - share) * load(at(before), channel) + share * now);
    };
    go_on(kNormForwardMeanBefore, kNormForwardMeanAfter, mean);
    go_on(kNormForwardVarianceBefore, kNormForwardVarianceAfter, squares / (count - 1));
  }
}

}  // namespace torch_remote::worker::cuda::emulated
