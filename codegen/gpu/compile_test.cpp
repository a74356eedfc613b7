#include "codegen/gpu/compile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/gpu/assemble.h"
#include "codegen/gpu/testing/kernels.h"
#include "codegen/loop/testing/random_kernel.h"

// NVIDIA's assembler leaks some memory for each program.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libnvJitLink"; }

namespace torch_remote::codegen::gpu {
namespace {

const Assembler& assembler() {
  static const std::unique_ptr<Assembler> opened = [] {
    std::unique_ptr<Assembler> result;
    const char* const path = std::getenv("NVJITLINK");
    const Status status = Assembler::open(path == nullptr ? "libnvJitLink.so.12" : path, &result);
    EXPECT_TRUE(status.ok()) << status.message();
    return result;
  }();
  return *opened;
}

Kernel parsed(std::string_view text) {
  Kernel kernel;
  Status status = parse_kernel(text, &kernel);
  EXPECT_TRUE(status.ok()) << status.message();
  status = verify(kernel);
  EXPECT_TRUE(status.ok()) << status.message();
  return kernel;
}

std::string ptx(std::string_view kernel) {
  GpuCode code;
  const Status status = compile(parsed(testing::named_kernel(kernel).text), {.sm = 90}, &code);
  EXPECT_TRUE(status.ok()) << status.message();
  return code.ptx;
}

size_t count(std::string_view text, std::string_view what) {
  size_t result = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++result;
  return result;
}

// Returns the text of one function.
std::string_view function(std::string_view text, std::string_view name) {
  const size_t begin = text.find(".entry " + std::string(name) + "(");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find("\n}", begin) - begin);
}

// -- Properties of the PTX --------------------------------------------------------------------------------------------

TEST(Ptx, ElementsAreMovedIn16Bytes) {
  const std::string add = ptx("add");
  EXPECT_EQ(count(add, "ld.global.v4.f32"), 2u);
  EXPECT_EQ(count(add, "st.global.v4.f32"), 1u);
  EXPECT_EQ(count(add, "ld.global.f32"), 2u * 4);  // if a vector is not full, or not aligned
  const std::string halves = ptx("swiglu_bf16");
  EXPECT_EQ(count(halves, "ld.global.v4.b32") + count(halves, "ld.global.v4.u32"), 2u);
  EXPECT_EQ(count(halves, "st.global.v4.b32"), 1u);
}

// Products and sums are rounded separately, and denormals are preserved.
TEST(Ptx, ArithmeticIsWhatTheKernelSays) {
  const std::string text = ptx("layer_norm");
  EXPECT_EQ(count(text, ".ftz"), 0u);
  EXPECT_EQ(count(text, ".approx"), 0u);
  EXPECT_EQ(count(text, "mul.f32"), 0u);  // without .rn the assembler may fuse it into an fma
  EXPECT_EQ(count(text, "add.f32"), 0u);
  EXPECT_GT(count(text, "mul.rn.f32"), 0u);
  EXPECT_GT(count(text, "fma.rn.f32"), 0u);
  EXPECT_EQ(count(text, "call"), 0u);
}

TEST(Ptx, RowsMeetInShufflesAndOneBarrierAReduction) {
  const std::string text = ptx("softmax");
  const std::string_view held = function(text, "rows_held");
  // The max takes 5 steps and a broadcast, then 4 and a broadcast for 16 warps. The sum takes 5, then 4.
  EXPECT_EQ(count(held, "shfl.sync"), (5u + 1 + 4 + 1) + (5 + 4));
  EXPECT_EQ(count(held, "bar.sync"), 2u);
  EXPECT_EQ(count(held, "ld.global.v4.f32"), 2u);  // both slots once
  const std::string_view looped = function(text, "rows_looped");
  EXPECT_EQ(count(looped, "ld.global.v4.f32"), 3u);  // once in each phase
  EXPECT_EQ(count(looped, "bar.sync"), 2u);
}

TEST(Ptx, PointsDoNotMeet) {
  for (const char* name : {"add", "gelu", "bf16_chain", "dropout", "adamw", "column_sums"}) {
    const std::string text = ptx(name);
    EXPECT_EQ(count(function(text, "points"), "bar.sync"), 0u) << name;
    EXPECT_EQ(count(function(text, "points"), "shfl.sync"), 0u) << name;
  }
}

TEST(Ptx, IndicesAreCheckedAndAddedAtomically) {
  EXPECT_GT(count(ptx("embedding"), "atom.global.cas.b32"), 0u);
  EXPECT_EQ(count(ptx("scatter"), "red.global.add.u32") + count(ptx("scatter"), "atom.global.add.u32"), 4u);
  EXPECT_EQ(count(ptx("add"), "atom."), 0u);
}

// There is one branch, before all else, and none without scalars. After it, each scalar is read from memory once.
TEST(Ptx, ScalarsAreParametersOrInMemory) {
  const std::string adamw = ptx("adamw");
  const std::string_view points = function(adamw, "points");
  const size_t branch = points.find("@%p"), reads = count(points, "ld.global.f64");
  EXPECT_EQ(reads, 3u);
  EXPECT_EQ(count(points, "ld.param.f64"), 3u);
  EXPECT_LT(branch, points.find("ld.global.f64"));
  EXPECT_LT(points.rfind("ld.global.f64"), points.find("%tid.x"));
  EXPECT_EQ(count(ptx("gelu"), "ld.param"), 4u);  // two addresses, a size, and kAligned
}

// Drivers of CUDA 12.0 assemble PTX 8.0 and no later version.
TEST(Ptx, IsOfTheVersionThatTheOldestDriverAssembles) {
  for (const uint32_t sm : {75u, 80u, 90u, 100u}) {
    GpuCode code;
    ASSERT_TRUE(compile(parsed(testing::named_kernel("bf16_chain").text), {.sm = sm}, &code).ok());
    EXPECT_EQ(count(code.ptx, ".version"), 1u);
    EXPECT_EQ(count(code.ptx, ".version 8.0\n"), 1u) << sm;
    EXPECT_EQ(count(code.ptx, ".target sm_" + std::to_string(std::min(sm, 90u)) + "\n"), 1u) << sm;
  }
}

TEST(Ptx, FunctionsAreThoseOfTheRecipe) {
  GpuCode code;
  ASSERT_TRUE(compile(parsed(testing::named_kernel("sum").text), {.sm = 80}, &code).ok());
  EXPECT_EQ(code.functions, (std::vector{Function::kRowsInRegisters, Function::kRowsReloaded, Function::kFinish}));
  for (const Function f : code.functions) EXPECT_FALSE(function(code.ptx, name(f)).empty());
  EXPECT_TRUE(code.cubin.empty());
  EXPECT_NE(code.ptx.find(".target sm_80"), std::string::npos);
}

TEST(Compile, WhatItCannotDo) {
  GpuCode code;
  Status status = compile(parsed(testing::named_kernel("add").text), {.sm = 70}, &code);
  EXPECT_EQ(status.message(), "gpu: no target sm_70; there are 75, 80, 90 and 100");
  const Kernel adds = parsed(R"(kernel(i0 |) {
    a0: i64[i0]
    a1: f32[_]
    a2: f32[i0]
    %0: i64 = load a0
    %1: f32 = load a2
    store a1[%0], %1 adds
  })");
  status = compile(adds, {.sm = 90}, &code);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
}

// -- Machine code -----------------------------------------------------------------------------------------------------

// Resources that a function needs, as the assembler reports them.
struct FunctionFacts {
  Function function = Function::kPoints;
  uint32_t registers = 0;     // per thread
  uint32_t spills = 0;        // bytes of memory per thread for spilled registers
  uint32_t shared_bytes = 0;  // per block
};

// Returns the number before `what` in a line of the log.
uint32_t number_before(std::string_view line, std::string_view what) {
  size_t at = line.find(what);
  if (at == std::string_view::npos) return 0;
  size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  return static_cast<uint32_t>(std::strtoul(std::string(line.substr(begin, at - begin)).c_str(), nullptr, 10));
}

// The assembler reports for each function "Function properties for 'NAME'" or "Compiling entry function 'NAME'", then
// stack and spills, then "Used N registers, ...".
std::vector<FunctionFacts> read_facts(const std::vector<Function>& functions, std::string_view log) {
  std::vector<FunctionFacts> result;
  result.reserve(functions.size());
  for (const Function function : functions) result.push_back({.function = function});
  FunctionFacts* current = nullptr;
  while (!log.empty()) {
    const size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    if (line.find("entry function") != std::string_view::npos ||
        line.find("Function properties") != std::string_view::npos) {
      for (FunctionFacts& facts : result) {
        const std::string quoted = "'" + std::string(name(facts.function)) + "'";
        const std::string last = " " + std::string(name(facts.function));
        if (line.find(quoted) != std::string_view::npos || line.ends_with(last)) current = &facts;
      }
    }
    if (current == nullptr) continue;
    current->spills = std::max(
        {current->spills, number_before(line, " bytes spill stores"), number_before(line, " bytes spill loads")});
    current->registers = std::max(current->registers, number_before(line, " registers"));
    current->shared_bytes = std::max(current->shared_bytes, number_before(line, " bytes smem"));
  }
  return result;
}

Status compile_and_assemble(const Kernel& kernel, uint32_t sm, GpuCode* code) {
  Status status = compile(kernel, {.sm = sm}, code);
  return status.ok() ? assembler().assemble(sm, code) : status;
}

void report(std::string_view kernel, uint32_t sm, const GpuCode& code) {
  for (const FunctionFacts& facts : read_facts(code.functions, code.log)) {
    std::printf("%-20.*s sm_%-3u %-12s %3u registers, %u bytes spilled, %4u bytes shared\n",
                static_cast<int>(kernel.size()), kernel.data(), sm, std::string(name(facts.function)).c_str(),
                facts.registers, facts.spills, facts.shared_bytes);
  }
}

// Spilled bytes on sm_75. nvJitLink 12.9 spills nothing on later GPUs.
constexpr uint32_t kMaxSpills = 40;

TEST(Cubin, NamedKernelsAreAssembledNearlyWithoutSpills) {
  for (const testing::NamedKernel& named : testing::named_kernels()) {
    for (const uint32_t sm : {75u, 80u, 90u, 100u}) {
      GpuCode code;
      const Status status = compile_and_assemble(parsed(named.text), sm, &code);
      ASSERT_TRUE(status.ok()) << named.name << ": " << status.message();
      EXPECT_EQ(std::string(code.cubin.begin() + 1, code.cubin.begin() + 4), "ELF");
      EXPECT_EQ(code.cubin[8], sm < 100 ? 7 : 8) << "the ABI that drivers of CUDA 12 load";
      report(named.name, sm, code);
      for (const FunctionFacts& facts : read_facts(code.functions, code.log)) {
        EXPECT_GT(facts.registers, 0u) << "the assembler's log is not understood";
        EXPECT_LE(facts.spills, sm == 75 ? kMaxSpills : 0) << named.name << " sm_" << sm;
        EXPECT_LE(facts.shared_bytes, 16u << 10) << named.name;
      }
    }
  }
}

TEST(Cubin, RandomKernelsAreAssembled) {
  uint32_t kernels = 0, spilling = 0, most = 0;
  const char* const wanted = std::getenv("CODEGEN_KERNELS");
  const uint64_t count = wanted == nullptr ? 40 : std::strtoull(wanted, nullptr, 10);
  for (uint64_t seed = 1; seed <= count; ++seed) {
    codegen::testing::Rng rng(seed);
    const Kernel kernel = codegen::testing::random_kernel(rng, {.functions = seed % 4 == 0});
    GpuCode code;
    const uint32_t sm = std::vector{75u, 80u, 90u, 100u}[seed / 4 % 4];
    const Status status = compile_and_assemble(kernel, sm, &code);
    if (status.code() == ErrorCode::kUnsupported) continue;
    ASSERT_TRUE(status.ok()) << seed << ": " << status.message() << "\n" << print(kernel);
    ++kernels;
    for (const FunctionFacts& facts : read_facts(code.functions, code.log)) {
      spilling += facts.spills != 0;
      most = std::max(most, facts.spills);
    }
  }
  std::printf("%u random kernels, %u functions spill, at most %u bytes\n", kernels, spilling, most);
  EXPECT_GT(kernels, count / 2);
  EXPECT_LE(spilling, kernels / 5);
  EXPECT_LE(most, 512u);
}

}  // namespace
}  // namespace torch_remote::codegen::gpu
