// The dtypes that torch's CPU kernels do not support.
#include <ATen/native/TypeProperties.h>

#include <algorithm>

#include "frontend/shapes/call_checks.h"
#include "ir/ops/op_table.h"

namespace torch_remote::frontend {
namespace {

using c10::IValue;
using c10::ScalarType;

constexpr uint64_t bit(ScalarType dtype) { return uint64_t{1} << static_cast<int>(dtype); }

constexpr uint64_t kBool = bit(ScalarType::Bool), kByte = bit(ScalarType::Byte), kChar = bit(ScalarType::Char),
                   kShort = bit(ScalarType::Short), kInt = bit(ScalarType::Int), kLong = bit(ScalarType::Long),
                   kHalf = bit(ScalarType::Half), kBFloat16 = bit(ScalarType::BFloat16),
                   kFloat = bit(ScalarType::Float), kDouble = bit(ScalarType::Double),
                   kComplexHalf = bit(ScalarType::ComplexHalf), kComplexFloat = bit(ScalarType::ComplexFloat),
                   kComplexDouble = bit(ScalarType::ComplexDouble);
constexpr uint64_t kIntegers = kByte | kChar | kShort | kInt | kLong;
constexpr uint64_t kReduced = kHalf | kBFloat16;
constexpr uint64_t kReals = kReduced | kFloat | kDouble;
constexpr uint64_t kComplex = kComplexHalf | kComplexFloat | kComplexDouble;

struct Row {
  std::string_view op;      // functional overload; the row also applies to in-place and out overloads
  std::string_view kernel;  // kernel's name in torch's error
  uint64_t dtypes;
  bool takes_scalars = false;  // tensors of rank 0 are accepted anyway
};

constexpr Row kRows[] = {
#include "frontend/shapes/kernel_dtypes.inc"
};

// The dtype that an op computes in: a given dtype, the common dtype of operands and number, or the first operand's
// dtype.
ScalarType computed_in(const OpEntry& op, const IValue* args) {
  if (op.dtype >= 0 && !args[op.dtype].isNone()) return args[op.dtype].toScalarType();
  const bool together = op.desc->family == ir::Family::kPointwise;
  const bool wraps = (op.functional != nullptr ? *op.functional : op).has(ir::kFactWrapsNumber);
  at::native::ResultTypeState state;
  for (uint32_t i = 0; i < op.arg_count; ++i) {
    if (wraps && op.desc->args[i].role == ir::ArgRole::kValue && args[i].isScalar()) {
      state = at::native::update_result_type_state(args[i].toScalar(), state);
    }
    if (op.desc->args[i].role != ir::ArgRole::kOperand || !args[i].isTensor() || !args[i].toTensor().defined())
      continue;
    if (!together) return args[i].toTensor().scalar_type();
    state = at::native::update_result_type_state(args[i].toTensor(), state);
  }
  return at::native::result_type(state);
}

// Raises if `op` computes in `dtype` and a row with one of these names refuses it.
void refuse(const OpEntry& op, const IValue* args, ScalarType dtype, std::initializer_list<std::string_view> names) {
  // other kernels may return before their check if there are no elements
  const bool looks = op.desc->family == ir::Family::kPointwise;
  for (uint32_t i = 0; !looks && i < op.arg_count; ++i) {
    if (args[i].isTensor() && args[i].toTensor().defined() && args[i].toTensor().numel() == 0) return;
  }
  for (const Row& row : kRows) {
    if (!(row.dtypes & bit(dtype)) || std::ranges::find(names, row.op) == names.end()) continue;
    if (row.takes_scalars && args[0].toTensor().dim() == 0) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(false, "\"", row.kernel, "\" not implemented for '", dtype, "'");
  }
}

}  // namespace

uint64_t find_refused_dtypes(std::string_view name) {
  uint64_t dtypes = 0;
  const auto before = [](const Row& row, std::string_view op) { return row.op < op; };
  for (const Row* row = std::lower_bound(std::begin(kRows), std::end(kRows), name, before);
       row != std::end(kRows) && row->op == name; ++row) {
    dtypes |= row->dtypes;
  }
  return dtypes;
}

void check_kernel_dtype(const OpEntry& op, const IValue* args) {
  const ScalarType dtype = computed_in(op, args);
  if (!(op.refused_dtypes & bit(dtype))) return;
  // CPU compares the result's dtype with that of the written tensor first. Comparisons have bool results.
  const at::Tensor* written = op.desc->family == ir::Family::kPointwise ? written_at(op, args, 0) : nullptr;
  const bool compares = op.functional != nullptr && op.functional->desc->shape_rule == ir::ShapeRule::kComparison;
  TORCH_CHECK(written == nullptr || compares || c10::canCast(dtype, written->scalar_type()), "result type ", dtype,
              " can't be cast to the desired output type ", written->scalar_type());
  refuse(op, args, dtype, {op.desc->name, op.functional != nullptr ? op.functional->desc->name : ""});
}

void check_single_call(const OpEntry& op, const IValue* args) {
  const OpEntry& single = *op.per_tensor_op;
  if ((op.refused_dtypes | single.refused_dtypes) != 0) {
    const ScalarType dtype = computed_in(single, args);
    if ((op.refused_dtypes | single.refused_dtypes) & bit(dtype)) {
      const auto functional = [](const OpEntry& of) { return of.functional != nullptr ? of.functional : &of; };
      refuse(single, args, dtype, {functional(op)->desc->name, functional(single)->desc->name});
    }
  }
  if (single.check != nullptr) single.check(single, args);
}

}  // namespace torch_remote::frontend
