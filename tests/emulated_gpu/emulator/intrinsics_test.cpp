#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "tests/emulated_gpu/emulator/emulator.h"
#include "tests/emulated_gpu/emulator/testing/harness.h"

// Tests NVVM's intrinsics one by one in hand-written IR, and the error for unknown ones.
namespace torch_remote::codegen::emulator {
namespace {

using testing::Buffer;
using testing::must;

Device& device() {
  static Device device;
  return device;
}

template <typename T>
std::string type_name() {
  if constexpr (std::is_same_v<T, float>) return "float";
  if constexpr (std::is_same_v<T, double>) return "double";
  return "i" + std::to_string(8 * sizeof(T));
}

template <typename T>
uint64_t bits(T value) {
  uint64_t result = 0;
  std::memcpy(&result, &value, sizeof value);
  return result;
}

// Applies an intrinsic with kArity operands to each element.
template <typename Out, typename In, size_t kArity>
std::vector<Out> call(const std::string& name, const std::vector<std::array<In, kArity>>& inputs) {
  const std::string in = type_name<In>(), out = type_name<Out>();
  std::ostringstream types, operands, loads;
  for (size_t i = 0; i < kArity; ++i) {
    const char* comma = i == 0 ? "" : ", ";
    types << comma << in;
    operands << comma << in << " %v" << i;
    loads << "  %q" << i << " = getelementptr [" << kArity << " x " << in << "], ptr %x, i32 %t, i32 " << i << "\n"
          << "  %v" << i << " = load " << in << ", ptr %q" << i << "\n";
  }
  std::ostringstream text;
  text << "declare " << out << " @" << name << "(" << types.str() << ")\n"
       << "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n"
       << "define ptx_kernel void @k(ptr %x, ptr %out) {\n"
       << "  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n"
       << loads.str() << "  %r = call " << out << " @" << name << "(" << operands.str() << ")\n"
       << "  %p = getelementptr " << out << ", ptr %out, i32 %t\n"
       << "  store " << out << " %r, ptr %p\n  ret void\n}\n";
  const auto module = testing::load_text(device(), text.str());
  Buffer<std::array<In, kArity>> x(device(), inputs, "x");
  Buffer<Out> result(device(), inputs.size(), "out");
  void* arguments[] = {x.argument(), result.argument()};
  const auto threads = static_cast<uint32_t>(inputs.size());
  must(module->launch("k", {1}, {threads}, 0, arguments, {.checked = true}));
  const std::vector<Out> checked = result.read();
  must(module->launch("k", {1}, {threads}, 0, arguments));
  const std::vector<Out> plain = result.read();
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(bits(plain[i]), bits(checked[i])) << name << " differs with checks";
  }
  return plain;
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = 1e-40F;

template <typename T, size_t kArity>
std::vector<std::array<T, kArity>> numbers() {
  const std::vector<T> special = {0, -0.0, 1, -1, 0.5, 2.5, -3.5, 1e30F, kDenormal, -kDenormal, kInf, -kInf, kNan};
  std::mt19937 random(7);
  std::uniform_real_distribution<double> distribution(-8, 8);
  std::vector<std::array<T, kArity>> result(128);
  for (size_t i = 0; i < result.size(); ++i) {
    for (size_t j = 0; j < kArity; ++j) {
      const bool is_special = i < special.size() * special.size();
      const size_t place = (j == 0 ? i : i / special.size() + j) % special.size();
      result[i][j] = is_special && i < 100 ? special[place] : static_cast<T>(distribution(random));
    }
  }
  return result;
}

template <typename T>
bool near(T got, T expected, double ulps) {
  if (std::isnan(expected)) return std::isnan(got);
  if (got == expected) return std::signbit(got) == std::signbit(expected) || ulps > 0;
  const double unit = std::abs(static_cast<double>(std::nextafter(expected, std::numeric_limits<T>::infinity())) -
                               static_cast<double>(expected));
  return std::abs(static_cast<double>(got) - static_cast<double>(expected)) <= ulps * unit;
}

template <typename T, size_t kArity, typename F>
void expect(const std::string& name, F function, double ulps = 0) {
  const auto inputs = numbers<T, kArity>();
  const auto got = call<T, T, kArity>(name, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const T expected = std::apply(function, inputs[i]);
    EXPECT_TRUE(near(got[i], expected, ulps))
        << name << "(" << inputs[i][0] << ", ...) is " << got[i] << ", not " << expected;
  }
}

float flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x; }

TEST(Intrinsics, ExactArithmetic) {
  expect<float, 1>("llvm.nvvm.rcp.rn.f", [](float x) { return 1 / x; });
  expect<float, 1>("llvm.nvvm.sqrt.rn.f", [](float x) { return std::sqrt(x); });
  expect<float, 1>("llvm.nvvm.round.f", [](float x) { return std::nearbyint(x); });
  expect<float, 1>("llvm.nvvm.trunc.f", [](float x) { return std::trunc(x); });
  expect<float, 1>("llvm.nvvm.saturate.f", [](float x) { return std::fmin(std::fmax(x, 0.0F), 1.0F); }, 1e-9);
  expect<float, 2>("llvm.nvvm.div.rn.f", [](float x, float y) { return x / y; });
  expect<float, 2>("llvm.nvvm.mul.rn.f", [](float x, float y) { return x * y; });
  expect<float, 3>("llvm.nvvm.fma.rn.f", [](float x, float y, float z) { return std::fma(x, y, z); });
  expect<double, 3>("llvm.nvvm.fma.rn.d", [](double x, double y, double z) { return std::fma(x, y, z); });
  expect<float, 2>("llvm.nvvm.fmax.f", [](float x, float y) { return std::fmax(x, y); }, 1e-9);
  expect<float, 2>(
      "llvm.nvvm.fmin.nan.f", [](float x, float y) { return std::isnan(x) || std::isnan(y) ? kNan : std::fmin(x, y); },
      1e-9);
}

TEST(Intrinsics, ApproximateArithmeticIsTheCLibrarys) {
  expect<float, 1>("llvm.nvvm.ex2.approx.f", [](float x) { return std::exp2(x); }, 1);
  expect<float, 1>("llvm.nvvm.lg2.approx.f", [](float x) { return std::log2(x); }, 1);
  expect<float, 1>("llvm.nvvm.sin.approx.f", [](float x) { return std::sin(x); }, 1);
  expect<float, 1>("llvm.nvvm.rsqrt.approx.f", [](float x) { return 1 / std::sqrt(x); }, 1);
}

TEST(Intrinsics, FtzFlushesOperandsAndResults) {
  expect<float, 2>("llvm.nvvm.mul.rn.ftz.f", [](float x, float y) { return flush(flush(x) * flush(y)); });
  expect<float, 1>("llvm.nvvm.ex2.approx.ftz.f", [](float x) { return flush(std::exp2(flush(x))); }, 1);
}

TEST(Intrinsics, AreRoundedInEveryDirection) {
  const std::vector<std::array<float, 2>> x = {{1, 0x1p-30F}, {-1, -0x1p-30F}};
  EXPECT_EQ((call<float, float, 2>("llvm.nvvm.add.rz.f", x)), (std::vector<float>{1, -1}));
  EXPECT_EQ((call<float, float, 2>("llvm.nvvm.add.rp.f", x)), (std::vector<float>{0x1.000002p0F, -1}));
  EXPECT_EQ((call<float, float, 2>("llvm.nvvm.add.rm.f", x)), (std::vector<float>{1, -0x1.000002p0F}));
  const std::vector<std::array<double, 3>> y = {{1, 1, 0x1p-60}};
  EXPECT_EQ((call<double, double, 3>("llvm.nvvm.fma.rp.d", y)), (std::vector<double>{0x1.0000000000001p0}));
}

TEST(Intrinsics, Conversions) {
  const std::vector<std::array<float, 1>> x = {{2.5F}, {-2.5F}, {3.7F}, {-3.7F}, {1e20F}, {-1e20F}, {kNan}};
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max(), kLeast = std::numeric_limits<int32_t>::min();
  EXPECT_EQ((call<int32_t, float, 1>("llvm.nvvm.f2i.rn", x)), (std::vector<int32_t>{2, -2, 4, -4, kMost, kLeast, 0}));
  EXPECT_EQ((call<int32_t, float, 1>("llvm.nvvm.f2i.rm", x)), (std::vector<int32_t>{2, -3, 3, -4, kMost, kLeast, 0}));
  EXPECT_EQ((call<uint32_t, float, 1>("llvm.nvvm.f2ui.rp", x)), (std::vector<uint32_t>{3, 0, 4, 0, 0xFFFFFFFF, 0, 0}));
  EXPECT_EQ((call<int16_t, float, 1>("llvm.nvvm.f2h.rn", {{1.0F}, {kDenormal}})), (std::vector<int16_t>{0x3C00, 0}));
}

TEST(Intrinsics, Bits) {
  const std::vector<std::array<int32_t, 2>> x = {{-5, 7}, {0x12345678, 0x7FFFFFFF}};
  EXPECT_EQ((call<int32_t, int32_t, 2>("llvm.nvvm.mulhi.i", x)), (std::vector<int32_t>{-1, 0x091A2B3B}));
  EXPECT_EQ((call<int32_t, int32_t, 2>("llvm.nvvm.mulhi.ui", x)), (std::vector<int32_t>{6, 0x091A2B3B}));
  EXPECT_EQ((call<int32_t, int32_t, 2>("llvm.nvvm.mul24.i", x)), (std::vector<int32_t>{-35, -0x345678}));
  EXPECT_EQ((call<int32_t, int32_t, 3>("llvm.nvvm.prmt", {{0x03020100, 0x07060584, 0x7542}, {0x80, 0, 0x88F8}})),
            (std::vector<int32_t>{0x07058402, static_cast<int32_t>(0xFFFF00FF)}));
}

// Two float32 values become a pair of half types. The first is the upper half.
TEST(Intrinsics, PairsOfHalfTypes) {
  const auto module = testing::load_text(device(), R"(
    declare <2 x bfloat> @llvm.nvvm.ff2bf16x2.rn(float, float)
    declare <2 x half> @llvm.nvvm.ff2f16x2.rn(float, float)
    define ptx_kernel void @k(ptr %x, ptr %out) {
      %a = load float, ptr %x
      %q = getelementptr float, ptr %x, i32 1
      %b = load float, ptr %q
      %r = call <2 x bfloat> @llvm.nvvm.ff2bf16x2.rn(float %a, float %b)
      store <2 x bfloat> %r, ptr %out
      %s = call <2 x half> @llvm.nvvm.ff2f16x2.rn(float %a, float %b)
      %p = getelementptr i32, ptr %out, i32 1
      store <2 x half> %s, ptr %p
      ret void
    })");
  Buffer<float> x(device(), {1.0F, std::bit_cast<float>(0x00040000)}, "x");
  Buffer<uint32_t> out(device(), 2, "out");
  void* arguments[] = {x.argument(), out.argument()};
  must(module->launch("k", {1}, {1}, 0, arguments));
  EXPECT_EQ(out.read(), (std::vector<uint32_t>{0x3F800004, 0x3C000000}));
}

// Arithmetic in half types rounds after each operation. A conversion from float64 rounds once.
TEST(Intrinsics, ArithmeticInHalfTypes) {
  const auto module = testing::load_text(device(), R"(
    define ptx_kernel void @k(ptr %x, ptr %out) {
      %a = load double, ptr %x
      %h = fptrunc double %a to half
      store half %h, ptr %out
      %b = fptrunc double %a to bfloat
      %p = getelementptr i16, ptr %out, i32 1
      store bfloat %b, ptr %p
      %sum = fadd bfloat %b, 0xR3B80
      %q = getelementptr i16, ptr %out, i32 2
      store bfloat %sum, ptr %q
      ret void
    })");
  // Just above the midpoint between two float16 and two bfloat16 values; rounding to float32 first would lose that.
  Buffer<double> x(device(), std::vector<double>{1 + 0x1p-11 + 0x1p-40}, "x");
  Buffer<uint16_t> out(device(), 3, "out");
  void* arguments[] = {x.argument(), out.argument()};
  must(module->launch("k", {1}, {1}, 0, arguments));
  EXPECT_EQ(out.read(), (std::vector<uint16_t>{0x3C01, 0x3F80, 0x3F80}));
  x.write({1 + 0x1p-8 + 0x1p-40});
  must(module->launch("k", {1}, {1}, 0, arguments));
  EXPECT_EQ(out.read(), (std::vector<uint16_t>{0x3C04, 0x3F81, 0x3F82}));
}

std::string error_of(const std::string& ir) {
  std::unique_ptr<Module> module;
  const Status status = Module::load(device(), ir, &module);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  return status.message();
}

TEST(Unknown, IsNamed) {
  EXPECT_EQ(
      error_of(R"(target triple = "nvptx64-nvidia-cuda"
    declare void @llvm.nvvm.cp.async.wait.all()
    declare void @llvm.nvvm.bar.sync(i32)
    declare i32 @vprintf(ptr, ptr)
    define ptx_kernel void @k(ptr %f, i32 %x) {
      call void @llvm.nvvm.cp.async.wait.all()
      call void @llvm.nvvm.bar.sync(i32 1)
      %a = call i32 @vprintf(ptr null, ptr null)
      call void %f()
      %b = call i32 asm "wgmma.fence.sync.aligned $0;", "=r"()
      ret void
    })"),
      "emulator: module 'kernels' uses what is not known: a call through a pointer, function 'vprintf', which is not "
      "in the module, inline PTX 'wgmma.fence.sync.aligned $0;', llvm.nvvm.bar.sync, llvm.nvvm.cp.async.wait.all");
}

TEST(Unknown, DeviceVariableThatIsNotThereIsNamed) {
  EXPECT_EQ(error_of(R"(target triple = "nvptx64-nvidia-cuda"
    @elsewhere = external addrspace(1) global i32
    define ptx_kernel void @k() {
      store i32 1, ptr addrspace(1) @elsewhere
      ret void
    })"),
            "emulator: device variable 'elsewhere' is not in the module");
}

TEST(Unknown, TextThatIsNoIr) {
  std::unique_ptr<Module> module;
  const Status status = Module::load(device(), "define nothing", &module);
  EXPECT_EQ(status.code(), ErrorCode::kInvalid);
  EXPECT_NE(status.message().find("kernels:1:8"), std::string::npos) << status.message();
}

TEST(InlinePtx, WhatHasNoIntrinsicIsKnown) {
  const auto module = testing::load_text(device(), R"(
    define ptx_kernel void @k(ptr %out) {
      %lane = call i32 asm "mov.u32 $0, %laneid;", "=r"()
      %below = call i32 asm "mov.u32 $0, %lanemask_lt;", "=r"()
      %active = call i32 asm sideeffect "activemask.b32 $0;", "=r"()
      %f = uitofp i32 %lane to float
      %e = call float asm "ex2.approx.ftz.f32 $0, $1;", "=f,f"(float %f)
      %g = fptoui float %e to i32
      %p0 = getelementptr [4 x i32], ptr %out, i32 %lane, i32 0
      %p1 = getelementptr [4 x i32], ptr %out, i32 %lane, i32 1
      %p2 = getelementptr [4 x i32], ptr %out, i32 %lane, i32 2
      %p3 = getelementptr [4 x i32], ptr %out, i32 %lane, i32 3
      store i32 %lane, ptr %p0
      store i32 %below, ptr %p1
      store i32 %active, ptr %p2
      store i32 %g, ptr %p3
      ret void
    })");
  Buffer<uint32_t> out(device(), 80, "out");
  void* arguments[] = {out.argument()};
  must(module->launch("k", {1}, {20}, 0, arguments));
  const auto got = out.read();
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(got[4 * i], i);
    EXPECT_EQ(got[4 * i + 1], (1U << i) - 1);
    EXPECT_EQ(got[4 * i + 2], 1U << i);  // the strictest answer that is allowed
    EXPECT_EQ(got[4 * i + 3], 1U << i);
  }
}

}  // namespace
}  // namespace torch_remote::codegen::emulator
