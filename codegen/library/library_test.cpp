#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "codegen/cpu/call.h"
#include "codegen/cpu/executable_code.h"
#include "codegen/gpu/launch.h"
#include "codegen/library/codegen_api.h"

// This test opens the library as a worker does; it does not link the compiler itself.
namespace torch_remote::codegen {
namespace {

constexpr const char* kAdd = R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[j0]
  a2: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = load a1
  %2: f32 = add %0, %1
  store a2, %2
})";

#if defined(__aarch64__)
constexpr const char* kTarget = "aarch64";
constexpr const char* kKnown = "there are aarch64";
#else
constexpr const char* kTarget = "x86-64-v3";
constexpr const char* kKnown = "x86-64-v4, x86-64-v3";
#endif

class Library : public ::testing::Test {
 protected:
  void SetUp() override {
    handle_ = dlopen("codegen/library/libtorch_remote_codegen.so", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle_, nullptr) << dlerror();
    const auto entry = reinterpret_cast<tr_codegen_entry>(dlsym(handle_, TR_CODEGEN_ENTRY));
    ASSERT_NE(entry, nullptr) << dlerror();
    api_ = entry();
  }

  int compile(const std::string& text, const char* target, int64_t columns = 0) {
    bytes_.clear();
    code_ = {};
    code_.struct_size = sizeof(tr_cpu_code);
    code_.context = &bytes_;
    code_.on_code = [](void* context, const uint8_t* bytes, size_t size) {
      static_cast<std::vector<uint8_t>*>(context)->assign(bytes, bytes + size);
    };
    const tr_variant variant{sizeof(variant), 0, columns};
    return api_->compile_cpu(text.data(), text.size(), target, &variant, &code_);
  }

  void* handle_ = nullptr;
  const tr_codegen_api* api_ = nullptr;
  tr_cpu_code code_;
  std::vector<uint8_t> bytes_;
};

TEST_F(Library, SaysWhatItIs) {
  EXPECT_EQ(api_->struct_size, sizeof(tr_codegen_api));
  EXPECT_EQ(api_->abi, static_cast<uint32_t>(TR_CODEGEN_ABI));
  EXPECT_EQ(std::string(api_->version).rfind("LLVM ", 0), 0u) << api_->version;
}

TEST_F(Library, CompilesText) {
  ASSERT_EQ(compile(kAdd, kTarget), 0) << code_.message;
  cpu::ExecutableCode placed;
  ASSERT_TRUE(cpu::ExecutableCode::load(bytes_, &placed).ok());
  EXPECT_EQ(code_.rows, code_.finish);
  constexpr int64_t kColumns = 37;
  std::vector<float> x(2 * kColumns), y(kColumns), sum(2 * kColumns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 4;
  for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(i) * 100;
  void* const data[] = {x.data(), y.data(), sum.data()};
  const int64_t strides[] = {kColumns, 1, 0, 1, kColumns, 1};
  const cpu::Call call{.data = data,
                       .sizes = &kColumns,
                       .strides = strides,
                       .bounds = nullptr,
                       .scalars = nullptr,
                       .row_buffers = nullptr,
                       .totals = nullptr,
                       .chunk_strides = nullptr,
                       .failure = nullptr};
  placed.function<cpu::RowsFunction>(code_.rows)(&call, 0, 2);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(sum[i], x[i] + y[i % kColumns]) << i;
}

TEST_F(Library, CompilesForGpus) {
  struct Taken {
    std::string image;
    std::vector<uint8_t> recipe;
  } taken;
  tr_gpu_code code{};
  code.struct_size = sizeof(code);
  code.context = &taken;
  code.on_image = [](void* context, const uint8_t* bytes, size_t size) {
    static_cast<Taken*>(context)->image.assign(reinterpret_cast<const char*>(bytes), size);
  };
  code.on_recipe = [](void* context, const uint8_t* bytes, size_t size) {
    static_cast<Taken*>(context)->recipe.assign(bytes, bytes + size);
  };
  const std::string text = kAdd;
  ASSERT_EQ(api_->compile_gpu(text.data(), text.size(), 90, &code), 0) << code.message;
  EXPECT_EQ(taken.image.back(), '\0');
  EXPECT_NE(taken.image.find(".target sm_90"), std::string::npos);
  EXPECT_NE(taken.image.find(".entry points("), std::string::npos);
  gpu::Recipe recipe;
  ASSERT_TRUE(gpu::decode(taken.recipe, &recipe).ok());
  EXPECT_EQ(recipe.operands.size(), 3u);
  EXPECT_EQ(recipe.rows, 1u);
  EXPECT_EQ(api_->compile_gpu(text.data(), text.size(), 70, &code), 1);
  EXPECT_EQ(code.unsupported, 1);
  EXPECT_NE(std::string(code.message).find("sm_70"), std::string::npos) << code.message;
}

TEST_F(Library, SaysWhatIsWrong) {
  EXPECT_EQ(compile("kernel(i0 | j0) {", kTarget), 1);
  EXPECT_NE(std::string(code_.message), "");
  EXPECT_EQ(compile(kAdd, "sm_90"), 1);
  EXPECT_NE(std::string(code_.message).find(kKnown), std::string::npos) << code_.message;
  EXPECT_EQ(compile(kAdd, kTarget, 1000), 1);
  EXPECT_NE(std::string(code_.message).find("1000 elements"), std::string::npos) << code_.message;
  EXPECT_TRUE(bytes_.empty());
}

// The library exposes no symbols of LLVM or the C++ library, and takes none from the program that opens it.
TEST_F(Library, HidesEverythingElse) {
  for (const char* name : {"LLVMContextCreate", "_ZN4llvm11LLVMContextC1Ev", "LLVMInitializeNVPTXTarget"}) {
    EXPECT_EQ(dlsym(handle_, name), nullptr) << name;
  }
}

}  // namespace
}  // namespace torch_remote::codegen
