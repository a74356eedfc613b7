#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "frontend/record/thread_traces.h"
#include "ir/graph.h"
#include "ir/trace.h"

namespace torch_remote::frontend {

// One run that was sent while tracing: a trace, or a run of a graph with the parameters and sources of `trace`.
struct TracedRun {
  ir::Trace trace;
  std::vector<uint64_t> survivors;         // of `trace`; see Trace::survivors
  std::shared_ptr<const ir::Graph> graph;  // null for a trace
};

// The runs that one device sends during torch.remote.trace(), and the cut limits outside of it.
class TraceCapture {
 public:
  // `traces` must outlive the capture.
  explicit TraceCapture(ThreadTraces& traces) : traces_(traces) {}

  // Keeps everything that is sent from now on. Disables cuts by content, by plan and between passes; traces are still
  // sent where the code waits, where another thread depends on them, and where math modes change. Raises if the capture
  // is on. Call start and stop right after Recorder::flush, from any thread. Call stop only after start.
  void start() {
    const std::lock_guard<FastMutex> lock(traces_.mutex());
    TORCH_CHECK(!on_, "remote: torch.remote.trace() is on already");
    on_ = true;
    limits_before_ = std::exchange(traces_.limits(), {1u << 30, 1u << 30, false});
  }
  // Ends the capture, restores the cut limits, and returns the runs in the order in which they were sent.
  std::vector<TracedRun> stop() {
    const std::lock_guard<FastMutex> lock(traces_.mutex());
    on_ = false;
    traces_.limits() = limits_before_;
    return std::exchange(runs_, {});
  }

  bool is_on() {
    const std::lock_guard<FastMutex> lock(traces_.mutex());
    return on_;
  }

  // The next functions are called with the lock of the traces held.
  bool is_on_locked() const { return on_; }
  void add(TracedRun run) { runs_.push_back(std::move(run)); }

 private:
  ThreadTraces& traces_;
  bool on_ = false;
  std::vector<TracedRun> runs_;
  ir::CutLimits limits_before_;
};

}  // namespace torch_remote::frontend
