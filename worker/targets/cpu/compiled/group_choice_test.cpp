#include "worker/targets/cpu/compiled/group_choice.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "worker/targets/cpu/compiled/kernel_runner.h"

// Which algorithm is chosen, that the choice is cached, and how a program uses it.
namespace torch_remote::worker::kernels {
namespace {

namespace fs = std::filesystem;
using enum GroupAlgorithm;

// Adds times until the choice is known; the first time of each algorithm is a bad one.
GroupAlgorithm tune(GroupTuner& tuner, const std::map<GroupAlgorithm, uint64_t>& ns,
                    std::map<GroupAlgorithm, int>* asked = nullptr) {
  std::map<GroupAlgorithm, int> counts;
  for (int i = 0; tuner.needs_samples() && i < 1000; ++i) {
    const GroupAlgorithm algorithm = tuner.next();
    const bool disturbed = counts[algorithm] == 0 || counts[algorithm] % 3 == 0;
    tuner.add(ns.at(algorithm) + (disturbed ? 1'000'000 : 0));
    ++counts[algorithm];
  }
  EXPECT_FALSE(tuner.needs_samples());
  if (asked != nullptr) *asked = counts;
  return tuner.best();
}

TEST(GroupTuner, TheFastestOneWins) {
  GroupTuner tuner = make_group_tuner({kDefault, kStreamingStores, kColumns, kNodes});
  std::map<GroupAlgorithm, int> asked;
  EXPECT_EQ(tune(tuner, {{kDefault, 1000}, {kStreamingStores, 900}, {kColumns, 800}, {kNodes, 2000}}, &asked),
            kColumns);
  for (const GroupAlgorithm algorithm : {kDefault, kStreamingStores, kColumns, kNodes}) {
    EXPECT_EQ(asked[algorithm], static_cast<int>(GroupTuner::kSamples));
  }
  EXPECT_EQ(tuner.ns(kColumns), 800u);
  EXPECT_EQ(tuner.ns(kDefault), 1000u);
}

TEST(GroupTuner, WhatWinsByLittleDoesNot) {
  GroupTuner tuner = make_group_tuner({kDefault, kStreamingStores, kNodes});
  EXPECT_EQ(tune(tuner, {{kDefault, 1000}, {kStreamingStores, 970}, {kNodes, 920}}), kDefault);
  GroupTuner nodes = make_group_tuner({kDefault, kNodes});
  EXPECT_EQ(tune(nodes, {{kDefault, 1000}, {kNodes, 800}}), kNodes);
}

// On a busy machine the tuner takes more samples, and then keeps the plain kernel.
TEST(GroupTuner, TimesThatVaryAreNotBelieved) {
  GroupTuner tuner = make_group_tuner({kDefault, kStreamingStores});
  uint32_t times = 0;
  for (uint64_t ns = 1000; tuner.needs_samples(); ns = ns * 3 / 2, ++times)
    tuner.add(tuner.next() == kDefault ? 10 * ns : ns);
  EXPECT_EQ(times, 2 * GroupTuner::kMostSamples);
  EXPECT_FALSE(tuner.is_reliable());
  EXPECT_EQ(tuner.best(), kDefault);
  // The times become stable in the end.
  GroupTuner later = make_group_tuner({kDefault, kStreamingStores});
  for (times = 0; later.needs_samples(); ++times) {
    const uint64_t disturbed = times < 14 ? 1'000'000 * times : 0;
    later.add((later.next() == kDefault ? 1000 : 500) + disturbed);
  }
  EXPECT_GT(times, 2 * GroupTuner::kSamples);
  EXPECT_TRUE(later.is_reliable());
  EXPECT_EQ(later.best(), kStreamingStores);
}

TEST(GroupTuner, OneWayAloneIsNotTimed) {
  GroupTuner alone = make_group_tuner({kDefault});
  EXPECT_FALSE(alone.needs_samples());
  EXPECT_EQ(alone.best(), kDefault);
  GroupTuner two = make_group_tuner({kDefault, kStreamingStores});
  two.add(10);
  two.drop(kStreamingStores);
  EXPECT_FALSE(two.needs_samples());
  EXPECT_EQ(two.best(), kDefault);
}

class GroupChoicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("choices_" + std::to_string(::getpid()) +
                                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(GroupChoicesTest, AreKeptOnDisk) {
  {
    GroupChoices choices(folder_, "a machine");
    EXPECT_FALSE(choices.find("a").has_value());
    choices.store("a", kColumns, true);
    choices.store("b", kNodes, true);
    choices.store("c", kStreamingStores, false);
    EXPECT_EQ(choices.find("a"), kColumns);
    EXPECT_EQ(choices.find("c"), kStreamingStores);
  }
  GroupChoices again(folder_, "a machine");
  EXPECT_EQ(again.find("a"), kColumns);
  EXPECT_EQ(again.find("b"), kNodes);
  EXPECT_FALSE(again.find("c").has_value());
  EXPECT_FALSE(GroupChoices(folder_, "another machine").find("a").has_value());
  for (const auto& file : fs::directory_iterator(folder_)) fs::resize_file(file, fs::file_size(file) - 1);
  EXPECT_FALSE(GroupChoices(folder_, "a machine").find("a").has_value());
}

constexpr const char* kProgram = R"(graph() {
  b0: input survives
  b1: fresh(1048576) survives
  %0: f32[4096, 64]{128, 1} @b0
  group pointwise {
    %1: f32[4096, 64]{64, 1} @b1 = aten::neg(%0)
  }
})";

class TunedProgram : public GroupChoicesTest {
 protected:
  // The code only advances the clock.
  std::unique_ptr<Runner> start() {
    CacheOptions cache;
    cache.target = "none";
    cache.compile = [this](std::string_view, const codegen::cpu::Variant& variant, std::vector<uint8_t>* bytes,
                           uint32_t* first, uint32_t* last) {
      compiled_.push_back(variant.columns);
      // mov rax, the clock's address; add qword ptr [rax], its time; ret
      const auto clock = reinterpret_cast<uint64_t>(&clock_);
      const uint32_t takes = variant.columns == 0 ? 1'000'000 : 300'000;
      *bytes = {0x48, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0x48, 0x81, 0x00, 0, 0, 0, 0, 0xC3};
      std::memcpy(bytes->data() + 2, &clock, sizeof(clock));
      std::memcpy(bytes->data() + 13, &takes, sizeof(takes));
      *first = *last = 0;
      return Status();
    };
    KernelRunnerOptions options;
    options.cache = cache_ = std::make_shared<KernelCache>(std::move(cache));
    options.choices = std::make_shared<GroupChoices>(folder_, "a machine");
    options.clock = [this] { return clock_; };
    options.on_choice = [this](std::string_view ops, std::string_view algorithm) {
      told_.push_back(std::string(ops) + ": " + std::string(algorithm));
    };
    return make_kernel_runner(std::move(options));
  }

  // Runs until the choice is known, at most a fixed number of times. `nodes_ns`: the time of the nodes one by one.
  // Returns the number of runs.
  int run(Runner& runner, bool tune, uint64_t nodes_ns) {
    ir::Graph graph;
    EXPECT_TRUE(ir::parse_graph(kProgram, &graph).ok());
    std::vector<int64_t> values;
    EXPECT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
    std::unique_ptr<RunnerProgram> program;
    EXPECT_TRUE(runner.load({{}, graph, {1}, tune}, &program).ok());
    program->takes(0, 1, values);
    while (cache_->compiled() < 1) ::usleep(1000);
    std::vector<float> x(size_t{4096} * 128), y(size_t{4096} * 64);
    std::vector<tr_buffer> buffers(2);
    buffers[0].data = x.data();
    buffers[1].data = y.data();
    taken_.clear();
    for (int i = 0; i < 10'000; ++i) {
      taken_.push_back(program->takes(0, 1, values));
      if (program->tunes() && cache_->compiled() < 2) ::usleep(1000);
      if (!program->tunes() && i > 2) return i;
      if (!taken_.back()) {
        program->report_time(0, nodes_ns);
        continue;
      }
      tr_run call{};
      call.last = 1;
      call.buffers = buffers.data();
      call.buffer_count = 2;
      tr_error error{};
      EXPECT_TRUE(program->run(call, &error));
    }
    ADD_FAILURE() << "it tunes for ever";
    return 0;
  }

  std::vector<int64_t> compiled_;
  std::shared_ptr<KernelCache> cache_;  // must be destroyed first, because its thread writes `compiled_`
  std::vector<std::string> told_;
  std::vector<bool> taken_;
  uint64_t clock_ = 0;
};

TEST_F(TunedProgram, FindsTheFastestKernelOnceForAllProcesses) {
  const std::unique_ptr<Runner> first = start();
  EXPECT_GT(run(*first, true, 1'000'000'000), 20);  // three algorithms
  EXPECT_EQ(compiled_, (std::vector<int64_t>{0, 64}));
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].find("aten::neg: a kernel for rows of this size; the kernel for all sizes took 1000000 ns; "), 0u)
      << told_[0];
  EXPECT_TRUE(taken_.back());
  // Another program in the same process, then another process.
  EXPECT_EQ(run(*first, true, 1'000'000'000), 3);
  told_.clear();
  const std::unique_ptr<Runner> second = start();
  EXPECT_EQ(run(*second, true, 1'000'000'000), 3);
  EXPECT_EQ(told_, std::vector<std::string>{"aten::neg: a kernel for rows of this size, from an earlier choice"});
}

TEST_F(TunedProgram, NodesOneByOneMayBeFaster) {
  const std::unique_ptr<Runner> first = start();
  run(*first, true, 1000);
  EXPECT_FALSE(taken_.back());
  EXPECT_EQ(told_[0].find("aten::neg: node by node; "), 0u) << told_[0];
  const std::unique_ptr<Runner> second = start();
  EXPECT_EQ(run(*second, true, 1000), 3);
  EXPECT_FALSE(taken_.back());
}

TEST_F(TunedProgram, OthersAreNotTuned) {
  const std::unique_ptr<Runner> runner = start();
  EXPECT_EQ(run(*runner, false, 1000), 3);
  EXPECT_EQ(compiled_, std::vector<int64_t>{0});
  EXPECT_TRUE(told_.empty());
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace torch_remote::worker::kernels
