#include <cstring>
#include <random>

#include "worker/session/testing/session_fixture.h"

namespace torch_remote::worker {
namespace {

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
  std::vector<uint8_t> freed_ids;
  std::vector<uint64_t> ids{100};
  remote::encode_freed_ids(ids, freed_ids);
  ASSERT_TRUE(session->buffers().free(freed_ids).ok());
  EXPECT_EQ(device.memory().stats().allocated.current, 0u);
  EXPECT_EQ(session->buffers().size(), 0u);
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
  EXPECT_EQ(result_words, (std::vector<int64_t>{4, 2, 2, 1, 1, 1}));
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
  EXPECT_EQ(failure->status.exception_type(), "NotImplementedError");
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
    take_failure();
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
  EXPECT_TRUE(refused({2}, {-1}, 5));  // Inside the buffer, but torch has no negative strides.
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
  // No read holds the memory any more: in place again.
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
  EXPECT_FALSE(session->run({7, 100, {}, {}, {}, 1}, &result_words, &failure).ok());
  EXPECT_FALSE(session->run({1, 100, nonsense, {}, {}, 1}, &result_words, &failure).ok());
  EXPECT_FALSE(session->run({1, 100, {}, nonsense, {}, 1}, &result_words, &failure).ok());
  EXPECT_FALSE(session->run({1, 100, {}, {}, nonsense, 1}, &result_words, &failure).ok());
  EXPECT_FALSE(session->buffers().free(nonsense).ok());
  EXPECT_FALSE(session->buffers().upload(0, {}, nullptr).ok());
}

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
    const FailurePtr failure = take_failure();
    ASSERT_NE(failure, nullptr);
    ASSERT_EQ(failure->status.code(), ErrorCode::kOutOfMemory);
    ASSERT_NE(failure->status.message().find("[aten::relu(f32[2])]"), std::string::npos) << failure->status.message();
    ASSERT_EQ(read(101 + 4 * i, 2), (Floats{2, 4}));
    ASSERT_EQ(run(1, {2, 8, 8}, {1}, 102 + 4 * i), nullptr);
    ASSERT_EQ(read(102 + 4 * i, 2), (Floats{1, 2}));
  }
}

TEST_F(SmallSessionTest, WhatAProgramTakesCountsAgainstTheLimit) {
  ir::Graph claims;  // Very many parameters, in a few hundred bytes.
  claims.params = 1 << 24;
  const std::vector<uint8_t> program = ir::encode_program(claims);
  session->load_program(1, std::as_bytes(std::span(program)));
  clients[1].params.assign(claims.params, 0);
  FailurePtr failure;
  ASSERT_TRUE(session->run({1, 50, {}, {}, {}, ++sequence}, &result_words, &failure).ok());
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.code(), ErrorCode::kOutOfMemory) << failure->status.message();
  EXPECT_EQ(failure->status.exception_type(), "OutOfMemoryError");
  take_failure();
  // A large number of small programs.
  uint32_t number = 2;
  for (FailurePtr last; !last && number < 20000; ++number) {
    load(number, kTwoOps);
    last = run(number, {0, 0}, {7, 8}, 10'000'000);
    last = last->status.code() == ErrorCode::kOutOfMemory ? last : nullptr;
    take_failure();
  }
  EXPECT_LT(number, 20000u);
  EXPECT_GT(number, 1000u);
  // The session survives, and unloading a program gives its memory back.
  upload(1, {1, 2, 3});
  upload(2, {10, 20, 30});
  for (uint32_t n = 2; n < number; ++n) load(n, "graph() {\n}");
  for (uint32_t n = 0; n < 1000; ++n) {
    load(2, kTwoOps);
    ASSERT_EQ(run(2, {3, 12}, {1, 2}), nullptr);
  }
  EXPECT_EQ(read(100, 3), (Floats{11, 44, 99}));
}

// The data that a session holds besides tensors' bytes is bounded.
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
  uint64_t first_result_id = 1000;
  FailurePtr failure;
  for (; session->within_limit().ok() && first_result_id < 10'000'000; first_result_id += 10)
    run(1, {3, 12}, {7, 8}, first_result_id);
  EXPECT_LT(first_result_id, 10'000'000u);
  EXPECT_GT(first_result_id, 2'000u);
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
  EXPECT_EQ(failure->status.exception_type(), "OutOfMemoryError");
  EXPECT_EQ(device.memory().stats().allocated.current, before);
  FailurePtr why;
  read(101, 2, &why);
  EXPECT_EQ(why, failure);
  EXPECT_EQ(read(1, 2), (Floats{1, 2}));
}

// Three temporaries of 20 MiB, two alive at any time: they fit only because memory is reused.
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

// Buffers that a run frees and does not use give their memory to the run; buffers that it uses stay.
TEST_F(SmallSessionTest, WhatARunFreesMakesRoomForIt) {
  load(1, R"(graph(s0, s1) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[2]{1} @b0
  %1: f32[s0]{1} @b1 = aten::add.Tensor(%0, %0, alpha=1)
})");
  upload(1, {1, 2});
  uint64_t last = 0;
  for (uint64_t i = 0; i < 8; ++i) {  // 24 MiB each, in addition to a segment of 32 MiB for small blocks.
    const uint64_t first_result_id = 100 + i;
    const std::vector<uint64_t> freed_ids = i == 0 ? std::vector<uint64_t>{} : std::vector<uint64_t>{last};
    const int64_t more = static_cast<int64_t>(4096 * i);
    ASSERT_EQ(run(1, {2, (24 << 20) + more}, {1}, first_result_id, freed_ids), nullptr) << i;
    EXPECT_EQ(read(first_result_id, 2), (Floats{2, 4})) << i;
    EXPECT_FALSE(exists(last));
    last = first_result_id;
  }
  EXPECT_EQ(device.memory().stats().num_ooms, 0u);
  // An input that the same run frees exists until the run is done.
  ASSERT_EQ(run(1, {2, 8}, {1}, 200, {last}), nullptr);
  upload(2, std::vector<float>(6 << 20, 3));
  const FailurePtr failure = run(1, {2, 60 << 20}, {2}, 300, {2});
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.code(), ErrorCode::kOutOfMemory);
  EXPECT_FALSE(exists(2));
  ASSERT_EQ(run(1, {2, 24 << 20}, {1}, 400, {}), nullptr);
  EXPECT_EQ(read(400, 2), (Floats{2, 4}));
}

// Reserved, unused memory does not count against adopted uploads.
TEST_F(SmallSessionTest, UnusedSegmentsMakeRoomForUploads) {
  load(1, kTwoOps);
  upload(1, {1, 2});
  ASSERT_EQ(run(1, {2, 24 << 20}, {1, 1}, 100), nullptr);
  ASSERT_EQ(run(1, {2, 8}, {1, 1}, 200, {100}), nullptr);
  upload(2, std::vector<float>(6 << 20, 3));
  EXPECT_EQ(read(2, 1), (Floats{3}));
}

// Bytes of random programs, truncated or changed, never crash.
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
    (void)session->run({1, 100, params, bindings, {}, 1}, &result_words, &failure);
    if (!exists(1)) upload(1, {1, 2, 3});
    if (!exists(2)) upload(2, {10, 20, 30});
  }
}

}  // namespace
}  // namespace torch_remote::worker
