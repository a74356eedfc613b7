#include <vector>

#include "codegen/loop/facts.h"
#include "codegen/loop/loop_ir.h"
#include "codegen/loop/scalar_math.h"
#include "codegen/loop/scalar_ops.h"

// Checks the rules of docs/loop_ir.md. Each error names the value, operand or store that breaks one.
namespace torch_remote::codegen {
namespace {

using ir::DType;

class Verifier {
 public:
  explicit Verifier(const Kernel& kernel) : kernel_(kernel) {}

  Status run() {
    if (domain() && operands() && values() && stores()) return {};
    return Status::invalid(error_);
  }

 private:
  bool fail(const std::string& what) {
    error_ = where_ + ": " + what;
    return false;
  }
  static std::string named(DType type) {
    const std::string_view result = name(type);
    return result.empty() ? "an invalid type" : std::string(result);
  }

  bool domain() {
    where_ = "kernel";
    if (kernel_.rows > kMaxRows) return fail("has more than " + std::to_string(kMaxRows) + " row dims");
    if (kernel_.columns > kMaxColumns) return fail("has more than " + std::to_string(kMaxColumns) + " column dims");
    for (size_t i = 0; i < kernel_.scalars.size(); ++i) {
      where_ = "s" + std::to_string(i);
      const DType type = kernel_.scalars[i];
      if (type != DType::kFloat64 && type != DType::kInt64 && type != DType::kBool) {
        return fail(named(type) + " is not a type of a scalar: f64, i64 or bool");
      }
    }
    return true;
  }

  bool operands() {
    for (size_t i = 0; i < kernel_.operands.size(); ++i) {
      where_ = "a" + std::to_string(i);
      const Operand& operand = kernel_.operands[i];
      if (!ir::is_kernel_dtype(operand.dtype)) return fail("memory of a kernel cannot be " + named(operand.dtype));
      if ((operand.dims & ~(kernel_.row_dims() | kernel_.column_dims())) != 0)
        return fail("has dims that the kernel does not have");
      if (operand.indexed > kMaxIndexed) return fail("has more than " + std::to_string(kMaxIndexed) + " indexed dims");
      if (operand.strided && (kernel_.columns == 0 || (operand.dims >> (kernel_.dims() - 1) & 1) == 0)) {
        return fail("is strided along the last column dim, along which it does not vary");
      }
    }
    return true;
  }

  // -- Values ---------------------------------------------------------------------------------------------------------

  bool values() {
    for (size_t i = 0; i < kernel_.values.size(); ++i) {
      where_ = "%" + std::to_string(i);
      const Value& value = kernel_.values[i];
      if (!is_value_type(value.type)) return fail(named(value.type) + " is not a type of a value");
      if (!definition(value) || !unused_fields_are_default(value)) return false;
      facts_.push_back(facts(kernel_, value, facts_));
      if (!finish(value)) return false;
    }
    return true;
  }

  DType type(uint32_t value) const { return kernel_.values[value].type; }

  // These check that a value is an earlier one, and has the type `wanted`.
  bool input(uint32_t value) { return value < facts_.size() || fail("uses a value that is not defined before it"); }
  bool input(uint32_t value, DType wanted) {
    if (!input(value)) return false;
    return type(value) == wanted ||
           fail("%" + std::to_string(value) + " is " + named(type(value)) + ", not " + named(wanted) + "; convert it");
  }
  bool is(const Value& value, DType wanted) {
    return value.type == wanted || fail("is " + named(wanted) + ", not " + named(value.type));
  }

  bool definition(const Value& value) {
    switch (value.kind) {
      case Kind::kConstant:
        return accepts(OperandTypes::kFloats, value.type) || wrapped(value.type, value.integer) == value.integer ||
               fail("its number does not fit " + named(value.type));
      case Kind::kScalar:
        return (value.a < kernel_.scalars.size() || fail("is a scalar that is not declared")) &&
               is(value, kernel_.scalars[value.a]);
      case Kind::kIndex:
        return (value.a < kernel_.dims() || fail("is the index along a dim that does not exist")) &&
               is(value, DType::kInt64);
      case Kind::kLoad:
        return access(value.operand, value.indices) && is(value, loaded_type(kernel_.operands[value.operand].dtype));
      case Kind::kConvert:
        return input(value.a);
      case Kind::kBits:
        return bits(value);
      case Kind::kScalarOp:
        return scalar_op(value);
      case Kind::kFma:
        return (accepts(OperandTypes::kFloats, value.type) || fail("fma needs f32 or f64")) &&
               input(value.a, value.type) && input(value.b, value.type) && input(value.c, value.type);
      case Kind::kLdexp:
        return (accepts(OperandTypes::kFloats, value.type) || fail("ldexp needs f32 or f64")) &&
               input(value.a, value.type) && input(value.b, value.type);
      case Kind::kReduce:
        return reduce(value);
      case Kind::kRunning:
        return running(value);
      case Kind::kRandom:
        return is(value, DType::kInt32) && input(value.a, DType::kInt64) && input(value.b, DType::kInt64) &&
               input(value.c, DType::kInt64);
    }
    return fail("has an invalid kind");
  }

  bool access(uint32_t operand, const std::vector<uint32_t>& indices) {
    if (operand >= kernel_.operands.size()) return fail("names an operand that is not declared");
    if (indices.size() != kernel_.operands[operand].indexed) {
      return fail("a" + std::to_string(operand) + " has " + std::to_string(kernel_.operands[operand].indexed) +
                  " indexed dims, but " + std::to_string(indices.size()) + " indices are given");
    }
    for (const uint32_t index : indices) {
      if (!input(index, DType::kInt64)) return false;
    }
    return true;
  }

  bool bits(const Value& value) {
    if (!input(value.a)) return false;
    if (value.type == DType::kBool || type(value.a) == DType::kBool)
      return fail("reads the bits of a bool; convert it");
    return item_size(value.type) == item_size(type(value.a)) ||
           fail("reads the bits of " + named(type(value.a)) + " as " + named(value.type) + ", which has another width");
  }

  bool scalar_op(const Value& value) {
    const ScalarOpInfo& op = info(value.op);
    if (op.arity == 0) return fail("its function is not available in kernels");
    const bool selects = value.op == ir::ScalarOp::kWhere;
    if (op.returns_bool && !is(value, DType::kBool)) return false;
    if (op.returns_bool && !input(value.a)) return false;
    const DType taken = op.returns_bool ? type(value.a) : value.type;
    if (!accepts(op.operand_types, taken)) {
      return fail(std::string(op.name) + " takes " + std::string(name(op.operand_types)) + ", not " + named(taken));
    }
    const uint32_t all[] = {value.a, value.b, value.c};
    for (uint32_t i = 0; i < op.arity; ++i) {
      if (!input(all[i], selects && i == 0 ? DType::kBool : taken)) return false;
    }
    return true;
  }

  bool reduce(const Value& value) {
    if (!input(value.a)) return false;
    if (value.over == Over::kColumns && kernel_.columns == 0) return fail("there are no column dims to reduce");
    if (value.over == Over::kRows && kernel_.rows == 0) return fail("there are no row dims to reduce");
    if (value.over == Over::kLines) {
      if (kernel_.columns != 2) return fail("reduces lines, but the kernel does not have two column dims");
      if ((facts_[value.a].dims & kernel_.column_dims() & ~kernel_.last_column()) == 0) {
        return fail("reduces lines of a value that is the same in all of them");
      }
    }
    switch (value.reduction) {
      case Reduction::kArgMax:
      case Reduction::kArgMin:
        if (value.over != Over::kColumns) return fail(std::string(name(value.reduction)) + " is over columns only");
        return is(value, DType::kInt64);
      case Reduction::kSum:
      case Reduction::kProduct:
        if (value.type == DType::kBool) return fail("sum and product need numbers; for bool there are max and min");
        return is_wide_sum(kernel_, value) || input(value.a, value.type);
      case Reduction::kMax:
      case Reduction::kMin:
        return input(value.a, value.type);
      case Reduction::kLogSumExp:
        return fail("logsumexp exists only as a running reduction");
    }
    return fail("has an invalid reduction");
  }

  bool running(const Value& value) {
    if (!input(value.a, value.type)) return false;
    if (kernel_.columns == 0) return fail("there is no column dim to scan");
    if (facts_[value.a].finish) return fail("scans a value that is known only after all rows");
    if (value.reduction == Reduction::kLogSumExp) {
      return accepts(OperandTypes::kFloats, value.type) || fail("logsumexp needs floats");
    }
    if (value.reduction != Reduction::kSum && value.reduction != Reduction::kProduct) {
      return fail("running " + std::string(name(value.reduction)) + "; there are sum, product and logsumexp");
    }
    return value.type != DType::kBool || fail("sum and product need numbers");
  }

  // Fields that the kind does not use must have their defaults, because the text form omits them.
  bool unused_fields_are_default(const Value& value) {
    Value used{.kind = value.kind, .type = value.type};
    if (value.kind == Kind::kConstant) {
      if (accepts(OperandTypes::kFloats, value.type)) {
        used.number = value.number;
      } else {
        used.integer = value.integer;
      }
    } else if (value.kind == Kind::kScalar || value.kind == Kind::kIndex) {
      used.a = value.a;
    } else if (value.kind == Kind::kLoad) {
      used.operand = value.operand;
      used.indices = value.indices;
    } else {
      if (value.kind == Kind::kScalarOp) used.op = value.op;
      if (value.kind == Kind::kRunning) used.reduction = value.reduction;
      if (value.kind == Kind::kReduce) used.reduction = value.reduction, used.over = value.over;
      const Inputs in = inputs(value);
      used.a = in.values[0];
      if (in.count > 1) used.b = in.values[1];
      if (in.count > 2) used.c = in.values[2];
    }
    return used == value || fail("sets a field that its kind does not use");
  }

  // A value that is known after all rows may use only other such values, and values that are the same in all rows.
  bool finish(const Value& value) {
    if (value.kind == Kind::kReduce) {
      return !facts_[value.a].finish || fail("reduces %" + std::to_string(value.a) + ", which is known after all rows");
    }
    for (const uint32_t in : inputs(value)) {
      if (!after_rows(facts_.back().finish, in)) return false;
    }
    return true;
  }

  bool after_rows(bool finish, uint32_t in) {
    if (!finish || facts_[in].finish) return true;
    if ((facts_[in].dims & kernel_.row_dims()) != 0) {
      return fail("is known after all rows, but %" + std::to_string(in) + " is a row's");
    }
    return !facts_[in].reduced ||
           fail("is known after all rows, but %" + std::to_string(in) + " is reduced in each of them");
  }

  // -- Stores ---------------------------------------------------------------------------------------------------------

  bool stores() {
    std::vector<bool> stored(kernel_.operands.size());
    for (const Store& store : kernel_.stores) {
      where_ = "store a" + std::to_string(store.operand);
      if (!access(store.operand, store.indices)) return false;
      if (!input(store.value, loaded_type(kernel_.operands[store.operand].dtype))) return false;
      if (stored[store.operand]) return fail("is stored to twice");
      stored[store.operand] = true;
      if (store.adds && kernel_.operands[store.operand].dtype == DType::kBool) return fail("adds to bool");
      if (!store_dims(store)) return false;
    }
    for (size_t i = 0; i < kernel_.values.size(); ++i) {
      const Value& value = kernel_.values[i];
      where_ = "%" + std::to_string(i);
      if (value.kind == Kind::kLoad && stored[value.operand] && kernel_.operands[value.operand].indexed != 0) {
        return fail("loads a" + std::to_string(value.operand) + ", which is stored to at indices");
      }
    }
    return true;
  }

  // Checks that each position is written once, except for positions that indices choose.
  bool store_dims(const Store& store) {
    const StoreFacts at = facts(kernel_, store, facts_);
    if (!after_rows(at.finish, store.value)) return false;
    for (const uint32_t index : store.indices) {
      if (!after_rows(at.finish, index)) return false;
    }
    const DimSet rows = at.dims & kernel_.row_dims();
    const DimSet columns = at.dims & kernel_.column_dims();
    if (at.finish && rows != 0)
      return fail("has row dims, but %" + std::to_string(store.value) + " is known after all rows");
    if (!at.finish && rows != kernel_.row_dims())
      return fail("lacks a row dim, so several rows would write one element");
    const bool by_line = columns != 0 && (columns & kernel_.last_column()) == 0;
    if (columns != 0 && columns != kernel_.column_dims() && (!by_line || store.adds || !store.indices.empty()))
      return fail("varies over one column dim, but not over the other");
    return !store.indices.empty() || at.dims == kernel_.operands[store.operand].dims ||
           fail("lacks a dim that %" + std::to_string(store.value) + " varies over");
  }

  const Kernel& kernel_;
  std::vector<Facts> facts_;
  std::string where_;
  std::string error_;
};

}  // namespace

Status verify(const Kernel& kernel) { return Verifier(kernel).run(); }

}  // namespace torch_remote::codegen
