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
    const uint64_t first_result_id = next_;
    next_ += made.size();
    reads.on_run(its, inputs, first_result_id, made, copies);
    return first_result_id;
  }
  // The script reads a buffer. Returns the buffers that are requested speculatively along with it.
  std::vector<uint64_t> read(uint64_t buffer) {
    std::vector<uint64_t> asked;
    const bool there = reads.find(buffer) != nullptr;
    if (there) reads.on_use(buffer);
    if (there && !reads.round_is_open()) return asked;
    for (const SpeculativeReads::Guess& guess : reads.end_round(buffer, 4)) {
      keep(guess.buffer, Snapshot::State::kRequested, guess.nbytes);
      asked.push_back(guess.buffer);
    }
    if (!there) keep(buffer, Snapshot::State::kReady, reads.size_of(buffer, 4));
    return asked;
  }
  void keep(uint64_t buffer, Snapshot::State state, uint64_t nbytes) {
    auto snapshot = std::make_shared<Snapshot>();
    snapshot->state = state;
    snapshot->bytes.resize(nbytes);
    reads.insert(buffer, std::move(snapshot), ++sequence_);
  }

  SpeculativeReads reads;

 private:
  uint64_t next_ = 100;
  uint64_t sequence_ = 0;
};

TEST_F(ReadAheadTest, WhatWasReadAfterAProgramIsAskedForAfterItsNextRun) {
  uint64_t first_result_id = run(1, {8, 16, 32});
  EXPECT_TRUE(read(first_result_id).empty());
  EXPECT_TRUE(read(first_result_id + 2).empty());
  first_result_id = run(1, {8, 16, 40});
  EXPECT_EQ(read(first_result_id), std::vector<uint64_t>{first_result_id + 2});
  EXPECT_EQ(reads.find(first_result_id + 2)->bytes.size(), 40u);
  EXPECT_FALSE(reads.find(first_result_id + 1));
  // No read is predicted for another program.
  first_result_id = run(2, {8, 16, 32});
  EXPECT_TRUE(read(first_result_id).empty());
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
    EXPECT_EQ(reads.find(score) != nullptr, step > 0);
    read(score);
  }
}

TEST_F(ReadAheadTest, WhatIsNoLongerReadIsNoLongerAskedFor) {
  uint64_t first_result_id = run(1, {4, 4});
  read(first_result_id), read(first_result_id + 1);
  int asked = 0;
  for (int step = 0; step < 10; ++step) {
    first_result_id = run(1, {4, 4});
    asked += !read(first_result_id).empty();
  }
  EXPECT_EQ(asked, 3);
}

TEST_F(ReadAheadTest, ACopyLeadsToWhatItIsACopyOf) {
  for (int step = 0; step < 3; ++step) {
    const uint64_t first_result_id = run(1, {4, 8});
    const std::vector<uint64_t> asked = read(first_result_id);
    const uint64_t copy = run(2, {8}, {first_result_id + 1}, {false}, {{0, first_result_id + 1}});
    if (step > 0) {
      EXPECT_EQ(asked, std::vector<uint64_t>{first_result_id + 1});
      // the copy shares the snapshot, whose bytes are still in flight
      EXPECT_EQ(reads.find(copy), reads.find(first_result_id + 1));
    }
    read(copy);
  }
}

TEST_F(ReadAheadTest, LargeResultsAreNotAskedFor) {
  for (int step = 0; step < 2; ++step) {
    const uint64_t first_result_id = run(1, {4, kMaxSpeculativeRead + 1});
    EXPECT_TRUE(read(first_result_id).empty());
    reads.end_round(first_result_id + 1, 4);
  }
}

TEST_F(ReadAheadTest, AWriteEndsIt) {
  keep(7, Snapshot::State::kReady, 4);
  keep(8, Snapshot::State::kRequested, 4);
  run(1, {}, {7, 8}, {false, false});
  EXPECT_TRUE(reads.find(7) && reads.find(8));
  EXPECT_TRUE(reads.abandoned_reads().empty());
  run(2, {}, {7, 8}, {false, true});
  EXPECT_TRUE(reads.find(7));
  EXPECT_FALSE(reads.find(8));
  EXPECT_EQ(reads.abandoned_reads().size(), 1u);  // the reply of the snapshot that was still in flight
}

TEST_F(ReadAheadTest, AProgramOfWhichNothingIsKnownMayWrite) {
  keep(7, Snapshot::State::kReady, 4);
  CachedProgram unknown;
  std::vector<uint64_t> made;
  const uint64_t inputs[] = {7};
  reads.on_run(unknown, inputs, 500, made, {});
  EXPECT_FALSE(reads.find(7));
}

TEST_F(ReadAheadTest, SoDoesFreeing) {
  keep(7, Snapshot::State::kReady, 4);
  keep(71, Snapshot::State::kReady, 4);  // shares a bit of the filter with 7
  const uint64_t ids[] = {7, 9};
  reads.on_free(ids);
  EXPECT_FALSE(reads.find(7));
  EXPECT_TRUE(reads.find(71));
}

TEST_F(ReadAheadTest, ACopyKeepsWhatItsSourceLost) {
  keep(7, Snapshot::State::kReady, 4);
  const uint64_t copy = run(1, {4}, {7}, {false}, {{0, 7}});
  run(2, {}, {7}, {true});
  EXPECT_FALSE(reads.find(7));
  EXPECT_TRUE(reads.find(copy));
}

// The list of snapshots, oldest first, also has entries whose snapshots are gone. It is cleared with the last snapshot.
TEST_F(ReadAheadTest, TheLastOneMakesRoomForTheNext) {
  constexpr uint64_t kMost = 256;
  const auto keep_new = [&](uint64_t id) { keep(id, Snapshot::State::kReady, 4); };
  keep_new(1);
  for (uint64_t id = 2; id <= kMost; ++id) {
    keep_new(id);
    reads.on_free(std::vector<uint64_t>{id});
  }
  keep_new(1000);
  EXPECT_FALSE(reads.find(1));
  EXPECT_TRUE(reads.find(1000));
  for (uint64_t id = 1001; id <= 1000 + kMost; ++id) keep_new(id);
  EXPECT_FALSE(reads.find(1000));
  for (uint64_t id = 1001; id <= 1000 + kMost; ++id) EXPECT_TRUE(reads.find(id)) << id;
}

TEST_F(ReadAheadTest, KeepsSoMany) {
  for (uint64_t id = 1; id <= 2000; ++id) keep(id, Snapshot::State::kReady, 4);
  EXPECT_FALSE(reads.find(1));
  EXPECT_TRUE(reads.find(2000) && reads.find(1900));
}

}  // namespace
}  // namespace torch_remote::remote
