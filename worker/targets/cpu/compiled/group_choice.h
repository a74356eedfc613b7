#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/runner/kernel_files.h"
#include "worker/targets/cpu/compiled/tuner.h"

// Chooses how the groups of a tuned program are executed: times several algorithms in the program's first runs.
namespace torch_remote::worker::kernels {

enum class GroupAlgorithm : uint8_t {
  kDefault,          // the kernel that serves all sizes
  kStreamingStores,  // a kernel with streaming stores, which bypass the caches
  kColumns,          // a kernel specialized for this row size
  kNodes,            // node by node, by the next runners
};
std::string_view name(GroupAlgorithm algorithm);

// Times one group with the sizes of one binding. An alternative to the kernel for all sizes must be faster by a margin,
// because it changes the bits of results.
using GroupTuner = Tuner<GroupAlgorithm>;
// The first algorithm must be kDefault.
GroupTuner make_group_tuner(const std::vector<GroupAlgorithm>& algorithms);

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
