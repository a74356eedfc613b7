#include "worker/targets/cpu/compiled/reuse.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "worker/targets/cpu/compiled/kernel_runner.h"

// Results that are read long after they are stored use streaming stores, and no others.
namespace torch_remote::worker::kernels {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};
constexpr uint64_t kMegabyte = 1 << 20, kTensor = 4 * kMegabyte, kRow = 4096;

// Tensors of 4 MB. A group writes b1 (and b6, which needs no memory); the third node reads b1.
constexpr const char* kProgram = R"(graph() {
  b0: input
  b1: fresh(4194304) written_once
  b2: fresh(4194304) written_once
  b3: fresh(4194304) survives written_once
  b4: input
  b5: fresh(4194304) survives written_once
  b6: fresh(4194304) written_once group_local
  group pointwise {
    %0: f32[1024, 1024]{1024, 1} @b0
    %6: f32[1024, 1024]{1024, 1} @b6 = aten::neg(%0)
    %1: f32[1024, 1024]{1024, 1} @b1 = aten::exp(%6)
  }
  %4: f32[1024, 1024]{0, 1} @b4
  %2: f32[1024, 1024]{1024, 1} @b2 = aten::mm(%0, %4)
  %3: f32[1024, 1024]{1024, 1} @b3 = aten::mm(%2, %1)
  %5: f32[1024, 1024]{1024, 1} @b5 = aten::mm(%2, %3)
})";

struct Parsed {
  explicit Parsed(const std::string& text) {
    const Status status = ir::parse_graph(text, &graph);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
  }
  ir::Graph graph;
  std::vector<int64_t> values;
};

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  text.replace(text.find(what), what.size(), by);
  return text;
}

TEST(Reuse, CountsWhatIsGoneThroughUntilItIsRead) {
  const Parsed program(kProgram);
  // b0 and b1; b4, whose rows share memory, and b2; b3, whose node reads b1.
  EXPECT_EQ(bytes_until_read(program.graph, program.graph.groups[0], program.values, kAll), 4 * kTensor + kRow);
  // It stops at the given bound.
  EXPECT_LE(bytes_until_read(program.graph, program.graph.groups[0], program.values, kMegabyte), 8 * kMegabyte);
}

TEST(Reuse, WhatNobodyReadsIsCountedToTheEnd) {
  const Parsed program(replaced(kProgram, "aten::mm(%2, %1)", "aten::mm(%2, %0)"));
  EXPECT_EQ(bytes_until_read(program.graph, program.graph.groups[0], program.values, kAll), 5 * kTensor + kRow);
}

TEST(Reuse, ReadingAtOnceCountsTheNextNodeOnly) {
  const Parsed program(replaced(kProgram, "aten::mm(%0, %4)", "aten::mm(%1, %4)"));
  EXPECT_EQ(bytes_until_read(program.graph, program.graph.groups[0], program.values, kAll), 3 * kTensor + kRow);
}

TEST(Reuse, TheCacheOfThisMachineIsKnownOrNot) {
  const uint64_t bytes = last_cache_bytes();
  EXPECT_TRUE(bytes == 0 || (bytes >= 64 << 10 && bytes < uint64_t{8} << 30)) << bytes;
}

// Which kernel a run uses, given the size of the last-level cache. The code only records its variant.
class StreamingProgram : public testing::Test {
 protected:
  enum class Ran : uint8_t { kNone, kPlain, kStreams };

  Ran run(const std::string& text, uint64_t cache_bytes, size_t moved = 0, bool in_place = false) {
    CacheOptions cache;
    cache.target = "none";
    cache.compile = [this](std::string_view, const codegen::cpu::Variant& variant, std::vector<uint8_t>* bytes,
                           uint32_t* first, uint32_t* last) {
      // mov rax, the address; mov byte ptr [rax], the variant; ret
      const auto place = reinterpret_cast<uint64_t>(&ran_);
      *bytes = {0x48, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0xC6, 0x00, 0, 0xC3};
      std::memcpy(bytes->data() + 2, &place, sizeof(place));
      (*bytes)[12] = static_cast<uint8_t>(variant.streams ? Ran::kStreams : Ran::kPlain);
      *first = *last = 0;
      return Status();
    };
    KernelRunnerOptions options;
    options.cache = std::make_shared<KernelCache>(std::move(cache));
    options.waits = true;
    options.cache_bytes = cache_bytes;
    const std::unique_ptr<Runner> runner = make_kernel_runner(std::move(options));
    const Parsed parsed(text);
    std::unique_ptr<RunnerProgram> program;
    EXPECT_TRUE(runner->load({{}, parsed.graph, {1, 1, 0, 0, 0}, false}, &program).ok());
    const std::unique_ptr<char, decltype(&std::free)> memory(
        static_cast<char*>(std::aligned_alloc(64, 8 * kMegabyte + 64)), std::free);
    std::vector<tr_buffer> buffers(parsed.graph.buffers.size());
    buffers[0].data = memory.get();
    buffers[1].data = memory.get() + (in_place ? 0 : 4 * kMegabyte + moved);
    ran_ = Ran::kNone;
    EXPECT_TRUE(program->takes(0, 2, parsed.values));
    tr_run call{};
    call.last = 2;
    call.buffers = buffers.data();
    call.buffer_count = static_cast<uint32_t>(buffers.size());
    tr_error error{};
    EXPECT_TRUE(program->run(call, &error));
    return ran_;
  }

  Ran ran_ = Ran::kNone;
};

TEST_F(StreamingProgram, ResultsThatWouldNotStayGoPastTheCaches) {
  EXPECT_EQ(run(kProgram, 15 * kMegabyte), Ran::kStreams);
  EXPECT_EQ(run(kProgram, 17 * kMegabyte), Ran::kPlain);
  EXPECT_EQ(run(kProgram, 0), Ran::kPlain) << "nobody knows how large the cache is";
}

TEST_F(StreamingProgram, ButNotWhereTheyLieOtherwiseOrInPlace) {
  EXPECT_EQ(run(kProgram, 15 * kMegabyte, 4), Ran::kPlain);
  EXPECT_EQ(run(kProgram, 15 * kMegabyte, 0, /*in_place=*/true), Ran::kPlain);
}

TEST_F(StreamingProgram, ButNotWhereMuchIsComputed) {
  EXPECT_EQ(run(replaced(kProgram, "aten::exp", "aten::erf"), 15 * kMegabyte), Ran::kPlain);
  EXPECT_EQ(run(replaced(kProgram, "aten::exp", "aten::abs"), 15 * kMegabyte), Ran::kStreams);
}

}  // namespace
}  // namespace torch_remote::worker::kernels
