#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "worker/runner/runner.h"
#include "worker/targets/cpu/compiled/group_choice.h"
#include "worker/targets/cpu/compiled/kernel_cache.h"
#include "worker/targets/cpu/compiled/reuse.h"

// The runner of compiled kernels on this machine's memory. It executes groups, never single nodes.
namespace torch_remote::worker::kernels {

struct KernelRunnerOptions {
  std::shared_ptr<KernelCache> cache;
  ParallelFor threads;  // null: the calling thread runs everything
  // Runs wait until the kernels are compiled, so that a group runs as a kernel from its first run on
  // (TORCH_REMOTE_WAIT_COMPILE).
  bool waits = false;
  std::shared_ptr<GroupChoices> choices;  // null: no program is tuned
  // Size of the last-level cache. A result is written with streaming stores if a run accesses more bytes than this
  // before the result is read. 0: never.
  uint64_t cache_bytes = last_cache_bytes();
  std::function<uint64_t()> clock;  // ns; times the algorithms; null: this machine's clock
  std::string description;          // such as "kernels"
  // Called once for each group that no kernel supports with the sizes of a run: its ops, and the reason. May be null.
  std::function<void(std::string_view ops, std::string_view why)> on_refusal;
  // Called for each group whose algorithm is chosen: found by timing, or stored by an earlier process. May be null.
  std::function<void(std::string_view ops, std::string_view algorithm)> on_choice;
};
std::unique_ptr<Runner> make_kernel_runner(KernelRunnerOptions options);

// The kinds of groups that this runner, the attention runner and the GEMM runner accept, as bits of
// ir::Capabilities::group_kind_mask.
uint32_t group_kind_mask();

// The best target of this machine's processor, "x86-64-v4", "x86-64-v3" or "aarch64"; empty if kernels do not support
// it.
std::string host_target();

}  // namespace torch_remote::worker::kernels
