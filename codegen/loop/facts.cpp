#include "codegen/loop/facts.h"

#include "codegen/loop/scalar_ops.h"

namespace torch_remote::codegen {

Inputs inputs(const Value& value) {
  Inputs result;
  const auto add = [&](uint32_t input) { result.values[result.count++] = input; };
  switch (value.kind) {
    case Kind::kConstant:
    case Kind::kScalar:
    case Kind::kIndex:
      break;
    case Kind::kLoad:
      for (const uint32_t index : value.indices) add(index);
      break;
    case Kind::kConvert:
    case Kind::kBits:
    case Kind::kReduce:
    case Kind::kRunning:
      add(value.a);
      break;
    case Kind::kLdexp:
      add(value.a), add(value.b);
      break;
    case Kind::kFma:
    case Kind::kRandom:
      add(value.a), add(value.b), add(value.c);
      break;
    case Kind::kScalarOp: {
      const uint32_t all[] = {value.a, value.b, value.c};
      for (uint32_t i = 0; i < info(value.op).arity; ++i) add(all[i]);
      break;
    }
  }
  return result;
}

Facts facts(const Kernel& kernel, const Value& value, std::span<const Facts> earlier) {
  Facts result;
  for (const uint32_t input : inputs(value)) {
    result.dims |= earlier[input].dims;
    result.finish |= earlier[input].finish;
    result.reduced |= earlier[input].reduced;
  }
  if (value.kind == Kind::kIndex) result.dims = 1u << value.a;
  if (value.kind == Kind::kRunning) result.dims |= kernel.last_column();
  if (value.kind == Kind::kLoad) result.dims |= kernel.operands[value.operand].dims;
  if (value.kind == Kind::kReduce && value.over == Over::kColumns) {
    result.dims &= ~kernel.column_dims();
    result.reduced = true;
  } else if (value.kind == Kind::kReduce) {
    result.dims &= ~kernel.row_dims();
    if (value.over == Over::kLines) result.dims &= ~kernel.last_column();
    result.finish = true;
    result.reduced = false;  // the total itself is available in `finish`, whatever its operand was
  }
  return result;
}

std::vector<Facts> facts(const Kernel& kernel) {
  std::vector<Facts> result;
  result.reserve(kernel.values.size());
  for (const Value& value : kernel.values) result.push_back(facts(kernel, value, result));
  return result;
}

StoreFacts facts(const Kernel& kernel, const Store& store, std::span<const Facts> values) {
  StoreFacts result{.dims = kernel.operands[store.operand].dims | values[store.value].dims,
                    .finish = values[store.value].finish};
  for (const uint32_t index : store.indices) {
    result.dims |= values[index].dims;
    result.finish |= values[index].finish;
  }
  return result;
}

bool is_wide_sum(const Kernel& kernel, const Value& value) {
  return value.kind == Kind::kReduce && value.over != Over::kRows && value.reduction == Reduction::kSum &&
         value.type == ir::DType::kFloat64 && kernel.values[value.a].type == ir::DType::kFloat32;
}

bool sums_products(const Kernel& kernel, const Value& value) {
  if (!is_wide_sum(kernel, value)) return false;
  const Value& operand = kernel.values[value.a];
  return operand.kind == Kind::kScalarOp && operand.op == ir::ScalarOp::kMul;
}

uint32_t condition_of_sum(const Kernel& kernel, std::span<const Facts> values, uint32_t value) {
  const Value& sum = kernel.values[value];
  if (sum.kind != Kind::kReduce || sum.over != Over::kColumns || sum.reduction != Reduction::kSum) return kNone;
  const Value& choice = kernel.values[sum.a];
  if (choice.kind != Kind::kScalarOp || choice.op != ir::ScalarOp::kWhere) return kNone;
  const Value& otherwise = kernel.values[choice.c];
  const bool is_zero = otherwise.kind == Kind::kConstant && otherwise.number == 0 && otherwise.integer == 0;
  return is_zero && (values[choice.a].dims & kernel.column_dims()) == 0 ? choice.a : kNone;
}

UsedValues uses(const Kernel& kernel, std::span<const Facts> values) {
  UsedValues result{.rows = std::vector<bool>(values.size()), .finish = std::vector<bool>(values.size())};
  for (const Store& store : kernel.stores) {
    std::vector<bool>& used = facts(kernel, store, values).finish ? result.finish : result.rows;
    used[store.value] = true;
    for (const uint32_t index : store.indices) used[index] = true;
  }
  for (size_t i = values.size(); i-- > 0;) {
    const Value& value = kernel.values[i];
    const bool total = is_total(value);
    for (const uint32_t input : inputs(value)) {
      if (result.rows[i] || (total && result.finish[i])) result.rows[input] = true;
      if (result.finish[i] && !total) result.finish[input] = true;
    }
  }
  return result;
}

}  // namespace torch_remote::codegen
