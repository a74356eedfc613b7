#pragma once

#include <c10/core/AutogradState.h>

#include <atomic>

// torch's autograd engine counts devices once, at the first backward pass of the process, and has a queue and a thread
// for each. Of a device that came later (a machine that was added, or all of this one's where a backward pass on the
// CPU came before `import torch_remote`) it knows nothing: a pass that would use these threads would fail. Recording
// does not block, so such a pass loses nothing by running in the thread that asked for it. Where several threads record
// it gains: in the engine's one thread their passes would take turns, and no two steps would be recorded alike.
namespace torch_remote::frontend {

namespace detail {
inline constinit std::atomic<bool> threads_run_backward{false};
}  // namespace detail

// From now on every thread runs its backward passes over this device itself.
inline void every_thread_runs_backward() noexcept {
  detail::threads_run_backward.store(true, std::memory_order_relaxed);
}

// The engine asks for streams of this device's tensors before it chooses a queue for them: where a pass begins, at each
// node, and at each gradient that comes from elsewhere. It saves and restores the flag that this sets around nodes,
// so that once for each thread would not do.
inline void choose_backward_thread() noexcept {
  if (!detail::threads_run_backward.load(std::memory_order_relaxed)) [[likely]]
    return;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace torch_remote::frontend
