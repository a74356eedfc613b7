// Tests which reads are sent speculatively, what is cached, and when it is dropped.
#include "remote/client/speculative_reads.h"

#include <gtest/gtest.h>

namespace torch_remote::remote {
namespace {

class ReadAheadTest : public testing::Test {
 protected:
  // A run of a program that creates buffers of these sizes. Returns the first one's id.
  uint64_t run(uint32_t program, std::vector<uint64_t> made, std::vector<uint64_t> inputs = {},
               std::vector<bool> written = {}, std::vector<SpeculativeReads::Copy> copies = {}) {
    CachedProgram its;
    its.number = program;
    its.facts.written = std::move(written);
    its.facts_known = true;
    const uint64_t base = next_;
    next_ += made.size();
    ahead.on_run(its, inputs, base, made, copies);
    return base;
  }
  // The script reads a buffer. Returns the buffers that are requested speculatively along with it.
  std::vector<uint64_t> read(uint64_t buffer) {
    std::vector<uint64_t> asked;
    const bool there = ahead.find(buffer) != nullptr;
    if (there) ahead.on_use(buffer);
    if (there && !ahead.round_is_open()) return asked;
    for (const SpeculativeReads::Guess& guess : ahead.end_round(buffer, 4)) {
      keep(guess.buffer, Snapshot::State::kRequested, guess.nbytes);
      asked.push_back(guess.buffer);
    }
    if (!there) keep(buffer, Snapshot::State::kReady, ahead.size_of(buffer, 4));
    return asked;
  }
  void keep(uint64_t buffer, Snapshot::State state, uint64_t nbytes) {
    auto snapshot = std::make_shared<Snapshot>();
    snapshot->state = state;
    snapshot->bytes.resize(nbytes);
    ahead.insert(buffer, std::move(snapshot), ++sequence_);
  }

  SpeculativeReads ahead;

 private:
  uint64_t next_ = 100;
  uint64_t sequence_ = 0;
};

TEST_F(ReadAheadTest, WhatWasReadAfterAProgramIsAskedForAfterItsNextRun) {
  uint64_t base = run(1, {8, 16, 32});
  EXPECT_TRUE(read(base).empty());
  EXPECT_TRUE(read(base + 2).empty());
  base = run(1, {8, 16, 40});
  EXPECT_EQ(read(base), std::vector<uint64_t>{base + 2});
  EXPECT_EQ(ahead.find(base + 2)->bytes.size(), 40u);
  EXPECT_FALSE(ahead.find(base + 1));
  // No read is predicted for another program.
  base = run(2, {8, 16, 32});
  EXPECT_TRUE(read(base).empty());
}

TEST_F(ReadAheadTest, ResultsOfEarlierRunsOfTheRoundToo) {
  for (int step = 0; step < 3; ++step) {
    const uint64_t first = run(1, {4, 4}), second = run(2, {4});
    const std::vector<uint64_t> asked = read(second);
    EXPECT_EQ(asked.size(), step > 0 ? 1u : 0u);
    EXPECT_TRUE(step == 0 || asked[0] == first + 1);
    read(first + 1);
  }
}

// Models a policy that checks its sample: the action is cached when it is read, and a result computed from it is read
// later.
TEST_F(ReadAheadTest, AReadThatNeedNotWaitEndsARoundToo) {
  for (int step = 0; step < 4; ++step) {
    const uint64_t drawn = run(1, {4, 4});
    EXPECT_EQ(read(drawn).size(), step > 0 ? 1u : 0u);
    const uint64_t score = run(2, {4});
    const std::vector<uint64_t> asked = read(drawn + 1);
    EXPECT_EQ(asked, step > 0 ? std::vector<uint64_t>{score} : std::vector<uint64_t>{});
    EXPECT_EQ(ahead.find(score) != nullptr, step > 0);
    read(score);
  }
}

TEST_F(ReadAheadTest, WhatIsNoLongerReadIsNoLongerAskedFor) {
  uint64_t base = run(1, {4, 4});
  read(base), read(base + 1);
  int asked = 0;
  for (int step = 0; step < 10; ++step) {
    base = run(1, {4, 4});
    asked += !read(base).empty();
  }
  EXPECT_EQ(asked, 3);
}

TEST_F(ReadAheadTest, ACopyLeadsToWhatItIsACopyOf) {
  for (int step = 0; step < 3; ++step) {
    const uint64_t base = run(1, {4, 8});
    const std::vector<uint64_t> asked = read(base);
    const uint64_t copy = run(2, {8}, {base + 1}, {false}, {{0, base + 1}});
    if (step > 0) {
      EXPECT_EQ(asked, std::vector<uint64_t>{base + 1});
      // the copy shares the snapshot, whose bytes are still in flight
      EXPECT_EQ(ahead.find(copy), ahead.find(base + 1));
    }
    read(copy);
  }
}

TEST_F(ReadAheadTest, LargeResultsAreNotAskedFor) {
  for (int step = 0; step < 2; ++step) {
    const uint64_t base = run(1, {4, kMaxSpeculativeRead + 1});
    EXPECT_TRUE(read(base).empty());
    ahead.end_round(base + 1, 4);
  }
}

TEST_F(ReadAheadTest, AWriteEndsIt) {
  keep(7, Snapshot::State::kReady, 4);
  keep(8, Snapshot::State::kRequested, 4);
  run(1, {}, {7, 8}, {false, false});
  EXPECT_TRUE(ahead.find(7) && ahead.find(8));
  EXPECT_TRUE(ahead.abandoned_reads().empty());
  run(2, {}, {7, 8}, {false, true});
  EXPECT_TRUE(ahead.find(7));
  EXPECT_FALSE(ahead.find(8));
  EXPECT_EQ(ahead.abandoned_reads().size(), 1u);  // the reply of the snapshot that was still in flight
}

TEST_F(ReadAheadTest, AProgramOfWhichNothingIsKnownMayWrite) {
  keep(7, Snapshot::State::kReady, 4);
  CachedProgram unknown;
  std::vector<uint64_t> made;
  const uint64_t inputs[] = {7};
  ahead.on_run(unknown, inputs, 500, made, {});
  EXPECT_FALSE(ahead.find(7));
}

TEST_F(ReadAheadTest, SoDoesFreeing) {
  keep(7, Snapshot::State::kReady, 4);
  keep(71, Snapshot::State::kReady, 4);  // shares a bit of the filter with 7
  const uint64_t ids[] = {7, 9};
  ahead.on_free(ids);
  EXPECT_FALSE(ahead.find(7));
  EXPECT_TRUE(ahead.find(71));
}

TEST_F(ReadAheadTest, ACopyKeepsWhatItsSourceLost) {
  keep(7, Snapshot::State::kReady, 4);
  const uint64_t copy = run(1, {4}, {7}, {false}, {{0, 7}});
  run(2, {}, {7}, {true});
  EXPECT_FALSE(ahead.find(7));
  EXPECT_TRUE(ahead.find(copy));
}

// The list of snapshots, oldest first, also has entries whose snapshots are gone. It is cleared with the last snapshot.
TEST_F(ReadAheadTest, TheLastOneMakesRoomForTheNext) {
  constexpr uint64_t kMost = 256;
  const auto keep_new = [&](uint64_t id) { keep(id, Snapshot::State::kReady, 4); };
  keep_new(1);
  for (uint64_t id = 2; id <= kMost; ++id) {
    keep_new(id);
    ahead.on_free(std::vector<uint64_t>{id});
  }
  keep_new(1000);
  EXPECT_FALSE(ahead.find(1));
  EXPECT_TRUE(ahead.find(1000));
  for (uint64_t id = 1001; id <= 1000 + kMost; ++id) keep_new(id);
  EXPECT_FALSE(ahead.find(1000));
  for (uint64_t id = 1001; id <= 1000 + kMost; ++id) EXPECT_TRUE(ahead.find(id)) << id;
}

TEST_F(ReadAheadTest, KeepsSoMany) {
  for (uint64_t id = 1; id <= 2000; ++id) keep(id, Snapshot::State::kReady, 4);
  EXPECT_FALSE(ahead.find(1));
  EXPECT_TRUE(ahead.find(2000) && ahead.find(1900));
}

}  // namespace
}  // namespace torch_remote::remote
