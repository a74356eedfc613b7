#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "worker/runner/runner.h"
#include "worker/targets/cpu/compiled/group_choice.h"
#include "worker/targets/cpu/compiled/kernel_cache.h"
#include "worker/targets/cpu/compiled/reuse.h"

// The runner of compiled kernels on this machine's memory: it does groups, no node alone.
namespace torch_remote::worker::kernels {

struct KernelRunnerOptions {
  std::shared_ptr<KernelCache> cache;
  ParallelFor threads;  // null: its caller's thread
  // A group is done as one from its first run on: runs wait until it is compiled (TORCH_REMOTE_WAIT_COMPILE).
  bool waits = false;
  std::shared_ptr<GroupChoices> choices;  // null: no program is tuned
  // Of the last cache: what is read only after more than that has been gone through is stored past it. 0: nothing is.
  uint64_t cache_bytes = last_cache_bytes();
  std::function<uint64_t()> clock;  // ns, by which ways are timed; null: this machine's
  std::string description;          // "kernels"
  // Told once of each group that no kernel does with the sizes of a run: its ops, and why. May be null.
  std::function<void(std::string_view ops, std::string_view why)> tell_refusal;
  // Told of each group whose way was found by timing it, or was known from an earlier process. May be null.
  std::function<void(std::string_view ops, std::string_view way)> tell_choice;
};
std::unique_ptr<Runner> make_kernel_runner(KernelRunnerOptions options);

// The kinds of groups that it, the attention runner and the product runner may be given, and the dtypes, as bits of
// ir::Capabilities.
uint32_t group_kinds();
uint64_t dtypes();

// The best target of this machine's processor, "x86-64-v4" or "x86-64-v3"; empty if kernels are not made for it.
std::string host_target();

}  // namespace torch_remote::worker::kernels
