// The consequences of a failure: what is poisoned, what is undone, and what the client learns.
#include "worker/session/testing/session_fixture.h"

namespace torch_remote::worker {
namespace {

// The first op succeeds, the in-place op fails, ops that depend on it are skipped, and the last op runs.
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

// An op fails that creates one tensor; an in-place update and a result need that tensor.
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
  const FailurePtr failure = take_failure();
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.message(), "index out of range in self [aten::neg_(f32[2])]");
  EXPECT_EQ(failure->status.exception_type(), "IndexError");
  EXPECT_EQ(failure->program, 1u);
  EXPECT_EQ(failure->sequence, 1u);
  EXPECT_EQ(failure->skipped_updates, 1u);
  EXPECT_EQ(take_failure(), nullptr);
  EXPECT_EQ(read(100, 2), (Floats{2, 4}));
  EXPECT_EQ(read(2, 2), (Floats{3, 4}));  // The op that failed would have written it.
  FailurePtr why;
  read(101, 2, &why);
  EXPECT_EQ(why, failure);  // Computed from the missing update.
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
  EXPECT_EQ(failure->skipped_updates, 1u);
  session->failures().mark_reported(failure);
  EXPECT_EQ(read(2, 2), (Floats{3, 4}));
  for (const uint64_t poisoned : {100, 101, 102}) {  // 101 is computed from the buffer that lacks the update.
    read(poisoned, 2, &why);
    EXPECT_EQ(why, failure);
  }
  EXPECT_EQ(take_failure(), nullptr);
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
  EXPECT_EQ(run(2, {2}, {2, 3}, 200), root);  // 2 is behind, then 3 is.
  EXPECT_EQ(run(2, {2}, {3, 4}, 200), root);
  EXPECT_EQ(run(3, {2, 8}, {4}, 200), root);
  EXPECT_EQ(run(2, {2}, {100, 4}, 200), root);  // 100 is poisoned.
  EXPECT_EQ(root->skipped_updates, 4u);
  FailurePtr why;
  for (const uint64_t id : {2, 3, 4, 200}) {
    read(id, 2, &why);
    EXPECT_EQ(why, root);
  }
  session->failures().mark_reported(root);
  EXPECT_EQ(read(3, 2), (Floats{5, 6}));
  read(200, 2, &why);
  EXPECT_EQ(why, root);
  EXPECT_EQ(run(2, {2}, {2, 3}, 201), nullptr);
  EXPECT_EQ(run(3, {2, 8}, {3}, 201), nullptr);
  EXPECT_EQ(read(201, 2), (Floats{16, 20}));
  EXPECT_EQ(run(2, {2}, {100, 3}, 202), root);
  EXPECT_EQ(read(3, 2), (Floats{8, 10}));
  EXPECT_EQ(root->skipped_updates, 5u);
  EXPECT_EQ(take_failure(), nullptr);
}

TEST_F(SessionTest, OverwritingAllOfAPoisonedBufferRepairsIt) {
  load(1, kPoisons);
  load(2, kOverwrites);
  load(3, kAddsInPlace);
  upload(1, {1, 2, 3});
  upload(2, {3, 4, 5});
  const FailurePtr root = run(1, {3, 12}, {1, 2});
  FailurePtr why;
  EXPECT_EQ(run(2, {2}, {100}, 200), root);  // Overwrites only a part.
  read(100, 3, &why);
  EXPECT_EQ(why, root);
  EXPECT_EQ(run(2, {3}, {100}, 200), nullptr);
  EXPECT_EQ(read(100, 3), (Floats{0, 0, 0}));
  EXPECT_EQ(run(3, {3}, {1, 100}, 200), nullptr);
  EXPECT_EQ(read(100, 3), (Floats{1, 2, 3}));
  // A buffer that is behind lacks nothing after all of it was overwritten.
  EXPECT_EQ(run(2, {2}, {2}, 200), root);
  EXPECT_EQ(run(2, {3}, {2}, 200), nullptr);
  EXPECT_EQ(read(2, 3), (Floats{0, 0, 0}));
  EXPECT_EQ(take_failure(), root);
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

// A value that `lift` gave a buffer of its own falls back to the older value, in whichever buffer that is.
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
  EXPECT_EQ(failure->skipped_updates, 1u);
  session->failures().mark_reported(failure);
  EXPECT_EQ(read(100, 2), (Floats{2, 4}));
}

// In-place writes between a failure and an update that is skipped for it are undone.
TEST_F(SessionTest, AnUpdateBeforeASkippedOneIsUndone) {
  load(1, kPoisons);
  load(2, kAddsInPlace);
  upload(1, {1, 2});
  upload(2, {3, 4});
  upload(3, {5, 6});
  upload(4, {7, 8});
  EXPECT_EQ(run(2, {2}, {1, 3}), nullptr);  // Before the failure.
  const FailurePtr root = run(1, {2, 8}, {1, 2}, 200);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(2, {2}, {1, 3}), nullptr);
  EXPECT_EQ(run(2, {2}, {1, 4}), nullptr);
  EXPECT_EQ(run(2, {2}, {200, 3}), root);
  EXPECT_EQ(run(2, {2}, {1, 3}), root);
  EXPECT_EQ(root->skipped_updates, 3u);
  session->failures().mark_reported(root);
  EXPECT_EQ(read(3, 2), (Floats{6, 8}));
  EXPECT_EQ(read(4, 2), (Floats{8, 10}));  // None of its updates was skipped.
  EXPECT_EQ(run(2, {2}, {1, 3}), nullptr);
  EXPECT_EQ(run(2, {2}, {200, 3}), root);  // The client knows the failure: this is another update.
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
  session->failures().mark_reported(root);
  EXPECT_EQ(read(3, 2), (Floats{6, 8}));
}

// In the run that fails, writes count from the failing node on. A write to a part of a buffer is a write to the buffer.
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
    EXPECT_EQ(failure->skipped_updates, 1u);
    session->failures().mark_reported(failure);
    EXPECT_EQ(read(2, 2), program == 1 ? (Floats{3, 4}) : (Floats{4, 6}));
  }
}

// The older values of a buffer that `lift` divided have other memory.
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
  EXPECT_EQ(failure->skipped_updates, 1u);
  EXPECT_EQ(run(2, {2, 8}, {1}, 101), nullptr);
  EXPECT_EQ(run(3, {2}, {100, 101}), failure);
  session->failures().mark_reported(failure);
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
  EXPECT_EQ(root->skipped_updates, 3u);
  session->failures().mark_reported(root);
  EXPECT_EQ(read(3, 2), (Floats{1, 2}));
  EXPECT_EQ(read(4, 2), (Floats{1, 2}));
}

// Each failure undoes the updates after it, and no others.
TEST_F(SessionTest, SeveralFailures) {
  load(1, kPoisons);
  load(2, kAddsInPlace);
  upload(1, {1, 1});
  upload(2, {0, 0});
  for (uint64_t id = 3; id <= 6; ++id) upload(id, {0, 0});
  const FailurePtr first = run(1, {2, 8}, {1, 2}, 100);
  for (uint64_t id = 3; id <= 6; ++id) run(2, {2}, {1, id});
  const FailurePtr second = run(1, {2, 8}, {1, 7}, 200);  // There is no buffer 7.
  ASSERT_NE(second, nullptr);
  ASSERT_NE(second, first);
  const FailurePtr third = run(1, {2, 8}, {1, 8}, 300);
  for (uint64_t id = 3; id <= 6; ++id) run(2, {2}, {1, id});
  run(2, {2}, {300, 3});
  run(2, {2}, {300, 4});
  run(2, {2}, {100, 4});
  session->failures().mark_reported(third);
  EXPECT_EQ(read(3, 2), (Floats{1, 1}));
  run(2, {2}, {200, 5});
  run(2, {2}, {300, 6});  // The client knows the failure.
  session->failures().mark_reported(second);
  EXPECT_EQ(read(5, 2), (Floats{1, 1}));
  run(2, {2}, {100, 6});
  session->failures().mark_reported(first);
  EXPECT_EQ(read(4, 2), (Floats{0, 0}));
  EXPECT_EQ(read(6, 2), (Floats{0, 0}));
}

// A buffer whose contents come back is behind by what the old contents lacked.
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
  session->failures().mark_reported(first);
  EXPECT_EQ(read(2, 2), (Floats{3, 4}));
  // A buffer that was poisoned has no older contents.
  EXPECT_EQ(run(3, {2}, {100}), nullptr);
  EXPECT_EQ(run(2, {2}, {200, 100}), second);
  session->failures().mark_reported(second);
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
  session->failures().mark_reported(root);
  EXPECT_EQ(device.memory().stats().allocated.current, before - 8);
  run(2, {2}, {1, 4});  // No copy is kept.
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
  session->failures().mark_reported(check);
  EXPECT_EQ(read(101, 2), (Floats{2, 4}));
  EXPECT_EQ(read(200, 2), (Floats{2, 4}));
  run(2, {2, 8}, {1}, 201);
  EXPECT_EQ(read(201, 2), (Floats{2, 4}));
  EXPECT_EQ(take_failure(), nullptr);
}

// A failed check skips nothing, so it undoes nothing.
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
  EXPECT_EQ(run(3, {2}, {3, 3}), check);  // The run executes.
  const FailurePtr failure = run(2, {2, 8}, {1, 2});
  ASSERT_NE(failure, check);
  run(3, {2}, {1, 3});
  EXPECT_EQ(run(3, {2}, {100, 3}, 200), failure);
  EXPECT_EQ(check->skipped_updates, 0u);
  FailurePtr why;
  for (const FailurePtr& expected : {check, failure}) {  // In order.
    read(3, 2, &why);
    EXPECT_EQ(why, expected);
    session->failures().mark_reported(expected);
  }
  EXPECT_EQ(read(3, 2), (Floats{4, 8}));
}

// A run looks for cancellations between its nodes; nodes that are dropped count as failed.
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
  EXPECT_EQ(failure->status.message(),
            "remote: cancelled by torch.remote.cancel() or by the interrupt of a notebook cell");
  read(100, 3, &why);
  EXPECT_EQ(why, failure);
  EXPECT_EQ(take_failure(), nullptr);  // The client asked for the cancellation.
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
  const std::vector<FailurePtr> all = session->failures().take(&more);
  EXPECT_EQ(all.size() + more, 100u);
  EXPECT_EQ(all[0]->sequence, 1u);
  EXPECT_EQ(session->failures().take(&more).size(), 0u);
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
  EXPECT_EQ(why->status.exception_type(), "ValueError");
  EXPECT_EQ(device.memory().stats().allocated.current, 8u);  // The upload.
}

// Half of the remaining memory suffices for the first copy only.
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
  session->failures().mark_reported(root);
  EXPECT_EQ(read(3, 1), (Floats{1}));
  EXPECT_EQ(read(4, 1), (Floats{2}));
}

// A read lends the buffer's memory to the client. An op that overwrites all of the buffer must not write to it.
TEST_F(SmallSessionTest, WithoutMemoryForACopyWhatTheClientReadsStays) {
  load(1, kOverwrites);
  const int64_t size = 10 << 20, stride = 1;
  upload(1, std::vector<float>(size, 1));  // 40 of 64 MiB.
  Session::Located located;
  ASSERT_EQ(session->locate({1, 4, {&size, 1}, {&stride, 1}, 0}, ++sequence, &located), nullptr);
  const FailurePtr failure = run(1, {size}, {1});
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.code(), ErrorCode::kOutOfMemory) << failure->status.message();
  EXPECT_EQ(reinterpret_cast<const float*>(located.data)[0], 1);
  take_failure();
  EXPECT_EQ(read(1, 1), Floats{1});
  located = {};
  EXPECT_EQ(run(1, {size}, {1}), nullptr);
  EXPECT_EQ(read(1, 1), Floats{0});
}

}  // namespace
}  // namespace torch_remote::worker
