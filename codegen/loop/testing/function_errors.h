#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "codegen/loop/loop_ir.h"

// Measures the errors of expanded functions against the C library, in units in the last place (ulp).
namespace torch_remote::codegen::testing {

struct Function {
  ir::ScalarOp op;
  std::string_view name;
  int arity;
  double bound32, bound64;  // the largest errors in ulp that tests allow, for f32 and f64
  // The expected values, for f32 and f64. A function of one argument ignores the second one.
  double (*in_double)(double, double);
  long double (*in_long_double)(long double, long double);
};
const std::vector<Function>& functions();
const Function* function_of(ir::ScalarOp op);  // null if functions() does not have it

// A kernel that computes the function of a0 (and a1), of type `type`, and stores it in the operand after these.
// `expand`: with the function expanded.
Kernel kernel_of(ir::ScalarOp op, int arity, ir::DType type, bool expand = true);
// The number of operations of the expanded function, without constants, loads, stores and changes of type that keep the
// bits (Kind::kBits).
struct Cost {
  int operations = 0;
  int divisions = 0;  // including square roots
};
Cost cost_of(ir::ScalarOp op, int arity, ir::DType type);

// The largest error over all arguments, and the arguments that have it. The error is infinite if only the result or
// only the expected value is NaN, if the expected value is infinite or zero and the result is not, or if the sign is
// wrong.
struct Error {
  double ulps = 0;
  double x = 0, y = 0;
  double got = 0, expected = 0;
};

// Arguments for a test: numbers of all magnitudes, and those next to points at which some function changes its
// behavior. Negative numbers are left out for "lgamma". `count`: the approximate number of random ones.
std::vector<float> arguments32(std::string_view function);
std::vector<double> arguments64(std::string_view function, uint64_t count);
// Tries the pairs (xs[i], ys[i]). Both vectors have the same size, also for functions of one argument.
Error error32(const Function& function, const std::vector<float>& xs, const std::vector<float>& ys);
Error error64(const Function& function, const std::vector<double>& xs, const std::vector<double>& ys);
// Tries all f32 with bits in [begin, end) as arguments of a function of one argument. For "lgamma", blocks of numbers
// that begin with a negative one are left out.
Error sweep32(const Function& function, uint64_t begin, uint64_t end);

}  // namespace torch_remote::codegen::testing
