#include <string>

#include "codegen/loop/loop_ir.h"
#include "gtest/gtest.h"

namespace torch_remote::codegen {
namespace {

using ir::DType;

// A kernel with one of most constructs, to which a test adds one wrong line.
constexpr std::string_view kHead = R"(kernel(i0, i1 | j0, j1) {
  s0: f64
  s1: i64
  a0: f32[i0, i1, j0, j1]
  a1: f32[_, j0, j1]
  a2: bf16[i0, i1]
  a3: f32[j0, j1]
  a4: bool[]
  %0: f32 = load a0
  %1: f32 = load a2
  %2: f32 = columns sum %0
  %3: f32 = rows sum %0
  %4: i64 = scalar s1
  %5: bool = load a4
  %6: i32 = constant 1
  %7: f32 = load a3
  %8: f32 = columns sum %7
)";

// The verifier's message; "" if there is none.
std::string error_of(const std::string& lines) {
  Kernel kernel;
  const Status parsed = parse_kernel(std::string(kHead) + lines + "\n}\n", &kernel);
  if (!parsed.ok()) return "parser: " + parsed.message();
  return verify(kernel).message();
}

TEST(Verify, WhatIsRightIsAccepted) {
  EXPECT_EQ(error_of(""), "");
  EXPECT_EQ(error_of("store a0, %0\nstore a1[%4], %0 adds\nstore a2, %2\nstore a3, %3"), "");
  EXPECT_EQ(error_of("%9: f32 = add %3, %7\n store a3, %9"), "")
      << "what is the same in all rows can be used after them";
  EXPECT_EQ(error_of("a5: f32[j0]\n%9: f32 = lines sum %0\nstore a5, %9"), "");
  EXPECT_EQ(error_of("store a0, %1"), "") << "a row's value goes to all its columns";
}

TEST(Verify, Types) {
  EXPECT_EQ(error_of("%9: f64 = scalar s1"), "%9: is i64, not f64");
  EXPECT_EQ(error_of("%9: i32 = index i0"), "%9: is i64, not i32");
  EXPECT_EQ(error_of("%9: bf16 = load a2"), "%9: bf16 is not a type of a value");
  EXPECT_EQ(error_of("%9: f64 = load a0"), "%9: is f32, not f64");
  EXPECT_EQ(error_of("%9: f32 = load a1[%6]"), "%9: %6 is i32, not i64; convert it");
  EXPECT_EQ(error_of("%9: f32 = load a1"), "%9: a1 has 1 indexed dims, but 0 indices are given");
  EXPECT_EQ(error_of("%9: u8 = constant 256"), "%9: its number does not fit u8");
  EXPECT_EQ(error_of("%9: i8 = constant -129"), "%9: its number does not fit i8");
  EXPECT_EQ(error_of("%9: i64 = bits %0"), "%9: reads the bits of f32 as i64, which has another width");
  EXPECT_EQ(error_of("%9: u8 = bits %5"), "%9: reads the bits of a bool; convert it");
  EXPECT_EQ(error_of("%9: f32 = add %0, %6"), "%9: %6 is i32, not f32; convert it");
  EXPECT_EQ(error_of("%9: i32 = exp %6"), "%9: exp takes f32 or f64, not i32");
  EXPECT_EQ(error_of("%9: f32 = bit_and %0, %0"), "%9: bit_and takes integers or bool, not f32");
  EXPECT_EQ(error_of("%9: bool = add %5, %5"), "%9: add takes numbers, not bool");
  EXPECT_EQ(error_of("%9: bool = shift_left %5, %5"), "%9: shift_left takes integers, not bool");
  EXPECT_EQ(error_of("%9: i32 = logical_and %6, %6"), "%9: logical_and takes bool, not i32");
  EXPECT_EQ(error_of("%9: f32 = lt %0, %0"), "%9: is bool, not f32");
  EXPECT_EQ(error_of("%9: bool = lt %0, %6"), "%9: %6 is i32, not f32; convert it");
  EXPECT_EQ(error_of("%9: bool = is_nan %6"), "%9: is_nan takes f32 or f64, not i32");
  EXPECT_EQ(error_of("%9: f32 = where %0, %0, %0"), "%9: %0 is f32, not bool; convert it");
  EXPECT_EQ(error_of("%9: i32 = where %5, %6, %0"), "%9: %0 is f32, not i32; convert it");
  EXPECT_EQ(error_of("%9: i32 = fma %6, %6, %6"), "%9: fma needs f32 or f64");
  EXPECT_EQ(error_of("%9: i32 = ldexp %6, %6"), "%9: ldexp needs f32 or f64");
  EXPECT_EQ(error_of("%9: f32 = ldexp %0, %6"), "%9: %6 is i32, not f32; convert it");
  EXPECT_EQ(error_of("%9: f64 = columns sum %0"), "");  // the one reduction that is wider than its operand
  EXPECT_EQ(error_of("%9: f64 = columns product %0"), "%9: %0 is f32, not f64; convert it");
  EXPECT_EQ(error_of("%9: f64 = rows sum %0"), "%9: %0 is f32, not f64; convert it");
  EXPECT_EQ(error_of("%9: i64 = columns sum %6"), "%9: %6 is i32, not i64; convert it");
  EXPECT_EQ(error_of("%9: bool = columns sum %5"), "%9: sum and product need numbers; for bool there are max and min");
  EXPECT_EQ(error_of("%9: f32 = columns argmax %0"), "%9: is i64, not f32");
  EXPECT_EQ(error_of("%9: i64 = rows argmax %0"), "%9: argmax is over columns only");
  EXPECT_EQ(error_of("%9: i32 = random %4, %4, %6"), "%9: %6 is i32, not i64; convert it");
  EXPECT_EQ(error_of("%9: i64 = random %4, %4, %4"), "%9: is i32, not i64");
  EXPECT_EQ(error_of("store a0, %4"), "store a0: %4 is i64, not f32; convert it");
}

TEST(Verify, WhatIsKnownAfterAllRows) {
  EXPECT_EQ(error_of("%9: f32 = sub %0, %3"), "%9: is known after all rows, but %0 is a row's");
  EXPECT_EQ(error_of("%9: f32 = sub %3, %8"), "%9: is known after all rows, but %8 is reduced in each of them");
  EXPECT_EQ(error_of("%9: f32 = columns sum %3"), "%9: reduces %3, which is known after all rows");
  EXPECT_EQ(error_of("%9: f32 = rows sum %3"), "%9: reduces %3, which is known after all rows");
  EXPECT_EQ(error_of("%9: f32 = lines sum %3"), "%9: reduces %3, which is known after all rows");
  EXPECT_EQ(error_of("%9: f32 = lines sum %1"), "%9: reduces lines of a value that is the same in all of them");
  EXPECT_EQ(error_of("store a0, %3"), "store a0: has row dims, but %3 is known after all rows");
  EXPECT_EQ(error_of("%9: i64 = index i0\n%10: i64 = convert %3\n store a1[%10], %8"),
            "store a1: is known after all rows, but %8 is reduced in each of them");
  EXPECT_EQ(error_of("%9: i64 = convert %2\n store a1[%9], %3"),
            "store a1: is known after all rows, but %9 is a row's");
}

TEST(Verify, Stores) {
  EXPECT_EQ(error_of("store a0, %0\nstore a0, %1"), "store a0: is stored to twice");
  EXPECT_EQ(error_of("store a3, %0"), "store a3: lacks a dim that %0 varies over");
  EXPECT_EQ(error_of("store a3, %7"), "store a3: lacks a row dim, so several rows would write one element");
  EXPECT_EQ(error_of("store a1[%4], %7"), "store a1: lacks a row dim, so several rows would write one element");
  EXPECT_EQ(error_of("store a4, %5 adds"), "store a4: adds to bool");
  EXPECT_EQ(error_of("%9: f32 = load a1[%4]\nstore a1[%4], %0"), "%9: loads a1, which is stored to at indices");
  EXPECT_EQ(error_of("a5: f32[i0, i1, j0]\nstore a5, %1 adds"),
            "store a5: varies over one column dim, but not over the other");
  EXPECT_EQ(error_of("a5: f32[i0, i1, j1]\nstore a5, %1"),
            "store a5: varies over one column dim, but not over the other");
}

// These errors cannot be expressed in the text form.
TEST(Verify, DamagedKernels) {
  const auto message = [](void (*damage)(Kernel&)) {
    Kernel kernel;
    EXPECT_TRUE(parse_kernel(std::string(kHead) + "%9: f32 = add %0, %1\n store a2, %2\n}", &kernel).ok());
    EXPECT_TRUE(verify(kernel).ok());
    damage(kernel);
    return verify(kernel).message();
  };
  EXPECT_EQ(message([](Kernel& k) { k.rows = 7; }), "kernel: has more than 6 row dims");
  EXPECT_EQ(message([](Kernel& k) { k.columns = 3; }), "kernel: has more than 2 column dims");
  EXPECT_EQ(message([](Kernel& k) { k.scalars[1] = DType::kFloat32; }),
            "s1: f32 is not a type of a scalar: f64, i64 or bool");
  EXPECT_EQ(message([](Kernel& k) { k.operands[0].dtype = DType::kComplex64; }),
            "a0: memory of a kernel cannot be c64");
  EXPECT_EQ(message([](Kernel& k) { k.operands[0].dtype = static_cast<DType>(200); }),
            "a0: memory of a kernel cannot be an invalid type");
  EXPECT_EQ(message([](Kernel& k) { k.operands[0].dims = 0b10000; }), "a0: has dims that the kernel does not have");
  EXPECT_EQ(message([](Kernel& k) { k.operands[1].indexed = 5; }), "a1: has more than 4 indexed dims");
  EXPECT_EQ(message([](Kernel& k) { k.operands[2].strided = true; }),
            "a2: is strided along the last column dim, along which it does not vary");
  EXPECT_EQ(message([](Kernel& k) { k.values[9].a = 9; }), "%9: uses a value that is not defined before it");
  EXPECT_EQ(message([](Kernel& k) { k.values[9].c = 0; }), "%9: sets a field that its kind does not use");
  EXPECT_EQ(message([](Kernel& k) { k.values[9].number = 1; }), "%9: sets a field that its kind does not use");
  EXPECT_EQ(message([](Kernel& k) { k.values[9].op = ir::ScalarOp::kToResult; }),
            "%9: its function is not available in kernels");
  EXPECT_EQ(message([](Kernel& k) { k.values[9].kind = static_cast<Kind>(77); }), "%9: has an invalid kind");
  EXPECT_EQ(message([](Kernel& k) { k.values[2].reduction = static_cast<Reduction>(7); }),
            "%2: has an invalid reduction");
  EXPECT_EQ(message([](Kernel& k) { k.values[4].a = 2; }), "%4: is a scalar that is not declared");
  EXPECT_EQ(message([](Kernel& k) { k.values[4] = {.kind = Kind::kIndex, .type = DType::kInt64, .a = 4}; }),
            "%4: is the index along a dim that does not exist");
  EXPECT_EQ(message([](Kernel& k) { k.values[0].operand = 5; }), "%0: names an operand that is not declared");
  EXPECT_EQ(message([](Kernel& k) { k.stores[0].value = 10; }), "store a2: uses a value that is not defined before it");
  EXPECT_EQ(message([](Kernel& k) { k.stores[0].operand = 5; }), "store a5: names an operand that is not declared");
}

TEST(Verify, RunningValues) {
  const auto error_of_row = [](const std::string& lines) {
    Kernel kernel;
    const std::string head = "kernel(i0 | j0) {\n a0: f32[i0, j0]\n %0: f32 = load a0\n %1: i64 = index j0\n";
    EXPECT_TRUE(parse_kernel(head + lines + "\n}", &kernel).ok());
    return verify(kernel).message();
  };
  EXPECT_EQ(error_of_row("%2: f32 = running logsumexp %0"), "");
  EXPECT_EQ(error_of_row("%2: i64 = running logsumexp %1"), "%2: logsumexp needs floats");
  EXPECT_EQ(error_of_row("%2: f32 = columns logsumexp %0"), "%2: logsumexp exists only as a running reduction");
  EXPECT_EQ(error_of_row("%2: f32 = running max %0"), "%2: running max; there are sum, product and logsumexp");
}

TEST(Verify, NothingToReduce) {
  Kernel kernel;
  ASSERT_TRUE(parse_kernel("kernel(i0 |) {\n %0: i64 = index i0\n %1: i64 = columns sum %0\n}", &kernel).ok());
  EXPECT_EQ(verify(kernel).message(), "%1: there are no column dims to reduce");
  ASSERT_TRUE(parse_kernel("kernel(| j0) {\n %0: i64 = index j0\n %1: i64 = rows sum %0\n}", &kernel).ok());
  EXPECT_EQ(verify(kernel).message(), "%1: there are no row dims to reduce");
}

}  // namespace
}  // namespace torch_remote::codegen
