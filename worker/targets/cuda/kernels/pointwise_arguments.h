#pragma once

// What the kernels of pointwise.cu are called with, as arguments.h has it.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

enum class Pointwise : i64 {
  kClamp,     // a from b to c
  kNanToNum,  // b for NaN, c for inf, d for -inf
  kFmod,
  kRemainder,
  kFloorDivide,
  kTruncDivide,
  kFmax,
  kFmin,
  kHeaviside,
  kEqual,
  kNotEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kSignBit,
  kAngle,
  kLogSigmoid,
  kExpOfNegative,  // exp(-|a|)
  kErfInv,
  kLogGamma,
  kDigamma,
  kLogit,
  kSinc,           // sin(pi a) / (pi a)
  kEntropy,        // -a log(a)
  kMantissa,       // of a = m * 2^e with m in [0.5, 1)
  kExponent,       // of that
  kNextAfter,      // a, towards b
  kRoundDecimals,  // to b decimals, of which 10^b is c; b < 0: c is 10^-b
  kGcd,            // these are of integers
  kLcm,
  kGlu,                         // a sigmoid(b)
  kGluSlope,                    // c a sigmoid(b) (1 - sigmoid(b))
  kBinaryCrossEntropy,          // of a chance and a target, c times
  kBinaryCrossEntropyOfLogits,  // c: the weight of what is true
  kSquaredDifference,
  kSmoothL1,    // d: beta
  kHuber,       // d: delta
  kSoftMargin,  // log(1 + exp(-a b))
  kTimes,
  kMinusProduct,  // c - a b
  kRenorm,        // a, of a slice whose norm is b: at most d
  kBesselI,       // these are a kernel's of their own. Modified, of order b; c: times exp(-|a|)
  kErfcx,
  kLogNdtr,
  kNdtri,
  kZeta,       // Hurwitz's, of a and b
  kPolygamma,  // of order b, of a
};
// out[i] = f(a[i], b[i], c[i]) of packed elements of one dtype, computed in f64 or i64.
struct PointwiseArguments {
  u64 a = 0, b = 0, c = 0, out = 0;  // 0: a number
  u64 failure = 0;                   // IndexRecord, of divisions of integers
  i64 count = 0, dtype = 0, out_dtype = 0;
  Pointwise what = Pointwise::kClamp;
  i64 has_b = 0, has_c = 0;
  double a_number = 0, b_number = 0, c_number = 0, d_number = 0;
  i64 a_whole = 0, b_whole = 0, c_whole = 0;
};

}  // namespace torch_remote::worker::cuda
