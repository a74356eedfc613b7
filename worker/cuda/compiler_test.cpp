#include "worker/cuda/compiler.h"

#include <gtest/gtest.h>

namespace torch_remote::worker::cuda {
namespace {

constexpr const char* kLibrary = "codegen/library/libtorch_remote_codegen.so";
constexpr const char* kSum = R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[j0]
  %0: f32 = load a0
  %1: f32 = rows sum %0
  store a1, %1
})";

TEST(GpuCompiler, MakesPtxAndARecipe) {
  Compile compile;
  ASSERT_TRUE(open_gpu_compiler(kLibrary, &compile).ok());
  for (const auto& [sm, target] : {std::pair(80u, "sm_80"), {86, "sm_80"}, {90, "sm_90"}, {120, "sm_90"}}) {
    CompiledKernel kernel;
    const Status status = compile(kSum, sm, &kernel);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::string ptx(kernel.image.begin(), kernel.image.end());
    EXPECT_EQ(ptx.back(), '\0');
    EXPECT_NE(ptx.find(std::string(".target ") + target), std::string::npos) << sm;
    EXPECT_EQ(kernel.recipe.totals.size(), 1u);
  }
}

TEST(GpuCompiler, SaysWhatIsWrong) {
  Compile compile;
  EXPECT_NE(open_gpu_compiler("no/such/file.so", &compile).message().find("install torch_remote again"),
            std::string::npos);
  ASSERT_TRUE(open_gpu_compiler(kLibrary, &compile).ok());
  CompiledKernel kernel;
  EXPECT_EQ(compile("kernel(", 90, &kernel).code(), ErrorCode::kInternal);
  EXPECT_TRUE(kernel.image.empty());
  // Several rows add to a place in any order: there is no code for floats.
  const Status status = compile(R"(kernel(i0 | j0) {
    a0: i64[i0, j0]
    a1: f32[_]
    a2: f32[i0, j0]
    %0: i64 = load a0
    %1: f32 = load a2
    store a1[%0], %1 adds
  })",
                                90, &kernel);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << status.message();
}

}  // namespace
}  // namespace torch_remote::worker::cuda
