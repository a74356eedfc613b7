#pragma once

// What the kernels of complex.cu are called with, as arguments.h has it.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

enum class ComplexOp : i64 {
  kAdd,  // a + c b
  kMultiply,
  kDivide,
  kPower,
  kPowerOfNumber,
  kEqual,  // the last of those with two operands
  kNotEqual,
  kNegative,
  kConjugate,
  kReciprocal,
  kSquare,
  kSquareRoot,
  kExp,
  kLog,
  kSine,
  kCosine,
  kSign,
  kAbs,  // the last ones make real numbers
  kAngle,
  kPolar,  // of two real numbers
  kSelect  // b or a, as c (bools) says
};
// out[i] = f(a[i], b[i]) of packed elements, computed in f64.
struct ComplexArguments {
  u64 a = 0, b = 0, c = 0, out = 0;
  i64 count = 0, dtype = 0, out_dtype = 0;  // dtypes: of parts, or of real numbers
  ComplexOp what = ComplexOp::kAdd;
  double real = 1, imaginary = 0;  // c of kAdd
};

}  // namespace torch_remote::worker::cuda
