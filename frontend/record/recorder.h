#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "frontend/device/device_state.h"
#include "frontend/device/fast_mutex.h"
#include "frontend/device/generator.h"
#include "frontend/device/tensor.h"
#include "frontend/record/trace_encoder.h"
#include "ir/cuts.h"
#include "ir/math_modes.h"
#include "ir/ops/op_table.h"
#include "ir/trace.h"

namespace torch_remote::frontend {

// A graph that runs without being recorded. `run` loads it if the worker does not have it yet.
struct RunnableGraph {
  std::shared_ptr<const ir::Graph> graph;
  std::vector<ir::SourceRef> sources;  // of the graph's nodes
  remote::ProgramOptions options;
  // Guarded by the recorder.
  struct Loaded {
    remote::ProgramPtr program;
    uint32_t session = 0;
  };
  std::array<Loaded, 2> loaded;  // [1]: for deterministic runs
  std::vector<uint64_t> inputs;  // reused, to keep its capacity
};

// One run that was sent while tracing: a trace, or a run of a graph with the parameters and sources of `trace`.
struct TracedRun {
  ir::Trace trace;
  std::vector<uint64_t> survivors;
  std::shared_ptr<const ir::Graph> graph;  // null for a trace
};

// The first cache miss under expect_no_compile.
struct UnexpectedCompile {
  std::string op;  // first record that differs; empty if only the tensors that outlive the trace differ
  ir::SourceRef source;
  size_t record = 0;
  size_t records = 0;
  bool compiled_graph = false;  // the first run of a graph of torch.compile
};

// Records ops of one device, from any thread. There is one lock per device. Code that holds the lock neither needs nor
// waits for the GIL.
// Each thread's ops form a trace of their own, in program order, and only that thread's ops decide where it is cut. The
// interleaving of threads is random and must not be part of a key. Before a thread records an op that must run after
// another thread's recorded ops, those ops are sent. So the unsent traces may run in any order.
class Recorder {
 public:
  static Recorder& get(c10::DeviceIndex device) { return *all_[device < 0 ? 0 : device]; }

  // Appends one record to this thread's trace. `args` are the schema's arguments, in order. Operands are tensors on
  // this device, or numbers as 0-dim CPU tensors; the caller has refused all others. `results` are the new tensors,
  // flattened, for the results that alias no argument; they may be undefined. `list_lengths` has the length of each
  // list result. If the trace must be cut after this record, it is sent.
  void record(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<at::Tensor> results,
              c10::ArrayRef<uint32_t> list_lengths, std::optional<RandomState> random);

  // Records an op whose result shapes depend on data, and waits for it. Returns RunReply's words. `results` are
  // storages without sizes, which the caller then sets.
  std::vector<int64_t> record_and_wait(const ir::OpDesc& op, const c10::IValue* args,
                                       c10::ArrayRef<c10::Storage> results, std::optional<RandomState> random);

  // Flushes this thread's trace, then runs a graph. `results` are new storages for the graph's surviving fresh buffers,
  // in order. Returns false, without running the graph, if an input's contents were lost. Call it with no lock held and
  // without the GIL.
  [[nodiscard]] bool run(RunnableGraph& graph, std::span<const int64_t> params, std::span<RemoteStorage* const> inputs,
                         std::span<RemoteStorage* const> results);

  // Sends the recorded ops of all threads. `reason` is for the log: "item", "cpu", "synchronize", ... `waits` says that
  // the caller then waits for them.
  void flush(const char* reason, bool waits = false);
  // Sends this thread's recorded ops.
  void flush_own(const char* reason);
  // Flushes, then waits until the worker is done. Raises the worker's failures.
  void synchronize();
  // Flushes, then asks for the worker's memory state. Does not raise failures of ops.
  remote::MemoryLimits memory(const remote::MemoryRequest& request);
  // Lets the worker call a Python function with these tensors (remote::Client::call), without waiting. Returns the
  // session, the ticket, and the first buffer id of the results.
  std::array<uint64_t, 3> call(std::span<const std::byte> request, const std::vector<at::Tensor>& tensors);
  // Makes `storage` the owner of the buffer `id`, a result of the call.
  void take_result(RemoteStorage* storage, uint64_t id) { set_buffer(storage, id); }
  // Looks up a file on the worker's machine. Waits.
  remote::FoundFile find_file(const std::string& path);

  // Drops recorded ops and the ops that the worker has not executed. Call it from any thread; it does not wait.
  void cancel();
  // At exit: waits for the worker, and prints failures that were never raised on stderr. Raises nothing.
  void print_unreported() noexcept;

  // Copies a remote tensor's elements to `destination`, packed in row-major order. Exactly numel * itemsize bytes are
  // transferred.
  void read(const at::Tensor& tensor, void* destination, const char* reason);
  // Gives `storage`, which must have no buffer, a new buffer with the bytes that `fill` writes.
  void upload(RemoteStorage* storage, size_t nbytes, const std::function<void(std::byte*)>& fill);
  // The same with bytes of a file that the worker reads.
  void read_file(RemoteStorage* storage, size_t nbytes, const std::string& path, const remote::FileVersion& version,
                 uint64_t offset);

  // Exchanges the buffers of two storages, for a storage that is resized or completely overwritten.
  void move_buffer(RemoteStorage* from, RemoteStorage* to);
  // Whether something was written to the storage, or a recorded op will write to it.
  bool has_buffer(const RemoteStorage* storage);

  // Called when a storage is destroyed, from any thread, with or without the GIL.
  void on_storage_destroyed(RemoteStorage* storage) noexcept;

  uint64_t ops_recorded() const {
    return records_.load(std::memory_order_relaxed) - reset_at_.load(std::memory_order_relaxed);
  }
  void reset_counters() { reset_at_.store(records_.load(std::memory_order_relaxed), std::memory_order_relaxed); }
  // The value of remote::Event::first_record for the run of a compiled graph. In Numbers: the thread has no records.
  static constexpr uint64_t kNoRecords = ~uint64_t{0};
  // The numbers of this thread's records (remote::Event::first_record), which are consecutive: that of its first record
  // and that of the next one.
  struct Numbers {
    uint64_t first = kNoRecords, next = kNoRecords;
  };
  Numbers numbers();

  // Drops the recorded ops and the worker; all tensors lose their contents. The next use starts a new worker.
  void restart();
  // Whether the tensor had contents and lost them with a worker.
  bool is_lost(const RemoteStorage* storage);

  // For torch.remote.profile: from now on, the time at which each trace begins is noted.
  void profile_starts();
  // Sends the recorded ops; `line` is the source line that ends the profile. Raises nothing.
  void profile_ends(const ir::SourceRef& line);

  void set_limits(const ir::CutLimits& limits);
  bool is_tracing();
  // start_tracing keeps everything that is sent from now on, and disables cuts except where the code waits. Both
  // functions flush. Call them without the GIL.
  void start_tracing();
  std::vector<TracedRun> stop_tracing();
  // Notes the first cache miss from now on.
  void expect_no_compile(bool expect);
  // Describes the noted miss: where the trace differs from the known programs. Empty if nothing missed.
  std::string take_unexpected_compile();

  c10::DeviceIndex device() const { return device_; }

 private:
  // kUnknown differs from the pass of every record, so the next record calls enter_pass. A profile thus learns when a
  // trace begins, at no cost for other records.
  enum class Pass : uint8_t { kForward, kBackward, kUnknown };

  // Why a trace is sent. Used by the log, and by the plan of where to cut such a trace the next time.
  struct FlushReason {
    const char* name;
    bool waits = false;    // user code waits for it
    bool planned = false;  // a planned cut within a stretch (ir/cuts.h)
  };

  // The recording state of one thread.
  struct ThreadState {
    ThreadState(TraceEncoderGroup& encoders, ir::CutPlans& plans, uint64_t number)
        : encoder(encoders), cuts(plans), first(number << 40), sent(first) {}

    uint64_t thread = 0;  // the thread; 0 if it has ended
    TraceEncoder encoder;
    ir::Cuts cuts;
    Pass pass = Pass::kForward;       // pass of the last record, or kUnknown
    Pass last_pass = Pass::kForward;  // pass of the last record
    uint64_t trace_began = 0;         // ns, for a profile; 0: unknown
    uint32_t trace_thread = 0;        // profile's number of the thread that recorded the first op
    ir::MathModes math = 0;           // modes of the last matmul, convolution or attention
    bool math_in_trace = false;       // and that op has not been sent
    ir::MathModes determinism = 0;    // kDeterministic and kDeterministicWarnOnly of all records of the trace
    uint64_t first;                   // number of the thread's first record
    uint64_t sent;                    // number of the trace's first record; earlier ones were sent or dropped

    bool empty() const { return encoder.trace().empty(); }
  };

  explicit Recorder(c10::DeviceIndex device);

  // An id that is not 0 and differs for each live thread.
  static uint64_t this_thread() noexcept { return static_cast<uint64_t>(pthread_self()); }
  // This thread's state. If this is the second thread and there is no worker yet, the lock is released meanwhile. If
  // *status is not OK, the thread state must not be used.
  ThreadState& thread_state(std::unique_lock<FastMutex>& lock, Status* status) {
    if (last_thread_state_->thread == this_thread()) [[likely]]
      return *last_thread_state_;
    return find_thread_state(lock, status);
  }
  [[gnu::cold, gnu::noinline]] ThreadState& find_thread_state(std::unique_lock<FastMutex>& lock, Status* status);
  // This thread's state, or null.
  ThreadState* existing_thread_state() const;
  // Called when the thread ends. The next flush also sends its trace, and a new thread reuses its thread state.
  static void thread_ends() noexcept;

  // Whether other threads have recorded ops that are not sent.
  bool others_record(const ThreadState& own) const {
    return several_threads_ && std::ranges::any_of(thread_states_, [&](const auto& thread_state) {
             return thread_state.get() != &own && !thread_state->empty();
           });
  }
  // Sends other threads' recorded ops that the call depends on.
  [[gnu::cold, gnu::noinline]] Status send_before(std::unique_lock<FastMutex>& lock, const ThreadState& own,
                                                  const ir::OpDesc& op, const c10::IValue* args, bool* flushed);
  // Sends the other threads' traces that write the storage, or, with `writes`, all of them that use it.
  [[gnu::cold, gnu::noinline]] Status send_others_of(std::unique_lock<FastMutex>& lock, const ThreadState* own,
                                                     const RemoteStorage* storage, bool writes,
                                                     const FlushReason& flush_reason, bool* flushed);
  // Notes the storages that the last record writes, for other threads.
  [[gnu::cold, gnu::noinline]] void note_written(ThreadState& thread_state, const ir::OpDesc& op,
                                                 const c10::IValue* args) const;

  // On success `lock` holds mutex_ and there is a worker. The lock is released while a worker starts, so other threads
  // keep recording.
  Status connect_locked(std::unique_lock<FastMutex>& lock) const;
  // Sends a trace; see connect_locked. Never raises, because raising takes the GIL and must happen after the lock is
  // released. `line` is the user's line that forces the flush, if a profile is recorded and it is not the last
  // record's.
  Status flush_locked(std::unique_lock<FastMutex>& lock, ThreadState& thread_state, const FlushReason& flush_reason,
                      uint64_t* ticket = nullptr, const ir::SourceRef& line = {});
  // Sends the traces of all threads.
  Status flush_all_locked(std::unique_lock<FastMutex>& lock, const FlushReason& flush_reason,
                          const ir::SourceRef& line = {});
  // Assigns buffer ids to the storages that a run creates: consecutive ones from `base`, or kLost if it was not sent.
  void assign_buffer_ids(std::span<RemoteStorage* const> made, bool sent, uint64_t base) const;
  Status run_locked(ThreadState& thread_state, RunnableGraph& graph, std::span<const int64_t> params,
                    std::span<RemoteStorage* const> inputs, std::span<RemoteStorage* const> results);
  void log_flush(ThreadState& thread_state, const char* reason, const remote::FlushInfo& info,
                 const ir::SourceRef& line, uint64_t started, uint64_t first_record);
  // Called when the next record's pass differs from the last one's. Cuts if the trace is long enough.
  Status enter_pass(std::unique_lock<FastMutex>& lock, ThreadState& thread_state, Pass pass, bool* flushed);
  // The current setting of torch.use_deterministic_algorithms.
  static ir::MathModes determinism();
  // Called before an op that depends on math modes (TF32, deterministic cuDNN). Sends a trace that has such an op under
  // other modes.
  Status enter_math(std::unique_lock<FastMutex>& lock, ThreadState& thread_state, ir::MathModes math, bool* flushed);
  // Called if torch.use_deterministic_algorithms changed since the thread state's last record. Sends the records
  // before.
  [[gnu::cold, gnu::noinline]] Status enter_determinism(std::unique_lock<FastMutex>& lock, ThreadState& thread_state,
                                                        ir::MathModes determinism, bool* flushed);
  // Makes `storage` the owner of a buffer that the worker was asked to make.
  void set_buffer(RemoteStorage* storage, uint64_t id);
  // Waits, interruptibly, while the worker is far behind. Call it without the lock.
  void throttle();
  void forget_trace(ThreadState& thread_state);

  static const std::array<Recorder*, kMaxDevices> all_;

  const c10::DeviceIndex device_;
  FastMutex mutex_;
  TraceEncoderGroup encoders_;
  ir::CutPlans plans_;
  std::vector<std::unique_ptr<ThreadState>> thread_states_;  // never empty
  ThreadState* last_thread_state_;                           // the thread state that recorded last
  bool several_threads_ = false;                             // more than one thread has recorded
  std::vector<RemoteStorage*> survivors_;                    // scratch of flush_locked
  bool expect_no_compile_ = false;
  bool tracing_ = false;
  std::vector<TracedRun> traced_;
  ir::CutLimits limits_before_;  // limits outside of tracing
  std::optional<UnexpectedCompile> unexpected_compile_;
  std::atomic<uint64_t> records_{0};
  std::atomic<uint64_t> reset_at_{0};  // value of records_ at the last reset_counters()
};

// Relates one device's failures to another device's (direct_copy.h).
class FailureObserver {
 public:
  virtual ~FailureObserver() = default;
  // A wait for the device is about to raise `error`. May add to it, and may wait. Called with no lock held.
  virtual void raises(c10::DeviceIndex device, remote::OpError& error) = 0;
  // The device's pending ops are about to be dropped.
  virtual void cancels(c10::DeviceIndex device) noexcept = 0;
};
// Call it at start, or never.
void observe_failures(FailureObserver* observer);

// At exit: ends all workers. With `wait`, first waits for their pending ops and prints failures that were never raised.
void shutdown(bool wait);

}  // namespace torch_remote::frontend
