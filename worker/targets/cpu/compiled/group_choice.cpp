#include "worker/targets/cpu/compiled/group_choice.h"

#include <algorithm>
#include <utility>

namespace torch_remote::worker::kernels {
namespace {

constexpr uint64_t kFileLimit = 256 << 20;  // shared with the compiled kernels
constexpr size_t kMostKept = 1 << 14;       // bound on choices in memory, because a client decides how many there are
// An algorithm's time is this element of its times in ascending order.
constexpr size_t kCounts = 2;
// Times are reliable if that element is at most this factor above the smallest time.
constexpr double kSpread = 1.25;
// An alternative must take at most this share of the plain kernel's time, because it changes the bits of results.
constexpr double kGain = 0.95, kNodesGain = 0.9;

constexpr GroupWay kWays[] = {GroupWay::kPlain, GroupWay::kStreams, GroupWay::kColumns, GroupWay::kNodes};

}  // namespace

std::string_view name(GroupWay way) {
  switch (way) {
    case GroupWay::kPlain:
      return "the kernel for all sizes";
    case GroupWay::kStreams:
      return "a kernel whose results go past the caches";
    case GroupWay::kColumns:
      return "a kernel for rows of this size";
    case GroupWay::kNodes:
      return "node by node";
  }
  return "";
}

GroupTuner::GroupTuner(const std::vector<GroupWay>& ways) {
  for (const GroupWay way : ways) ways_.push_back({way});
  close_if_done();
}

const GroupTuner::Tried& GroupTuner::next_of() const { return *std::ranges::min_element(ways_, {}, &Tried::count); }

GroupWay GroupTuner::next() const { return next_of().way; }

void GroupTuner::add(uint64_t ns) {
  auto& tried = const_cast<Tried&>(next_of());
  tried.times[tried.count++] = ns;
  close_if_done();
}

void GroupTuner::drop(GroupWay way) {
  std::erase_if(ways_, [&](const Tried& tried) { return tried.way == way; });
  close_if_done();
}

// The n-th smallest of its times, without the first one.
uint64_t GroupTuner::Tried::least(size_t nth) const {
  std::array<uint64_t, kMostSamples> sorted = times;
  const auto begin = sorted.begin() + 1, end = sorted.begin() + count;
  std::nth_element(begin, begin + static_cast<std::ptrdiff_t>(nth), end);
  return sorted[1 + nth];
}

bool GroupTuner::sure() const {
  return std::ranges::all_of(ways_, [](const Tried& tried) {
    return tried.count >= kSamples && static_cast<double>(tried.least(kCounts)) <=
                                          kSpread * static_cast<double>(std::max<uint64_t>(1, tried.least(0)));
  });
}

// A single algorithm need not be timed.
void GroupTuner::close_if_done() {
  const uint32_t count = ways_.empty() ? 0 : std::ranges::min(ways_, {}, &Tried::count).count;
  open_ = ways_.size() > 1 && (count < kSamples || (count < kMostSamples && !sure()));
}

uint64_t GroupTuner::ns(GroupWay way) const {
  const auto found = std::ranges::find(ways_, way, &Tried::way);
  return found == ways_.end() || found->count < kSamples ? 0 : found->least(kCounts);
}

GroupWay GroupTuner::best() const {
  const auto plain = static_cast<double>(ns(GroupWay::kPlain));
  GroupWay best = GroupWay::kPlain;
  if (!sure()) return best;
  double least = plain;
  for (const Tried& tried : ways_) {
    const double gain = tried.way == GroupWay::kNodes ? kNodesGain : kGain;
    const auto took = static_cast<double>(ns(tried.way));
    if (tried.way == GroupWay::kPlain || took == 0 || took > gain * plain || took >= least) continue;
    best = tried.way;
    least = took;
  }
  return best;
}

GroupChoices::GroupChoices(std::string folder, std::string about)
    : files_(std::move(folder), kFileLimit, std::move(about)) {}

std::optional<GroupWay> GroupChoices::find(const std::string& group) {
  if (const auto found = ways_.find(group); found != ways_.end()) return found->second;
  std::vector<uint8_t> bytes;
  if (!files_.read(group, &bytes) || bytes.size() != 1 || bytes[0] >= std::size(kWays)) return std::nullopt;
  const GroupWay way = kWays[bytes[0]];
  if (ways_.size() < kMostKept) ways_[group] = way;
  return way;
}

void GroupChoices::keep(const std::string& group, GroupWay way, bool sure) {
  if (ways_.size() < kMostKept) ways_[group] = way;
  if (sure) files_.write(group, {static_cast<uint8_t>(way)});
}

}  // namespace torch_remote::worker::kernels
