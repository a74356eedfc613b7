#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/runner/kernel_files.h"

// Chooses how the groups of a tuned program are executed: times several algorithms in the program's first runs.
namespace torch_remote::worker::kernels {

enum class GroupAlgorithm : uint8_t {
  kDefault,          // the kernel that serves all sizes
  kStreamingStores,  // a kernel with streaming stores, which bypass the caches
  kColumns,          // a kernel specialized for this row size
  kNodes,            // node by node, by the next runners
};
std::string_view name(GroupAlgorithm algorithm);

// Times one group with the sizes of one binding. The algorithms alternate, so that disturbances affect all of them.
class GroupTuner {
 public:
  // The first algorithm must be kDefault.
  explicit GroupTuner(const std::vector<GroupAlgorithm>& algorithms);

  // Whether more times are needed.
  bool needs_samples() const { return needs_samples_; }
  // The algorithm that the group's next execution should use.
  GroupAlgorithm next() const;
  // Adds the time of an execution with the algorithm that `next` returned.
  void add(uint64_t ns);
  // Removes an algorithm that proved to be impossible; never kDefault.
  void drop(GroupAlgorithm algorithm);
  // The result once needs_samples() is false: the fastest algorithm, or kDefault if no other is faster by a reliable
  // margin.
  GroupAlgorithm best() const;
  // Whether the times are reliable; on a busy machine they may not be.
  bool is_reliable() const;
  // An algorithm's time, or 0 while it is unknown. It is one of the smallest times, which show what the machine can do.
  // The very smallest may be luck.
  uint64_t ns(GroupAlgorithm algorithm) const;

  // Each algorithm is timed kSamples times, and up to kMostSamples times until the times are reliable. The first time
  // does not count, because code and data are not in the caches yet.
  static constexpr uint32_t kSamples = 8, kMostSamples = 24;

 private:
  struct Tried {
    GroupAlgorithm algorithm = GroupAlgorithm::kDefault;
    uint32_t count = 0;
    std::array<uint64_t, kMostSamples> times{};
    uint64_t least(size_t nth) const;
  };
  const Tried& next_of() const;
  void close_if_done();

  std::vector<Tried> algorithms_;
  bool needs_samples_ = true;
};

// The choices, in memory and on disk. One thread uses it.
class GroupChoices {
 public:
  // `folder`: the folder for choices; empty means memory only. `about`: processor, libraries, number of threads.
  GroupChoices(std::string folder, std::string about);

  // `group`: text that identifies the computation and its sizes.
  std::optional<GroupAlgorithm> find(const std::string& group);
  // `reliable`: stores the choice on disk, too.
  void store(const std::string& group, GroupAlgorithm algorithm, bool reliable);

 private:
  const KernelFiles files_;
  std::map<std::string, GroupAlgorithm> algorithms_;
};

}  // namespace torch_remote::worker::kernels
