// Cuts of the recording: they are at the same places each time, and plans keep their rules.
#include "ir/cost/cuts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace torch_remote::ir {
namespace {

Opcode op(const char* name) {
  const Opcode opcode = find_op(name);
  EXPECT_NE(opcode, kInvalidOpcode) << name;
  return opcode;
}

// Records a chain of unary ops. The script drops each tensor as soon as the next one exists.
class Script {
 public:
  explicit Script(const CutLimits& limits = {}) { plans_.limits = limits; }

  Cuts& cuts() { return cuts_; }
  // The number of records before each cut since the last wait.
  const std::vector<uint32_t>& places() const { return places_; }

  void record(Opcode opcode, uint64_t nbytes = 256) {
    const int64_t sizes[] = {static_cast<int64_t>(nbytes / 4)}, strides[] = {1};
    trace_.begin_record(opcode, {});
    const bool first = trace_.buffers.empty();
    if (first) {
      last_ = trace_.new_buffer_view(7, this, nbytes, DType::kFloat32, sizes, strides, 0);
    } else {
      trace_.use_view(last_);
    }
    const size_t before = trace_.buffers.size();
    last_ = trace_.new_buffer_view(0, this, nbytes, DType::kFloat32, sizes, strides, 0);
    trace_.end_record();
    const Cuts::CutKind place = cuts_.after(opcode);
    ++records_;
    if (place != Cuts::CutKind::kNone) {
      places_.push_back(records_);
      end(place == Cuts::CutKind::kStretchEnds, false);
    } else if (before > 1 || !first) {  // the script drops the operand
      trace_.buffers[before - 1].owner = nullptr;
      trace_.buffers[before - 1].died_at_record = static_cast<uint32_t>(trace_.records.size());
    }
  }
  std::vector<uint32_t> wait() { return end_stretch(true); }
  // The end of a forward pass; the client does not wait there.
  std::vector<uint32_t> boundary() { return end_stretch(false); }

 private:
  std::vector<uint32_t> end_stretch(bool waits) {
    end(true, waits);
    records_ = 0;
    return std::exchange(places_, {});
  }
  void end(bool ends, bool waits) {
    cuts_.trace_ends(trace_, ends, waits);
    trace_.clear();
  }

  CutPlans plans_;
  Cuts cuts_{plans_};
  Trace trace_;
  uint32_t last_ = 0;
  uint32_t records_ = 0;
  std::vector<uint32_t> places_;
};

// Records ops in an order that does not repeat, but is the same for each call. No kernel fuses any two of them.
void play(Script& script, uint32_t count, uint32_t seed = 0) {
  static const Opcode ops[] = {op("aten::erfinv"), op("aten::digamma"), op("aten::i0"), op("aten::special_i1")};
  uint64_t random = seed + 1;
  for (uint32_t i = 0; i < count; ++i) {
    random = random * 6364136223846793005 + 1442695040888963407;
    script.record(ops[random >> 62]);
  }
}

CutLimits only_plans() { return {1u << 20, 1u << 20, true}; }

// A cut between two ops of one kernel would split it into two kernels.
TEST(Cuts, NotBetweenOpsThatAreOneKernel) {
  const auto cut_after = [](uint32_t fusable) {
    Script script(only_plans());
    std::vector<uint32_t> places;
    for (int time = 0; time < 2; ++time) {
      for (uint32_t i = 0; i < 100; ++i) script.record(op(i < fusable ? "aten::relu" : "aten::erfinv"));
      places = script.wait();
    }
    return places;
  };
  EXPECT_LE(cut_after(0).front(), 16u);
  EXPECT_GE(cut_after(12).front(), 12u);
  EXPECT_EQ(cut_after(40).front(), 40u);
  EXPECT_LE(cut_after(100).size(), 1u);
}

TEST(Cuts, AStretchThatEndsInAWaitIsCutFromItsSecondTimeOn) {
  Script script(only_plans());
  play(script, 200);
  EXPECT_TRUE(script.wait().empty());
  play(script, 200);
  const std::vector<uint32_t> places = script.wait();
  ASSERT_GE(places.size(), 4u);
  EXPECT_LE(places.front(), 16u);
  EXPECT_GE(places.front(), 8u);
  EXPECT_GE(200 - places.back(), 8u);
  EXPECT_LE(200 - places.back(), 16u);
  for (size_t i = 1; i < places.size(); ++i) EXPECT_LE(places[i] - places[i - 1], 48u);
  for (int again = 0; again < 3; ++again) {
    play(script, 200);
    EXPECT_EQ(script.wait(), places);
  }
}

// The forward pass of a training step: the worker starts while the client still records.
TEST(Cuts, AStretchAfterAWaitIsCutAtItsBeginning) {
  const auto step = [](Script& script, size_t nbytes) {
    std::vector<uint32_t> places;
    for (int time = 0; time < 3; ++time) {
      for (uint32_t i = 0; i < 100; ++i) script.record(op(i % 2 != 0 ? "aten::erfinv" : "aten::digamma"), nbytes);
      places = script.boundary();
      play(script, 40);
      script.wait();
    }
    return places;
  };
  Script busy(only_plans());
  const std::vector<uint32_t> places = step(busy, 1 << 19);
  ASSERT_FALSE(places.empty());
  EXPECT_LE(places.front(), 16u);
  // A boundary before the first record changes nothing.
  Script moved(only_plans());
  moved.boundary();
  EXPECT_EQ(step(moved, 1 << 19), places);
  // Small ops take too little time: more pieces would cost something and gain nothing.
  Script idle(only_plans());
  EXPECT_TRUE(step(idle, 64).empty());
  // After a stretch without a wait the worker is still busy.
  Script later(only_plans());
  for (int time = 0; time < 3; ++time) {
    play(later, 8);
    later.boundary();
    for (uint32_t i = 0; i < 100; ++i) later.record(op("aten::erfinv"), 1 << 19);
    EXPECT_TRUE(later.boundary().empty());
  }
}

TEST(Cuts, ShortTracesStayWhole) {
  Script script(only_plans());
  for (int i = 0; i < 3; ++i) {
    play(script, 31);
    EXPECT_TRUE(script.wait().empty());
  }
}

TEST(Cuts, WithoutPlansNothingIsCut) {
  CutLimits limits = only_plans();
  limits.plans = false;
  Script script(limits);
  for (int i = 0; i < 3; ++i) {
    play(script, 200);
    EXPECT_TRUE(script.wait().empty());
  }
}

TEST(Cuts, AnotherStretchWithTheSameBeginningDoesNotMoveThem) {
  Script script(only_plans());
  play(script, 200);
  script.wait();
  play(script, 200);
  const std::vector<uint32_t> places = script.wait();
  // The stretches share 100 records: there both have the same cuts, and the rest of the second one has a plan of its
  // own.
  std::vector<uint32_t> others;
  for (int i = 0; i < 3; ++i) {
    play(script, 100);
    play(script, 150, 1);
    others = script.wait();
  }
  const auto shared = [](const std::vector<uint32_t>& all) {
    return std::vector<uint32_t>(all.begin(), std::upper_bound(all.begin(), all.end(), 100u));
  };
  EXPECT_EQ(shared(others), shared(places));
  EXPECT_GE(others.back(), 250u - 16);
  play(script, 200);
  EXPECT_EQ(script.wait(), places);
  // A stretch that ends within the shared records leaves no place for a plan.
  play(script, 60);
  const std::vector<uint32_t> prefix = script.wait();
  play(script, 60);
  EXPECT_EQ(script.wait(), prefix);
  play(script, 200);
  EXPECT_EQ(script.wait(), places);
}

TEST(Cuts, AStretchThatEndsALittleDifferentlyIsCutAsTheOtherOne) {
  // The first step creates an optimizer's state, the later ones do not. The third step builds nothing.
  Script script(only_plans());
  play(script, 100);
  play(script, 40, 2);
  EXPECT_TRUE(script.wait().empty());
  const auto step = [&script] {
    play(script, 100);
    play(script, 20, 1);
    return script.wait();
  };
  const std::vector<uint32_t> places = step();
  EXPECT_FALSE(places.empty());
  EXPECT_EQ(step(), places);
  EXPECT_EQ(step(), places);
}

TEST(Cuts, PlannedCutsDoNotMoveThoseByContent) {
  const auto cut_at = [](uint32_t records, bool plans) {
    Script script({64, 128, plans});
    std::vector<uint32_t> places;
    for (int step = 0; step < 4; ++step) {
      play(script, records);
      places = script.wait();
    }
    return places;
  };
  size_t planned = 0;
  for (uint32_t records = 400; records < 600; records += 10) {
    const std::vector<uint32_t> without = cut_at(records, false), with = cut_at(records, true);
    EXPECT_FALSE(without.empty());
    EXPECT_TRUE(std::includes(with.begin(), with.end(), without.begin(), without.end()));
    planned += with.size() - without.size();
  }
  EXPECT_GT(planned, 0u);
}

TEST(PlannedCuts, AreWhereTheFewestBytesLive) {
  std::vector<uint64_t> live(120, 1000);
  for (const uint32_t place : {11u, 40u, 75u, 109u}) live[place - 1] = 10;
  const std::vector<uint32_t> cuts = planned_cuts({live, std::vector<double>(live.size())}, 1, /*waits=*/true);
  for (const uint32_t place : {11u, 40u, 75u, 109u}) {
    EXPECT_TRUE(std::ranges::count(cuts, place)) << place;
  }
}

TEST(PlannedCuts, AreAscendingAndInside) {
  for (uint32_t records = 0; records < 400; ++records) {
    for (const uint32_t first : {1u, 5u, 20u, 100u, records}) {
      std::vector<uint64_t> live(records);
      for (uint32_t i = 0; i < records; ++i) live[i] = i * 7919 % 101;
      const std::vector<uint32_t> cuts = planned_cuts({live, std::vector<double>(records)}, first, /*waits=*/true);
      for (size_t i = 0; i < cuts.size(); ++i) {
        EXPECT_GE(cuts[i], std::max(first, 8u));
        EXPECT_LE(cuts[i] + 8, records);
        EXPECT_TRUE(i == 0 || cuts[i] > cuts[i - 1]);
      }
    }
  }
}

TEST(PlannedCuts, LongOpsGoFirst) {
  // A training step: some long ops first, then short ones.
  RecordCosts costs{std::vector<uint64_t>(24, 1), std::vector<double>(24, 3)};
  for (const uint32_t i : {0u, 12u, 13u}) costs.time[i] = 500;
  const std::vector<uint32_t> cuts = planned_cuts(costs, 1, /*waits=*/true);
  ASSERT_FALSE(cuts.empty());
  EXPECT_EQ(cuts.front(), 1u);  // the worker can start
  EXPECT_TRUE(std::ranges::any_of(cuts, [](uint32_t cut) { return cut > 8 && cut <= 17; }));
  EXPECT_LE(cuts.size(), 4u);
}

TEST(PlannedCuts, WhileTheWorkerIsBusyPiecesAreLong) {
  const uint32_t records = 1000;
  for (const double time : {200.0, 2000.0}) {
    const std::vector<uint32_t> cuts =
        planned_cuts({std::vector<uint64_t>(records, 1), std::vector<double>(records, time)}, 1, /*waits=*/true);
    ASSERT_FALSE(cuts.empty());
    EXPECT_EQ(cuts.front(), 1u);
    EXPECT_LE(cuts.size(), 10u) << time;  // each piece is several times as long as the one before
  }
}

TEST(PlannedCuts, HoldForAnyTimes) {
  uint64_t random = 1;
  for (int i = 0; i < 3000; ++i) {
    const auto draw = [&random](uint64_t below) {
      random = random * 6364136223846793005 + 1442695040888963407;
      return (random >> 33) % below;
    };
    const auto records = static_cast<uint32_t>(draw(200));
    const auto first = static_cast<uint32_t>(1 + draw(records + 1));
    RecordCosts costs{std::vector<uint64_t>(records), std::vector<double>(records)};
    for (uint64_t& bytes : costs.live_bytes_after) bytes = draw(3);
    for (double& time : costs.time) time = draw(4) == 0 ? static_cast<double>(draw(3000)) : 3;
    const std::vector<uint32_t> cuts = planned_cuts(costs, first, /*waits=*/true);
    for (size_t c = 0; c < cuts.size(); ++c) {
      EXPECT_GE(cuts[c], first);
      EXPECT_LT(cuts[c], records);
      EXPECT_TRUE(c == 0 || cuts[c] > cuts[c - 1]);
    }
  }
}

TEST(RecordCosts, CountsWhatIsStillNeededAndWhatTheScriptStillHolds) {
  Trace trace;
  const int64_t sizes[] = {8}, strides[] = {1};
  const Opcode made = op("aten::erfinv");
  int owner = 0;
  const auto record = [&](uint32_t operand) {
    trace.begin_record(made, {});
    if (trace.buffers.empty()) {
      trace.new_buffer_view(7, &owner, 32, DType::kFloat32, sizes, strides, 0);
    } else {
      trace.use_view(operand);
    }
    trace.new_buffer_view(0, &owner, 32, DType::kFloat32, sizes, strides, 0);
    trace.end_record();
  };
  const auto dies = [&](size_t buffer) {
    trace.buffers[buffer].owner = nullptr;
    trace.buffers[buffer].died_at_record = static_cast<uint32_t>(trace.records.size());
  };
  record(0);  // makes 1
  record(1);  // makes 2
  record(2);  // makes 3
  dies(1);    // no record touches it after the second one, but the script still holds it
  record(3);  // makes 4
  dies(3);
  dies(2);
  record(4);  // makes 5, the result
  dies(4);
  // Live after the first record: 1; after the second: 1, 2; after the third: 1 (until the fourth), 2, 3; ...
  EXPECT_EQ(record_costs(trace).live_bytes_after, (std::vector<uint64_t>{32, 64, 96, 96, 32}));
}

}  // namespace
}  // namespace torch_remote::ir
