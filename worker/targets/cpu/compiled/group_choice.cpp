#include "worker/targets/cpu/compiled/group_choice.h"

#include <utility>

namespace torch_remote::worker::kernels {
namespace {

constexpr uint64_t kFileLimit = 256 << 20;  // shared with the compiled kernels
constexpr size_t kMostKept = 1 << 14;       // bound on choices in memory, because a client decides how many there are

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

GroupTuner make_group_tuner(const std::vector<GroupAlgorithm>& algorithms) {
  constexpr double kGain = 0.95, kNodesGain = 0.9;
  std::vector<GroupTuner::Alternative> alternatives;
  for (const GroupAlgorithm algorithm : algorithms) {
    alternatives.push_back({algorithm, algorithm == GroupAlgorithm::kNodes ? kNodesGain : kGain});
  }
  return GroupTuner(std::move(alternatives));
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
