#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "ir/ops/op_table.h"
#include "ir/trace.h"

// Where what is recorded is cut into traces: at the same places in each step of a script, or every step would need
// other programs. So content decides, and never time.
//
//   By the last ops: where a hash of them says so, so that traces stay bounded (content-defined chunking; the window
//   hash is a gear hash as in FastCDC, Xia et al. 2016, with masks that get looser towards the maximum). The op alone
//   counts: slots depend on where the trace began. What lies between two such cuts, or between waits, is a *stretch*.
//
//   By a plan, inside of a stretch that begins after a wait, or ends in one: the worker is to work while the client
//   records, and what is left when the client waits is to be short. A stretch is planned when it ends for the first
//   time, by its structure and the sizes it has then: a short first piece, a short last one before a wait, between them
//   as much as the worker has to do meanwhile, and cuts where the fewest bytes of temporaries live. A place is known by
//   the ops from the stretch's beginning, whatever sizes they have later. No cut is added among ops with which some
//   other stretch began before: what that one is cut into stays.
namespace torch_remote::ir {

struct CutLimits {
  uint32_t min_records = 64;
  uint32_t max_records = 1024;
  bool plans = true;  // cut at planned places
};

// What one device's traces have learned: where to cut. Not thread safe: the recorder's lock guards it.
struct CutPlans {
  static constexpr int kShift = 64 - 15;

  CutLimits limits;
  std::vector<bool> planned_bits = std::vector<bool>(size_t{1} << (64 - kShift));  // by the first bits of the hash
  std::unordered_set<uint64_t> planned;                                            // hashes after which to cut
  std::unordered_set<uint64_t> known;  // hashes after every record that was ever seen, up to a limit
};

// Where one thread is. Not thread safe, either.
class Cuts {
 public:
  enum class Place : uint8_t { kNone, kPlanned, kStretchEnds };

  explicit Cuts(CutPlans& plans) : plans_(plans) {}

  // What this place is; `opcode` was recorded. Without allocation.
  Place after(Opcode opcode) {
    const uint64_t mixed = mix(uint64_t{opcode} + 1);
    gear_ = (gear_ << 6) + mixed;
    hash_ = extended(hash_, mixed);
    ++records_;
    if (plans_.planned_bits[hash_ >> CutPlans::kShift] && is_planned()) return Place::kPlanned;
    return records_ >= plans_.limits.min_records && end_by_content() ? Place::kStretchEnds : Place::kNone;
  }

  // A good place to cut: between forward and backward, before an optimizer. True if there is enough to cut.
  bool at_boundary() const { return records_ >= plans_.limits.min_records; }

  // The trace is about to be sent. `ends`: its stretch ends with it; `waits`: somebody waits for it.
  void trace_ends(const Trace& trace, bool ends, bool waits);

  // Counts records of the stretch so far.
  uint32_t records() const { return records_; }

 private:
  static constexpr uint64_t kMultiplier = 0x9FB21C651E98DF25;
  static constexpr uint64_t kSeed = 0xC2B2AE3D27D4EB4F;

  static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= kMultiplier;
    x ^= x >> 29;
    return x;
  }

  // The hash of a stretch with one more op.
  static uint64_t extended(uint64_t hash, uint64_t mixed) {
    hash = (hash ^ mixed) * kMultiplier;
    return hash ^ hash >> 29;
  }

  bool is_planned() const { return plans_.limits.plans && plans_.planned.contains(hash_); }
  bool end_by_content() const;
  std::vector<uint64_t> hashes_of(const Trace& trace) const;
  void plan(const Trace& trace, const std::vector<uint64_t>& hashes, bool waits);

  CutPlans& plans_;
  // Of the stretch so far.
  uint64_t hash_ = kSeed;  // of its ops
  uint64_t gear_ = 0;      // of its last ones
  uint32_t records_ = 0;
  uint64_t began_ = kSeed;  // hash_ where the trace began
  bool idle_ = true;        // when it began the worker had nothing to do: the one before ended in a wait
};

// What a plan knows of each record of a trace.
struct RecordCosts {
  // Bytes that live across a cut after it and do not outlive the trace: what later records touch, and what the script
  // still held there. Nothing is cut where they are beyond all counting: inside of what one kernel may do.
  std::vector<uint64_t> live;
  std::vector<double> time;  // that the worker needs for it, as estimated, in us
};
RecordCosts record_costs(const Trace& trace);

// Where to cut, by plan: how many records come before each cut, ascending. Cuts only after `first` records and more.
// `waits`: somebody waits for the last one.
std::vector<uint32_t> planned_cuts(const RecordCosts& costs, uint32_t first, bool waits);

}  // namespace torch_remote::ir
