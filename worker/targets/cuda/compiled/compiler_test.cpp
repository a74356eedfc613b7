#include "worker/targets/cuda/compiled/compiler.h"

#include <gtest/gtest.h>

#include <cstdlib>

// libnvJitLink leaks memory when it rejects input.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {  // NOLINT: LSan's name
  return "leak:libnvJitLink";
}

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

const LibrarySearchPath kNoLibraries = {.folders = {"/no/such/folder"}, .linker = false, .driver = 13000};

struct Told {
  std::vector<std::string> lines;
  std::function<void(const std::string&)> warn = [this](const std::string& line) { lines.push_back(line); };
};

TEST(GpuCompiler, MakesPtxAndARecipe) {
  KernelOptions options;
  Told messages;
  ASSERT_TRUE(open_gpu_compiler(kLibrary, kNoLibraries, messages.warn, &options).ok());
  ASSERT_EQ(messages.lines.size(), 1u);
  EXPECT_NE(messages.lines[0].find("pip install nvidia-nvjitlink"), std::string::npos) << messages.lines[0];
  EXPECT_TRUE(options.version.ends_with("\nptx")) << options.version;
  EXPECT_EQ(options.assemble, nullptr);
  const Compile& compile = options.compile;
  for (const auto& [sm, target] :
       {std::pair(75u, "sm_75"), {80, "sm_80"}, {86, "sm_80"}, {90, "sm_90"}, {120, "sm_90"}}) {
    CompiledKernel kernel;
    const Status status = compile(kSum, sm, &kernel);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::string ptx(kernel.image.begin(), kernel.image.end());
    EXPECT_EQ(ptx.back(), '\0');
    EXPECT_NE(ptx.find(std::string(".target ") + target), std::string::npos) << sm;
    EXPECT_EQ(kernel.recipe.totals.size(), 1u);
  }
}

TEST(GpuCompiler, MakesMachineCodeWhereNvJitLinkIs) {
  const char* const given = std::getenv("NVJITLINK");
  ASSERT_NE(given, nullptr);
  const std::string path = given;
  KernelOptions options;
  Told messages;
  const LibrarySearchPath search_path = {.folders = {path.substr(0, path.rfind('/'))}, .driver = 13000};
  ASSERT_TRUE(open_gpu_compiler(kLibrary, search_path, messages.warn, &options).ok());
  EXPECT_EQ(messages.lines, std::vector<std::string>());
  EXPECT_NE(options.version.find("\ncubin "), std::string::npos) << options.version;
  for (const uint32_t sm : {75u, 80u, 86u, 90u, 100u, 120u}) {
    CompiledKernel kernel;
    const Status status = options.compile(kSum, sm, &kernel);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_GT(kernel.image.size(), 4u);
    EXPECT_EQ(std::string(kernel.image.begin(), kernel.image.begin() + 4),
              "\x7F"
              "ELF")
        << sm;
    EXPECT_EQ(kernel.recipe.totals.size(), 1u);
    // For a driver that refuses the machine code.
    EXPECT_EQ(kernel.ptx.back(), 0);
    std::vector<uint8_t> again;
    const std::string ptx(kernel.ptx.begin(), kernel.ptx.end() - 1);
    EXPECT_NE(ptx.find(".version 8.0\n"), std::string::npos) << sm;
    EXPECT_TRUE(options.assemble(ptx, sm, &again).ok());
    EXPECT_EQ(again, kernel.image) << sm;
  }
  EXPECT_EQ(messages.lines, std::vector<std::string>());
  // For a GPU that nvJitLink does not know, the image stays PTX, with one message.
  for (int i = 0; i < 2; ++i) {
    CompiledKernel kernel;
    ASSERT_TRUE(options.compile(kSum, 999, &kernel).ok());
    EXPECT_EQ(kernel.image.back(), 0);
    EXPECT_EQ(messages.lines.size(), 1u);
  }
}

TEST(GpuCompiler, SaysWhatIsWrong) {
  KernelOptions options;
  Told messages;
  EXPECT_NE(open_gpu_compiler("no/such/file.so", kNoLibraries, messages.warn, &options)
                .message()
                .find("install torch_remote again"),
            std::string::npos);
  ASSERT_TRUE(open_gpu_compiler(kLibrary, kNoLibraries, messages.warn, &options).ok());
  const Compile& compile = options.compile;
  CompiledKernel kernel;
  EXPECT_EQ(compile("kernel(", 90, &kernel).code(), ErrorCode::kInternal);
  EXPECT_TRUE(kernel.image.empty());
  // Several rows add to the same element in any order, which is unsupported for floats.
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
