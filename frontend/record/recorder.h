#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "frontend/device/device_state.h"
#include "frontend/device/fast_mutex.h"
#include "frontend/device/generator.h"
#include "frontend/record/trace_sender.h"
#include "ir/math_modes.h"
#include "ir/ops/op_table.h"
#include "ir/trace.h"

namespace torch_remote::frontend {

// Records ops of one device, from any thread, and decides when they are sent. ThreadTraces holds them, and TraceSender
// sends them. Call the functions with no lock held. Unless their comments say otherwise, they raise the loss of the
// worker. A function that sends starts the worker if there is none, and waits while too many messages are in flight.
class Recorder {
 public:
  static Recorder& get(c10::DeviceIndex device) { return *all_[device < 0 ? 0 : device]; }

  // Appends one record to this thread's trace. `args` are the schema's arguments, in order. Operands are tensors on
  // this device, or numbers as 0-dim CPU tensors; the caller has refused all others. `results` are the new tensors,
  // flattened, for the results that alias no argument; they may be undefined. `list_lengths` has the length of each
  // list result. If the trace must be cut before or after this record, it is sent, and the caller waits while the
  // worker is far behind (TraceSender::throttle).
  void record(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<at::Tensor> results,
              c10::ArrayRef<uint32_t> list_lengths, std::optional<RandomState> random);

  // Records an op whose result shapes depend on data, and waits for it. Returns RunReply.result_words. `results` are
  // storages without sizes, which the caller then sets.
  std::vector<int64_t> record_and_wait(const ir::OpDesc& op, const c10::IValue* args,
                                       c10::ArrayRef<c10::Storage> results, std::optional<RandomState> random);

  // Sends this thread's trace and those of other threads that use the inputs, then runs a graph. `results` are new
  // storages for the graph's surviving fresh buffers, in order. Returns false, without running the graph, if an input's
  // contents were lost. Call it without the GIL.
  [[nodiscard]] bool run(RunnableGraph& graph, std::span<const int64_t> params, std::span<RemoteStorage* const> inputs,
                         std::span<RemoteStorage* const> results);

  // Sends the recorded ops of all threads. `reason` is for the log: "item", "cpu", "synchronize", ... `waits` says that
  // the caller then waits for them.
  void flush(const char* reason, bool waits = false);
  // The same, but raises nothing, and does not throttle: it waits only when no further message may be in flight. Ctrl-C
  // does not interrupt this wait. `line`: see TraceSender::send.
  Status try_flush(const FlushReason& reason, const ir::SourceRef& line = {});
  // Sends this thread's recorded ops.
  void flush_own(const char* reason);
  // Flushes, then waits until the worker is done. Raises the worker's failures.
  void synchronize();

  // Drops recorded ops and the ops that the worker has not executed. Does not wait for the worker to be idle. Starts no
  // worker: without one, the tensors that the recorded ops would have created are lost.
  void cancel();
  // Drops the recorded ops and the worker; all tensors lose their contents. The next use starts a new worker.
  void restart();
  // At exit: waits for the worker, and prints failures that were never raised on stderr. Raises nothing.
  void print_unreported() noexcept;

  uint64_t ops_recorded() const {
    return records_.load(std::memory_order_relaxed) - reset_at_.load(std::memory_order_relaxed);
  }
  void reset_counters() { reset_at_.store(records_.load(std::memory_order_relaxed), std::memory_order_relaxed); }

  TraceSender& sender() { return sender_; }
  ThreadTraces& traces() { return sender_.traces(); }
  TraceCapture& capture() { return sender_.capture(); }
  CompileExpectation& expectation() { return sender_.expectation(); }

 private:
  explicit Recorder(c10::DeviceIndex device) : sender_(device) {}
  c10::DeviceIndex device() const { return sender_.device(); }

  // The next functions are called with the lock held, and set *flushed if they send the trace.

  // Called when the next record's pass differs from the last one's. Cuts if the trace is long enough.
  Status enter_pass(std::unique_lock<FastMutex>& lock, ThreadState& own, Pass pass, bool* flushed);
  // Called before an op that depends on math modes (TF32, deterministic cuDNN). Sends a trace that has such an op under
  // other modes.
  Status enter_math_modes(std::unique_lock<FastMutex>& lock, ThreadState& own, ir::MathModes math_modes, bool* flushed);
  // Called if torch.use_deterministic_algorithms changed since the thread's last record. Sends the records before.
  [[gnu::cold, gnu::noinline]] Status enter_determinism(std::unique_lock<FastMutex>& lock, ThreadState& own,
                                                        ir::MathModes determinism, bool* flushed);

  static const std::array<Recorder*, kMaxDevices> all_;

  TraceSender sender_;
  std::atomic<uint64_t> records_{0};
  std::atomic<uint64_t> reset_at_{0};  // value of records_ at the last reset_counters()
};

// At exit: ends all workers. With `wait`, first waits for their pending ops and prints failures that were never raised.
void shutdown(bool wait);

}  // namespace torch_remote::frontend
