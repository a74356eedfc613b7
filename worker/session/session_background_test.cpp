#include <cstring>

#include "worker/session/testing/session_fixture.h"

// Ops that go on in the background: which nodes wait for them, and what their failure leaves behind.
namespace torch_remote::worker {
namespace {

// An op that adds 100 to a tensor, or only reads it, when a caller waits for it or end() is called.
class Slow final : public BackgroundWork {
 public:
  Slow(float* data, size_t count, bool writes, Status failure)
      : data_(data), count_(count), writes_(writes), failure_(std::move(failure)) {}

  bool done() const override { return done_; }
  void wait(const std::function<void()>& look) override {
    if (done_) return;
    ++waits;
    look();
    end();
  }
  const Status& status() const override { return failure_; }

  void end() {
    if (done_) return;
    seen.assign(data_, data_ + count_);
    for (size_t i = 0; i < count_ && writes_ && failure_.ok(); ++i) data_[i] += 100;
    done_ = true;
  }

  int waits = 0;
  std::vector<float> seen;  // The tensor's values at the end of the op.

 private:
  float* data_;
  size_t count_;
  bool writes_;
  Status failure_;
  bool done_ = false;
};

class SlowRunner final : public Runner {
 public:
  std::string name() const override { return "slow"; }
  std::string description() const override { return ""; }
  bool accepts(const ir::Graph& graph, uint32_t node) override {
    return ir::op_desc(graph.nodes[node].opcode).name.starts_with("slow::");
  }
  bool works_in_background() const override { return true; }
  void end() override { ended = true; }
  void skip_node(const ir::Graph& graph, uint32_t node, const int64_t* values, const Status& why) override {
    left_out.push_back(std::string(ir::op_desc(graph.nodes[node].opcode).name) + " of " + std::to_string(values[0]) +
                       ": " + why.message());
  }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<Program>(*this, request.graph);
    return {};
  }

  std::vector<std::shared_ptr<Slow>> begun;
  int done_at_once = 0;  // Because the memory that they use does not outlive the run.
  bool ended = false;
  Status failure;  // The failure of ops that are begun from now on.
  std::vector<std::string> left_out;

 private:
  class Program final : public RunnerProgram {
   public:
    Program(SlowRunner& runner, const ir::Graph& graph) : runner_(runner), graph_(graph) {}
    bool allocates_buffer(uint32_t) const override { return false; }
    bool run(tr_run&, tr_error*) override {
      ADD_FAILURE() << "its nodes are begun";
      return false;
    }
    bool begin(tr_run& run, bool stays, std::shared_ptr<BackgroundWork>* work, tr_error*) override {
      const ir::Node& node = graph_.nodes[run.first];
      const tr_buffer& buffer = run.buffers[graph_.views[node.args[0].a].buffer];
      auto made = std::make_shared<Slow>(static_cast<float*>(buffer.data), buffer.nbytes / 4,
                                         ir::op_desc(node.opcode).name == "slow::add_", runner_.failure);
      if (stays) {
        runner_.begun.push_back(made);
        *work = made;
      } else {
        made->end();
        ++runner_.done_at_once;
      }
      return true;
    }

   private:
    SlowRunner& runner_;
    const ir::Graph& graph_;
  };
};

constexpr const char* kSlow = R"(graph(s0) {
  op slow::add_(Tensor! self) -> ()
  b0: input survives
  %0: f32[s0]{1} @b0
  slow::add_(%0)
})";

constexpr const char* kLooks = R"(graph(s0) {
  op slow::look(Tensor self) -> ()
  b0: input survives
  %0: f32[s0]{1} @b0
  slow::look(%0)
})";

constexpr const char* kDoubled = R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%0, %0, alpha=1)
})";

constexpr const char* kZero = R"(graph(s0) {
  b0: input survives
  %0: f32[s0]{1} @b0
  aten::zero_(%0)
})";

// The tensor that the op writes is new.
constexpr const char* kMakes = R"(graph(s0, s1) {
  op slow::add_(Tensor! self) -> ()
  b0: fresh(s1) survives
  %0: f32[s0]{1} @b0
  slow::add_(%0)
})";

constexpr const char* kMakesTwo = R"(graph(s0, s1) {
  op slow::add_(Tensor! self) -> ()
  b0: fresh(s1) survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  slow::add_(%0)
  %1: f32[s0]{1} @b1
  slow::add_(%1)
})";

constexpr const char* kMakesAndUses = R"(graph(s0, s1) {
  op slow::add_(Tensor! self) -> ()
  b0: fresh(s1) survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  slow::add_(%0)
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%0, %0, alpha=1)
})";

constexpr const char* kMakesAndRepairs = R"(graph(s0, s1) {
  op slow::add_(Tensor! self) -> ()
  b0: fresh(s1) survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  slow::add_(%0)
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%0, %0, alpha=1)
  aten::zero_(%0)
})";

// b0 is doubled, then updated in the background. b2 is computed from the doubled value, and from the updated one.
constexpr const char* kAmong = R"(graph(s0, s1) {
  op slow::add_(Tensor! self) -> ()
  b0: input survives
  b1: fresh(s1) survives
  b2: fresh(s1) survives
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%0, %0, alpha=1)
  slow::add_(%1)
  %2: f32[s0]{1} @b2 = aten::mul.Tensor(%0, %0)
  %3: f32[s0]{1} @b3 = aten::add.Tensor(%1, %2, alpha=1)
})";

constexpr const char* kDoubledAndLooks = R"(graph(s0, s1) {
  op slow::look(Tensor self) -> ()
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%0, %0, alpha=1)
  slow::look(%1)
})";

constexpr const char* kTemporary = R"(graph(s0, s1) {
  op slow::add_(Tensor! self) -> ()
  b0: input survives
  b1: fresh(s1)
  b2: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%0, %0, alpha=1)
  slow::add_(%1)
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%1, %0, alpha=1)
})";

class BackgroundTest : public SessionTest {
 protected:
  using Floats = std::vector<float>;

  BackgroundTest() {
    session.reset();
    auto made = std::make_unique<SlowRunner>();
    slow = made.get();
    runners.insert(runners.begin(), std::move(made));
    session = std::make_unique<Session>(&device, &runners);
    upload(1, {1, 2, 3});
    upload(2, {10, 20, 30});
  }
  int waits(size_t i) const { return slow->begun.at(i)->waits; }

  SlowRunner* slow = nullptr;
};

TEST_F(BackgroundTest, OnlyWhatUsesItsResultWaits) {
  load(1, kSlow);
  load(2, kDoubled);
  EXPECT_EQ(run(1, {3}, {1}), nullptr);
  EXPECT_EQ(run(2, {3, 12}, {2}, 100), nullptr);
  EXPECT_EQ(read(100, 3), (Floats{20, 40, 60}));
  EXPECT_EQ(waits(0), 0);
  EXPECT_TRUE(session->has_background_work());
  EXPECT_EQ(run(2, {3, 12}, {1}, 101), nullptr);
  EXPECT_EQ(waits(0), 1);
  EXPECT_FALSE(session->has_background_work());
  EXPECT_EQ(read(101, 3), (Floats{202, 204, 206}));
}

TEST_F(BackgroundTest, AReadAndASettledOneDoNotWaitTwice) {
  load(1, kSlow);
  EXPECT_EQ(run(1, {3}, {1}), nullptr);
  EXPECT_EQ(read(1, 3), (Floats{101, 102, 103}));
  EXPECT_EQ(waits(0), 1);
  EXPECT_EQ(run(1, {3}, {1}), nullptr);
  slow->begun[1]->end();
  session->settle();
  EXPECT_FALSE(session->has_background_work());
  EXPECT_EQ(read(1, 3), (Floats{201, 202, 203}));
  EXPECT_EQ(waits(1), 0);
}

TEST_F(BackgroundTest, TwoOfOneTensorAreDoneInTheirOrder) {
  load(1, kSlow);
  load(2, kZero);
  EXPECT_EQ(run(1, {3}, {1}), nullptr);
  EXPECT_EQ(run(2, {3}, {1}), nullptr);  // Overwrites what the op writes.
  EXPECT_EQ(run(1, {3}, {1}), nullptr);
  session->wait_for_background();
  EXPECT_EQ(slow->begun[1]->seen, (Floats{0, 0, 0}));
  EXPECT_EQ(read(1, 3), (Floats{100, 100, 100}));
}

TEST_F(BackgroundTest, InOneProgramTheNodesThatUseItWait) {
  load(1, kAmong);
  EXPECT_EQ(run(1, {3, 12}, {1}, 100), nullptr);
  EXPECT_EQ(waits(0), 1);
  EXPECT_EQ(read(100, 3), (Floats{102, 104, 106}));
  EXPECT_EQ(read(101, 3), (Floats{1, 4, 9}));
  EXPECT_EQ(read(102, 3), (Floats{103, 108, 115}));
}

TEST_F(BackgroundTest, WhatDoesNotOutliveTheRunIsUsedAtOnce) {
  load(1, kTemporary);
  EXPECT_EQ(run(1, {3, 12}, {1}, 100), nullptr);
  EXPECT_EQ(slow->done_at_once, 1);
  EXPECT_EQ(read(100, 3), (Floats{103, 106, 109}));
}

// As for a message that is sent: the tensor may be written and freed meanwhile.
TEST_F(BackgroundTest, WhatIsReadStaysAsItWas) {
  load(1, kLooks);
  load(2, kZero);
  EXPECT_EQ(run(1, {3}, {1}), nullptr);
  EXPECT_EQ(run(1, {3}, {2}), nullptr);
  EXPECT_EQ(run(2, {3}, {1}, 0, {2}), nullptr);
  EXPECT_EQ(waits(0) + waits(1), 0);
  EXPECT_EQ(read(1, 3), (Floats{0, 0, 0}));
  upload(3, {7, 7, 7});
  session->wait_for_background();
  EXPECT_EQ(slow->begun[0]->seen, (Floats{1, 2, 3}));
  EXPECT_EQ(slow->begun[1]->seen, (Floats{10, 20, 30}));
}

TEST_F(BackgroundTest, WhatIsWrittenMayBeFreed) {
  load(1, kAmong);
  load(2, kSlow);
  EXPECT_EQ(run(2, {3}, {1}, 0, {1}), nullptr);
  upload(4, {5, 5, 5});
  session->wait_for_background();
  EXPECT_EQ(read(4, 3), (Floats{5, 5, 5}));
}

TEST_F(BackgroundTest, AFailureIsThatOfWhatDependsOnIt) {
  load(1, kSlow);
  load(2, kDoubled);
  slow->failure = {ErrorCode::kOpFailed, "nobody came", "RuntimeError"};
  EXPECT_EQ(run(1, {3}, {1}), nullptr);
  EXPECT_EQ(run(2, {3, 12}, {2}, 100), nullptr);
  const FailurePtr failure = run(2, {3, 12}, {1}, 101);
  ASSERT_NE(failure, nullptr);
  EXPECT_NE(failure->status.message().find("nobody came"), std::string::npos);
  EXPECT_NE(failure->status.message().find("slow::add_"), std::string::npos);
  EXPECT_EQ(read(100, 3), (Floats{20, 40, 60}));
  FailurePtr why;
  read(101, 3, &why);
  EXPECT_EQ(why, failure);
  read(1, 3, &why);
  EXPECT_EQ(why, failure);
  EXPECT_EQ(take_failure(), failure);
  EXPECT_EQ(read(1, 3), (Floats{1, 2, 3}));  // The update is missing.
}

TEST_F(BackgroundTest, WhatAFailedOneWouldHaveMadeIsNotThere) {
  load(1, kMakes);
  load(2, kMakesAndUses);
  load(3, kDoubled);
  slow->failure = {ErrorCode::kOpFailed, "nobody came", "RuntimeError"};
  EXPECT_EQ(run(1, {3, 12}, {}, 100), nullptr);
  EXPECT_NE(run(2, {3, 12}, {}, 101), nullptr);
  ASSERT_NE(take_failure(), nullptr);
  FailurePtr why;
  for (const uint64_t id : {100, 101, 102}) {  // Also now that the client knows the failure.
    read(id, 3, &why);
    ASSERT_NE(why, nullptr) << id;
    EXPECT_NE(why->status.message().find("nobody came"), std::string::npos);
  }
  EXPECT_NE(run(3, {3, 12}, {100}, 103), nullptr);
  (void)take_failure();
  load(4, kMakesAndRepairs);
  EXPECT_EQ(run(4, {3, 12}, {}, 104), nullptr);
  EXPECT_EQ(read(104, 3), (Floats{0, 0, 0}));
  read(105, 3, &why);
  EXPECT_NE(why, nullptr);
}

// Other processes may wait for it.
TEST_F(BackgroundTest, OneThatIsNotBegunIsLeftOut) {
  load(1, kLooks);
  load(2, kMakes);
  load(3, kDoubled);
  load(4, kDoubledAndLooks);
  slow->failure = {ErrorCode::kOpFailed, "nobody came", "RuntimeError"};
  EXPECT_EQ(run(2, {3, 12}, {}, 100), nullptr);
  session->wait_for_background();
  EXPECT_TRUE(slow->left_out.empty());  // It was begun.
  EXPECT_NE(run(3, {3, 12}, {100}, 101), nullptr);
  EXPECT_TRUE(slow->left_out.empty());  // The op belongs to another runner.
  EXPECT_NE(run(1, {3}, {100}), nullptr);
  ASSERT_EQ(slow->left_out.size(), 1u);
  EXPECT_EQ(slow->left_out[0].find("slow::look of 3: nobody came"), 0u) << slow->left_out[0];
  EXPECT_NE(run(4, {3, 12}, {100}, 102), nullptr);
  EXPECT_EQ(slow->left_out.size(), 2u);
  remote::LastRun first;
  std::vector<uint8_t> params, bindings;
  load(5, kLooks);
  remote::encode_params(std::vector<int64_t>{3}, first.params, params);
  remote::encode_bindings(std::vector<uint64_t>{1}, 103, first.bindings, bindings);
  FailurePtr failure;
  EXPECT_TRUE(session->run_cancelled({5, 103, params, bindings, {}, ++sequence}, &failure).ok());
  ASSERT_EQ(slow->left_out.size(), 3u);
  EXPECT_NE(slow->left_out[2].find("cancelled"), std::string::npos) << slow->left_out[2];
}

// Two new tensors; memory has space for one.
TEST_F(BackgroundTest, OneWithoutMemoryForWhatItMakesIsLeftOut) {
  load(1, kMakesTwo);
  device.memory().set_limit(device.memory().stats().reserved.current + (uint64_t{100} << 20));
  const int64_t count = 16 << 20;
  EXPECT_NE(run(1, {count, 4 * count}, {}, 100), nullptr);
  session->wait_for_background();
  ASSERT_EQ(slow->left_out.size(), 1u);
  EXPECT_NE(slow->left_out[0].find(" out of memory."), std::string::npos) << slow->left_out[0];
  FailurePtr why;
  read(101, count, &why);
  ASSERT_NE(why, nullptr);
  EXPECT_EQ(why->status.exception_type(), "OutOfMemoryError");
}

// b0 is overwritten, and b1 only read.
constexpr const char* kOverwritesAndReads = R"(graph(s0, s1, s2) {
  b0: input survives
  b1: input survives
  b2: fresh(s2) survives
  %0: f32[s0]{1} @b0
  %1: f32[s1]{1} @b1
  aten::zero_(%0)
  %2: f32[s1]{1} @b2 = aten::add.Tensor(%1, %1, alpha=1)
})";

// The run waits for all ops, because memory has no space for the copy of what one of them reads.
TEST_F(BackgroundTest, AFailureWhileARunWaitsForMemoryIsThatOfItsInputs) {
  load(1, kLooks);
  load(2, kMakes);
  load(3, kOverwritesAndReads);
  const int64_t count = 10 << 20;
  upload(3, Floats(count, 7));  // 40 MiB.
  EXPECT_EQ(run(1, {count}, {3}), nullptr);
  slow->failure = {ErrorCode::kOpFailed, "nobody came", "RuntimeError"};
  EXPECT_EQ(run(2, {3, 12}, {}, 100), nullptr);
  ASSERT_EQ(slow->begun.size(), 2u);
  device.memory().set_limit(device.memory().stats().reserved.current);
  const FailurePtr failure = run(3, {count, 3, 12}, {3, 100}, 101);
  EXPECT_EQ(waits(0) + waits(1), 2);
  ASSERT_NE(failure, nullptr);
  EXPECT_NE(failure->status.message().find("nobody came"), std::string::npos) << failure->status.message();
  FailurePtr why;
  read(101, 3, &why);
  EXPECT_EQ(why, failure);
  EXPECT_EQ(read(3, 1), Floats{0});
}

TEST_F(BackgroundTest, OneThatWasCancelledIsNothingToTell) {
  load(1, kMakes);
  slow->failure = {ErrorCode::kOpFailed, "gave up", "RuntimeError"};
  session->set_cancelled([](uint64_t) { return true; });
  (void)run(1, {3, 12}, {}, 100);
  session->wait_for_background();
  EXPECT_EQ(take_failure(), nullptr);
  FailurePtr why;
  read(100, 3, &why);
  ASSERT_NE(why, nullptr);
  EXPECT_NE(why->status.message().find("cancelled"), std::string::npos) << why->status.message();
}

// The failure is found in the middle of the program.
TEST_F(BackgroundTest, AFailureInTheMiddleOfARun) {
  load(1, kAmong);
  slow->failure = {ErrorCode::kOpFailed, "nobody came", "RuntimeError"};
  const FailurePtr failure = run(1, {3, 12}, {1}, 100);
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(read(101, 3), (Floats{1, 4, 9}));
  FailurePtr why;
  read(100, 3, &why);
  EXPECT_EQ(why, failure);
  read(102, 3, &why);
  EXPECT_EQ(why, failure);
  EXPECT_EQ(take_failure(), failure);
  EXPECT_EQ(take_failure(), nullptr);
}

TEST_F(BackgroundTest, ASessionEndsItsRunners) {
  load(1, kSlow);
  EXPECT_EQ(run(1, {3}, {1}), nullptr);
  session.reset();
  EXPECT_TRUE(slow->ended);
}

}  // namespace
}  // namespace torch_remote::worker
