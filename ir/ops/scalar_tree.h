#pragma once

#include <cstdint>
#include <span>

// The scalar expression of an op as data: the formula of one element of its result. Its source is text in the op table
// (OpDesc::expression), which the generator turns into these nodes (OpDesc::tree).
//
// Operands come before their users, and the last node is the result. A node that is used several times appears once.
namespace torch_remote::ir {

// Comparisons and predicates give 0 or 1. The end of docs/operators.md defines the functions.
enum class ScalarOp : uint8_t {
  kArgument,   // the op's argument with index `a`: an element of a tensor, or a number
  kNumber,     // `number`
  kToCompute,  // a, converted to the computation dtype (below)
  kToResult,   // a, converted to the result's dtype; always the last node
  kNeg,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  // The functions of ir/ops/conventions.toml.
  kAbs,
  kAcos,
  kAcosh,
  kAsin,
  kAsinh,
  kAtan,
  kAtan2,
  kAtanh,
  kBitAnd,
  kBitNot,
  kBitOr,
  kBitXor,
  kCeil,
  kCopysign,
  kCos,
  kCosh,
  kErf,
  kErfc,
  kExp,
  kExp2,
  kExpm1,
  kFloor,
  kFloorDiv,
  kFmax,
  kFmin,
  kFmod,
  kHypot,
  kIsInf,
  kIsNan,
  kLgamma,
  kLog,
  kLog10,
  kLog1p,
  kLog2,
  kLogicalAnd,
  kLogicalNot,
  kLogicalOr,
  kLogicalXor,
  kMax,
  kMin,
  kPow,
  kReciprocal,
  kRemainder,
  kRound,
  kRsqrt,
  kShiftLeft,
  kShiftRight,
  kSigmoid,
  kSign,
  kSin,
  kSinh,
  kSqrt,
  kTan,
  kTanh,
  kTrunc,
  kWhere,
};

// Whether the op divides by its second operand, if its operands are integers. ATen's CPU kernels raise an error if that
// operand is 0.
constexpr bool divides_integers(ScalarOp op) {
  return op == ScalarOp::kFloorDiv || op == ScalarOp::kFmod || op == ScalarOp::kRemainder;
}

// A node of a tree. The computation dtype of an op is torch's promoted dtype of all its operands and numbers, with two
// exceptions. Instead of float16 and bfloat16 it is float32. If the result is a float and all operands are integers, it
// is torch's default dtype. Each argument has a `kToCompute` node, so that a tree shows all conversions. Trees describe
// real dtypes only.
struct ScalarNode {
  ScalarOp op;
  uint8_t a = 0, b = 0, c = 0;  // operands: indices of earlier nodes of the tree (but see kArgument)
  double number = 0;
};

inline constexpr uint32_t kMaxScalarNodes = 256;

// Evaluates a tree of at most kMaxScalarNodes nodes in arithmetic of type T (double, float, int64_t, int32_t, uint8_t
// or bool). The result and the arguments, which are indexed as in the op's schema, have that type. Integers wrap
// around. Integer division by zero does not fail: the quotient is 0, which kFloorDiv rounds down to -1 for a negative
// dividend. kFmod and kRemainder then return the dividend.
template <typename T>
T evaluate(std::span<const ScalarNode> tree, std::span<const T> arguments);

}  // namespace torch_remote::ir
