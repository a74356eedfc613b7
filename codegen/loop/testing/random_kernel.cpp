#include "codegen/loop/testing/random_kernel.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <vector>

#include "codegen/loop/facts.h"
#include "codegen/loop/scalar_ops.h"

namespace torch_remote::codegen::testing {
namespace {

using ir::DType;
using ir::ScalarOp;

constexpr DType kTypes[] = {DType::kBool,  DType::kUInt8, DType::kInt8,    DType::kInt16,
                            DType::kInt32, DType::kInt64, DType::kFloat32, DType::kFloat64};

// Whether expand_functions leaves the op unchanged.
bool is_unexpanded(ScalarOp op) {
  switch (op) {
    case ScalarOp::kNeg:
    case ScalarOp::kAdd:
    case ScalarOp::kSub:
    case ScalarOp::kMul:
    case ScalarOp::kDiv:
    case ScalarOp::kEq:
    case ScalarOp::kNe:
    case ScalarOp::kLt:
    case ScalarOp::kLe:
    case ScalarOp::kGt:
    case ScalarOp::kGe:
    case ScalarOp::kAbs:
    case ScalarOp::kBitAnd:
    case ScalarOp::kBitNot:
    case ScalarOp::kBitOr:
    case ScalarOp::kBitXor:
    case ScalarOp::kCeil:
    case ScalarOp::kCopysign:
    case ScalarOp::kFloor:
    case ScalarOp::kFmax:
    case ScalarOp::kFmin:
    case ScalarOp::kLogicalAnd:
    case ScalarOp::kLogicalNot:
    case ScalarOp::kLogicalOr:
    case ScalarOp::kLogicalXor:
    case ScalarOp::kMax:
    case ScalarOp::kMin:
    case ScalarOp::kRound:
    case ScalarOp::kShiftLeft:
    case ScalarOp::kShiftRight:
    case ScalarOp::kSqrt:
    case ScalarOp::kTrunc:
    case ScalarOp::kWhere:
      return true;
    default:
      return false;
  }
}

class Maker {
 public:
  Maker(Rng& rng, const RandomKernelOptions& options) : rng_(rng), options_(options) {}

  Kernel run() {
    kernel_.rows = below(8) == 0 ? 0 : below(options_.max_rows + 1);
    kernel_.columns = below(8) == 0 ? 0 : below(options_.max_columns + 1);
    if (kernel_.columns == 0 && chance(70)) kernel_.columns = std::min(1u, options_.max_columns);
    row_wise_ = chance(40);
    main_type_ = chance(60) ? DType::kFloat32 : chance(40) ? DType::kFloat64 : kTypes[1 + below(7)];
    for (uint32_t i = below(3); i > 0; --i) {
      kernel_.scalars.push_back(one_of({DType::kFloat64, DType::kInt64, DType::kBool}));
    }
    load(main_type_, false);
    const uint32_t wanted = 3 + below(std::max(4u, options_.max_values) - 3);
    while (kernel_.values.size() < wanted) step();
    stores();
    return std::move(kernel_);
  }

 private:
  // -- Chance ---------------------------------------------------------------------------------------------------------

  uint32_t below(uint32_t count) { return static_cast<uint32_t>(rng_() % count); }
  bool chance(uint32_t percent) { return below(100) < percent; }
  template <typename T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<uint32_t>(list.size()))];
  }

  DType some_type() { return chance(65) ? main_type_ : kTypes[below(std::size(kTypes))]; }
  DType some_float() { return main_type_ == DType::kFloat64 || chance(15) ? DType::kFloat64 : DType::kFloat32; }

  // -- Values ---------------------------------------------------------------------------------------------------------

  uint32_t add(const Value& value) {
    facts_.push_back(facts(kernel_, value, facts_));
    kernel_.values.push_back(value);
    return static_cast<uint32_t>(kernel_.values.size()) - 1;
  }
  DType type(uint32_t value) const { return kernel_.values[value].type; }

  // Whether a value can be used by one that is known after all rows (`finish`), or by one that is not.
  bool usable(uint32_t value, bool finish) const {
    const Facts& known = facts_[value];
    if (!finish) return !known.finish;
    return known.finish || ((known.dims & kernel_.row_dims()) == 0 && !known.reduced);
  }

  uint32_t op(ScalarOp op, DType type, uint32_t a, uint32_t b = kNone, uint32_t c = kNone) {
    return add({.kind = Kind::kScalarOp, .type = type, .op = op, .a = a, .b = b, .c = c});
  }

  uint32_t number(DType type, double value) {
    return add({.type = type,
                .number = ir::is_float(type) ? value : 0,
                .integer = ir::is_float(type) ? 0 : static_cast<int64_t>(value)});
  }

  uint32_t constant(DType type) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    if (type == DType::kBool) return number(type, below(2));
    if (!ir::is_float(type)) {
      const int64_t most = type == DType::kUInt8 ? 255 : INT64_MAX >> (64 - 8 * item_size(type));
      const int64_t least = type == DType::kUInt8 ? 0 : -most - 1;
      const int64_t integer = one_of<int64_t>({0, 1, 2, 3, 7, 100, most, least, least + 1});
      return add({.type = type, .integer = integer});
    }
    const double plain = one_of({1.0, -1.0, 0.5, 2.0, 3.25, -7.0, 1e-3});
    const double value = chance(85) ? plain : one_of({0.0, -0.0, 0x1p-140, 1e30, kInf, -kInf});
    return number(type, chance(2) ? std::numeric_limits<double>::quiet_NaN() : value);
  }

  DimSet some_dims(bool finish) {
    const DimSet all = (finish ? 0 : kernel_.row_dims()) | kernel_.column_dims();
    switch (below(8)) {
      case 0:
        return kernel_.column_dims();
      case 1:
        return all & kernel_.row_dims();
      case 2:
        return all & below(1u << kMaxDims);
      default:
        return all;
    }
  }

  bool may_be_strided(DimSet dims) const { return kernel_.columns != 0 && (dims >> (kernel_.dims() - 1) & 1) != 0; }

  DType memory_of(DType type) {
    return type == DType::kFloat32 ? one_of({DType::kFloat32, DType::kFloat32, DType::kBFloat16, DType::kFloat16})
                                   : type;
  }

  uint32_t operand(DType memory, DimSet dims, uint32_t indexed = 0) {
    kernel_.operands.push_back({.dtype = memory,
                                .dims = dims,
                                .strided = may_be_strided(dims) && chance(15),
                                .indexed = static_cast<uint8_t>(indexed)});
    return static_cast<uint32_t>(kernel_.operands.size()) - 1;
  }

  uint32_t load(DType type, bool finish) {
    for (uint32_t i = 0; i < kernel_.operands.size() && chance(30); ++i) {
      const Operand& known = kernel_.operands[i];
      const bool fits =
          known.indexed == 0 && loaded_type(known.dtype) == type && (!finish || (known.dims & kernel_.row_dims()) == 0);
      if (fits) return add({.kind = Kind::kLoad, .type = type, .operand = i});
    }
    return add({.kind = Kind::kLoad, .type = type, .operand = operand(memory_of(type), some_dims(finish))});
  }

  // Picks a value of this type, preferring later ones. If there is none, it adds one.
  uint32_t select_coefficients(DType wanted, bool finish) {
    std::vector<uint32_t> found;
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
      if (type(i) == wanted && usable(i, finish)) found.push_back(i);
    }
    const uint32_t count = static_cast<uint32_t>(found.size());
    if (count != 0 && !chance(12)) return found[count - 1 - std::min(below(count), below(count))];
    switch (below(4)) {
      case 0:
        return constant(wanted);
      case 1: {
        const DType from = kTypes[below(std::size(kTypes))];
        return from == wanted ? load(wanted, finish) : convert(load(from, finish), wanted);
      }
      default:
        return load(wanted, finish);
    }
  }

  // Conversions to integers get only numbers that fit.
  uint32_t convert(uint32_t value, DType to) {
    const DType from = type(value);
    if (ir::is_float(from) && !ir::is_float(to) && to != DType::kBool) {
      const double most = to == DType::kUInt8   ? 255
                          : to == DType::kInt8  ? 127
                          : to == DType::kInt16 ? 32767
                          : to == DType::kInt32 ? 2147483520  // exactly an f32
                                                : 9e18;
      const uint32_t size = op(ScalarOp::kAbs, from, value);
      const uint32_t fits = op(ScalarOp::kLt, DType::kBool, size, number(from, most));
      value = op(ScalarOp::kWhere, from, fits, to == DType::kUInt8 ? size : value, number(from, 0));
    }
    return add({.kind = Kind::kConvert, .type = to, .a = value});
  }

  // The same value, except that NaN, whose sign and bits are undefined, becomes 1.
  uint32_t no_nan(uint32_t value) {
    if (!ir::is_float(type(value))) return value;
    const uint32_t is_number = op(ScalarOp::kEq, DType::kBool, value, value);
    return op(ScalarOp::kWhere, type(value), is_number, value, number(type(value), 1));
  }

  uint32_t scalar_op(bool finish) {
    const auto op_count = static_cast<uint32_t>(ScalarOp::kWhere) + 1;
    for (;;) {
      // About a third are arithmetic operations.
      const auto what = chance(30) ? one_of({ScalarOp::kAdd, ScalarOp::kSub, ScalarOp::kMul, ScalarOp::kDiv})
                                   : static_cast<ScalarOp>(below(op_count));
      const ScalarOpInfo& about = info(what);
      const DType taken = some_type();
      const bool answers_nan = what == ScalarOp::kIsNan || what == ScalarOp::kIsInf;
      if (about.arity == 0 || !accepts(about.operand_types, taken)) continue;
      if (!options_.functions && !is_unexpanded(what) && !answers_nan) continue;
      uint32_t in[3] = {kNone, kNone, kNone};
      for (uint32_t i = 0; i < about.arity; ++i) {
        in[i] = select_coefficients(what == ScalarOp::kWhere && i == 0 ? DType::kBool : taken, finish);
      }
      // An op whose operands are the same value, such as x - x, tests little.
      const uint32_t last = about.arity - 1;
      if (last != 0 && in[last] == in[last - 1] && chance(90)) in[last] = load(type(in[last]), finish);
      if (what == ScalarOp::kCopysign) in[1] = no_nan(in[1]);
      return op(what, about.returns_bool ? DType::kBool : taken, in[0], in[1], in[2]);
    }
  }

  uint32_t bits(bool finish) {
    const auto [from, to] = one_of<std::pair<DType, DType>>({{DType::kFloat32, DType::kInt32},
                                                             {DType::kInt32, DType::kFloat32},
                                                             {DType::kFloat64, DType::kInt64},
                                                             {DType::kInt64, DType::kFloat64},
                                                             {DType::kUInt8, DType::kInt8},
                                                             {DType::kInt8, DType::kUInt8}});
    return add({.kind = Kind::kBits, .type = to, .a = no_nan(select_coefficients(from, finish))});
  }

  // An index for an operand: usually an element of an operand of indices, otherwise a number that is roughly in bounds.
  uint32_t index(bool finish) {
    const DimSet dims = some_dims(finish);
    switch (below(6)) {
      case 0:
        for (uint32_t d = 0; d < kernel_.dims(); ++d) {
          if ((dims >> d & 1) != 0 && chance(60)) return add({.kind = Kind::kIndex, .type = DType::kInt64, .a = d});
        }
        break;
      case 1:
        return op(ScalarOp::kSub, DType::kInt64, index(finish), number(DType::kInt64, 1));
      case 2:
        for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
          const Value& known = kernel_.values[i];
          const bool place = known.reduction == Reduction::kArgMax || known.reduction == Reduction::kArgMin;
          if (place && usable(i, finish)) return i;
        }
        break;
      default:
        break;
    }
    return add({.kind = Kind::kLoad, .type = DType::kInt64, .operand = operand(DType::kInt64, dims)});
  }

  uint32_t indexed_load(bool finish) {
    const DType wanted = some_type();
    const uint32_t count = one_of({1u, 1u, 1u, 2u, 3u});
    Value value{.kind = Kind::kLoad, .type = wanted};
    for (uint32_t i = 0; i < count; ++i) value.indices.push_back(index(finish));
    const DimSet dims =
        (chance(60) ? kernel_.column_dims() : some_dims(finish)) & (finish ? kernel_.column_dims() : ~0u);
    value.operand = operand(memory_of(wanted), dims, count);
    return add(value);
  }

  Reduction some_reduction(DType type, Over over) {
    for (;;) {
      const auto what = chance(50) ? Reduction::kSum : static_cast<Reduction>(below(6));
      const bool place = what == Reduction::kArgMax || what == Reduction::kArgMin;
      if (place && over != Over::kColumns) continue;
      if (type == DType::kBool && (what == Reduction::kSum || what == Reduction::kProduct)) continue;
      return what;
    }
  }

  // Adds a reduction, and a value that uses it.
  void reduce(Over over) {
    const DType reduced = chance(80) ? some_type() : kTypes[below(std::size(kTypes))];
    uint32_t a = select_coefficients(reduced, false);
    if (over == Over::kLines && (facts_[a].dims & outer_column()) == 0) return;
    // This adds a value that is worth keeping for the next loop.
    if (accepts(OperandTypes::kNumbers, reduced) && chance(30))
      a = op(ScalarOp::kDiv, reduced, a, load(reduced, false));
    const Reduction what = some_reduction(type(a), over);
    const bool place = what == Reduction::kArgMax || what == Reduction::kArgMin;
    const bool widens = what == Reduction::kSum && over != Over::kRows && type(a) == DType::kFloat32 && chance(40);
    const DType made = place ? DType::kInt64 : widens ? DType::kFloat64 : type(a);
    const uint32_t result = add({.kind = Kind::kReduce, .type = made, .reduction = what, .over = over, .a = a});
    if (type(result) == DType::kBool || chance(30)) return;
    const bool again = over == Over::kColumns && made == type(a) && chance(60);
    const uint32_t other = again ? a : select_coefficients(type(result), over != Over::kColumns);
    op(one_of({ScalarOp::kSub, ScalarOp::kMul, ScalarOp::kDiv, ScalarOp::kMax}), type(result), other, result);
  }

  void running() {
    const DType type = some_type();
    const uint32_t a = type == DType::kBool ? convert(select_coefficients(type, false), DType::kInt32)
                                            : select_coefficients(type, false);
    const bool floats = accepts(OperandTypes::kFloats, this->type(a));
    add({.kind = Kind::kRunning,
         .type = this->type(a),
         .reduction = floats && chance(40) ? Reduction::kLogSumExp : one_of({Reduction::kSum, Reduction::kProduct}),
         .a = a});
  }

  void random(bool finish) {
    uint32_t in[3];
    for (uint32_t& word : in) word = select_coefficients(DType::kInt64, finish);
    if (kernel_.columns != 0 && chance(70)) {
      in[2] = add({.kind = Kind::kIndex, .type = DType::kInt64, .a = kernel_.dims() - 1});
    }
    add({.kind = Kind::kRandom, .type = DType::kInt32, .a = in[0], .b = in[1], .c = in[2]});
  }

  void step() {
    const bool finish = chance(25) && std::ranges::any_of(facts_, [](const Facts& known) { return known.finish; });
    const uint32_t what = below(100);
    if (row_wise_ && kernel_.columns != 0 && chance(25)) {
      reduce(Over::kColumns);
    } else if (row_wise_ && kernel_.columns != 0 && chance(4)) {
      running();
    } else if (what < 37) {
      scalar_op(finish);
    } else if (what < 47) {
      load(some_type(), finish);
    } else if (what < 53) {
      const DType from = some_type();
      convert(select_coefficients(from, finish), kTypes[below(std::size(kTypes))]);
    } else if (what < 56) {
      constant(some_type());
    } else if (what < 59 && !kernel_.scalars.empty()) {
      const uint32_t scalar = below(static_cast<uint32_t>(kernel_.scalars.size()));
      add({.kind = Kind::kScalar, .type = kernel_.scalars[scalar], .a = scalar});
    } else if (what < 62 && kernel_.dims() != 0) {
      add({.kind = Kind::kIndex, .type = DType::kInt64, .a = below(kernel_.dims())});
    } else if (what < 66) {
      const DType wanted = some_float();
      const uint32_t a = select_coefficients(wanted, finish), b = select_coefficients(wanted, finish),
                     c = select_coefficients(wanted, finish);
      add({.kind = Kind::kFma, .type = wanted, .a = a, .b = b, .c = c});
    } else if (what < 69) {
      bits(finish);
    } else if (what < 84) {
      if (kernel_.columns != 0) reduce(Over::kColumns);
    } else if (what < 94) {
      const bool lines = options_.lines && kernel_.columns == 2 && chance(50);
      if ((lines || kernel_.rows != 0) && options_.finish) reduce(lines ? Over::kLines : Over::kRows);
    } else if (what < 98) {
      if (options_.indexed) indexed_load(finish);
    } else {
      random(finish);
    }
  }

  // -- Stores ---------------------------------------------------------------------------------------------------------

  void stores() {
    std::vector<bool> used(kernel_.values.size());
    for (const Value& value : kernel_.values) {
      for (const uint32_t input : inputs(value)) used[input] = true;
    }
    std::vector<uint32_t> ends;
    for (uint32_t i = 0; i < used.size(); ++i) {
      if (!used[i]) ends.push_back(i);
    }
    // The last value uses the most other values.
    std::shuffle(ends.begin(), ends.end() - (chance(70) ? 1 : 0), rng_);
    std::ranges::reverse(ends);
    ends.resize(std::min(ends.size(), size_t{1} + below(5)));
    if (chance(30)) ends.push_back(below(static_cast<uint32_t>(used.size())));
    for (const uint32_t value : ends) {
      if (options_.indexed && chance(12)) {
        indexed_store(value);
      } else {
        unindexed_store(value);
      }
    }
  }

  DimSet outer_column() const { return kernel_.columns == 2 ? kernel_.column_dims() & ~kernel_.last_column() : 0; }

  // All dims of a store of this value.
  DimSet points(uint32_t value) {
    const bool columns = (facts_[value].dims & kernel_.column_dims()) != 0 || chance(15);
    return (facts_[value].finish ? 0 : kernel_.row_dims()) | (columns ? kernel_.column_dims() : 0);
  }

  void unindexed_store(uint32_t value) {
    const DimSet outer = outer_column();
    const bool by_line = options_.lines && outer != 0 && (facts_[value].dims & kernel_.column_dims()) == outer;
    const DimSet dims = by_line ? points(value) & ~kernel_.last_column() : points(value);
    uint32_t to = kNone;
    for (uint32_t i = 0; i < kernel_.operands.size(); ++i) {
      const Operand& known = kernel_.operands[i];
      const bool stored = std::ranges::any_of(kernel_.stores, [&](const Store& store) { return store.operand == i; });
      const bool fits = known.indexed == 0 && known.dims == dims && loaded_type(known.dtype) == type(value);
      // Index operands keep their elements, so that assumptions about them stay true.
      if (fits && !stored && known.dtype != DType::kInt64 && chance(25)) to = i;
    }
    if (to == kNone) to = operand(memory_of(type(value)), dims);
    const bool adds = options_.adds && !by_line && type(value) != DType::kBool && chance(10);
    kernel_.stores.push_back({.operand = to, .value = value, .adds = adds});
  }

  // The index covers the dims that the operand lacks. If the store does not add, no two points may have the same
  // position. So the index is loaded from an operand with exactly these dims, whose elements TestData makes different,
  // or it consists of the dims.
  void indexed_store(uint32_t value) {
    const DimSet dims = points(value);
    const DimSet direct = dims & below(1u << kMaxDims);
    const DimSet by_index = dims & ~direct;
    std::vector<uint32_t> indices;
    if (chance(30) && __builtin_popcount(by_index) <= 2) {
      for (uint32_t d = 0; d < kernel_.dims(); ++d) {
        if ((by_index >> d & 1) != 0) indices.push_back(add({.kind = Kind::kIndex, .type = DType::kInt64, .a = d}));
      }
    }
    if (indices.empty()) {
      indices.push_back(add({.kind = Kind::kLoad, .type = DType::kInt64, .operand = operand(DType::kInt64, by_index)}));
    }
    const uint32_t to = operand(memory_of(type(value)), direct, static_cast<uint32_t>(indices.size()));
    const bool adds = options_.adds && type(value) != DType::kBool && chance(60);
    kernel_.stores.push_back({.operand = to, .value = value, .indices = indices, .adds = adds});
  }

  Rng& rng_;
  const RandomKernelOptions options_;
  Kernel kernel_;
  std::vector<Facts> facts_;
  DType main_type_ = DType::kFloat32;
  bool row_wise_ = false;  // more reductions over columns
};

}  // namespace

Kernel random_kernel(Rng& rng, const RandomKernelOptions& options) { return Maker(rng, options).run(); }

}  // namespace torch_remote::codegen::testing
