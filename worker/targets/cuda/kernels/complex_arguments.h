#pragma once

// The arguments of the kernels in complex.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

enum class ComplexOp : i64 {
  // The ops up to kIsInfinite return bools.
  kEqual,
  kNotEqual,
  kIsInfinite,
  kAdd,          // a + t b
  kAddProduct,   // a + t b c
  kAddQuotient,  // a + t b / c
  kLerp,         // Interpolates from a to b with weight c.
  kMultiply,
  kDivide,
  kTanhBackward,     // a conj(1 - b^2)
  kSigmoidBackward,  // a conj((1 - b) b)
  kPower,
  kPowerOfNumber,
  kNegative,
  kConjugate,
  kReciprocal,
  kSquare,
  kSquareRoot,
  kReciprocalRoot,
  kExp,
  kExp2,
  kExpm1,
  kLog,
  kLog2,
  kLog10,
  kLog1p,
  kSine,
  kCosine,
  kTangent,
  kSinh,
  kCosh,
  kTanh,
  kSigmoid,
  kSilu,
  kSinc,
  kSign,
  // The ops from here to kAtanh are in a separate kernel.
  kAsin,
  kAcos,
  kAtan,
  kAsinh,
  kAcosh,
  kAtanh,
  kAbs,    // Returns a real number.
  kAngle,  // Returns a real number.
  kPolar,  // The complex number with magnitude a and angle b; both are real.
  kSelect  // b where c (bools) is false, else a.
};
// out[i] = f(a[i], b[i], c[i]) for contiguous elements, computed in f64.
struct ComplexArguments {
  u64 a = 0, b = 0, c = 0, out = 0;
  i64 count = 0;
  // Dtypes of the operands and of `out`. For complex numbers: that of the real and imaginary parts.
  i64 dtype = 0, out_dtype = 0;
  ComplexOp what = ComplexOp::kAdd;
  double real = 1, imaginary = 0;  // t
};

}  // namespace torch_remote::worker::cuda
