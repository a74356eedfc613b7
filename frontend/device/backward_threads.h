#pragma once

#include <c10/core/AutogradState.h>

#include <atomic>

// torch's autograd engine counts devices once, at the first backward pass of the process, and makes a queue and a
// thread for each. Devices may come later: an added machine, or all devices if a CPU backward pass ran before `import
// torch_remote`. A pass that needs a thread for such a device would fail.
// So such a pass runs in the thread that requested it. A pass only records ops, which takes little time, so this costs
// nothing. With several recording threads it even helps: in the engine's single thread their passes would interleave,
// and no two steps would record the same trace.
namespace torch_remote::frontend {

namespace detail {
inline constinit std::atomic<bool> threads_run_backward{false};
}  // namespace detail

// From now on, every thread runs its own backward passes over this device.
inline void every_thread_runs_backward() noexcept {
  detail::threads_run_backward.store(true, std::memory_order_relaxed);
}

// Called when the engine asks for the streams of this device's tensors, before it chooses a queue. It asks at the start
// of a pass, at each node, and at each gradient from another device. The engine saves and restores the thread's
// multithreading flag (c10::AutogradState) around nodes, so clearing it once per thread would not be enough.
inline void choose_backward_thread() noexcept {
  if (!detail::threads_run_backward.load(std::memory_order_relaxed)) [[likely]]
    return;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace torch_remote::frontend
