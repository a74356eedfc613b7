#pragma once

// The arguments of the kernels in pointwise.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

enum class Pointwise : i64 {
  kTruncDivide,
  kSignBit,
  kAngle,
  kErfInv,
  kDigamma,
  kSinc,           // sin(pi a) / (pi a)
  kEntropy,        // -a log(a)
  kMantissa,       // m of a = m * 2^e with m in [0.5, 1).
  kExponent,       // e of that.
  kNextAfter,      // The next float after a towards b.
  kRoundDecimals,  // Rounds to b decimals; c is 10^|b|.
  kGcd,            // These two take integers.
  kLcm,
  kGlu,                 // a sigmoid(b)
  kGluSlope,            // c a sigmoid(b) (1 - sigmoid(b))
  kBinaryCrossEntropy,  // a: probability, b: target, c: factor.
  kRenorm,              // Scales a, from a slice with norm b, to a norm of at most d.
  kBesselI,             // From here: in a separate kernel. Modified, of order b; c: times exp(-|a|).
  kErfcx,
  kLogNdtr,
  kNdtri,
  kZeta,       // Hurwitz zeta function of a and b.
  kPolygamma,  // Order b, at a.
};
// out[i] = f(a[i], b[i], c[i]) for contiguous elements of one dtype, computed in f64 or i64.
struct PointwiseArguments {
  u64 a = 0, b = 0, c = 0, out = 0;  // 0: a number.
  u64 failure = 0;                   // IndexRecord, for integer divisions.
  i64 count = 0, dtype = 0, out_dtype = 0;
  Pointwise what = Pointwise::kTruncDivide;
  i64 has_c = 0;
  double a_number = 0, b_number = 0, c_number = 0, d_number = 0;
  i64 a_int = 0, b_int = 0, c_int = 0;
};

}  // namespace torch_remote::worker::cuda
