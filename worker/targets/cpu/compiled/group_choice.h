#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/runner/kernel_files.h"

// How the groups of programs that are to be tuned are done: by which of several ways, found by timing their first runs.
namespace torch_remote::worker::kernels {

enum class GroupWay : uint8_t {
  kPlain,    // by the kernel that serves all sizes
  kStreams,  // by one whose results go past the caches
  kColumns,  // by one that is made for rows of this size
  kNodes,    // node by node, by whoever does them
};
std::string_view name(GroupWay way);

// One group, with the sizes of one binding, while it is being timed. The ways take turns, so that what else goes on
// meets all of them.
class GroupTuner {
 public:
  // The first one is plain.
  explicit GroupTuner(const std::vector<GroupWay>& ways);

  // Whether something is left to be timed.
  bool open() const { return open_; }
  // The way in which the group should be done next.
  GroupWay next() const;
  // It took so long, in the way that `next` said.
  void add(uint64_t ns);
  // It cannot be done in this way after all; not kPlain.
  void drop(GroupWay way);
  // When nothing is left: the fastest, or the plain one where no other wins by enough to be believed.
  GroupWay best() const;
  // Whether the times are to be believed: on a machine that others use they may be anything.
  bool sure() const;
  // What a way took, once it is known: the least times are what the machine can do, the very least are luck.
  uint64_t ns(GroupWay way) const;

  // How often each way is timed: so often, and up to that many times until the times are to be believed. The first time
  // does not count: code and data are not in the caches.
  static constexpr uint32_t kSamples = 8, kMostSamples = 24;

 private:
  struct Tried {
    GroupWay way = GroupWay::kPlain;
    uint32_t count = 0;
    std::array<uint64_t, kMostSamples> times{};
    uint64_t least(size_t nth) const;
  };
  const Tried& next_of() const;
  void close_if_done();

  std::vector<Tried> ways_;
  bool open_ = true;
};

// What was chosen, in memory and on disk. Used by one thread.
class GroupChoices {
 public:
  // `folder`: where choices are kept, empty: only in memory. `about`: processor, libraries, threads.
  GroupChoices(std::string folder, std::string about);

  // `group` says what is computed and for which sizes.
  std::optional<GroupWay> find(const std::string& group);
  // `sure`: also on disk.
  void keep(const std::string& group, GroupWay way, bool sure);

 private:
  const KernelFiles files_;
  std::map<std::string, GroupWay> ways_;
};

}  // namespace torch_remote::worker::kernels
