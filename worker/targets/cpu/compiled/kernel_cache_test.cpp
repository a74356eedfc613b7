#include "worker/targets/cpu/compiled/kernel_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace torch_remote::worker::kernels {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSoftmax = R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[i0, j0]
  %0: f32 = load a0
  %1: f32 = columns max %0
  %2: f32 = sub %0, %1
  %3: f32 = exp %2
  %4: f32 = columns sum %3
  %5: f32 = div %3, %4
  store a1, %5
}
)";
constexpr const char* kColumnMax = R"(kernel(i0 | j0) {
  a0: f32[i0, j0]
  a1: f32[j0]
  %0: f32 = load a0
  %1: f32 = rows max %0
  store a1, %1
}
)";
constexpr const char* kLineSums = R"(kernel(i0 | j0, j1) {
  a0: f32[i0, j0, j1]
  a1: f32[j0]
  %0: f32 = load a0
  %1: f32 = lines sum %0
  store a1, %1
}
)";
constexpr const char* kNegate = R"(kernel( | j0) {
  a0: f32[j0]
  a1: f32[j0]
  %0: f32 = load a0
  %1: f32 = neg %0
  store a1, %1
}
)";

codegen::Kernel parsed(const std::string& text) {
  codegen::Kernel kernel;
  const Status status = codegen::parse_kernel(text, &kernel);
  EXPECT_TRUE(status.ok()) << status.message();
  return kernel;
}

class KernelCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("kernels_" + std::to_string(::getpid()) +
                                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // The code does nothing.
  CacheOptions options(std::string version = "1") {
    CacheOptions made;
    made.folder = folder_.string();
    made.target = "x86-64-v4";
    made.version = std::move(version);
    made.compile = [this](std::string_view text, const codegen::cpu::Variant& variant, std::vector<uint8_t>* bytes,
                          uint32_t* rows, uint32_t* finish) {
      ++compiled_;
      if (text.find("max %0\n  store") != text.npos && refuse_) return Status::internal("no");
      *bytes = {0xC3, 0xC3, static_cast<uint8_t>(variant.columns)};
      *rows = 0;
      *finish = 1;
      return Status();
    };
    return made;
  }

  std::shared_ptr<CompiledKernel> get(KernelCache& cache, const char* text) {
    std::shared_ptr<CompiledKernel> kernel = cache.get(text, parsed(text));
    cache.wait(*kernel);
    return kernel;
  }

  fs::path folder_;
  std::atomic<int> compiled_ = 0;
  bool refuse_ = false;
};

TEST_F(KernelCacheTest, CompilesOnceAndKeepsIt) {
  KernelCache cache(options());
  std::shared_ptr<CompiledKernel> first = get(cache, kSoftmax);
  EXPECT_TRUE(first->ready());
  ASSERT_NE(first->rows, nullptr);
  first->rows(nullptr, 0, 0);  // must return
  EXPECT_EQ(get(cache, kSoftmax), first);
  EXPECT_EQ(compiled_, 1);
  EXPECT_EQ(cache.generation(), 1u);
  EXPECT_NE(get(cache, kNegate), first);
  EXPECT_EQ(compiled_, 2);
}

TEST_F(KernelCacheTest, WhoAsksDoesNotWait) {
  CacheOptions slow = options();
  std::atomic<bool> may_go = false;
  slow.compile = [&, compile = slow.compile](std::string_view text, const codegen::cpu::Variant& variant,
                                             std::vector<uint8_t>* bytes, uint32_t* rows, uint32_t* finish) {
    while (!may_go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return compile(text, variant, bytes, rows, finish);
  };
  KernelCache cache(std::move(slow));
  std::shared_ptr<CompiledKernel> kernel = cache.get(kSoftmax, parsed(kSoftmax));
  EXPECT_FALSE(kernel->ready());
  EXPECT_EQ(cache.generation(), 0u);
  may_go = true;
  cache.wait(*kernel);
  EXPECT_TRUE(kernel->ready());
}

TEST_F(KernelCacheTest, CompilesSomeTimeAfterItWasAsked) {
  CacheOptions late = options();
  late.delay = std::chrono::milliseconds(40);
  KernelCache cache(std::move(late));
  const auto asked = std::chrono::steady_clock::now();
  std::shared_ptr<CompiledKernel> kernel = cache.get(kSoftmax, parsed(kSoftmax));
  while (!kernel->ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(std::chrono::steady_clock::now() - asked, std::chrono::milliseconds(40));
}

TEST_F(KernelCacheTest, CompilesAtOnceIfSomebodyWaits) {
  CacheOptions never = options();
  never.delay = std::chrono::hours(1);
  KernelCache cache(std::move(never));
  std::shared_ptr<CompiledKernel> other = cache.get(kNegate, parsed(kNegate));
  EXPECT_TRUE(get(cache, kSoftmax)->ready());
  EXPECT_TRUE(other->ready());  // it was requested earlier
}

TEST_F(KernelCacheTest, AnotherProcessFindsItOnDisk) {
  {
    get(*std::make_unique<KernelCache>(options()), kSoftmax);
  }
  KernelCache again(options());
  std::shared_ptr<CompiledKernel> kernel = again.get(kSoftmax, parsed(kSoftmax));
  EXPECT_TRUE(kernel->ready());  // immediately
  EXPECT_EQ(compiled_, 1);
  KernelCache newer(options("2"));
  EXPECT_FALSE(newer.get(kSoftmax, parsed(kSoftmax))->ready() && compiled_ == 1);
}

TEST_F(KernelCacheTest, KernelsThatNobodyHasGoAndComeBackFromDisk) {
  constexpr int kMany = 3000;
  KernelCache cache(options());
  const codegen::Kernel kernel = parsed(kSoftmax);
  const std::shared_ptr<CompiledKernel> held = get(cache, kNegate);
  for (int i = 1; i <= kMany; ++i) {
    const std::shared_ptr<CompiledKernel> one = cache.get(kSoftmax, kernel, {.columns = i});
    ASSERT_NE(one, nullptr);
    if (i % 3 == 0) cache.wait(*one);  // kernels may be dropped before they are compiled
    ASSERT_LE(cache.size(), 257u);
  }
  EXPECT_TRUE(held->ready());
  EXPECT_EQ(get(cache, kNegate), held);
  const int before = compiled_;
  EXPECT_TRUE(get(cache, kNegate)->ready());
  EXPECT_TRUE(cache.get(kSoftmax, kernel, {.columns = 3})->ready());
  EXPECT_EQ(compiled_, before);
}

TEST_F(KernelCacheTest, VariantsAreKernelsOfTheirOwn) {
  const codegen::Kernel kernel = parsed(kSoftmax);
  const auto all = [&](KernelCache& cache) {
    std::vector<std::shared_ptr<CompiledKernel>> got;
    for (const codegen::cpu::Variant& variant :
         {codegen::cpu::Variant{}, codegen::cpu::Variant{.streams = true}, codegen::cpu::Variant{.columns = 10},
          codegen::cpu::Variant{.columns = 11}, codegen::cpu::Variant{.streams = true, .columns = 10}}) {
      got.push_back(cache.get(kSoftmax, kernel, variant));
      cache.wait(*got.back());
      EXPECT_EQ(got.back()->variant, variant);
    }
    return got;
  };
  {
    KernelCache cache(options());
    const std::vector<std::shared_ptr<CompiledKernel>> got = all(cache);
    EXPECT_EQ(std::set<std::shared_ptr<CompiledKernel>>(got.begin(), got.end()).size(), got.size());
    EXPECT_EQ(all(cache), got);
  }
  EXPECT_EQ(compiled_, 5);
  KernelCache again(options());
  all(again);
  EXPECT_EQ(compiled_, 5);
}

TEST_F(KernelCacheTest, WhatIsDamagedIsCompiledAgain) {
  for (const int64_t at : {0, 9, 20, 50, -1}) {
    fs::remove_all(folder_);
    compiled_ = 0;
    {
      get(*std::make_unique<KernelCache>(options()), kSoftmax);
    }
    const fs::path path = fs::directory_iterator(folder_)->path();
    {
      std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      file.seekg(at, at < 0 ? std::ios::end : std::ios::beg);
      const char byte = static_cast<char>(file.get() ^ 0x40);
      file.seekp(at, at < 0 ? std::ios::end : std::ios::beg);
      file.put(byte);
    }
    {
      EXPECT_TRUE(get(*std::make_unique<KernelCache>(options()), kSoftmax)->ready()) << at;
    }
    EXPECT_EQ(compiled_, 2) << at;
    fs::resize_file(path, fs::file_size(path) - 1);
    {
      EXPECT_TRUE(get(*std::make_unique<KernelCache>(options()), kSoftmax)->ready()) << at;
    }
    EXPECT_EQ(compiled_, 3) << at;
    {
      EXPECT_TRUE(get(*std::make_unique<KernelCache>(options()), kSoftmax)->ready()) << at;
    }
    EXPECT_EQ(compiled_, 3) << at;
  }
}

TEST_F(KernelCacheTest, TheOldestGoWhenItIsFull) {
  CacheOptions small = options();
  small.limit = 400;  // one file fits, two hardly do
  {
    KernelCache cache(std::move(small));
    get(cache, kSoftmax);
    for (int i = 0; i < 200 && !fs::is_empty(folder_); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  uint64_t total = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) total += entry.file_size();
  EXPECT_LE(total, 400u);
}

TEST_F(KernelCacheTest, OthersMustNotPutCodeThere) {
  fs::create_directories(folder_);
  {
    get(*std::make_unique<KernelCache>(options()), kSoftmax);
  }
  EXPECT_EQ(fs::status(folder_).permissions() & fs::perms::group_write, fs::perms::none);
}

TEST_F(KernelCacheTest, AKernelThatDoesNotCompileIsNoKernel) {
  refuse_ = true;
  KernelCache cache(options());
  std::shared_ptr<CompiledKernel> kernel = get(cache, kColumnMax);
  EXPECT_FALSE(kernel->ready());
  EXPECT_EQ(kernel->status.message(), "no");
  EXPECT_EQ(cache.failed(), 1u);
  EXPECT_TRUE(get(cache, kNegate)->ready());
  EXPECT_EQ(cache.failed(), 1u);
}

TEST_F(KernelCacheTest, ThatKernelsDoNotCompileIsToldOnce) {
  CacheOptions none = options();
  none.compile = [](std::string_view, const codegen::cpu::Variant&, std::vector<uint8_t>*, uint32_t*, uint32_t*) {
    return Status::internal("no library");
  };
  std::vector<std::string> told;
  none.on_failure = [&](const Status& why) { told.push_back(why.message()); };
  {
    KernelCache cache(std::move(none));
    for (const char* text : {kSoftmax, kNegate, kColumnMax}) EXPECT_FALSE(get(cache, text)->ready());
    EXPECT_EQ(cache.failed(), 3u);
    EXPECT_EQ(cache.compiled(), 0u);
  }
  EXPECT_EQ(told, std::vector<std::string>{"no library"});
}

TEST_F(KernelCacheTest, WhatIsTooLargeIsNotCompiled) {
  codegen::Kernel kernel = parsed(kNegate);
  kernel.values.resize(5000, kernel.values[0]);
  KernelCache cache(options());
  EXPECT_EQ(cache.get("large", kernel), nullptr);
  EXPECT_EQ(compiled_, 0);
}

TEST_F(KernelCacheTest, SaysWhatCallersMustKnow) {
  KernelCache cache(options());
  const std::shared_ptr<CompiledKernel> softmax = get(cache, kSoftmax);
  EXPECT_TRUE(softmax->has_rows);
  EXPECT_FALSE(softmax->splits_columns);
  ASSERT_EQ(softmax->saved_values.size(), 1u);  // exp
  EXPECT_EQ(softmax->saved_values[0].item_size, 4u);
  const std::shared_ptr<CompiledKernel> max = get(cache, kColumnMax);
  ASSERT_EQ(max->totals.size(), 1u);
  EXPECT_EQ(max->totals[0].columns, 0b1u);
  EXPECT_EQ(max->totals[0].identity, 0xFF800000u);
  const std::shared_ptr<CompiledKernel> lines = get(cache, kLineSums);
  ASSERT_EQ(lines->totals.size(), 1u);
  EXPECT_EQ(lines->totals[0].columns, 0b1u);  // of two columns
  const std::shared_ptr<CompiledKernel> negate = get(cache, kNegate);
  EXPECT_FALSE(negate->has_rows);
  EXPECT_TRUE(negate->splits_columns);
}

}  // namespace
}  // namespace torch_remote::worker::kernels
