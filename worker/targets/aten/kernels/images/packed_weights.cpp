#include "worker/targets/aten/kernels/images/packed_weights.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/ConvUtils.h>
#include <c10/util/Exception.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ir/ops/op_table_generated.h"

namespace torch_remote::worker::aten {
namespace {

// Indices of the arguments of aten::convolution.
enum : size_t { kInput, kWeight, kBias, kStride, kPadding, kDilation, kTransposed, kOutputPadding, kGroups };

// A single number applies to both dims.
std::vector<int64_t> both(const c10::IValue& given) {
  std::vector<int64_t> numbers = given.toIntVector();
  if (numbers.size() == 1) numbers.push_back(numbers[0]);
  return numbers;
}

// The parameters that decide which weight layout oneDNN prefers. The image size matters too, but any layout works for
// any image size.
struct ConvolutionParams {
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;

  explicit ConvolutionParams(std::span<const c10::IValue> arguments)
      : stride(both(arguments[kStride])),
        padding(both(arguments[kPadding])),
        dilation(both(arguments[kDilation])),
        groups(arguments[kGroups].toInt()) {}
  bool operator==(const ConvolutionParams&) const = default;
};

struct Packed {
  enum class State : uint8_t { kSeen, kPacked };
  State state = State::kSeen;
  // The layout and dtype of the weights that the copy was made from.
  c10::DimVector sizes, strides;
  int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;
  at::Tensor tensor;                        // the copy; undefined if there is none
  std::optional<ConvolutionParams> params;  // the convolution that a copy in oneDNN's own layout is for

  bool is_of(const at::Tensor& weight) const {
    return weight.sizes() == c10::IntArrayRef(sizes) && weight.strides() == c10::IntArrayRef(strides) &&
           weight.storage_offset() == offset && weight.scalar_type() == dtype;
  }
};

// Whether torch would call oneDNN for this convolution, with weights that may have a layout of oneDNN's own.
bool uses_onednn(std::span<const c10::IValue> arguments, const ConvolutionParams& params) {
  const at::Tensor &input = arguments[kInput].toTensor(), &weight = arguments[kWeight].toTensor();
  const bool float_type = input.scalar_type() == at::kFloat || input.scalar_type() == at::kBFloat16;
  if (!float_type || weight.scalar_type() != input.scalar_type() || arguments[kTransposed].toBool() ||
      input.numel() == 0 || weight.numel() == 0) {
    return false;
  }
  const std::vector<int64_t> output_padding = both(arguments[kOutputPadding]);
  const at::native::ConvBackend backend = at::native::select_conv_backend(
      input, weight, arguments[kBias].toOptional<at::Tensor>(), c10::fromIntArrayRefSlow(params.stride),
      c10::fromIntArrayRefSlow(params.padding), c10::fromIntArrayRefSlow(params.dilation), false,
      c10::fromIntArrayRefSlow(output_padding), params.groups, at::OptionalSymIntArrayRef());
  return backend == at::native::ConvBackend::Mkldnn;
}

c10::OperatorHandle find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

at::Tensor reordered(std::span<const c10::IValue> arguments, const ConvolutionParams& params) {
  static const c10::OperatorHandle op = find("mkldnn::_reorder_convolution_weight");
  c10::Stack stack{arguments[kWeight], params.padding, params.stride,
                   params.dilation,    params.groups,  arguments[kInput].toTensor().sizes().vec()};
  op.callBoxed(&stack);
  return std::move(stack[0]).toTensor();
}

void release(void* data) { delete static_cast<Packed*>(data); }

}  // namespace

bool may_pack_weights(const ir::Node& node) {
  return node.opcode == ir::ops::aten_convolution && node.args[0].tag == ir::ArgTag::kView &&
         node.args[1].tag == ir::ArgTag::kView;
}

at::Tensor packed_weights(tr_cached_data* cached_data, std::span<const c10::IValue> arguments) {
  constexpr auto kLast = c10::MemoryFormat::ChannelsLast;
  const at::Tensor &input = arguments[kInput].toTensor(), &weight = arguments[kWeight].toTensor();
  if (!cached_data || input.dim() != 4 || weight.dim() != 4 || input.suggest_memory_format() != kLast) return {};
  if (!cached_data->data) {
    auto seen = std::make_unique<Packed>();
    seen->sizes = weight.sizes();
    seen->strides = weight.strides();
    seen->offset = weight.storage_offset();
    seen->dtype = weight.scalar_type();
    *cached_data = {seen.release(), release};
    return {};
  }
  if (cached_data->release != release) return {};
  Packed& packed = *static_cast<Packed*>(cached_data->data);
  if (!packed.is_of(weight)) return {};
  if (packed.state == Packed::State::kSeen) {
    packed.state = Packed::State::kPacked;
    try {
      ConvolutionParams params(arguments);
      if (uses_onednn(arguments, params)) {
        packed.tensor = reordered(arguments, params);
        packed.params = std::move(params);
      } else if (!weight.is_contiguous(kLast)) {
        packed.tensor = weight.contiguous(kLast);
      }
    } catch (const c10::OutOfMemoryError&) {  // without memory for a copy, we use the weights as they are
    }
  }
  if (!packed.params) return packed.tensor;
  // Other convolutions may use the same weights.
  const bool fits = *packed.params == ConvolutionParams(arguments) && uses_onednn(arguments, *packed.params);
  return fits ? packed.tensor : at::Tensor();
}

at::Tensor convolve(std::span<const c10::IValue> arguments, const at::Tensor& weight) {
  static const c10::OperatorHandle op = find("mkldnn::_convolution_pointwise");
  ConvolutionParams params(arguments);
  c10::Stack stack{arguments[kInput],
                   weight,
                   arguments[kBias],
                   std::move(params.padding),
                   std::move(params.stride),
                   std::move(params.dilation),
                   params.groups,
                   "none",
                   c10::List<std::optional<at::Scalar>>(),
                   c10::IValue()};
  op.callBoxed(&stack);
  return std::move(stack[0]).toTensor();
}

}  // namespace torch_remote::worker::aten
