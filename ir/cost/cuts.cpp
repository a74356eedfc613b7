#include "ir/cost/cuts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/cost/work.h"
#include "ir/fusion/fusion.h"
#include "ir/graph.h"

namespace torch_remote::ir {
namespace {

// A record's length is 1, plus the worker's time for it divided by this number of microseconds.
constexpr double kMicrosecondsPerLengthUnit = 25;
// Time that the client needs to record one op, in microseconds, including Python's share.
constexpr double kRecordingMicroseconds = 60;
// If the client does not wait at the end, an early start pays only from this ratio of worker time to recording time.
constexpr double kMinWorkerShare = 0.25;
// Shorter traces are not planned: the gain would be too small.
constexpr double kMinPlannedLength = 32;
// Lengths of the pieces. A piece costs client and worker together some ten microseconds, as much as about ten records.
// Client and worker cannot overlap on the first and the last piece.
constexpr double kMinEndPiece = 8, kMaxEndPiece = 16;
constexpr double kMinInnerPiece = 20, kMaxInnerPiece = 40;
// Where a stretch begins like another one, its remaining records are not cut if there are fewer than these.
constexpr size_t kMinRemainingRecords = 32;
// Limit for the remembered hashes (one for each record): some ten megabytes.
constexpr size_t kMaxKnownHashes = size_t{1} << 18;
// Up to this number of consecutive fusable ops become one kernel: a cut between them would cost more than it gains.
constexpr uint32_t kMaxFusedRecords = 64;
// Stands for the number of live bytes where no cut is allowed.
constexpr uint64_t kNoCutAllowed = std::numeric_limits<uint64_t>::max();

}  // namespace

bool Cuts::end_by_content() const {
  if (records_ >= plans_.limits.max_records) return true;
  // A hash of the last ~10 ops decides (6 bits of each record fit in 64 bits). The expected distance between cuts is
  // 512 at first, then 128, 32 and 8.
  const int strength = 9 - 2 * static_cast<int>(4 * records_ / plans_.limits.max_records);
  return gear_ >> (64 - strength) == 0;
}

std::vector<uint64_t> Cuts::hashes_of(const Trace& trace) const {
  std::vector<uint64_t> hashes;
  hashes.reserve(trace.records.size());
  uint64_t hash = trace_begin_hash_;
  for (const TraceRecord& record : trace.records) {
    hashes.push_back(hash = extended(hash, mix(uint64_t{trace.code[record.code]} + 1)));
  }
  return hashes;
}

void Cuts::trace_ends(const Trace& trace, bool ends, bool waits) {
  // One lookup answers whether a stretch began with the same ops before.
  if (!plans_.known.contains(hash_) && plans_.known.size() < kMaxKnownHashes) {
    const std::vector<uint64_t> hashes = hashes_of(trace);
    if ((waits || worker_idle_at_start_) && plans_.limits.plans && trace.records.size() > 1) plan(trace, hashes, waits);
    plans_.known.insert(hashes.begin(), hashes.end());
  }
  trace_begin_hash_ = hash_;
  if (!ends) return;
  worker_idle_at_start_ = waits || (worker_idle_at_start_ && records_ == 0);
  trace_begin_hash_ = hash_ = kSeed;
  gear_ = 0;
  records_ = 0;
}

void Cuts::plan(const Trace& trace, const std::vector<uint64_t>& hashes, bool waits) {
  const auto first_new = std::ranges::find_if(hashes, [&](uint64_t hash) { return !plans_.known.contains(hash); });
  const auto shared = static_cast<uint32_t>(first_new - hashes.begin());
  // The second step of a training run differs from the first only in its optimizer. It should be the last step that
  // builds programs.
  if (shared > 0 && hashes.size() - shared < kMinRemainingRecords) return;
  for (const uint32_t cut : planned_cuts(record_costs(trace), shared + 1, waits)) {
    const uint64_t hash = hashes[cut - 1];
    plans_.planned.insert(hash);
    plans_.planned_bits[hash >> CutPlans::kShift] = true;
  }
}

namespace {

// Chooses the cuts of one trace. A place is the number of records before it.
class Planner {
 public:
  Planner(const RecordCosts& costs, uint32_t first, bool waits)
      : live_(costs.live_bytes_after),
        records_(static_cast<uint32_t>(costs.live_bytes_after.size())),
        first_(first),
        waits_(waits) {
    length_.resize(records_ + 1);
    time_.resize(records_ + 1);
    for (uint32_t i = 0; i < records_; ++i) {
      length_[i + 1] = length_[i] + 1 + costs.time[i] / kMicrosecondsPerLengthUnit;
      time_[i + 1] = time_[i] + costs.time[i];
    }
  }

  std::vector<uint32_t> cuts() {
    if (length_[records_] < kMinPlannedLength) return {};
    if (!waits_ && time_[records_] < kMinWorkerShare * kRecordingMicroseconds * records_) return {};
    const uint32_t last = waits_ ? last_place() : records_;
    if (last == 0) return {};
    const uint32_t from = after(kMinEndPiece);
    if (const uint32_t place = best(from, std::max(from, before(kMaxEndPiece))); place == 0) {
      done_ = first_ - 1;  // another trace begins with the same records
    } else if (place < last) {
      cut(place);
    }
    while (const uint32_t place = next(last)) cut(place);
    if (waits_ && (cuts_.empty() || cuts_.back() < last)) cuts_.push_back(last);
    return std::move(cuts_);
  }

 private:
  // The first place where the trace has at least this length, and the last place where it has at most this length.
  uint32_t after(double length) const {
    return static_cast<uint32_t>(std::ranges::lower_bound(length_, length) - length_.begin());
  }
  uint32_t before(double length) const {
    return static_cast<uint32_t>(std::ranges::upper_bound(length_, length) - length_.begin()) - 1;
  }

  // The place before the last piece; 0 if there is none.
  uint32_t last_place() const {
    // A single op may be longer than a piece should be. The place before or after that op is used then.
    const uint32_t to = before(length_[records_] - kMinEndPiece);
    return best(std::min(after(length_[records_] - kMaxEndPiece), to), to);
  }

  // The place in the range with the fewest live bytes; the last one of several. 0 if no cut is allowed in the range.
  uint32_t best(uint32_t from, uint32_t to) const {
    uint32_t place = 0;
    for (uint32_t cut = std::max(from, first_); cut <= std::min(to, records_ - 1); ++cut) {
      if (live_[cut - 1] == kNoCutAllowed) continue;
      if (place == 0 || live_[cut - 1] <= live_[place - 1]) place = cut;
    }
    return place;
  }

  void cut(uint32_t place) {
    cuts_.push_back(place);
    worker_free_ = std::max(worker_free_, kRecordingMicroseconds * place) + time_[place] - time_[done_];
    done_ = place;
  }

  // Where the next piece ends, before the last one; 0 if there is no further piece.
  uint32_t next(uint32_t last) const {
    // The records that the client can record while the worker is busy.
    const double busy = (worker_free_ - kRecordingMicroseconds * done_) / kRecordingMicroseconds;
    const uint32_t busy_until = done_ + static_cast<uint32_t>(std::clamp<double>(busy, 0, records_));
    const double length = length_[last] - length_[done_];
    if (length <= kMaxInnerPiece || busy_until >= last) return 0;
    // The smallest number of pieces of at most the maximum length, as equal as the places allow.
    const double pieces = std::ceil(length / kMaxInnerPiece), slack = (kMaxInnerPiece - kMinInnerPiece) / 2;
    const double middle = length_[done_] + length / pieces, around = std::min(slack, length / pieces / 2);
    const uint32_t to = std::max({before(middle + around), busy_until, done_ + 1});
    const uint32_t from = busy_until < to ? after(middle - around) : done_ + (to - done_ + 1) / 2;
    const uint32_t place = best(std::clamp(from, done_ + 1, to), to);
    return place < last ? place : 0;
  }

  const std::vector<uint64_t>& live_;
  const uint32_t records_;
  const uint32_t first_;
  const bool waits_;
  std::vector<double> length_, time_;  // totals of the records before each place
  std::vector<uint32_t> cuts_;
  uint32_t done_ = 0;       // the last cut so far
  double worker_free_ = 0;  // when the worker has finished all earlier pieces, in microseconds since the first record
};

}  // namespace

std::vector<uint32_t> planned_cuts(const RecordCosts& costs, uint32_t first, bool waits) {
  return costs.live_bytes_after.empty() ? std::vector<uint32_t>() : Planner(costs, first, waits).cuts();
}

RecordCosts record_costs(const Trace& trace) {
  const size_t records = trace.records.size();
  RecordCosts costs{std::vector<uint64_t>(records), std::vector<double>(records)};
  std::vector<uint64_t>& live = costs.live_bytes_after;
  Graph graph;
  // A trace that cannot be imported cannot be built either; the build reports the error.
  if (!import_trace(trace, trace.survivors(), &graph)) return costs;
  std::vector<int64_t> values;
  std::vector<double> work;
  if (evaluate(graph, trace.params.data(), &values)) estimate_work(graph, values.data(), &work);
  for (size_t n = 0; n < work.size(); ++n) costs.time[graph.nodes[n].record] += work[n] / kWorkPerMicrosecond;
  struct Life {
    size_t first = SIZE_MAX, last = 0;  // the first and last record that touch the buffer
  };
  std::vector<Life> lives(trace.buffers.size());
  for (const Node& node : graph.nodes) {
    for_each_view(node, [&](uint32_t view, bool) {
      Life& life = lives[graph.views[view].buffer];
      life.first = std::min<size_t>(life.first, node.record);
      life.last = std::max<size_t>(life.last, node.record);
    });
  }
  // `live` holds differences first; a running sum follows.
  for (size_t b = 0; b < lives.size(); ++b) {
    const TraceBuffer& buffer = trace.buffers[b];
    if (!buffer.fresh || buffer.owner != nullptr || lives[b].first == SIZE_MAX) continue;
    const size_t end = std::min<size_t>(std::max<size_t>(lives[b].last, buffer.died_at_record), records);
    if (end <= lives[b].first) continue;
    // The buffer is live after records first, ..., end - 1.
    live[lives[b].first] += buffer.nbytes;
    if (end < records) live[end] -= buffer.nbytes;
  }
  for (size_t i = 1; i < records; ++i) live[i] += live[i - 1];
  // Which records fuse with the next record, and which with the previous one. A matmul only begins a kernel.
  std::vector<bool> fusable(records), continues(records);
  KernelForm form;
  for (const Node& node : graph.nodes) {
    if (!find_form(graph, node, 0, &form)) continue;
    fusable[node.record] = true;
    continues[node.record] = form.expansion != Expansion::kMatmul;
  }
  uint32_t together = 0;
  for (size_t i = 0; i + 1 < records; ++i) {
    together = fusable[i] ? together + 1 : 0;
    if (together != 0 && together < kMaxFusedRecords && continues[i + 1]) {
      live[i] = kNoCutAllowed;
    } else {
      together = 0;
    }
  }
  return costs;
}

}  // namespace torch_remote::ir
