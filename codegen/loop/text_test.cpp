#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>

#include "codegen/loop/loop_ir.h"
#include "codegen/loop/testing/random_kernel.h"
#include "gtest/gtest.h"

namespace torch_remote::codegen {
namespace {

using ir::DType;

std::string docs() {
  std::ifstream file("docs/loop_ir.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Text, KernelsOfTheDocsAreAsPrinted) {
  const std::string page = docs();
  size_t found = 0;
  for (size_t at = page.find("\nkernel("); at != std::string::npos; at = page.find("\nkernel(", at + 1)) {
    const std::string text = page.substr(at + 1, page.find("\n```", at) - at);
    Kernel kernel;
    const Status parsed = parse_kernel(text, &kernel);
    ASSERT_TRUE(parsed.ok()) << parsed.message() << "\n" << text;
    const Status valid = verify(kernel);
    ASSERT_TRUE(valid.ok()) << valid.message() << "\n" << text;
    EXPECT_EQ(print(kernel), text);
    ++found;
  }
  EXPECT_GE(found, 1u);
}

// Contains every kind of line.
constexpr std::string_view kEverything = R"(kernel(i0, i1 | j0, j1) {
  s0: f64
  s1: i64
  s2: bool
  a0: bf16[i0, i1, j0, j1]
  a1: f32[_, j1*]
  a2: f16[_, _]
  a3: i64[i0, i1]
  a4: f64[j0, j1]
  a5: bool[i0, i1, j0, j1*]
  a6: u8[]
  a7: f32[_, j0, j1]
  %0: f32 = load a0
  %1: i64 = load a3
  %2: f32 = load a1[%1]
  %3: i64 = index j1
  %4: f32 = load a2[%1, %3]
  %5: f32 = fma %0, %2, %4
  %6: f32 = columns product %5
  %7: i64 = columns argmin %5
  %8: i32 = random %7, %1, %3
  %9: f32 = bits %8
  %10: f64 = convert %9
  %11: f64 = rows sum %10
  %12: f64 = scalar s0
  %13: f64 = mul %11, %12
  %14: bool = lt %0, %6
  %15: bool = scalar s2
  %16: bool = where %14, %15, %14
  %17: u8 = load a6
  %18: u8 = constant 200
  %19: bool = constant true
  %20: f32 = constant -0.0
  %21: f64 = constant 5e-324
  %22: f32 = constant 3.0
  %23: f32 = constant inf
  %24: f32 = constant -inf
  %25: f32 = constant nan
  %26: i64 = constant -9223372036854775808
  %27: i64 = scalar s1
  %28: bool = is_nan %25
  %29: f32 = ldexp %20, %22
  %30: f32 = running product %5
  %31: f32 = running logsumexp %5
  store a4, %13
  store a5, %16
  store a7[%27], %5 adds
}
)";

TEST(Text, EveryLineComesBackAsItWas) {
  Kernel kernel;
  const Status parsed = parse_kernel(kEverything, &kernel);
  ASSERT_TRUE(parsed.ok()) << parsed.message();
  const Status valid = verify(kernel);
  EXPECT_TRUE(valid.ok()) << valid.message();
  EXPECT_EQ(print(kernel), kEverything);
  Kernel back;
  ASSERT_TRUE(parse_kernel(print(kernel), &back).ok());
  EXPECT_EQ(back, kernel);
  EXPECT_TRUE(kernel.operands[1].strided);
  EXPECT_EQ(kernel.operands[1].dims, 0b1000u);
  EXPECT_EQ(kernel.operands[2].indexed, 2);
  EXPECT_TRUE(std::signbit(kernel.values[20].number));
  EXPECT_EQ(kernel.values[26].integer, std::numeric_limits<int64_t>::min());
}

TEST(Text, RandomKernelsComeBackAsTheyWere) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    testing::Rng rng(seed);
    const Kernel kernel = testing::random_kernel(rng, {.max_rows = 4, .functions = true, .lines = true});
    const Status valid = verify(kernel);
    ASSERT_TRUE(valid.ok()) << "seed " << seed << ": " << valid.message() << "\n" << print(kernel);
    const std::string text = print(kernel);
    Kernel back;
    const Status status = parse_kernel(text, &back);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message() << "\n" << text;
    ASSERT_EQ(print(back), text) << "seed " << seed;
    ASSERT_EQ(back, kernel) << "seed " << seed << "\n" << text;
  }
}

TEST(Text, DomainsMayBeEmpty) {
  for (const char* const text : {"kernel(|) {\n}\n", "kernel(i0 |) {\n}\n", "kernel(| j0) {\n}\n"}) {
    Kernel kernel;
    const Status parsed = parse_kernel(text, &kernel);
    ASSERT_TRUE(parsed.ok()) << parsed.message();
    EXPECT_EQ(print(kernel), text);
  }
}

TEST(Text, ConstantsDifferByTheirBits) {
  Value zero{.number = 0.0}, negative{.number = -0.0};
  EXPECT_FALSE(zero == negative);
  Value nan{.number = std::nan("")}, other{.number = -std::nan("1")};
  EXPECT_TRUE(nan == other);
}

TEST(Text, CommentsAndBlanksMeanNothing) {
  Kernel kernel;
  const Status parsed = parse_kernel(
      "// first\n kernel ( i0|j0 ){a0:f32[ i0 ,j0 * ]%0:f32=load a0 // an element\n store a0,%0}\n//end", &kernel);
  ASSERT_TRUE(parsed.ok()) << parsed.message();
  EXPECT_EQ(print(kernel), "kernel(i0 | j0) {\n  a0: f32[i0, j0*]\n  %0: f32 = load a0\n  store a0, %0\n}\n");
}

// The error message for a kernel with these lines.
std::string error_of(const std::string& lines) {
  Kernel kernel;
  const Status status = parse_kernel("kernel(i0 | j0) {\n  a0: f32[i0, j0]\n" + lines + "\n}\n", &kernel);
  return status.ok() ? "parsed" : status.message();
}

TEST(Text, ErrorsSayWhere) {
  EXPECT_EQ(error_of("  a2: f32[]"), "3:3: expected s0, a1, %0, 'store' or '}'");
  EXPECT_EQ(error_of("  a1: f33[]"), "3:7: expected a type, like f32");
  EXPECT_EQ(error_of("  a1: f32[i1]"), "3:11: expected a dim of the kernel, like i0");
  EXPECT_EQ(error_of("  a1: f32[j0, i0]"), "3:15: dims stand in the order of the kernel, each once");
  EXPECT_EQ(error_of("  a1: f32[i0*]"), "3:13: '*' stands at the last column dim");
  EXPECT_EQ(error_of("  a1: f32[i0, _]"), "3:15: '_' stands before the dims");
  EXPECT_EQ(error_of("  a1: f32[_, _, _, _, _]"), "3:23: at most 4 times '_'");
  EXPECT_EQ(error_of("  %1: f32 = load a0"), "3:3: expected %0: values are numbered in order");
  EXPECT_EQ(error_of("  %0: f32 = load a1"), "3:18: a1 is not declared");
  EXPECT_EQ(error_of("  %0: f32 = neg %0"), "3:17: %0 is not declared before");
  EXPECT_EQ(error_of("  %0: f32 = negate %0"), "3:13: there is no function 'negate'");
  EXPECT_EQ(error_of("  %0: f32 = scalar_op"), "3:13: there is no function 'scalar_op'");
  EXPECT_EQ(error_of("  %0: f32 = columns most %0"),
            "3:21: expected a reduction: sum, product, max, min, argmax, argmin, logsumexp");
  EXPECT_EQ(error_of("  %0: i32 = constant 1.5"), "3:23: expected s0, a1, %1, 'store' or '}'");
  EXPECT_EQ(error_of("  %0: i64 = constant 9223372036854775808"), "3:22: a number that is out of range");
  EXPECT_EQ(error_of("  %0: f32 = constant 1e999"), "3:22: a number that is out of range");
  EXPECT_EQ(error_of("  %0: f32 = constant big"), "3:22: expected a number, inf, -inf or nan");
  EXPECT_EQ(error_of("  %0: bool = constant 1"), "3:23: expected true or false");
  EXPECT_EQ(error_of("  %0: f32 = load a0\n  %1: f32 = add %0"), "5:1: expected ','");
  EXPECT_EQ(error_of("  store a0 %0"), "3:12: expected ','");
  EXPECT_EQ(error_of("}"), "4:1: expected the end of the text");
  Kernel kernel;
  EXPECT_EQ(parse_kernel("kernel(i0, i2 |) {\n}", &kernel).message(), "1:12: expected i1");
  EXPECT_EQ(parse_kernel("kernel(| j0, j1, j2) {\n}", &kernel).message(), "1:18: a kernel has at most 2 dims j");
  EXPECT_EQ(parse_kernel("graph() {\n}", &kernel).message(), "1:1: expected 'kernel'");
  EXPECT_EQ(parse_kernel("kernel(|) {", &kernel).message(), "1:12: expected s0, a0, %0, 'store' or '}'");
}

TEST(Text, DamagedTextNeverCrashes) {
  size_t accepted = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    std::mt19937_64 rng(seed);
    std::string text(kEverything);
    for (uint64_t flips = 1 + rng() % 3; flips > 0 && !text.empty(); --flips) {
      const size_t at = rng() % text.size();
      switch (rng() % 8) {
        case 0:
          text.erase(at, 1 + rng() % 8);
          break;
        case 1:
          text.insert(at, 1, static_cast<char>(rng() % 256));
          break;
        case 2:
          text.resize(at + 1);
          break;
        default:
          text[at] = "0123456789()[]{}%_|*,:=.-sabijf"[rng() % 31];
      }
    }
    Kernel back;
    if (!parse_kernel(text, &back).ok()) continue;
    ++accepted;
    (void)verify(back).ok();
    Kernel again;
    ASSERT_TRUE(parse_kernel(print(back), &again).ok()) << seed << "\n" << text << "\n" << print(back);
    ASSERT_EQ(again, back) << seed;
  }
  EXPECT_GT(accepted, 200u);
}

}  // namespace
}  // namespace torch_remote::codegen
