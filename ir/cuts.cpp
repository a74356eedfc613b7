#include "ir/cuts.h"

#include <algorithm>

#include "ir/graph.h"

namespace torch_remote::ir {
namespace {

// Traces that are shorter are not worth it.
constexpr uint32_t kLeastPlanned = 32;
// Records of the pieces. A piece costs client and worker some ten microseconds together, as much as about ten records;
// the first and the last one are what client and worker cannot do at the same time.
constexpr uint32_t kLeastAtEnds = 8, kMostAtEnds = 16;
constexpr uint32_t kLeastInside = 20, kMostInside = 40;
// What is remembered, in records: some ten megabytes.
constexpr size_t kMostKnown = size_t{1} << 18;

}  // namespace

bool Cuts::end_by_content() const {
  if (records_ >= limits_.max_records) return true;
  // The last ~10 ops decide (6 bits a record leave 64 bits). Expected distance 512 at first, then 128, 32, 8.
  const int strength = 9 - 2 * static_cast<int>(4 * records_ / limits_.max_records);
  return gear_ >> (64 - strength) == 0;
}

void Cuts::trace_ends(const Trace& trace, bool ends, bool waits) {
  // One look-up tells whether this beginning of a stretch was seen before.
  if (!known_.contains(hash_) && known_.size() < kMostKnown) {
    std::vector<uint64_t> hashes;
    uint64_t hash = began_;
    for (const TraceRecord& record : trace.records) {
      hash = (hash ^ mix(uint64_t{trace.code[record.code]} + 1)) * kMultiplier;
      hash ^= hash >> 29;
      hashes.push_back(hash);
    }
    if (waits && limits_.plans && trace.records.size() >= kLeastPlanned) plan(trace, hashes);
    known_.insert(hashes.begin(), hashes.end());
  }
  began_ = hash_;
  if (!ends) return;
  began_ = hash_ = kSeed;
  gear_ = 0;
  records_ = 0;
}

void Cuts::plan(const Trace& trace, const std::vector<uint64_t>& hashes) {
  const auto first_new =
      std::find_if(hashes.begin(), hashes.end(), [&](uint64_t hash) { return !known_.contains(hash); });
  const auto shared = static_cast<uint32_t>(first_new - hashes.begin());
  for (const uint32_t cut : planned_cuts(live_bytes(trace), shared + 1)) {
    const uint64_t hash = hashes[cut - 1];
    planned_.insert(hash);
    planned_bits_[hash >> kShift] = true;
  }
}

std::vector<uint32_t> planned_cuts(const std::vector<uint64_t>& live, uint32_t first) {
  std::vector<uint32_t> cuts;
  const auto records = static_cast<uint32_t>(live.size());
  if (records < kLeastPlanned) return cuts;
  // The best place among `from` to `to` records from the beginning; of equal ones the last.
  const auto best = [&](uint32_t from, uint32_t to) {
    uint32_t place = 0;
    for (uint32_t cut = std::max(from, first); cut <= to; ++cut) {
      if (place == 0 || live[cut - 1] <= live[place - 1]) place = cut;
    }
    return place;
  };
  const uint32_t last = best(records - kMostAtEnds, records - kLeastAtEnds);
  if (last == 0) return cuts;
  uint32_t done = best(kLeastAtEnds, kMostAtEnds);  // records before the last cut so far
  if (done == 0) {                                  // the beginning is another trace's too
    done = first - 1;
  } else if (done < last) {
    cuts.push_back(done);
  }
  // So many pieces that each has its length, as equal as the places allow.
  while (last > done + kMostInside) {
    const uint32_t pieces = (last - done + kMostInside - 1) / kMostInside;
    const uint32_t middle = done + (last - done) / pieces;
    const uint32_t slack = std::min((kMostInside - kLeastInside) / 2, (last - done) / pieces / 2);
    done = best(middle - slack, middle + slack);
    if (done == 0) break;
    cuts.push_back(done);
  }
  if (cuts.empty() || cuts.back() < last) cuts.push_back(last);
  return cuts;
}

std::vector<uint64_t> live_bytes(const Trace& trace) {
  const size_t records = trace.records.size();
  std::vector<uint64_t> live(records);
  Graph graph;
  // A trace that cannot be imported cannot be built either; whoever builds it says why.
  if (!import_trace(trace, trace.survivors(), &graph)) return live;
  struct Life {
    size_t first = SIZE_MAX, last = 0;  // records that touch it
  };
  std::vector<Life> lives(trace.buffers.size());
  for (const Node& node : graph.nodes) {
    for_each_view(node, [&](uint32_t view, bool) {
      Life& life = lives[graph.views[view].buffer];
      life.first = std::min<size_t>(life.first, node.source);
      life.last = std::max<size_t>(life.last, node.source);
    });
  }
  // Differences, then sums.
  for (size_t b = 0; b < lives.size(); ++b) {
    const TraceBuffer& buffer = trace.buffers[b];
    if (!buffer.fresh || buffer.owner != nullptr || lives[b].first == SIZE_MAX) continue;
    const size_t end = std::min<size_t>(std::max<size_t>(lives[b].last, buffer.died), records);
    if (end <= lives[b].first) continue;
    // Lives after records first, ..., end - 1.
    live[lives[b].first] += buffer.nbytes;
    if (end < records) live[end] -= buffer.nbytes;
  }
  for (size_t i = 1; i < records; ++i) live[i] += live[i - 1];
  return live;
}

}  // namespace torch_remote::ir
