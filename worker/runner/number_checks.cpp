#include "worker/runner/number_checks.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

namespace torch_remote::worker {
namespace {

using ir::ArgKind;
using ir::ArgTag;
using ir::DType;

// Rules for arguments of kind Scalar, by what kernels do with them. Scalar arguments without a rule (`other` of a
// comparison, `p` of a norm) are operands like tensors, or doubles.
struct Rule {
  std::string_view name;
  std::string_view beside;  // The op has this argument, too; empty: any op.
  bool wide = false;        // torch's CUDA kernels use a float for half types.
};
constexpr Rule kRules[] = {
    {"value", "tensor1", true},    // addcmul, addcdiv
    {"value", ""},                 // fills, paddings, threshold
    {"fill_value", ""},            //
    {"threshold", "beta", true},   // softplus
    {"threshold", ""},             //
    {"exponent", ""},              //
    {"lambd", ""},                 // shrinking
    {"alpha", "index"},            // index_add
    {"alpha", "", true},           // Sums, matmuls, elu.
    {"beta", "", true},            // Matmuls, softplus.
    {"scale", "", true},           // elu
    {"input_scale", "", true},     //
    {"negative_slope", "", true},  //
    {"weight", "", true},          // lerp
    {"min", "", true},             // clamp
    {"max", "", true},             //
    {"min_val", "", true},         // hardtanh
    {"max_val", "", true},         //
};

bool has_argument(const ir::OpDesc& desc, std::string_view name) {
  for (const ir::ArgDesc& arg : desc.args) {
    if (arg.name == name) return true;
  }
  return false;
}

const Rule* find_rule(const ir::OpDesc& desc, const ir::ArgDesc& arg) {
  if (arg.kind != ArgKind::kScalar && arg.kind != ArgKind::kOptionalScalar) return nullptr;
  for (const Rule& rule : kRules) {
    if (rule.name == arg.name && (rule.beside.empty() || has_argument(desc, rule.beside))) return &rule;
  }
  return nullptr;
}

// The view of the first result or, for in-place ops, of the first argument. Null for lists, because torch's kernels
// treat them in more than one way.
const ir::View* first_view(const ir::Graph& graph, const ir::Node& node) {
  for (const std::vector<ir::Arg>* const args : {&node.results, &node.args}) {
    if (args->empty() || args->front().tag == ArgTag::kNone) continue;
    return args->front().tag == ArgTag::kView ? &graph.views[args->front().a] : nullptr;
  }
  return nullptr;
}

// The C++ name of the type, as torch's messages have it.
std::string_view name_in_messages(DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
      return "uint8_t";
    case DType::kInt8:
      return "int8_t";
    case DType::kInt16:
      return "int16_t";
    case DType::kInt32:
      return "int";
    case DType::kInt64:
      return "int64_t";
    case DType::kUInt16:
      return "uint16_t";
    case DType::kUInt32:
      return "uint32_t";
    case DType::kUInt64:
      return "uint64_t";
    case DType::kFloat16:
      return "c10::Half";
    case DType::kBFloat16:
      return "c10::BFloat16";
    case DType::kFloat32:
      return "float";
    case DType::kFloat64:
      return "double";
    default:
      return {};
  }
}

// Like c10::overflows: a negative number may be the bits of an unsigned one; floats hold infinities and NaN.
template <typename To>
bool holds(int64_t number) {
  if constexpr (std::is_unsigned_v<To>) {
    const uint64_t size = number < 0 ? -static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    return size <= std::numeric_limits<To>::max();
  } else {
    return number >= std::numeric_limits<To>::min() && number <= std::numeric_limits<To>::max();
  }
}
template <typename To>
bool holds(double number) {
  return number >= static_cast<double>(std::numeric_limits<To>::min()) &&
         number <= static_cast<double>(std::numeric_limits<To>::max());
}
bool holds_float(double number, double largest) { return !std::isfinite(number) || std::fabs(number) <= largest; }

template <typename T>
bool holds(DType dtype, T number) {
  switch (dtype) {
    case DType::kUInt8:
      return holds<uint8_t>(number);
    case DType::kInt8:
      return holds<int8_t>(number);
    case DType::kInt16:
      return holds<int16_t>(number);
    case DType::kInt32:
      return holds<int32_t>(number);
    case DType::kInt64:
      return holds<int64_t>(number);
    case DType::kUInt16:
      return holds<uint16_t>(number);
    case DType::kUInt32:
      return holds<uint32_t>(number);
    case DType::kUInt64:
      return holds<uint64_t>(number);
    case DType::kFloat16:
      return holds_float(static_cast<double>(number), 65504);
    case DType::kBFloat16:
      return holds_float(static_cast<double>(number), 0x1.FEp127);
    case DType::kFloat32:
      return holds_float(static_cast<double>(number), std::numeric_limits<float>::max());
    default:
      return true;
  }
}

// The error for a number that this dtype does not hold.
Status overflow(DType dtype) {
  return {ErrorCode::kOpFailed,
          "value cannot be converted to type " + std::string(name_in_messages(dtype)) + " without overflow",
          "RuntimeError"};
}

}  // namespace

ScalarChecks::ScalarChecks(const ir::Graph& graph, const ir::Group& group, HalfPolicy half_policy) {
  for (uint32_t n = group.first; n <= group.last; ++n) {
    const ir::Node& node = graph.nodes[n];
    const ir::View* const view = first_view(graph, node);
    if (view == nullptr) continue;
    const ir::OpDesc& desc = ir::op_desc(node.opcode);
    for (size_t i = 0; i < node.args.size() && i < desc.args.size(); ++i) {
      const ArgTag tag = node.args[i].tag;
      if (tag != ArgTag::kInt && tag != ArgTag::kFloat) continue;
      const Rule* const rule = find_rule(desc, desc.args[i]);
      if (rule == nullptr) continue;
      const bool is_half = view->dtype == DType::kFloat16 || view->dtype == DType::kBFloat16;
      const DType dtype = is_half && rule->wide && half_policy == HalfPolicy::kWide ? DType::kFloat32 : view->dtype;
      if (!name_in_messages(dtype).empty()) numbers_.push_back({tag, node.args[i].a, dtype});
    }
  }
}

Status ScalarChecks::check(std::span<const int64_t> values) const {
  for (const Number& number : numbers_) {
    const int64_t value = values[number.symbol];
    const bool held =
        number.tag == ArgTag::kInt ? holds(number.dtype, value) : holds(number.dtype, std::bit_cast<double>(value));
    if (!held) return overflow(number.dtype);
  }
  return {};
}

}  // namespace torch_remote::worker
