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

constexpr GroupAlgorithm kAlgorithms[] = {GroupAlgorithm::kDefault, GroupAlgorithm::kStreamingStores,
                                          GroupAlgorithm::kColumns, GroupAlgorithm::kNodes};

}  // namespace

std::string_view name(GroupAlgorithm algorithm) {
  switch (algorithm) {
    case GroupAlgorithm::kDefault:
      return "the kernel for all sizes";
    case GroupAlgorithm::kStreamingStores:
      return "a kernel with streaming stores";
    case GroupAlgorithm::kColumns:
      return "a kernel for rows of this size";
    case GroupAlgorithm::kNodes:
      return "node by node";
  }
  return "";
}

GroupTuner::GroupTuner(const std::vector<GroupAlgorithm>& algorithms) {
  for (const GroupAlgorithm algorithm : algorithms) algorithms_.push_back({algorithm});
  close_if_done();
}

const GroupTuner::Tried& GroupTuner::next_of() const {
  return *std::ranges::min_element(algorithms_, {}, &Tried::count);
}

GroupAlgorithm GroupTuner::next() const { return next_of().algorithm; }

void GroupTuner::add(uint64_t ns) {
  auto& tried = const_cast<Tried&>(next_of());
  tried.times[tried.count++] = ns;
  close_if_done();
}

void GroupTuner::drop(GroupAlgorithm algorithm) {
  std::erase_if(algorithms_, [&](const Tried& tried) { return tried.algorithm == algorithm; });
  close_if_done();
}

// The n-th smallest of its times, without the first one.
uint64_t GroupTuner::Tried::least(size_t nth) const {
  std::array<uint64_t, kMostSamples> sorted = times;
  const auto begin = sorted.begin() + 1, end = sorted.begin() + count;
  std::nth_element(begin, begin + static_cast<std::ptrdiff_t>(nth), end);
  return sorted[1 + nth];
}

bool GroupTuner::is_reliable() const {
  return std::ranges::all_of(algorithms_, [](const Tried& tried) {
    return tried.count >= kSamples && static_cast<double>(tried.least(kCounts)) <=
                                          kSpread * static_cast<double>(std::max<uint64_t>(1, tried.least(0)));
  });
}

// A single algorithm need not be timed.
void GroupTuner::close_if_done() {
  const uint32_t count = algorithms_.empty() ? 0 : std::ranges::min(algorithms_, {}, &Tried::count).count;
  needs_samples_ = algorithms_.size() > 1 && (count < kSamples || (count < kMostSamples && !is_reliable()));
}

uint64_t GroupTuner::ns(GroupAlgorithm algorithm) const {
  const auto found = std::ranges::find(algorithms_, algorithm, &Tried::algorithm);
  return found == algorithms_.end() || found->count < kSamples ? 0 : found->least(kCounts);
}

GroupAlgorithm GroupTuner::best() const {
  const auto plain = static_cast<double>(ns(GroupAlgorithm::kDefault));
  GroupAlgorithm best = GroupAlgorithm::kDefault;
  if (!is_reliable()) return best;
  double least = plain;
  for (const Tried& tried : algorithms_) {
    const double gain = tried.algorithm == GroupAlgorithm::kNodes ? kNodesGain : kGain;
    const auto took = static_cast<double>(ns(tried.algorithm));
    if (tried.algorithm == GroupAlgorithm::kDefault || took == 0 || took > gain * plain || took >= least) continue;
    best = tried.algorithm;
    least = took;
  }
  return best;
}

GroupChoices::GroupChoices(std::string folder, std::string about)
    : files_(std::move(folder), kFileLimit, std::move(about)) {}

std::optional<GroupAlgorithm> GroupChoices::find(const std::string& group) {
  if (const auto found = algorithms_.find(group); found != algorithms_.end()) return found->second;
  std::vector<uint8_t> bytes;
  if (!files_.read(group, &bytes) || bytes.size() != 1 || bytes[0] >= std::size(kAlgorithms)) return std::nullopt;
  const GroupAlgorithm algorithm = kAlgorithms[bytes[0]];
  if (algorithms_.size() < kMostKept) algorithms_[group] = algorithm;
  return algorithm;
}

void GroupChoices::store(const std::string& group, GroupAlgorithm algorithm, bool reliable) {
  if (algorithms_.size() < kMostKept) algorithms_[group] = algorithm;
  if (reliable) files_.write(group, {static_cast<uint8_t>(algorithm)});
}

}  // namespace torch_remote::worker::kernels
