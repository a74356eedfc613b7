#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "codegen/loop/scalar_ops.h"
#include "codegen/lower/expand.h"
#include "codegen/lower/result_type.h"
#include "ir/analysis.h"
#include "ir/fusion/fusion.h"

// Expands the scalar trees of the op table.
namespace torch_remote::codegen {
namespace {

using ir::DType;
using ir::ScalarNode;
using ir::ScalarOp;

enum class Category : uint8_t { kBool, kInteger, kFloat };

Category category(DType dtype) {
  if (dtype == DType::kBool) return Category::kBool;
  return ir::is_float(dtype) ? Category::kFloat : Category::kInteger;
}

// Whether the op maps integers to integers. Constants of a tree are floats (as in deg2rad), so they do not count.
bool preserves_integers(const ScalarNode& n) {
  switch (n.op) {
    case ScalarOp::kArgument:
    case ScalarOp::kToCompute:
    case ScalarOp::kToResult:
    case ScalarOp::kAdd:
    case ScalarOp::kSub:
    case ScalarOp::kMul:
      return true;
    default:
      return false;
  }
}

// The type of a group of operands (see ResultType) with a later group, which counts only if its category is higher.
std::optional<DType> join_group(std::optional<DType> type, std::optional<DType> later) {
  return !type || (later && category(*later) > category(*type)) ? later : type;
}

bool returns_bool(ScalarOp op) {
  return info(op).returns_bool || op == ScalarOp::kLogicalAnd || op == ScalarOp::kLogicalOr ||
         op == ScalarOp::kLogicalXor || op == ScalarOp::kLogicalNot;
}

class TreeEmitter {
 public:
  explicit TreeEmitter(NodeEmitter& node) : node_(node), e_(node.e), tree_(ir::op_desc(node.node.opcode).tree) {}

  bool run() {
    if (!find_type()) return false;
    std::vector<V> values;
    for (const ScalarNode& n : tree_) {
      const V value = emit(n, values);
      if (value == kNone) return false;
      values.push_back(value);
    }
    node_.fill(values.back());
    return true;
  }

 private:
  // Whether the op is a comparison or another predicate.
  bool gives_bool() const {
    const ScalarNode& last = tree_.back();
    return returns_bool(last.op == ScalarOp::kToResult ? tree_[last.a].op : last.op);
  }

  bool find_type() {
    const auto types = expression_types(node_.graph, node_.node, node_.item, node_.result_dtype(0));
    if (!types) return false;
    common_ = types->common;
    type_ = types->compute;
    result_ = types->result;
    return true;
  }

  V emit(const ScalarNode& n, const std::vector<V>& values) {
    const auto at = [&](uint8_t operand) { return values[operand]; };
    if (ir::divides_integers(n.op) && !node_.checks_divisors() && !may_divide_by(n.b)) return kNone;
    switch (n.op) {
      case ScalarOp::kArgument:
        return gives_bool() ? node_.stored_operand(node_.args.at(n.a)) : node_.operand(node_.args.at(n.a));
      case ScalarOp::kNumber:
        return e_.constant(type_, n.number);
      case ScalarOp::kToCompute:
        return to_compute(n.a, at(n.a));
      case ScalarOp::kToResult:
        return e_.convert(at(n.a), result_);
      case ScalarOp::kWhere:
        return e_.where(e_.to_bool(at(n.a)), number(at(n.b)), number(at(n.c)));
      case ScalarOp::kLogicalNot:
        return e_.op(n.op, e_.to_bool(at(n.a)));
      case ScalarOp::kLogicalAnd:
      case ScalarOp::kLogicalOr:
      case ScalarOp::kLogicalXor:
        return e_.op(n.op, e_.to_bool(at(n.a)), e_.to_bool(at(n.b)));
      case ScalarOp::kPow: {
        const V simple = power(number(at(n.a)), n.b);
        return simple != kNone ? simple : arithmetic(n, at);
      }
      case ScalarOp::kAdd:
      case ScalarOp::kSub: {
        const V once = contracted(n, values);
        return once != kNone ? once : arithmetic(n, at);
      }
      case ScalarOp::kIsInf:
      case ScalarOp::kIsNan:
        return category(type_) == Category::kFloat ? e_.op(n.op, number(at(n.a))) : e_.constant(DType::kBool, 0);
      case ScalarOp::kCeil:
      case ScalarOp::kFloor:
      case ScalarOp::kRound:
      case ScalarOp::kTrunc:
        return category(type_) == Category::kInteger ? number(at(n.a)) : arithmetic(n, at);
      default:
        return arithmetic(n, at);
    }
  }

  // torch first rounds an integer tensor to the common half dtype. Numbers from Python stay in f32.
  V to_compute(uint8_t operand, V value) {
    const V converted = e_.convert(value, type_);
    const ScalarNode& given = tree_[operand];
    const bool tensor = given.op == ScalarOp::kArgument && node_.args.at(given.a).tag == ir::ArgTag::kView;
    const bool wide = category(e_.type(value)) == Category::kInteger && ir::item_size(e_.type(value)) > 1;
    return tensor && wide && is_half(common_) ? e_.rounded(converted, common_) : converted;
  }

  // Powers that torch's kernel computes without pow, with other results: (-infinity)^0.5 is NaN. The exponent is a
  // number of this run, so another exponent requires another kernel.
  V power(V base, uint8_t exponent) {
    const ScalarNode& converted = tree_[exponent];
    if (category(type_) != Category::kFloat || converted.op != ScalarOp::kToCompute) return kNone;
    const ScalarNode& given = tree_[converted.a];
    if (given.op != ScalarOp::kArgument) return kNone;
    const std::optional<double> value = node_.args.number(given.a);
    if (!value) return kNone;
    const bool by_pow =
        node_.result_dtype(0) == DType::kFloat16;  // for float16, torch's kernel computes roots with pow
    if (*value == 1) return base;
    if (*value == 2) return e_.mul(base, base);
    if (*value == 3) return e_.mul(e_.mul(base, base), base);
    if (*value == 0.5 && !by_pow) return e_.op(ScalarOp::kSqrt, base);
    if (*value == -1) return e_.div(e_.constant(type_, 1), base);
    if (*value == -0.5 && !by_pow) return e_.div(e_.constant(type_, 1), e_.op(ScalarOp::kSqrt, base));
    if (*value == -2) return e_.div(e_.constant(type_, 1), e_.mul(base, base));
    return kNone;
  }

  // A sum with a product is rounded once, as in torch's vector code: infinity - 2.5 * (largest number) is infinity.
  V contracted(const ScalarNode& n, const std::vector<V>& values) {
    if (category(type_) != Category::kFloat) return kNone;
    const auto product = [&](uint8_t operand) {
      const ScalarNode& node = tree_[operand];
      return node.op == ScalarOp::kMul ? &node : nullptr;
    };
    const bool minus = n.op == ScalarOp::kSub;
    const auto of = [&](uint8_t operand) { return number(values[operand]); };
    const auto negative = [&](V value) { return minus ? e_.op(ScalarOp::kNeg, value) : value; };
    if (const ScalarNode* right = product(n.b)) return e_.fma(negative(of(right->a)), of(right->b), of(n.a));
    if (const ScalarNode* left = product(n.a)) return e_.fma(of(left->a), of(left->b), negative(of(n.b)));
    return kNone;
  }

  // Compiled code does not report integer division by zero. So the divisor must be a number of this run that is not
  // zero in the type of the division: 256 is 0 as int8.
  bool may_divide_by(uint8_t divisor) const {
    if (category(type_) == Category::kFloat) return true;
    const ScalarNode& converted = tree_[divisor];
    if (converted.op != ScalarOp::kToCompute || tree_[converted.a].op != ScalarOp::kArgument) return false;
    const double number = std::trunc(node_.args.number(tree_[converted.a].a).value_or(0));
    const double modulus = std::ldexp(1.0, 8 * static_cast<int>(ir::item_size(type_)));  // integers wrap around at it
    return std::abs(std::fmod(number, modulus)) >= 1;
  }

  template <typename At>
  V arithmetic(const ScalarNode& n, At&& at) {
    if (type_ == DType::kBool) return bool_arithmetic(n, at);
    const uint8_t arity = info(n.op).arity;
    return e_.op(n.op, number(at(n.a)), arity > 1 ? number(at(n.b)) : kNone, arity > 2 ? number(at(n.c)) : kNone);
  }

  // For bools, sum means `or` and product means `and`, as in C++ after conversion back to bool.
  template <typename At>
  V bool_arithmetic(const ScalarNode& n, At&& at) {
    const V a = at(n.a);
    switch (n.op) {
      case ScalarOp::kAdd:
      case ScalarOp::kMax:
      case ScalarOp::kFmax:
      case ScalarOp::kBitOr:
        return e_.op(ScalarOp::kLogicalOr, a, at(n.b));
      case ScalarOp::kMul:
      case ScalarOp::kMin:
      case ScalarOp::kFmin:
      case ScalarOp::kBitAnd:
        return e_.op(ScalarOp::kLogicalAnd, a, at(n.b));
      case ScalarOp::kBitXor:
        return e_.op(ScalarOp::kLogicalXor, a, at(n.b));
      case ScalarOp::kBitNot:
        return e_.op(ScalarOp::kLogicalNot, a);
      case ScalarOp::kEq:
      case ScalarOp::kNe: {
        const V differ = e_.op(ScalarOp::kLogicalXor, a, at(n.b));
        return n.op == ScalarOp::kNe ? differ : e_.op(ScalarOp::kLogicalNot, differ);
      }
      case ScalarOp::kLt:
      case ScalarOp::kLe:
      case ScalarOp::kGt:
      case ScalarOp::kGe:
        return e_.op(n.op, e_.convert(a, DType::kUInt8), e_.convert(at(n.b), DType::kUInt8));
      case ScalarOp::kPow:
        return e_.op(ScalarOp::kLogicalOr, a, e_.op(ScalarOp::kLogicalNot, at(n.b)));
      case ScalarOp::kAbs:
      case ScalarOp::kSign:
        return a;
      default:
        return kNone;
    }
  }

  // Results of comparisons take part as 0 and 1.
  V number(V value) { return e_.convert(value, type_); }

  NodeEmitter& node_;
  Emitter& e_;
  const std::span<const ScalarNode> tree_;
  DType common_ = DType::kFloat32;  // result dtype of the operands
  DType type_ = DType::kFloat32;    // the type that the tree is computed in
  DType result_ = DType::kFloat32;
};

}  // namespace

DType promoted(DType a, DType b) {
  if (a == b) return a;
  if (category(a) != category(b)) return category(a) > category(b) ? a : b;
  if (category(a) == Category::kFloat) {
    // float16 with bfloat16 gives float32.
    if (ir::item_size(a) == ir::item_size(b)) return DType::kFloat32;
    return ir::item_size(a) > ir::item_size(b) ? a : b;
  }
  if (a == DType::kUInt8 || b == DType::kUInt8) {
    const DType other = a == DType::kUInt8 ? b : a;
    return other == DType::kInt8 ? DType::kInt16 : other;
  }
  return ir::item_size(a) > ir::item_size(b) ? a : b;
}

std::optional<DType> ResultType::get() const { return join_group(of_tensors(), numbers_); }

std::optional<DType> ResultType::of_tensors() const { return join_group(dims_, zero_dims_); }

bool ResultType::argument(const ir::Graph& graph, const ir::Arg& arg) {
  const auto scalar = static_cast<DType>(arg.b & 0xFF);
  switch (arg.tag) {
    case ir::ArgTag::kView:
      tensor(graph.views[arg.a].dtype, !graph.views[arg.a].sizes.empty());
      return true;
    case ir::ArgTag::kScalarTensor:
      if ((arg.b >> 8 & 1) != 0) {
        number(category(scalar) == Category::kFloat ? DType::kFloat32 : scalar);
      } else {
        tensor(scalar, false);
      }
      return true;
    case ir::ArgTag::kInt:
      number(DType::kInt64);
      return true;
    case ir::ArgTag::kFloat:
      number(DType::kFloat32);
      return true;
    case ir::ArgTag::kBool:
      number(DType::kBool);
      return true;
    default:
      return false;
  }
}

std::optional<ExpressionTypes> expression_types(const ir::Graph& graph, const ir::Node& node, uint32_t item,
                                                DType result) {
  const ir::OpDesc& desc = ir::op_desc(node.opcode);
  ResultType found;
  for (const ScalarNode& n : desc.tree) {
    if (n.op != ScalarOp::kArgument) continue;
    if (!found.argument(graph, ir::item_of(node.args[n.a], item))) return std::nullopt;
  }
  const bool floats = category(found.of_tensors().value_or(DType::kBool)) == Category::kFloat;
  // A bool `alpha` is an error unless the result is bool. ATen raises it.
  const ir::Arg* alpha = ir::find_argument(node, "alpha");
  if (alpha != nullptr && alpha->tag == ir::ArgTag::kBool && result != DType::kBool) return std::nullopt;
  // If the result is a float but no tensor operand is, we compute in the result's dtype (torch's default dtype). Sums
  // and products of integers stay integers, even if the result is stored as floats.
  const std::optional<DType> operands = found.get();
  const bool keeps_integers =
      operands && category(*operands) != Category::kFloat &&
      (desc.shape_function == ir::ShapeFunction::kPromoted || std::ranges::all_of(desc.tree, preserves_integers));
  const bool made_float = !floats && !keeps_integers && category(result) == Category::kFloat;
  ExpressionTypes types{};
  types.common = made_float ? result : operands.value_or(result);
  types.compute = loaded_type(types.common);
  // If the result is an integer, ops such as addcmul, threshold and masked_fill first convert their float numbers to
  // integers. Comparisons do not.
  const ScalarNode& last = desc.tree.back();
  const ScalarOp root = last.op == ScalarOp::kToResult ? desc.tree[last.a].op : last.op;
  const bool rounds = category(result) == Category::kInteger && category(types.compute) == Category::kFloat;
  if (rounds && !returns_bool(root)) types.compute = result;
  types.result = loaded_type(result);
  return types;
}

bool expand_expression(NodeEmitter& node) { return TreeEmitter(node).run(); }

}  // namespace torch_remote::codegen
