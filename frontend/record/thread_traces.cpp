#include "frontend/record/thread_traces.h"

#include <mutex>

#include "frontend/device/backward_threads.h"
#include "frontend/device/device_state.h"

namespace torch_remote::frontend {

void ThreadState::drop_trace() {
  const ir::Trace& trace = encoder.trace();
  for (const ir::TraceBuffer& buffer : trace.buffers) {
    if (buffer.fresh && buffer.owner != nullptr) static_cast<RemoteStorage*>(buffer.owner)->id = RemoteStorage::kLost;
  }
  sent += trace.records.size();
  cuts.trace_ends(trace, /*ends=*/true, /*waits=*/false);
  encoder.clear();
}

// The next flush also sends the thread's traces, and a new thread reuses its states.
void ThreadTraces::thread_ends() noexcept {
  if (in_bad_fork()) return;
  for (ThreadTraces* traces = first_; traces != nullptr; traces = traces->next_) {
    const std::lock_guard<FastMutex> lock(traces->mutex_);
    if (ThreadState* own = traces->find_own()) own->thread = 0;
  }
}

void ThreadTraces::join(ThreadState& state) {
  state.thread = this_thread();
  last_ = &state;
  static thread_local const struct ThreadExitHook {
    ~ThreadExitHook() { thread_ends(); }
  } hook;
  (void)&hook;  // constructed where it is first reached
}

ThreadState* ThreadTraces::find(uint64_t thread) const {
  const auto found = std::ranges::find(all_, thread, [](const auto& state) { return state->thread; });
  return found != all_.end() ? found->get() : nullptr;
}

void ThreadTraces::expect_several() {
  has_several_ = true;
  // The engine's single thread would interleave the backward passes of all threads.
  every_thread_runs_backward();
}

void ThreadTraces::drop_session() {
  for (const auto& state : all_) state->drop_trace();
  ++encoders_.session;
}

void ThreadTraces::set_limits(const ir::CutLimits& limits) {
  const std::lock_guard<FastMutex> lock(mutex_);
  plans_.limits = limits;
}

ThreadTraces::Numbers ThreadTraces::numbers() {
  const std::lock_guard<FastMutex> lock(mutex_);
  const ThreadState* state = find_own();
  return state != nullptr ? Numbers{state->first, state->sent + state->encoder.trace().records.size()} : Numbers();
}

void ThreadTraces::profile_starts() {
  const std::lock_guard<FastMutex> lock(mutex_);
  for (const auto& state : all_) {
    state->trace_began = 0;
    state->pass = Pass::kUnknown;
  }
}

}  // namespace torch_remote::frontend
