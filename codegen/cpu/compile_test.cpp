#include "codegen/cpu/compile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "codegen/cpu/testing/harness.h"

// Compares compiled code with the interpreter, bit for bit, for kernels that this file contains. random_test does so
// for random kernels.
namespace torch_remote::codegen::cpu {
namespace {

using testing::Case;
using testing::compile_and_place;
using testing::Compiled;
using testing::difference;
using testing::make_case;
using testing::run_compiled;
using testing::run_interpreter;

// Sizes around those of a vector, a pair of vectors, and a block.
const std::vector<int64_t> kColumns = {0, 1, 15, 16, 17, 31, 32, 33, 100, 4095, 4096, 4097, 5000};

Kernel parsed(const std::string& text) {
  Kernel kernel;
  const Status status = parse_kernel(text, &kernel);
  EXPECT_TRUE(status.ok()) << status.message();
  const Status right = verify(kernel);
  EXPECT_TRUE(right.ok()) << right.message();
  return kernel;
}

Compiled compiled(const Kernel& kernel, std::string_view target, std::string* assembly = nullptr,
                  const Variant& variant = {}) {
  Compiled result;
  const Status status =
      compile_and_place(kernel, {.target = target, .variant = variant, .assembly = assembly}, &result);
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

void compare(const Compiled& code, const Case& arguments, const std::string& what) {
  Case expected = arguments, got = arguments;
  IndexFailure failure;
  const Status status = run_interpreter(code.kernel, &expected, &failure);
  ASSERT_TRUE(status.ok()) << status.message();
  IndexRecord record;
  run_compiled(code, &got, &record);
  EXPECT_EQ(difference(code.kernel, expected, got), "") << what;
  EXPECT_EQ(record.operand, failure.operand) << what;
  if (failure.operand == kNone) return;
  EXPECT_EQ(record.index, failure.index) << what;
  EXPECT_EQ(record.bound, failure.bound) << what;
}

// Checks all column sizes, on all targets that this machine supports.
void check(const std::string& text, std::vector<int64_t> rows = {3}, const std::vector<int64_t>& bounds = {}) {
  const Kernel kernel = parsed(text);
  for (const std::string_view target : testing::targets()) {
    const Compiled code = compiled(kernel, target);
    for (const int64_t size : kColumns) {
      std::vector<int64_t> sizes = rows;
      if (kernel.columns == 2) sizes.push_back(size > 100 ? 2 : 5);
      if (kernel.columns > 0) sizes.push_back(size);
      for (uint64_t seed = 0; seed < (size > 1000 ? 1 : 2); ++seed) {
        compare(code, make_case(kernel, sizes, bounds, seed), std::string(target) + ", " + std::to_string(size));
      }
      // This code is for rows of this size only.
      if (kernel.columns == 0 || size == 0 || size > kMaxFixedColumns) continue;
      const Compiled fixed = compiled(kernel, target, nullptr, {.columns = size});
      compare(fixed, make_case(kernel, sizes, bounds, 2), std::string(target) + ", fixed at " + std::to_string(size));
    }
  }
}

TEST(Compile, Pointwise) {
  check(R"(kernel(i0 | j0) {
  s0: f64
  a0: f32[i0, j0]
  a1: f32[j0]
  a2: f32[i0]
  a3: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = load a2
  %3: f64 = scalar s0
  %4: f32 = convert %3
  %5: f32 = mul %0, %1
  %6: f32 = fma %5, %4, %2
  %7: f32 = constant 0.5
  %8: f32 = max %6, %7
  store a3, %8
})");
}

TEST(Compile, HalfTypes) {
  for (const std::string half : {"bf16", "f16"}) {
    check("kernel(i0 | j0) {\n  a0: " + half + "[i0, j0]\n  a1: " + half + "[i0, j0*]\n  a2: " + half +
          "[i0, j0]\n  a3: " + half + "[i0, j0]\n" +
          R"(  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = div %0, %1
  %3: f32 = add %0, %1
  store a2, %2
  store a3, %3
})");
  }
}

TEST(Compile, RunningSums) {
  // The last places of blocks and lines carry over. Several loops use the sums, which are kept.
  check(R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  a2: i32[i0, j0*]
  a3: i32[i0, j0]
  a4: f64[i0, j0]
  %0: f32 = load a0
  %1: f64 = convert %0
  %2: f64 = running sum %1
  %3: f64 = columns max %2
  %4: f64 = sub %2, %3
  %5: f64 = running product %4
  %6: f32 = convert %2
  %7: i32 = load a2
  %8: i32 = running sum %7
  store a1, %6
  store a3, %8
  store a4, %5
})");
  check(R"(kernel(i0 | j0, j1) {
  a0: f32[i0, j0, j1]
  a1: f32[i0, j0, j1]
  a2: f32[i0]
  %0: f32 = load a0
  %1: f32 = running sum %0
  %2: f32 = columns sum %1
  store a1, %1
  store a2, %2
})");
}

TEST(Compile, RunningLogarithmsOfSums) {
  for (const std::string type : {"f32", "f64"}) {
    check("kernel(i0 | j0) {\n  a0: " + type + "[i0, j0]\n  a1: " + type + "[i0, j0]\n  %0: " + type +
          " = load a0\n  %1: " + type + " = running logsumexp %0\n  store a1, %1\n}");
  }
}

TEST(Compile, IntegersAndBooleans) {
  for (const std::string type : {"u8", "i8", "i16", "i32", "i64"}) {
    check("kernel(i0 | j0) {\n  a0: " + type + "[i0, j0]\n  a1: " + type + "[j0]\n  a2: bool[i0, j0]\n  a3: " + type +
          "[i0, j0]\n  a4: bool[i0, j0]\n  %0: " + type + " = load a0\n  %1: " + type +
          " = load a1\n  %2: bool = load a2\n  %3: " + type + " = div %0, %1\n  %4: " + type +
          " = shift_left %3, %1\n  %5: " + type + " = shift_right %0, %1\n  %6: " + type + " = bit_xor %4, %5\n  %7: " +
          type + " = where %2, %6, %0\n  %8: bool = lt %7, %1\n  %9: bool = logical_xor %8, %2\n" +
          "  store a3, %7\n  store a4, %9\n}");
  }
}

TEST(Compile, Conversions) {
  check(R"(kernel(i0 | j0) {
  a0: i64[i0, j0]
  a1: f64[i0, j0]
  a2: f32[i0, j0]
  a3: u8[i0, j0]
  a4: i16[i0, j0]
  a5: f64[i0, j0]
  a6: f32[i0, j0]
  %0: i64 = load a0
  %1: f64 = convert %0
  %2: f32 = convert %0
  %3: u8 = convert %0
  %4: f32 = convert %3
  %5: i16 = convert %4
  %6: f64 = convert %5
  %7: i64 = convert %6
  %8: f64 = convert %7
  %9: f32 = convert %8
  store a1, %1
  store a2, %2
  store a3, %3
  store a4, %5
  store a5, %8
  store a6, %9
})");
}

// The kernel has three loops, between which expensive values are kept.
TEST(Compile, RowsWithReductions) {
  check(R"(kernel(i0 | j0) {
  a0: bf16[i0, j0]
  a1: f32[i0, j0]
  a2: i64[i0]
  %0: f32 = load a0
  %1: f32 = columns max %0
  %2: f32 = sub %0, %1
  %3: f32 = constant 1.5
  %4: f32 = div %2, %3
  %5: f32 = sqrt %0
  %6: f32 = add %4, %5
  %7: f32 = columns sum %6
  %8: f32 = div %6, %7
  %9: i64 = columns argmin %8
  store a1, %8
  store a2, %9
})");
}

TEST(Compile, EveryReductionOverColumns) {
  for (const std::string type : {"f32", "f64", "u8", "i16", "i64"}) {
    for (const std::string what : {"sum", "product", "max", "min", "argmax", "argmin"}) {
      const std::string result = what.starts_with("arg") ? "i64" : type;
      check("kernel(i0 | j0) {\n  a0: " + type + "[i0, j0]\n  a1: " + result + "[i0]\n  %0: " + type +
            " = load a0\n  %1: " + result + " = columns " + what + " %0\n  store a1, %1\n}");
    }
  }
}

TEST(Compile, TwoColumnDims) {
  check(R"(kernel(i0 | j0, j1) {
  a0: f32[i0, j0, j1]
  a1: f32[j0]
  a2: f32[i0, j0, j1]
  a3: i64[i0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = mul %0, %1
  %3: f32 = columns sum %2
  %4: f32 = div %2, %3
  %5: f32 = sqrt %4
  %6: i64 = columns argmax %5
  store a2, %5
  store a3, %6
})");
}

TEST(Compile, ReductionsOverLines) {
  const std::string text = R"( j0, j1) {
  a0: f32[i0, j0, j1]
  a1: f32[i0, j0]
  a2: f32[j0]
  a3: f64[j0]
  a4: f32[i0, j0, j1]
  a5: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = mul %0, %1
  %3: f32 = columns sum %2
  %4: f32 = sub %2, %3
  %5: f32 = lines sum %4
  %6: f64 = convert %0
  %7: f64 = lines max %6
  %8: f64 = convert %5
  %9: f64 = add %7, %8
  %10: f32 = neg %1
  %11: f32 = lines sum %10
  %12: f32 = add %11, %5
  store a2, %12
  store a3, %9
  store a4, %4
  store a5, %10
})";
  check("kernel(i0 |" + text);
  check("kernel(i0 |" + text, {130});
}

TEST(Compile, ReductionsOverRows) {
  check(R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  a2: f32[j0]
  a3: f32[j0]
  a4: f64[]
  a5: i16[j0]
  %0: f32 = load a0
  %1: f32 = columns sum %0
  %2: f32 = sub %0, %1
  %3: f32 = rows sum %2
  %4: f32 = rows max %0
  %5: f64 = convert %1
  %6: f64 = rows sum %5
  %7: f32 = constant 0.25
  %8: f32 = mul %3, %7
  %9: i16 = constant 3
  %10: i16 = rows product %9
  store a1, %2
  store a2, %8
  store a3, %4
  store a4, %6
  store a5, %10
})",
        {150});
}

TEST(Compile, IndexedLoadsAndStores) {
  check(R"(kernel(i0 | j0) {
  a0: i64[i0]
  a1: f16[_, j0]
  a2: f32[i0, j0]
  a3: i64[i0, j0]
  a4: bf16[_, i0]
  a5: f32[i0, j0]
  %0: i64 = load a0
  %1: f32 = load a1[%0]
  %2: i64 = load a3
  %3: f32 = load a4[%2]
  store a2, %1
  store a5, %3
})",
        {20}, {9, 11});
  // Each lane sees what the lanes before it added.
  check(R"(kernel(i0 | j0) {
  a0: u8[i0, j0]
  a1: f32[i0, j0]
  a2: f32[_]
  %0: u8 = load a0
  %1: i64 = convert %0
  %2: f32 = load a1
  store a2[%1], %2 adds
})",
        {5}, {13});
}

TEST(Compile, RandomNumbers) {
  check(R"(kernel(i0 | j0) {
  s0: i64
  a0: i64[i0]
  a1: i32[i0, j0]
  %0: i64 = scalar s0
  %1: i64 = load a0
  %2: i64 = index j0
  %3: i64 = index i0
  %4: i64 = add %2, %3
  %5: i32 = random %0, %1, %4
  store a1, %5
})",
        {5});  // the first number of a row may be any of a block's four
}

TEST(Compile, WithoutColumns) {
  check(R"(kernel(i0 |) {
  a0: i64[i0]
  a1: f16[_]
  a2: bf16[i0]
  a3: f32[]
  %0: i64 = load a0
  %1: f32 = load a1[%0]
  %2: f32 = rows sum %1
  store a2, %1
  store a3, %2
})",
        {200}, {10});
}

// A store may overwrite an operand point by point: all loads of a position come before its stores.
TEST(Compile, InPlace) {
  const Kernel kernel = parsed(R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = columns max %0
  %2: f32 = sub %0, %1
  store a1, %2
})");
  for (const std::string_view target : testing::targets()) {
    const Compiled code = compiled(kernel, target);
    for (const int64_t size : kColumns) {
      Case apart = make_case(kernel, {3, size}, {}, 5);
      std::vector<float> memory(static_cast<size_t>(3 * size));
      if (size > 0) std::memcpy(memory.data(), apart.data[0].data(), apart.data[0].size());
      void* const data[] = {memory.data(), memory.data()};
      IndexRecord record;
      const Call call{.data = data,
                      .sizes = &size,
                      .strides = apart.strides.data(),
                      .bounds = nullptr,
                      .scalars = nullptr,
                      .row_buffers = nullptr,
                      .totals = nullptr,
                      .chunk_strides = nullptr,
                      .failure = &record};
      code.placed.function<RowsFunction>(code.code.rows)(&call, 0, 3);
      run_compiled(code, &apart, &record);
      EXPECT_TRUE(std::equal(apart.data[1].begin(), apart.data[1].end(), reinterpret_cast<uint8_t*>(memory.data())));
    }
  }
}

// -- Properties of the machine code -----------------------------------------------------------------------------------

constexpr const char* kChain = R"(kernel(i0 | j0) {
  a0: bf16[i0, j0]
  a1: f16[i0, j0]
  a2: f64[i0, j0]
  a3: bf16[i0, j0]
  a4: f16[i0, j0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = mul %0, %1
  %3: f64 = load a2
  %4: f32 = convert %3
  %5: i32 = convert %4
  %6: i64 = convert %5
  %7: f32 = convert %6
  %8: f32 = sqrt %7
  %9: f32 = add %8, %2
  %10: f32 = round %9
  store a3, %10
  store a4, %2
})";

constexpr const char* kGelu = R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[j0]
  a2: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = add %0, %1
  %3: f32 = constant 0.70710678118654752
  %4: f32 = mul %2, %3
  %5: f32 = erf %4
  %6: f32 = constant 0.5
  %7: f32 = mul %2, %6
  %8: f32 = fma %7, %5, %7
  store a2, %8
})";

TEST(Compile, Gelu) { check(kGelu); }

// Covers vectors and scalars, with results from 0 over denormals to infinity.
TEST(Compile, PowersOfTwo) {
  check(R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f64[i0, j0]
  a2: f32[i0, j0]
  a3: f64[i0, j0]
  a4: f32[i0]
  a5: f64[i0]
  %0: f32 = load a0
  %1: f64 = load a1
  %2: f32 = constant 24.0
  %3: f64 = constant 190.0
  %4: f32 = mul %0, %2
  %5: f64 = mul %1, %3
  %6: f32 = exp %4
  %7: f64 = exp2 %5
  %8: f32 = columns min %4
  %9: f64 = columns min %5
  %10: f32 = exp2 %8
  %11: f64 = exp %9
  store a2, %6
  store a3, %7
  store a4, %10
  store a5, %11
})");
}

#if defined(__aarch64__)
// The instructions of NEON, for vectors of floats, and of half types that are converted to them.
TEST(Compile, UsesVectorRegistersAndCallsNothing) {
  for (const char* text : {kChain, kGelu}) {
    std::string assembly;
    compiled(parsed(text), "aarch64", &assembly);
    EXPECT_NE(assembly.find(".4s, v"), std::string::npos) << assembly;
    EXPECT_NE(assembly.find(text == kGelu ? "fmla\tv" : "fmul\tv"), std::string::npos) << assembly;
    for (const char* call : {"\tbl\t", "\tblr\t"}) EXPECT_EQ(assembly.find(call), std::string::npos) << assembly;
    // No elements are computed one by one.
    for (const char* alone : {"fadd\ts", "fsub\ts", "fmul\ts", "fdiv\ts", "fsqrt\ts", "fmadd\ts"}) {
      EXPECT_EQ(assembly.find(alone), std::string::npos) << alone << "\n" << assembly;
    }
  }
}
#else
TEST(Compile, UsesWideRegistersAndCallsNothing) {
  for (const char* text : {kChain, kGelu}) {
    std::string wide, narrow;
    compiled(parsed(text), "x86-64-v4", &wide);
    compiled(parsed(text), "x86-64-v3", &narrow);
    EXPECT_NE(wide.find("%zmm"), std::string::npos);
    EXPECT_NE(narrow.find("%ymm"), std::string::npos);
    EXPECT_EQ(narrow.find("%zmm"), std::string::npos);
    for (const std::string& assembly : {wide, narrow}) {
      EXPECT_EQ(assembly.find("call"), std::string::npos) << assembly;
      // This instruction treats denormals as 0.
      EXPECT_EQ(assembly.find("vcvtneps2bf16"), std::string::npos);
      // No elements are computed one by one.
      for (const char* alone : {"addss", "subss", "mulss", "divss", "sqrtss", "132ss", "213ss", "231ss"}) {
        EXPECT_EQ(assembly.find(alone), std::string::npos) << alone << "\n" << assembly;
      }
    }
  }
}

#endif

// Covers all element sizes, with rows that begin at aligned addresses. The remainder of a row is stored ordinarily.
TEST(Compile, StreamsPastTheCaches) {
  const Kernel kernel = parsed(R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  a2: f64[i0, j0]
  a3: bf16[i0, j0]
  a4: bool[i0, j0]
  %0: f32 = load a0
  %1: f32 = columns max %0
  %2: f32 = sub %0, %1
  %3: f64 = convert %2
  %4: f32 = constant 0
  %5: bool = lt %2, %4
  store a1, %2
  store a2, %3
  store a3, %2
  store a4, %5
})");
  constexpr int64_t kRows = 3, kLine = 256;
  constexpr size_t kItems[] = {4, 4, 8, 2, 1};
  for (const std::string_view target : testing::targets()) {
    std::string assembly;
    const Compiled plain = compiled(kernel, target), code = compiled(kernel, target, &assembly, {.streams = true});
    EXPECT_NE(assembly.find(target == "aarch64" ? "stnp\tq" : "vmovntps"), std::string::npos) << assembly;
    for (const int64_t size : {1, 31, 32, 100, 256}) {
      std::vector<std::vector<std::byte>> memory;
      std::vector<void*> expected, got;
      for (const size_t item : kItems) {
        for (std::vector<void*>* of : {&expected, &got}) {
          auto& bytes = memory.emplace_back(item * kRows * kLine + kStreamAlign);
          void* start = bytes.data();
          size_t space = bytes.size();
          of->push_back(std::align(kStreamAlign, item * kRows * kLine, start, space));
        }
      }
      for (int64_t i = 0; i < kRows * kLine; ++i) {
        static_cast<float*>(expected[0])[i] = static_cast<float*>(got[0])[i] = static_cast<float>(i * 7 % 101);
      }
      std::vector<int64_t> strides;
      for (size_t o = 0; o < std::size(kItems); ++o) strides.insert(strides.end(), {kLine, 1});
      IndexRecord record;
      Call call{};
      call.sizes = &size;
      call.strides = strides.data();
      call.failure = &record;
      call.data = expected.data();
      plain.placed.function<RowsFunction>(plain.code.rows)(&call, 0, kRows);
      call.data = got.data();
      code.placed.function<RowsFunction>(code.code.rows)(&call, 0, kRows);
      for (size_t o = 0; o < std::size(kItems); ++o) {
        EXPECT_EQ(std::memcmp(expected[o], got[o], kItems[o] * kRows * kLine), 0) << target << " " << size << " a" << o;
      }
    }
  }
}

TEST(Compile, RowsOfAKnownSizeNeedNoLoop) {
  std::string any, fixed;
  compiled(parsed(kGelu), best_target(), &any);
  compiled(parsed(kGelu), best_target(), &fixed, {.columns = 32});
  const auto jumps = [](const std::string& assembly) {
    size_t count = 0;
    for (const char* jump : {"\tj", "\tb\t", "\tb.", "\tcb", "\ttb"}) {
      for (size_t at = assembly.find(jump); at != std::string::npos; at = assembly.find(jump, at + 1)) ++count;
    }
    return count;
  };
  EXPECT_LT(jumps(fixed), jumps(any));
  EXPECT_LE(jumps(fixed), 2u) << fixed;  // only the loop over the rows
  Code code;
  EXPECT_EQ(compile(parsed(kGelu), {.variant = {.columns = 65}}, &code).code(), ErrorCode::kInvalid);
}

TEST(Compile, UnknownTargetsAreNamed) {
  Code code;
  const Status status = compile(parsed(kChain), {.target = "sm_90"}, &code);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
#if defined(__aarch64__)
  EXPECT_EQ(status.message(), "codegen: no target 'sm_90'; there are aarch64");
#else
  EXPECT_EQ(status.message(), "codegen: no target 'sm_90'; there are x86-64-v4, x86-64-v3");
#endif
}

TEST(Compile, OneRowDimAtMost) {
  Code code;
  const Status status = compile(parsed(R"(kernel(i0, i1 |) {
  a0: f32[i0, i1]
  %0: f32 = constant 1
  store a0, %0
})"),
                                {}, &code);
  EXPECT_EQ(status.code(), ErrorCode::kInvalid);
}

TEST(Compile, ThreadsGiveTheSameBytes) {
  Code first;
  ASSERT_TRUE(compile(parsed(kChain), {}, &first).ok());
  std::vector<Code> codes(4);
  std::vector<std::thread> threads;
  for (Code& code : codes) {
    threads.emplace_back([&code] {
      Code other;
      EXPECT_TRUE(compile(parsed(kGelu), {.target = testing::targets().back()}, &other).ok());
      EXPECT_TRUE(compile(parsed(kChain), {}, &code).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Code& code : codes) EXPECT_EQ(code.bytes, first.bytes);
}

}  // namespace
}  // namespace torch_remote::codegen::cpu
