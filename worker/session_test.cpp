#include "worker/session.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <span>

#include "remote/wire/delta.h"
#include "worker/device/host_device.h"
#include "worker/runner/plugin_runner.h"
#include "worker/runner/testing/fake_runner.h"

namespace torch_remote::worker {
namespace {

// A session and the client's end of its delta coding.
class SessionTest : public ::testing::Test {
 protected:
  explicit SessionTest(uint64_t limit = uint64_t{1} << 32) : device({.trusted = true, .limit = limit}) {
    std::unique_ptr<Runner> runner;
    EXPECT_TRUE(make_plugin_runner(testing::fake_runner(), {.memory = &device.memory()}, &runner).ok());
    runners.push_back(std::move(runner));
    session = std::make_unique<Session>(&device, &runners);
  }

  void load(uint32_t number, const std::string& text) {
    ir::Graph graph;
    const Status status = ir::parse_graph(text, &graph);
    ASSERT_TRUE(status.ok()) << status.message();
    const Status valid = ir::verify(graph);
    ASSERT_TRUE(valid.ok()) << valid.message();
    const std::vector<uint8_t> program = ir::encode_program(graph);
    session->load_program(number, std::as_bytes(std::span(program)));
    clients[number] = {};
  }

  // Runs; `base` 100 unless told. Returns why the last node's results are not there, or null.
  FailurePtr run(uint32_t number, std::vector<int64_t> params, std::vector<uint64_t> inputs, uint64_t base = 100,
                 std::vector<uint64_t> frees = {}) {
    std::vector<uint8_t> encoded_params, encoded_bindings, encoded_frees;
    remote::encode_params(params, clients[number].params, encoded_params);
    remote::encode_bindings(inputs, base, clients[number].bindings, encoded_bindings);
    remote::encode_frees(frees, encoded_frees);
    FailurePtr failure;
    const Status status =
        session->run({number, base, encoded_params, encoded_bindings, encoded_frees, ++sequence}, &words, &failure);
    EXPECT_TRUE(status.ok()) << status.message();
    return failure;
  }

  void upload(uint64_t id, const std::vector<float>& values) {
    auto floats = std::make_shared<std::vector<float>>(values);
    ASSERT_TRUE(session->upload(id, std::as_writable_bytes(std::span(*floats)), floats).ok());
  }

  // All elements of a buffer of f32; *failure set if it cannot be read.
  std::vector<float> read(uint64_t id, int64_t count, FailurePtr* failure = nullptr) {
    const int64_t one = 1;
    Session::Located located;
    const ReadRequest request{id, 4, {&count, 1}, {&one, 1}, 0};
    FailurePtr why = session->locate(request, ++sequence, &located);
    if (failure) *failure = why;
    if (why) {
      if (!failure) ADD_FAILURE() << why->status.message();
      return {};
    }
    std::vector<float> values(count);
    session->copy_out(request, located, std::as_writable_bytes(std::span(values)), nullptr);
    return values;
  }

  // The first failure that the client does not know; it knows all of them now.
  FailurePtr told() {
    uint64_t more = 0;
    const std::vector<FailurePtr> all = session->take_failures(&more);
    for (const FailurePtr& failure : all) session->tell(failure);
    return all.empty() ? nullptr : all[0];
  }

  bool exists(uint64_t id) {
    Session::Located located;
    return session->locate({id, 4, {}, {}, 0}, 0, &located) == nullptr;
  }

  using Floats = std::vector<float>;
  HostDevice device;
  Runners runners;
  std::unique_ptr<Session> session;
  std::map<uint32_t, remote::LastRun> clients;  // by program
  std::vector<int64_t> words;
  uint64_t sequence = 0;
};

// s0 elements, s1 bytes: x + y, then times x.
constexpr const char* kTwoOps = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1)
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %1, alpha=1)
  %3: f32[s0]{1} @b3 = aten::mul.Tensor(%2, %0)
})";

// The first result is there, the in-place op fails, what hangs on it is skipped, the last op does not.
constexpr const char* kFails = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1) survives
  b3: fresh(s1) survives
  b4: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %0, alpha=1)
  aten::neg_(%1)
  %3: f32[s0]{1} @b3 = aten::add.Tensor(%1, %0, alpha=1)
  %4: f32[s0]{1} @b4 = aten::relu(%0)
})";

TEST_F(SessionTest, RunsAndStoresSurvivors) {
  load(1, kTwoOps);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  EXPECT_EQ(run(1, {3, 12}, {1, 2}), nullptr);
  EXPECT_EQ(read(100, 3), (Floats{11, 44, 99}));
  EXPECT_EQ(read(1, 3), (Floats{1, 2, 3}));
  EXPECT_FALSE(exists(101));
}

TEST_F(SessionTest, TheRunnerHearsOfSymbolsOnlyWhenTheyChange) {
  load(1, kTwoOps);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  const int before = testing::runs_with_changes();
  for (int i = 0; i < 5; ++i) run(1, {3, 12}, {1, 2}, 100 + i);
  EXPECT_EQ(testing::runs_with_changes(), before + 1);
  run(1, {2, 8}, {1, 2}, 200);
  EXPECT_EQ(testing::runs_with_changes(), before + 2);
  EXPECT_EQ(read(200, 2), (Floats{11, 44}));
}

TEST_F(SessionTest, InputsThatDoNotSurviveAndFreesGo) {
  load(1, R"(graph(s0, s1) {
  op test::make(Tensor self) -> (Tensor) pure
  b0: input
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = test::make(%0)
})");
  upload(1, {4, 5});
  upload(2, {1});
  const uint64_t external = device.memory().stats().allocated.current;
  EXPECT_EQ(run(1, {2, 8}, {1}, 100, {2, 77}), nullptr);
  EXPECT_FALSE(exists(1));
  EXPECT_FALSE(exists(2));
  EXPECT_EQ(read(100, 2), (Floats{4, 5}));
  EXPECT_EQ(external, 12u);
  std::vector<uint8_t> frees;
  std::vector<uint64_t> ids{100};
  remote::encode_frees(ids, frees);
  ASSERT_TRUE(session->free(frees).ok());
  EXPECT_EQ(device.memory().stats().allocated.current, 0u);
  EXPECT_EQ(session->buffers(), 0u);
}

// An op fails that makes one tensor and is needed by an update in place and a result.
constexpr const char* kPoisons = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1) survives
  b3: fresh(s1) survives
  b4: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::exp(%0)
  aten::add_.Tensor(%1, %2, alpha=1)
  %3: f32[s0]{1} @b3 = aten::add.Tensor(%1, %0, alpha=1)
  %4: f32[s0]{1} @b4 = aten::add.Tensor(%2, %0, alpha=1)
})";

// b1 += b0, or b1 = 0, or its first element.
constexpr const char* kAddsInPlace = R"(graph(s0) {
  b0: input survives
  b1: input survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  aten::add_.Tensor(%1, %0, alpha=1)
})";
constexpr const char* kOverwrites = R"(graph(s0) {
  b0: input survives
  %0: f32[s0]{1} @b0
  aten::zero_(%0)
})";
constexpr const char* kDoubles = R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%0, %0, alpha=1)
})";

TEST_F(SessionTest, AFailureNamesItsNode) {
  load(1, kFails);
  upload(1, {1, 2});
  upload(2, {3, 4});
  run(1, {2, 8}, {1, 2});
  const FailurePtr failure = told();
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.message(), "index out of range in self [aten::neg_(f32[2])]");
  EXPECT_EQ(failure->status.kind(), "IndexError");
  EXPECT_EQ(failure->program, 1u);
  EXPECT_EQ(failure->sequence, 1u);
  EXPECT_EQ(failure->skipped, 1u);
  EXPECT_EQ(told(), nullptr);
  EXPECT_EQ(read(100, 2), (Floats{2, 4}));
  EXPECT_EQ(read(2, 2), (Floats{3, 4}));  // what it would have written
  FailurePtr why;
  read(101, 2, &why);
  EXPECT_EQ(why, failure);  // made of that
  EXPECT_EQ(read(102, 2), (Floats{1, 2}));
}

TEST_F(SessionTest, AFailurePoisonsWhatItWouldHaveMadeAndLeavesWhatItWouldHaveWritten) {
  load(1, kPoisons);
  upload(1, {1, 2});
  upload(2, {3, 4});
  const FailurePtr failure = run(1, {2, 8}, {1, 2});
  ASSERT_NE(failure, nullptr);
  FailurePtr why;
  for (const uint64_t id : {100, 2, 101, 102}) {
    read(id, 2, &why);
    EXPECT_EQ(why, failure);
  }
  EXPECT_EQ(failure->skipped, 1u);
  session->tell(failure);
  EXPECT_EQ(read(2, 2), (Floats{3, 4}));
  for (const uint64_t poisoned : {100, 101, 102}) {  // 101: of what lacks the update
    read(poisoned, 2, &why);
    EXPECT_EQ(why, failure);
  }
  EXPECT_EQ(told(), nullptr);
}

TEST_F(SessionTest, LaterProgramsInheritTheFailureAndDoTheRest) {
  load(1, kPoisons);
  load(2, kAddsInPlace);
  load(3, kDoubles);
  upload(1, {1, 2});
  upload(2, {3, 4});
  upload(3, {5, 6});
  upload(4, {7, 8});
  const FailurePtr root = run(1, {2, 8}, {1, 2});
  EXPECT_EQ(run(2, {2}, {2, 3}, 200), root);  // 2 is behind, then 3 is
  EXPECT_EQ(run(2, {2}, {3, 4}, 200), root);
  EXPECT_EQ(run(3, {2, 8}, {4}, 200), root);
  EXPECT_EQ(run(2, {2}, {100, 4}, 200), root);  // poisoned
  EXPECT_EQ(root->skipped, 4u);
  FailurePtr why;
  for (const uint64_t id : {2, 3, 4, 200}) {
    read(id, 2, &why);
    EXPECT_EQ(why, root);
  }
  session->tell(root);
  EXPECT_EQ(read(3, 2), (Floats{5, 6}));
  read(200, 2, &why);
  EXPECT_EQ(why, root);
  EXPECT_EQ(run(2, {2}, {2, 3}, 201), nullptr);
  EXPECT_EQ(run(3, {2, 8}, {3}, 201), nullptr);
  EXPECT_EQ(read(201, 2), (Floats{16, 20}));
  EXPECT_EQ(run(2, {2}, {100, 3}, 202), root);
  EXPECT_EQ(read(3, 2), (Floats{8, 10}));
  EXPECT_EQ(root->skipped, 5u);
  EXPECT_EQ(told(), nullptr);
}

TEST_F(SessionTest, OverwritingAllOfAPoisonedBufferRepairsIt) {
  load(1, kPoisons);
  load(2, kOverwrites);
  load(3, kAddsInPlace);
  upload(1, {1, 2, 3});
  upload(2, {3, 4, 5});
  const FailurePtr root = run(1, {3, 12}, {1, 2});
  FailurePtr why;
  EXPECT_EQ(run(2, {2}, {100}, 200), root);  // a part
  read(100, 3, &why);
  EXPECT_EQ(why, root);
  EXPECT_EQ(run(2, {3}, {100}, 200), nullptr);
  EXPECT_EQ(read(100, 3), (Floats{0, 0, 0}));
  EXPECT_EQ(run(3, {3}, {1, 100}, 200), nullptr);
  EXPECT_EQ(read(100, 3), (Floats{1, 2, 3}));
  // What lacks an update lacks nothing after all of it was overwritten.
  EXPECT_EQ(run(2, {2}, {2}, 200), root);
  EXPECT_EQ(run(2, {3}, {2}, 200), nullptr);
  EXPECT_EQ(read(2, 3), (Floats{0, 0, 0}));
  EXPECT_EQ(told(), root);
}

TEST_F(SessionTest, AnOverwritingOpThatReadsWhatItOverwritesRepairsNothing) {
  load(1, kPoisons);
  load(2, R"(graph(s0) {
  b0: input survives
  %0: f32[s0]{1} @b0
  %1: f32[1]{1} @b0
  aten::copy_(%0, %1)
})");
  upload(1, {1, 2});
  upload(2, {3, 4});
  const FailurePtr root = run(1, {2, 8}, {1, 2});
  EXPECT_EQ(run(2, {2}, {100}, 200), root);
  FailurePtr why;
  read(100, 2, &why);
  EXPECT_EQ(why, root);
}

// A value that `lift` gave a buffer of its own goes back to the older one, wherever that lies.
TEST_F(SessionTest, AValueThatAnOpInPlaceWouldHaveReplacedStays) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1)
  b2: fresh(s1)
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::exp(%0)
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %0, alpha=1)
  %3: f32[s0]{1} @b3 = aten::add.Tensor(%2, %1, alpha=1) in_place
})");
  upload(1, {1, 2});
  const FailurePtr failure = run(1, {2, 8}, {1});
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->skipped, 1u);
  session->tell(failure);
  EXPECT_EQ(read(100, 2), (Floats{2, 4}));
}

// What was written in place between a failure and an update that is skipped for it is as it was when the failure came.
TEST_F(SessionTest, AnUpdateBeforeASkippedOneIsUndone) {
  load(1, kPoisons);
  load(2, kAddsInPlace);
  upload(1, {1, 2});
  upload(2, {3, 4});
  upload(3, {5, 6});
  upload(4, {7, 8});
  EXPECT_EQ(run(2, {2}, {1, 3}), nullptr);  // before the failure
  const FailurePtr root = run(1, {2, 8}, {1, 2}, 200);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(2, {2}, {1, 3}), nullptr);
  EXPECT_EQ(run(2, {2}, {1, 4}), nullptr);
  EXPECT_EQ(run(2, {2}, {200, 3}), root);
  EXPECT_EQ(run(2, {2}, {1, 3}), root);
  EXPECT_EQ(root->skipped, 3u);
  session->tell(root);
  EXPECT_EQ(read(3, 2), (Floats{6, 8}));
  EXPECT_EQ(read(4, 2), (Floats{8, 10}));  // nothing of it was skipped
  EXPECT_EQ(run(2, {2}, {1, 3}), nullptr);
  EXPECT_EQ(run(2, {2}, {200, 3}), root);  // the client knows it: this is another update
  EXPECT_EQ(read(3, 2), (Floats{7, 10}));
}

TEST_F(SessionTest, WhatTheClientHasReadStays) {
  load(1, kPoisons);
  load(2, kAddsInPlace);
  upload(1, {1, 2});
  upload(2, {3, 4});
  upload(3, {5, 6});
  const FailurePtr root = run(1, {2, 8}, {1, 2}, 200);
  EXPECT_EQ(run(2, {2}, {1, 3}), nullptr);
  EXPECT_EQ(read(3, 2), (Floats{6, 8}));
  EXPECT_EQ(run(2, {2}, {1, 3}), nullptr);
  EXPECT_EQ(run(2, {2}, {200, 3}), root);
  session->tell(root);
  EXPECT_EQ(read(3, 2), (Floats{6, 8}));
}

// Nodes of the run that fails count from the one that does; a write to a part is one to the buffer.
TEST_F(SessionTest, AnUpdateIsUndoneInsideOfARun) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1)
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::exp(%0)
  %3: f32[1]{1} @b1 + 1
  %4: f32[1]{1} @b0
  aten::add_.Tensor(%3, %4, alpha=1)
  aten::add_.Tensor(%1, %2, alpha=1)
})");
  load(2, R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1)
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  aten::add_.Tensor(%1, %0, alpha=1)
  %2: f32[s0]{1} @b2 = aten::exp(%0)
  aten::add_.Tensor(%1, %2, alpha=1)
})");
  upload(1, {1, 2});
  upload(2, {3, 4});
  for (const uint32_t program : {1u, 2u}) {
    const FailurePtr failure = run(program, {2, 8}, {1, 2});
    ASSERT_NE(failure, nullptr);
    EXPECT_EQ(failure->skipped, 1u);
    session->tell(failure);
    EXPECT_EQ(read(2, 2), program == 1 ? (Floats{3, 4}) : (Floats{4, 6}));
  }
}

// The older values of a buffer that `lift` divided have other places.
TEST_F(SessionTest, AnUpdateThatWasLiftedIsUndone) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  b2: fresh(s1)
  b3: fresh(s1)
  b4: fresh(s1)
  %0: f32[s0]{1} @b0
  %4: f32[s0]{1} @b4 = aten::exp(%0)
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %0, alpha=1)
  %3: f32[s0]{1} @b3 = aten::add.Tensor(%2, %0, alpha=1) in_place
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%3, %4, alpha=1) in_place
})");
  load(2, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  b2: fresh(s1)
  %0: f32[s0]{1} @b0
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %0, alpha=1)
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%2, %0, alpha=1) in_place
})");
  load(3, kAddsInPlace);
  upload(1, {1, 2});
  const FailurePtr failure = run(1, {2, 8}, {1});
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->skipped, 1u);
  EXPECT_EQ(run(2, {2, 8}, {1}, 101), nullptr);
  EXPECT_EQ(run(3, {2}, {100, 101}), failure);
  session->tell(failure);
  EXPECT_EQ(read(100, 2), (Floats{2, 4}));
  EXPECT_EQ(read(101, 2), (Floats{2, 4}));
}

TEST_F(SessionTest, AListThatIsSkippedIsUndoneAsAWhole) {
  load(1, kPoisons);
  load(2, kAddsInPlace);
  load(3, R"(graph(s0) {
  b0: input survives
  b1: input survives
  b2: input survives
  b3: input survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2
  %3: f32[s0]{1} @b3
  aten::_foreach_add_.List([%0, %1], [%2, %3], alpha=1)
})");
  for (uint64_t id = 1; id <= 4; ++id) upload(id, {1, 2});
  const FailurePtr root = run(1, {2, 8}, {1, 2});
  EXPECT_EQ(run(2, {2}, {1, 3}), nullptr);
  EXPECT_EQ(run(2, {2}, {1, 4}), nullptr);
  EXPECT_EQ(run(3, {2}, {3, 4, 1, 100}, 200), root);
  EXPECT_EQ(root->skipped, 3u);
  session->tell(root);
  EXPECT_EQ(read(3, 2), (Floats{1, 2}));
  EXPECT_EQ(read(4, 2), (Floats{1, 2}));
}

// Each failure undoes what came after it, and no more.
TEST_F(SessionTest, SeveralFailures) {
  load(1, kPoisons);
  load(2, kAddsInPlace);
  upload(1, {1, 1});
  upload(2, {0, 0});
  for (uint64_t id = 3; id <= 6; ++id) upload(id, {0, 0});
  const FailurePtr first = run(1, {2, 8}, {1, 2}, 100);
  for (uint64_t id = 3; id <= 6; ++id) run(2, {2}, {1, id});
  const FailurePtr second = run(1, {2, 8}, {1, 7}, 200);  // there is no buffer 7
  ASSERT_NE(second, nullptr);
  ASSERT_NE(second, first);
  const FailurePtr third = run(1, {2, 8}, {1, 8}, 300);
  for (uint64_t id = 3; id <= 6; ++id) run(2, {2}, {1, id});
  run(2, {2}, {300, 3});
  run(2, {2}, {300, 4});
  run(2, {2}, {100, 4});
  session->tell(third);
  EXPECT_EQ(read(3, 2), (Floats{1, 1}));
  run(2, {2}, {200, 5});
  run(2, {2}, {300, 6});  // told
  session->tell(second);
  EXPECT_EQ(read(5, 2), (Floats{1, 1}));
  run(2, {2}, {100, 6});
  session->tell(first);
  EXPECT_EQ(read(4, 2), (Floats{0, 0}));
  EXPECT_EQ(read(6, 2), (Floats{0, 0}));
}

// What is undone lacks what it lacked.
TEST_F(SessionTest, WhatWasOverwrittenAndIsUndoneIsStillBehind) {
  load(1, kPoisons);
  load(2, kAddsInPlace);
  load(3, kOverwrites);
  upload(1, {1, 2});
  upload(2, {3, 4});
  const FailurePtr first = run(1, {2, 8}, {1, 2}, 100);
  const FailurePtr second = run(1, {2, 8}, {1, 7}, 200);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(run(3, {2}, {2}), nullptr);
  EXPECT_EQ(run(2, {2}, {200, 2}), second);
  FailurePtr why;
  read(2, 2, &why);
  EXPECT_EQ(why, first);
  session->tell(first);
  EXPECT_EQ(read(2, 2), (Floats{3, 4}));
  // What was poisoned has nothing to go back to.
  EXPECT_EQ(run(3, {2}, {100}), nullptr);
  EXPECT_EQ(run(2, {2}, {200, 100}), second);
  session->tell(second);
  EXPECT_EQ(read(100, 2), (Floats{0, 0}));
}

TEST_F(SessionTest, CopiesGoWithTheirBufferOrWhenTheFailureIsTold) {
  load(1, kPoisons);
  load(2, kAddsInPlace);
  upload(1, {1, 2});
  upload(2, {3, 4});
  upload(3, {5, 6});
  upload(4, {7, 8});
  const FailurePtr root = run(1, {2, 8}, {1, 2});
  const uint64_t before = device.memory().stats().allocated.current;
  run(2, {2}, {1, 3});
  run(2, {2}, {1, 4});
  run(2, {2}, {1, 4});
  EXPECT_EQ(device.memory().stats().allocated.current, before + 128);
  run(2, {2}, {1, 4}, 200, {3});
  EXPECT_EQ(device.memory().stats().allocated.current, before + 56);
  session->tell(root);
  EXPECT_EQ(device.memory().stats().allocated.current, before - 8);
  run(2, {2}, {1, 4});  // nothing is kept
  EXPECT_EQ(device.memory().stats().allocated.current, before - 8);
}

TEST_F(SessionTest, WhatIsWrittenAfterAFailedCheckTellsItOnce) {
  load(1, R"(graph(s0, s1) {
  op test::check(Tensor self) -> ()
  b0: input survives
  b1: fresh(s1) survives
  b2: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%0, %0, alpha=1)
  test::check(%0)
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %0, alpha=1)
})");
  load(2, kDoubles);
  upload(1, {1, 2});
  run(1, {2, 8}, {1});
  run(2, {2, 8}, {1}, 200);
  EXPECT_EQ(read(1, 2), (Floats{1, 2}));
  EXPECT_EQ(read(100, 2), (Floats{2, 4}));
  FailurePtr check;
  read(101, 2, &check);
  ASSERT_NE(check, nullptr);
  EXPECT_TRUE(check->check);
  FailurePtr why;
  read(200, 2, &why);
  EXPECT_EQ(why, check);
  session->tell(check);
  EXPECT_EQ(read(101, 2), (Floats{2, 4}));
  EXPECT_EQ(read(200, 2), (Floats{2, 4}));
  run(2, {2, 8}, {1}, 201);
  EXPECT_EQ(read(201, 2), (Floats{2, 4}));
  EXPECT_EQ(told(), nullptr);
}

// It skips nothing, so it undoes nothing.
TEST_F(SessionTest, AFailedCheckIsNotWhatUpdatesGoBackTo) {
  load(1, R"(graph(s0) {
  op test::check(Tensor self) -> ()
  b0: input survives
  b1: input survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  test::check(%0)
  aten::add_.Tensor(%1, %0, alpha=1)
})");
  load(2, kPoisons);
  load(3, kAddsInPlace);
  for (uint64_t id = 1; id <= 3; ++id) upload(id, {1, 2});
  const FailurePtr check = run(1, {2}, {1, 3});
  ASSERT_NE(check, nullptr);
  EXPECT_EQ(run(3, {2}, {3, 3}), check);  // it runs
  const FailurePtr failure = run(2, {2, 8}, {1, 2});
  ASSERT_NE(failure, check);
  run(3, {2}, {1, 3});
  EXPECT_EQ(run(3, {2}, {100, 3}, 200), failure);
  EXPECT_EQ(check->skipped, 0u);
  FailurePtr why;
  for (const FailurePtr& expected : {check, failure}) {  // in order
    read(3, 2, &why);
    EXPECT_EQ(why, expected);
    session->tell(expected);
  }
  EXPECT_EQ(read(3, 2), (Floats{4, 8}));
}

// A run is looked at between its nodes, and what is dropped is as if it had failed.
TEST_F(SessionTest, ACancelledRunLeavesWhatItWouldHaveWritten) {
  load(1, kTwoOps);
  load(2, kAddsInPlace);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  std::vector<uint8_t> params, bindings;
  remote::encode_params(std::vector<int64_t>{3, 12}, clients[1].params, params);
  remote::encode_bindings(std::vector<uint64_t>{1, 2}, 100, clients[1].bindings, bindings);
  FailurePtr failure, why;
  ASSERT_TRUE(session->run_cancelled({1, 100, params, bindings, {}, 7}, &failure).ok());
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.message(), "remote: cancelled by torch.remote.cancel()");
  read(100, 3, &why);
  EXPECT_EQ(why, failure);
  EXPECT_EQ(told(), nullptr);  // the client asked for it
  EXPECT_EQ(run(2, {3}, {100, 2}, 200), failure);
  EXPECT_EQ(read(2, 3), (Floats{10, 20, 30}));
  EXPECT_EQ(run(1, {3, 12}, {1, 2}, 300), nullptr);
  EXPECT_EQ(read(300, 3), (Floats{11, 44, 99}));
}

TEST_F(SessionTest, AllFailuresAreTold) {
  load(1, kPoisons);
  upload(1, {1, 2});
  upload(2, {3, 4});
  for (int i = 0; i < 100; ++i) run(1, {2, 8}, {1, 2}, 100 + 4 * i);
  uint64_t more = 0;
  const std::vector<FailurePtr> all = session->take_failures(&more);
  EXPECT_EQ(all.size() + more, 100u);
  EXPECT_EQ(all[0]->sequence, 1u);
  EXPECT_EQ(session->take_failures(&more).size(), 0u);
  EXPECT_EQ(more, 0u);
}

TEST_F(SessionTest, AResultWrittenByAnOpThatFailedIsPoisoned) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::exp(%0)
})");
  upload(1, {1, 2});
  run(1, {2, 8}, {1});
  FailurePtr why;
  read(100, 2, &why);
  ASSERT_NE(why, nullptr);
  EXPECT_EQ(why->status.kind(), "ValueError");
  EXPECT_EQ(device.memory().stats().allocated.current, 8u);  // the upload
}

TEST_F(SessionTest, DynamicAndHostResultsComeAsWords) {
  load(1, R"(graph(s0) {
  b0: input survives
  b1: fresh survives
  %0: f32[s0]{1} @b0
  %1: f32[?] @b1 = aten::nonzero(%0)
})");
  upload(1, {0, 7, 0, 8});
  EXPECT_EQ(run(1, {4}, {1}), nullptr);
  EXPECT_EQ(words, (std::vector<int64_t>{4, 2, 2, 1, 1, 1}));
  EXPECT_TRUE(exists(100));
}

TEST_F(SessionTest, AProgramThatTheRunnerRefusesFailsItsRuns) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::cos(%0)
})");
  upload(1, {1, 2});
  const FailurePtr failure = run(1, {2, 8}, {1});
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.kind(), "NotImplementedError");
  FailurePtr why;
  read(100, 2, &why);
  EXPECT_EQ(why, failure);
  EXPECT_EQ(read(1, 2), (Floats{1, 2}));
}

TEST_F(SessionTest, BytesThatAreNoProgramFailTheirRuns) {
  const std::vector<uint8_t> nonsense(100, 7);
  session->load_program(1, std::as_bytes(std::span(nonsense)));
  EXPECT_NE(run(1, {}, {}, 50), nullptr);
  FailurePtr why;
  read(51, 1, &why);
  ASSERT_NE(why, nullptr);
  EXPECT_NE(why->status.message().find("program"), std::string::npos);
}

TEST_F(SessionTest, ViewsBeyondTheirBuffersNeverRun) {
  load(1, kTwoOps);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  const int before = testing::runs();
  for (const auto& params : std::vector<std::vector<int64_t>>{
           {4, 16}, {3, 8}, {-3, 12}, {int64_t{1} << 62, 12}, {3, -1}, {int64_t{1} << 40, int64_t{1} << 42}}) {
    const FailurePtr failure = run(1, params, {1, 2});
    EXPECT_NE(failure, nullptr) << params[0] << " " << params[1];
    FailurePtr why;
    read(100, 1, &why);
    EXPECT_NE(why, nullptr);
  }
  EXPECT_EQ(testing::runs(), before);
  EXPECT_EQ(run(1, {3, 12}, {1, 2}), nullptr);
}

TEST_F(SessionTest, ViewsThatRunBackwardsNeverRun) {
  load(1, R"(graph(s0, s1, s2) {
  b0: input survives
  b1: fresh(s0) survives
  %0: f32[3]{s1} @b0 + s2
  %1: f32[3]{1} @b1 = aten::relu(%0)
})");
  upload(1, {1, 2, 3});
  const int before = testing::runs();
  for (const auto& params : std::vector<std::vector<int64_t>>{{12, -1, 2}, {12, INT64_MIN, 2}, {12, -1, 0}}) {
    const FailurePtr failure = run(1, params, {1});
    ASSERT_NE(failure, nullptr) << params[1];
    told();
  }
  EXPECT_EQ(testing::runs(), before);
  EXPECT_EQ(run(1, {12, 1, 0}, {1}), nullptr);
}

TEST_F(SessionTest, GuessedIdsGiveErrors) {
  load(1, kTwoOps);
  upload(1, {1, 2, 3});
  EXPECT_NE(run(1, {3, 12}, {1, 12345}), nullptr);
  EXPECT_NE(run(1, {3, 12}, {0, UINT64_MAX}, UINT64_MAX), nullptr);
  std::mt19937_64 random(1);
  for (int i = 0; i < 10000; ++i) {
    FailurePtr why;
    read(random() | 1024, 1, &why);
    ASSERT_NE(why, nullptr);
  }
}

TEST_F(SessionTest, ReadsBeyondTheBufferAreRefused) {
  upload(1, {1, 2, 3, 4, 5, 6});
  Session::Located located;
  const auto refused = [&](std::vector<int64_t> sizes, std::vector<int64_t> strides, int64_t offset,
                           uint32_t item = 4) {
    return session->locate({1, item, sizes, strides, offset}, 1, &located) != nullptr;
  };
  EXPECT_FALSE(refused({2, 3}, {3, 1}, 0));
  EXPECT_FALSE(refused({3, 2}, {1, 3}, 0));
  EXPECT_FALSE(refused({0}, {1}, 1000));
  EXPECT_TRUE(refused({7}, {1}, 0));
  EXPECT_TRUE(refused({6}, {1}, 1));
  EXPECT_TRUE(refused({6}, {1}, -1));
  EXPECT_TRUE(refused({2}, {-1}, 0));
  EXPECT_TRUE(refused({2}, {-1}, 5));  // inside, but torch has no such views
  EXPECT_TRUE(refused({1}, {-1}, 0));
  EXPECT_TRUE(refused({2, 2}, {-2, 1}, 2));
  EXPECT_TRUE(refused({-1}, {1}, 0));
  EXPECT_TRUE(refused({2}, {INT64_MAX}, 0));
  EXPECT_TRUE(refused({INT64_MAX, INT64_MAX}, {0, 0}, 0));
  EXPECT_TRUE(refused({1}, {1}, INT64_MAX));
  EXPECT_TRUE(refused({1}, {1}, INT64_MIN));
  EXPECT_TRUE(refused({1}, {1}, 0, 3));
  EXPECT_TRUE(refused({1}, {1}, 0, 0));
  EXPECT_TRUE(refused({1, 1}, {1}, 0));
}

TEST_F(SessionTest, WhatTheClientReadsDoesNotChangeUnderIt) {
  load(1, R"(graph(s0) {
  b0: input survives
  b1: input survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  aten::add_.Tensor(%0, %1, alpha=1)
})");
  upload(1, {1, 2});
  upload(2, {10, 10});
  const int64_t size = 2, stride = 1;
  Session::Located located;
  ASSERT_EQ(session->locate({1, 4, {&size, 1}, {&stride, 1}, 0}, 1, &located), nullptr);
  EXPECT_TRUE(located.packed);
  EXPECT_EQ(run(1, {2}, {1, 2}), nullptr);
  EXPECT_EQ(reinterpret_cast<const float*>(located.data)[0], 1);
  EXPECT_EQ(read(1, 2), (Floats{11, 12}));
  // Nobody looks any more: in place again.
  located = {};
  Session::Located now, later;
  session->locate({1, 4, {&size, 1}, {&stride, 1}, 0}, 1, &now);
  const auto* data = now.data;
  now = {};
  EXPECT_EQ(run(1, {2}, {1, 2}), nullptr);
  session->locate({1, 4, {&size, 1}, {&stride, 1}, 0}, 1, &later);
  EXPECT_EQ(later.data, data);
}

TEST_F(SessionTest, DamagedMessagesAreErrorsOfTheSession) {
  load(1, kTwoOps);
  FailurePtr failure;
  const std::vector<uint8_t> nonsense(9, 0xFF);
  EXPECT_FALSE(session->run({7, 100, {}, {}, {}, 1}, &words, &failure).ok());
  EXPECT_FALSE(session->run({1, 100, nonsense, {}, {}, 1}, &words, &failure).ok());
  EXPECT_FALSE(session->run({1, 100, {}, nonsense, {}, 1}, &words, &failure).ok());
  EXPECT_FALSE(session->run({1, 100, {}, {}, nonsense, 1}, &words, &failure).ok());
  EXPECT_FALSE(session->free(nonsense).ok());
  EXPECT_FALSE(session->upload(0, {}, nullptr).ok());
}

class SmallSessionTest : public SessionTest {
 protected:
  SmallSessionTest() : SessionTest(64 << 20) {}
};

TEST_F(SmallSessionTest, OutOfMemoryNamesTheOpAndLeavesTheRest) {
  load(1, R"(graph(s0, s1, s2) {
  b0: input survives
  b1: fresh(s1) survives
  b2: fresh(s2) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %0, alpha=1)
})");
  upload(1, {1, 2});
  for (int i = 0; i < 200; ++i) {
    run(1, {2, int64_t{1} << 40, 8}, {1}, 100 + 4 * i);
    const FailurePtr failure = told();
    ASSERT_NE(failure, nullptr);
    ASSERT_EQ(failure->status.code(), ErrorCode::kOutOfMemory);
    ASSERT_NE(failure->status.message().find("[aten::relu(f32[2])]"), std::string::npos) << failure->status.message();
    ASSERT_EQ(read(101 + 4 * i, 2), (Floats{2, 4}));
    ASSERT_EQ(run(1, {2, 8, 8}, {1}, 102 + 4 * i), nullptr);
    ASSERT_EQ(read(102 + 4 * i, 2), (Floats{1, 2}));
  }
}

TEST_F(SmallSessionTest, WhatAProgramTakesCountsAgainstTheLimit) {
  ir::Graph claims;  // so many parameters, in a few hundred bytes
  claims.params = 1 << 24;
  const std::vector<uint8_t> program = ir::encode_program(claims);
  session->load_program(1, std::as_bytes(std::span(program)));
  clients[1].params.assign(claims.params, 0);
  FailurePtr failure;
  ASSERT_TRUE(session->run({1, 50, {}, {}, {}, ++sequence}, &words, &failure).ok());
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.code(), ErrorCode::kOutOfMemory) << failure->status.message();
  EXPECT_EQ(failure->status.kind(), "OutOfMemoryError");
  told();
  // Any number of small ones.
  uint32_t number = 2;
  for (FailurePtr last; !last && number < 20000; ++number) {
    load(number, kTwoOps);
    last = run(number, {0, 0}, {7, 8}, 10'000'000);
    last = last->status.code() == ErrorCode::kOutOfMemory ? last : nullptr;
    told();
  }
  EXPECT_LT(number, 20000u);
  EXPECT_GT(number, 1000u);
  // The session lives on, and what a program took comes back with it.
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  for (uint32_t n = 2; n < number; ++n) load(n, "graph() {\n}");
  for (uint32_t n = 0; n < 1000; ++n) {
    load(2, kTwoOps);
    ASSERT_EQ(run(2, {3, 12}, {1, 2}), nullptr);
  }
  EXPECT_EQ(read(100, 3), (Floats{11, 44, 99}));
}

// What a session keeps for its client beside tensors' bytes ends somewhere.
TEST_F(SmallSessionTest, WhatFailsCountsAgainstTheLimit) {
  const std::vector<uint8_t> nonsense(10, 7);
  uint32_t number = 1;
  for (; session->within_limit().ok() && number < 100'000; ++number) {
    session->load_program(number, std::as_bytes(std::span(nonsense)));
  }
  EXPECT_LT(number, 100'000u);
  EXPECT_GT(number, 100u);
  EXPECT_EQ(session->within_limit().code(), ErrorCode::kOutOfMemory);
}

TEST_F(SmallSessionTest, PoisonedBuffersCountAgainstTheLimit) {
  load(1, kTwoOps);
  uint64_t base = 1000;
  FailurePtr failure;
  for (; session->within_limit().ok() && base < 10'000'000; base += 10) run(1, {3, 12}, {7, 8}, base);
  EXPECT_LT(base, 10'000'000u);
  EXPECT_GT(base, 2'000u);
}

TEST_F(SessionTest, WithoutMemoryOfItsOwnTheSessionLivesOn) {
  load(1, R"(graph(s0, s1) {
  op test::no_memory(Tensor self) -> ()
  b0: input survives
  b1: fresh(s1) survives
  b2: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  test::no_memory(%0)
  %2: f32[s0]{1} @b2 = aten::relu(%0)
})");
  upload(1, {1, 2});
  const uint64_t before = device.memory().stats().allocated.current;
  const FailurePtr failure = run(1, {2, 8}, {1});
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.kind(), "OutOfMemoryError");
  EXPECT_EQ(device.memory().stats().allocated.current, before);
  FailurePtr why;
  read(101, 2, &why);
  EXPECT_EQ(why, failure);
  EXPECT_EQ(read(1, 2), (Floats{1, 2}));
}

// Half of the memory that is left is enough for the first copy only.
TEST_F(SmallSessionTest, WithoutMemoryForACopyAnUpdateStays) {
  load(1, kPoisons);
  load(2, kAddsInPlace);
  const std::vector<float> ones(3 << 20, 1);
  upload(1, {1, 2});
  upload(2, {3, 4});
  upload(3, ones);
  upload(4, ones);
  upload(5, ones);
  const FailurePtr root = run(1, {2, 8}, {1, 2});
  for (const uint64_t id : {3, 4}) EXPECT_EQ(run(2, {3 << 20}, {5, id}), nullptr);
  for (const uint64_t id : {3, 4}) EXPECT_EQ(run(2, {2}, {100, id}), root);
  session->tell(root);
  EXPECT_EQ(read(3, 1), (Floats{1}));
  EXPECT_EQ(read(4, 1), (Floats{2}));
}

// Three temporaries of 20 MiB, two alive at any time: they fit only because memory is used again.
TEST_F(SmallSessionTest, TemporariesShareMemory) {
  load(1, R"(graph(s0, s1, s2, s3) {
  b0: input survives
  b1: fresh(s1)
  b2: fresh(s1)
  b3: fresh(s1)
  b4: fresh(s3) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1 = aten::relu(%0)
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%1, %1, alpha=1)
  %3: f32[s0]{1} @b3 = aten::add.Tensor(%2, %2, alpha=1)
  %4: f32[s0]{1} @b4 = aten::add.Tensor(%3, %3, alpha=1)
})");
  upload(1, {1, 2});
  EXPECT_EQ(run(1, {2, 20 << 20, 0, 8}, {1}), nullptr);
  EXPECT_EQ(read(100, 2), (Floats{8, 16}));
  EXPECT_LT(device.memory().stats().allocated.peak, uint64_t{45} << 20);
}

// Two inputs of 20 MiB that die one after the other, and two results of 20 MiB: three of the four fit at a time.
TEST_F(SmallSessionTest, DeadInputsMakeRoom) {
  const std::string text = R"(graph(s0, s1) {
  b0: input
  b1: input
  b2: fresh(s1) survives
  b3: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %0, alpha=1)
  %3: f32[s0]{1} @b3 = aten::add.Tensor(%1, %1, alpha=1)
})";
  load(1, text);
  const std::vector<float> values(5 << 20, 1);
  upload(1, values);
  upload(2, values);
  EXPECT_EQ(run(1, {5 << 20, 20 << 20}, {1, 2}), nullptr);
  EXPECT_LT(device.memory().stats().allocated.peak, uint64_t{62} << 20);
  EXPECT_EQ(read(101, 1), (Floats{2}));
}

TEST_F(SmallSessionTest, ABufferBoundTwiceIsNotFreedTooEarly) {
  load(1, R"(graph(s0) {
  b0: input
  b1: input
  b2: fresh(8) survives
  b3: fresh(8) survives
  %0: f32[2]{1} @b0
  %1: f32[2]{1} @b1
  %2: f32[2]{1} @b2 = aten::relu(%0)
  %3: f32[2]{1} @b3 = aten::relu(%1)
})");
  upload(1, std::vector<float>(3 << 20, 5));
  EXPECT_EQ(run(1, {0}, {1, 1}), nullptr);
  EXPECT_EQ(read(101, 2), (Floats{5, 5}));
  EXPECT_FALSE(exists(1));
}

// Random programs' bytes, cut or changed, never crash.
TEST_F(SessionTest, DamagedProgramsDoNotCrash) {
  ir::Graph graph;
  ASSERT_TRUE(ir::parse_graph(kTwoOps, &graph).ok());
  const std::vector<uint8_t> good = ir::encode_program(graph);
  std::mt19937 random(5);
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  for (int i = 0; i < 3000; ++i) {
    std::vector<uint8_t> bytes = good;
    for (int k = random() % 3; k >= 0; --k) bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    session->load_program(1, std::as_bytes(std::span(bytes)));
    clients[1] = {};
    std::vector<uint8_t> params, bindings;
    std::vector<int64_t> last_params;
    remote::Bindings last_bindings;
    remote::encode_params(std::vector<int64_t>{3, 12}, last_params, params);
    remote::encode_bindings(std::vector<uint64_t>{1, 2}, 100, last_bindings, bindings);
    FailurePtr failure;
    (void)session->run({1, 100, params, bindings, {}, 1}, &words, &failure);
    if (!exists(1)) upload(1, {1, 2, 3});
    if (!exists(2)) upload(2, {10, 20, 30});
  }
}

TEST(IdMap, AgreesWithAMap) {
  std::mt19937_64 random(3);
  IdMap<int> map;
  std::map<uint64_t, int> model;
  for (int i = 0; i < 200000; ++i) {
    const uint64_t id = 1 + (random() % 5 == 0 ? random() % 3000 * 0x100000001 : random() % 2000);
    if (random() % 2) {
      map[id] = model[id] = i;
    } else {
      ASSERT_EQ(map.erase(id), model.erase(id) == 1);
    }
    ASSERT_EQ(map.size(), model.size());
    const uint64_t other = 1 + random() % 2000;
    const int* found = map.find(other);
    ASSERT_EQ(found != nullptr, model.contains(other));
    if (found) {
      ASSERT_EQ(*found, model[other]);
    }
  }
  EXPECT_EQ(map.find(0), nullptr);
}

}  // namespace
}  // namespace torch_remote::worker
