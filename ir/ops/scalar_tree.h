#pragma once

#include <cstdint>
#include <span>

// The scalar expression of an op as data: what computes one element of its result. The op table's text
// (OpDesc::expression) is the source, the generator turns it into these nodes (OpDesc::tree).
//
// Nodes stand in an order in which operands come before their users; the last one is the result. A node that is used
// several times stands once.
namespace torch_remote::ir {

// Comparisons and what answers yes or no give 0 or 1. The functions' meaning: end of docs/operators.md.
enum class ScalarOp : uint8_t {
  kArgument,   // the element, or number, of argument `a` of the op
  kNumber,     // `number`
  kToCompute,  // a, converted to the dtype that the op computes in (below)
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

// The dtype that an op computes in is torch's promoted one of all operands and numbers, but float32 for float16 and
// bfloat16, and the default dtype where the result is of floats and all operands are integers. `kToCompute` stands at
// each argument, so that a tree says where something is converted. Trees describe real dtypes only.
struct ScalarNode {
  ScalarOp op;
  uint8_t a = 0, b = 0, c = 0;  // operands: earlier nodes of the tree
  double number = 0;
};

inline constexpr uint32_t kMaxScalarNodes = 256;

// The value of a tree in arithmetic of type T (double, float, int64_t, int32_t, uint8_t or bool): arguments, by their
// position in the op's schema, and the result are of that type. Integers wrap around. What a division of an integer by
// zero gives is undefined in torch; here it is 0.
template <typename T>
T evaluate(std::span<const ScalarNode> tree, std::span<const T> arguments);

}  // namespace torch_remote::ir
