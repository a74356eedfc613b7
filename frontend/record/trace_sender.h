#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "frontend/device/device_state.h"
#include "frontend/device/fast_mutex.h"
#include "frontend/device/tensor.h"
#include "frontend/record/compile_expectation.h"
#include "frontend/record/thread_traces.h"
#include "frontend/record/trace_capture.h"
#include "ir/graph.h"
#include "ir/ops/op_table.h"
#include "ir/trace.h"

namespace torch_remote::frontend {

// A graph that runs without being recorded. `run` loads it if the worker does not have it yet.
struct RunnableGraph {
  std::shared_ptr<const ir::Graph> graph;
  std::vector<ir::SourceRef> sources;  // of the graph's nodes
  remote::ProgramOptions options;
  // Guarded by the lock of the device's traces.
  struct Loaded {
    remote::ProgramPtr program;
    uint64_t session = 0;  // the worker's
  };
  std::array<Loaded, 2> loaded;  // [1]: for deterministic runs
  std::vector<uint64_t> inputs;  // reused, to keep its capacity
};

// Why a trace is sent. Used by the log, and by the plan of where to cut such a trace the next time.
struct FlushReason {
  const char* name;
  bool waits = false;    // user code waits for it
  bool planned = false;  // a planned cut within a stretch (ir/cost/cuts.h)
};

// Sends the traces of one device to its worker. Owns the traces, and what watches the runs that are sent.
// Functions with a `lock` are called with the lock of the traces held, from any thread. If no worker runs, they release
// the lock while they start one, so other threads keep recording. They raise nothing, because raising takes the GIL and
// must happen after the lock is released. They return the failure to start the worker or to send, or kLost if the
// worker was ended.
class TraceSender {
 public:
  explicit TraceSender(c10::DeviceIndex device) : device_(device) {}

  c10::DeviceIndex device() const { return device_; }
  ThreadTraces& traces() { return traces_; }
  TraceCapture& capture() { return capture_; }
  CompileExpectation& expectation() { return expectation_; }

  // This thread's state. When a second thread first records, this starts the worker and sends the first thread's trace.
  // If *status is not OK, the state must not be used.
  ThreadState& own(std::unique_lock<FastMutex>& lock, Status* status) {
    if (traces_.last_is_own()) [[likely]]
      return traces_.last();
    return find_own(lock, status);
  }
  // Notes the storages that the last record writes, for `send_before` of other threads.
  [[gnu::cold, gnu::noinline]] static void note_written(ThreadState& own, const ir::OpDesc& op,
                                                        const c10::IValue* args);

  // On success there is a worker.
  Status connect(std::unique_lock<FastMutex>& lock) const;
  // Sends a trace. `line`: the user's line that forces the flush, for a profile. Without it, the profile shows the line
  // of the trace's last record.
  Status send(std::unique_lock<FastMutex>& lock, ThreadState& state, const FlushReason& reason,
              uint64_t* ticket = nullptr, const ir::SourceRef& line = {});
  Status send_all(std::unique_lock<FastMutex>& lock, const FlushReason& reason, const ir::SourceRef& line = {});
  // Sends other threads' traces that the call depends on. Sets *flushed if it sent a trace.
  [[gnu::cold, gnu::noinline]] Status send_before(std::unique_lock<FastMutex>& lock, const ThreadState& own,
                                                  const ir::OpDesc& op, const c10::IValue* args, bool* flushed);
  // Sends the other threads' traces that write the storage, or, with `writes`, those that use it. `own` may be null.
  [[gnu::cold, gnu::noinline]] Status send_others_of(std::unique_lock<FastMutex>& lock, const ThreadState* own,
                                                     const RemoteStorage* storage, bool writes,
                                                     const FlushReason& reason, bool* flushed);
  // Runs a graph; see Recorder::run. The lock is held; the caller has connected and sent `own`.
  Status run(ThreadState& own, RunnableGraph& graph, std::span<const int64_t> params,
             std::span<RemoteStorage* const> inputs, std::span<RemoteStorage* const> results);

  // Waits, interruptibly, while the worker is far behind. Raises an error if the worker is lost. Call it without the
  // lock.
  void throttle() const;

 private:
  [[gnu::cold, gnu::noinline]] ThreadState& find_own(std::unique_lock<FastMutex>& lock, Status* status);
  // Assigns buffer ids to the storages that a run creates: consecutive ones from `first_result_id`, or kLost if it was
  // not sent.
  void assign_buffer_ids(std::span<RemoteStorage* const> made, bool sent, uint64_t first_result_id) const;
  void log_flush(ThreadState& state, const char* reason, const remote::FlushInfo& info, const ir::SourceRef& line,
                 uint64_t started, uint64_t first_record) const;

  const c10::DeviceIndex device_;
  ThreadTraces traces_;
  TraceCapture capture_{traces_};
  CompileExpectation expectation_{traces_.mutex()};
  std::vector<RemoteStorage*> survivors_;  // scratch of `send`
};

}  // namespace torch_remote::frontend
