#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "ir/ops/op_table.h"
#include "ir/trace.h"

// Decides where recorded ops are cut into traces. The cuts must be at the same places in each step of a script, or
// every step would need new programs. So only the recorded ops decide, never time.
//
// Cuts by content: the records between two such cuts, or between waits, are a *stretch*. A hash of the last ops decides
// where a stretch ends, between a minimum and a maximum length. This is content-defined chunking with a gear hash, as
// in FastCDC (Xia et al. 2016). The nearer a stretch is to the maximum length, the fewer bits of the hash must match.
// Only opcodes are hashed, because slots depend on where the trace began.
//
// Planned cuts: a stretch that begins after a wait, or ends in one, is also cut inside. The worker can then execute
// while the client records, and little work is left when the client waits. A stretch is planned when it ends for the
// first time, from its structure and its sizes at that time. A plan has a short first piece, and a short last piece
// before a wait. A piece in between has about as many records as the client can record while the worker is busy. It
// ends where temporaries hold the fewest bytes. A planned cut is identified by a hash of all opcodes since the
// beginning of its stretch; later sizes do not matter. A new plan adds no cut inside a sequence of ops with which an
// earlier stretch began. Otherwise the cuts of that stretch would change.
namespace torch_remote::ir {

// Limits on the records of a stretch.
struct CutLimits {
  uint32_t min_records = 64;
  uint32_t max_records = 1024;
  bool plans = true;  // also cut at planned places
};

// Where the traces of one device are cut, learned from earlier stretches. Not thread safe: the recorder's lock guards
// it.
struct CutPlans {
  static constexpr int kShift = 64 - 15;

  CutLimits limits;
  // indexed by the first bits of the hash
  std::vector<bool> planned_bits = std::vector<bool>(size_t{1} << (64 - kShift));
  std::unordered_set<uint64_t> planned;  // for each planned cut: the hash of its stretch from the beginning to the cut
  // for every record that was sent, up to a limit: the hash of its stretch from the beginning to this record
  std::unordered_set<uint64_t> known;
};

// The position of one thread in its stretch. Not thread safe.
class Cuts {
 public:
  enum class CutKind : uint8_t { kNone, kPlanned, kStretchEnds };

  explicit Cuts(CutPlans& plans) : plans_(plans) {}

  // Call after `opcode` was recorded. Returns whether to cut here, and why. Does not allocate.
  CutKind after(Opcode opcode) {
    const uint64_t mixed = mix(uint64_t{opcode} + 1);
    gear_ = (gear_ << 6) + mixed;
    hash_ = extended(hash_, mixed);
    ++records_;
    if (plans_.planned_bits[hash_ >> CutPlans::kShift] && is_planned()) return CutKind::kPlanned;
    return records_ >= plans_.limits.min_records && end_by_content() ? CutKind::kStretchEnds : CutKind::kNone;
  }

  // Whether the stretch is long enough to be cut at a natural boundary: between forward and backward, before an
  // optimizer.
  bool is_long_enough_to_cut() const { return records_ >= plans_.limits.min_records; }

  // Call before a trace is sent. Plans its cuts if no earlier stretch began with the same ops. `ends`: the stretch ends
  // with this trace. `waits`: the client waits for the trace.
  void trace_ends(const Trace& trace, bool ends, bool waits);

  // Number of records in the stretch so far.
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

  // The hash of a stretch after one more op.
  static uint64_t extended(uint64_t hash, uint64_t mixed) {
    hash = (hash ^ mixed) * kMultiplier;
    return hash ^ hash >> 29;
  }

  bool is_planned() const { return plans_.limits.plans && plans_.planned.contains(hash_); }
  bool end_by_content() const;
  std::vector<uint64_t> hashes_of(const Trace& trace) const;
  void plan(const Trace& trace, const std::vector<uint64_t>& hashes, bool waits);

  CutPlans& plans_;
  // The next members describe the stretch so far.
  uint64_t hash_ = kSeed;  // hash of all its ops
  uint64_t gear_ = 0;      // gear hash of its last ops
  uint32_t records_ = 0;
  uint64_t trace_begin_hash_ = kSeed;  // value of hash_ where the trace began
  // The worker was idle when the stretch began: the previous stretch ended in a wait.
  bool worker_idle_at_start_ = true;
};

// The costs of each record of a trace, from which cuts are planned.
struct RecordCosts {
  // Bytes of temporaries that are live across a cut after the record: later records touch them, or the script holds
  // their tensors. A temporary is a fresh buffer whose tensor the script drops before the trace ends. UINT64_MAX: no
  // cut is allowed after this record, because one kernel may compute the ops before and after it. All are 0 if the
  // trace cannot be imported.
  std::vector<uint64_t> live_bytes_after;
  std::vector<double> time;  // estimated time that the worker needs for the record, in microseconds
};
RecordCosts record_costs(const Trace& trace);

// Returns the planned cuts in ascending order, each as the number of records before it, which is at least `first`.
// `waits`: the client waits at the end of the trace.
std::vector<uint32_t> planned_cuts(const RecordCosts& costs, uint32_t first, bool waits);

}  // namespace torch_remote::ir
