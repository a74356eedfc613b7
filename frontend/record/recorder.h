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

// A graph that runs without being recorded. `run` has it loaded when a worker does not have it yet.
struct RunnableGraph {
  std::shared_ptr<const ir::Graph> graph;
  std::vector<ir::SourceRef> sources;  // of its nodes
  remote::ProgramOptions options;
  // Guarded by the recorder.
  struct Loaded {
    remote::ProgramPtr program;
    uint32_t session = 0;
  };
  std::array<Loaded, 2> loaded;  // as ever, and for runs that must be deterministic
  std::vector<uint64_t> inputs;  // kept for its capacity
};

// What was sent while tracing: a trace, or a run of a graph with `trace`'s parameters and sources.
struct TracedRun {
  ir::Trace trace;
  std::vector<uint64_t> survivors;
  std::shared_ptr<const ir::Graph> graph;  // null: the trace
};

// The first miss under expect_no_compile.
struct UnexpectedCompile {
  std::string op;  // of the first record that differs; empty: only which tensors outlive the trace differs
  ir::SourceRef source;
  size_t record = 0;
  size_t records = 0;
  bool compiled_graph = false;  // torch.compile's, at its first run
};

// Records ops of one device, from any thread: one lock a device. Nothing in here needs or waits for the GIL while the
// lock is held. Each thread's ops are a trace of their own, in its program order, and cut where that alone says so: how
// threads take turns is chance, and not to be in keys. What one thread has recorded is sent when another one is about
// to record what must come behind it: so the traces that there are at any time may run in any order.
class Recorder {
 public:
  static Recorder& get(c10::DeviceIndex device) { return *all_[device < 0 ? 0 : device]; }

  // Appends one record to this thread's trace. `args` are the schema's arguments, in order; tensors on this device, or
  // numbers as 0-dim CPU tensors; anything else must have been refused before. `results` the new tensors (undefined
  // ones too) for the results that alias no argument, flattened; `list_lengths` the length of each list result. Cuts
  // and sends the trace if this is a place to cut.
  void record(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<at::Tensor> results,
              c10::ArrayRef<uint32_t> list_lengths, std::optional<RandomState> random);

  // Likewise for an op whose results only the run can tell; waits. Returns RunReply's words; `results` are storages
  // without sizes, which the caller then sets.
  std::vector<int64_t> record_and_wait(const ir::OpDesc& op, const c10::IValue* args,
                                       c10::ArrayRef<c10::Storage> results, std::optional<RandomState> random);

  // Sends what is recorded, then a run of a graph. `results` are new storages, for its fresh buffers that survive, in
  // their order. False if an input's contents were lost: then the graph has not run. With no lock and without the GIL.
  [[nodiscard]] bool run(RunnableGraph& graph, std::span<const int64_t> params, std::span<RemoteStorage* const> inputs,
                         std::span<RemoteStorage* const> results);

  // Sends what all threads have recorded, if anything. `reason` for the log: "item", "cpu", "synchronize", ... `waits`:
  // and then waits for it.
  void flush(const char* reason, bool waits = false);
  // Sends what this thread has recorded.
  void flush_own(const char* reason);
  // flush, then wait until the worker is done; raises what went wrong there.
  void synchronize();
  // flush, then ask about the worker's memory; raises nothing that went wrong with ops.
  remote::MemoryRoom memory(const remote::MemoryRequest& request);
  // Has the worker call a Python function with these tensors (remote::Client::call). Does not wait.
  std::array<uint64_t, 3> call(std::span<const std::byte> request, const std::vector<at::Tensor>& tensors);
  // Its result: the buffer `id`.
  void take_result(RemoteStorage* storage, uint64_t id) { give_buffer(storage, id); }
  // A file as the worker sees it. Waits.
  remote::FoundFile find_file(const std::string& path);

  // Has the worker drop what it has not done, and what is recorded. From any thread; does not wait for the worker.
  void cancel();
  // At exit: waits likewise, and prints on stderr what went wrong and nobody has seen. Raises nothing.
  void report_unseen() noexcept;

  // Copies a remote tensor's elements to `destination`, packed in row-major order; exactly numel * itemsize bytes
  // travel.
  void read(const at::Tensor& tensor, void* destination, const char* reason);
  // A new buffer for `storage`, which must have none, with the bytes that `fill` writes.
  void upload(RemoteStorage* storage, size_t nbytes, const std::function<void(std::byte*)>& fill);
  // The same of bytes of a file that the worker reads.
  void read_file(RemoteStorage* storage, size_t nbytes, const std::string& path, const remote::FileVersion& version,
                 uint64_t offset);

  // Exchanges the buffers of two storages (one that was resized, or is overwritten whole, takes a new one's).
  void move_buffer(RemoteStorage* from, RemoteStorage* to);
  // True if something has been or will be written to the storage.
  bool has_buffer(const RemoteStorage* storage);

  // Called by a storage that goes away, from any thread, with or without the GIL.
  void storage_died(RemoteStorage* storage) noexcept;

  uint64_t ops_recorded() const {
    return records_.load(std::memory_order_relaxed) - reset_at_.load(std::memory_order_relaxed);
  }
  void reset_counters() { reset_at_.store(records_.load(std::memory_order_relaxed), std::memory_order_relaxed); }
  // remote::Event::first_record of what is no trace: a compiled graph's run. Of numbers: there are none.
  static constexpr uint64_t kNoRecords = ~uint64_t{0};
  // The numbers of this thread's records (remote::Event::first_record), which are consecutive: its first one's and the
  // next one's.
  struct Numbers {
    uint64_t first = kNoRecords, next = kNoRecords;
  };
  Numbers numbers();

  // Tensors of a worker that is gone have no bytes any more: forget what is recorded and start again.
  void restart();
  // Whether the contents of a tensor that had some went with a worker.
  bool is_lost(const RemoteStorage* storage);

  // For torch.remote.profile, which tells when a trace begins from now on.
  void profile_starts();
  // Sends what is recorded, at this line of the user's; raises nothing.
  void profile_ends(const ir::SourceRef& line);

  void set_limits(const ir::CutLimits& limits);
  bool is_tracing();
  // Keeps what is sent from now on, and cuts nowhere but where the code waits. Both flush. Without the GIL.
  void start_tracing();
  std::vector<TracedRun> stop_tracing();
  // Notes the first miss from now on.
  void expect_no_compile(bool expect);
  // What was noted: where the trace that missed differs from what is known. Empty if nothing missed.
  std::string take_unexpected_compile();

  c10::DeviceIndex device() const { return device_; }

 private:
  // kUnknown, which is another one than any record's, makes the next record call enter_pass: so a profile learns when a
  // trace begins, at no cost for other records.
  enum class Pass : uint8_t { kForward, kBackward, kUnknown };

  // Why a trace is sent: for the log, and for where such a trace is cut the next time.
  struct Cause {
    const char* name;
    bool waits = false;    // the user's code waits for it
    bool planned = false;  // more of the same stretch comes
  };

  // What one thread records.
  struct Lane {
    Lane(TraceEncoders& encoders, ir::CutPlans& plans, uint64_t number)
        : encoder(encoders), cuts(plans), first(number << 40), sent(first) {}

    uint64_t thread = 0;  // whose it is; 0: nobody's, as that thread has ended
    TraceEncoder encoder;
    ir::Cuts cuts;
    Pass pass = Pass::kForward;       // the last record's, or kUnknown
    Pass last_pass = Pass::kForward;  // the last record's
    uint64_t trace_began = 0;         // ns, for a profile; 0: not known
    uint32_t trace_thread = 0;        // that recorded the first op, as profiles number them
    ir::MathModes math = 0;           // the last product's, convolution's or attention's
    bool math_in_trace = false;       // and that is still to be sent
    ir::MathModes determinism = 0;    // kDeterministic and kMayDiffer, of all records of the trace
    uint64_t first;                   // the number of the thread's first record
    uint64_t sent;                    // and of the trace's: so many are sent or dropped

    bool empty() const { return encoder.trace().empty(); }
  };

  explicit Recorder(c10::DeviceIndex device);

  // Not 0, and another one for each thread that there is.
  static uint64_t this_thread() noexcept { return static_cast<uint64_t>(pthread_self()); }
  // This thread's. The lock is given back meanwhile if this is the second thread and there is no worker yet. Where
  // *status is not good, the lane is not to be used.
  Lane& lane(std::unique_lock<FastMutex>& lock, Status* status) {
    if (lane_->thread == this_thread()) [[likely]]
      return *lane_;
    return find_lane(lock, status);
  }
  [[gnu::cold, gnu::noinline]] Lane& find_lane(std::unique_lock<FastMutex>& lock, Status* status);
  // This thread's, or null.
  Lane* existing_lane() const;
  // The thread ends: whoever sends what next sends its trace, too, and a new thread takes its lane.
  static void thread_ends() noexcept;

  // Whether other threads have recorded what is not sent.
  bool others_record(const Lane& own) const {
    return several_threads_ &&
           std::ranges::any_of(lanes_, [&](const auto& lane) { return lane.get() != &own && !lane->empty(); });
  }
  // Sends what other threads have recorded that a call must come behind.
  [[gnu::cold, gnu::noinline]] Status send_before(std::unique_lock<FastMutex>& lock, const Lane& own,
                                                  const ir::OpDesc& op, const c10::IValue* args, bool* flushed);
  // Sends the others' traces that the storage is in: those that write it, and if it is to be written (`writes`) all.
  [[gnu::cold, gnu::noinline]] Status send_others_of(std::unique_lock<FastMutex>& lock, const Lane* own,
                                                     const RemoteStorage* storage, bool writes, const Cause& cause,
                                                     bool* flushed);
  // Notes what the last record writes, for who looks at it from other threads.
  [[gnu::cold, gnu::noinline]] void note_written(Lane& lane, const ir::OpDesc& op, const c10::IValue* args) const;

  // `lock` holds mutex_ and the worker is there, or the status says why not. While a worker is being started the lock
  // is free: other threads go on recording.
  Status connect_locked(std::unique_lock<FastMutex>& lock) const;
  // Sends a trace; see connect_locked. Never raises: what went wrong must not be raised before the lock is given back
  // (that takes the GIL). `line`: where the user's code makes it necessary, if a profile is recorded and it is not the
  // last record's.
  Status flush_locked(std::unique_lock<FastMutex>& lock, Lane& lane, const Cause& cause, uint64_t* ticket = nullptr,
                      const ir::SourceRef& line = {});
  // All traces.
  Status flush_all_locked(std::unique_lock<FastMutex>& lock, const Cause& cause, const ir::SourceRef& line = {});
  // To what a run makes: consecutive ones from `base`, or none if it was not sent.
  void give_ids(std::span<RemoteStorage* const> made, bool sent, uint64_t base) const;
  Status run_locked(Lane& lane, RunnableGraph& graph, std::span<const int64_t> params,
                    std::span<RemoteStorage* const> inputs, std::span<RemoteStorage* const> results);
  void log_flush(Lane& lane, const char* reason, const remote::FlushInfo& info, const ir::SourceRef& line,
                 uint64_t started, uint64_t first_record);
  // A record of another pass than the last one comes. Cuts if this is a good place.
  Status enter_pass(std::unique_lock<FastMutex>& lock, Lane& lane, Pass pass, bool* flushed);
  // torch.use_deterministic_algorithms, as it is now.
  static ir::MathModes determinism();
  // A product or convolution comes, of which the user has said this. Sends what has one under other modes.
  Status enter_math(std::unique_lock<FastMutex>& lock, Lane& lane, ir::MathModes math, bool* flushed);
  // torch.use_deterministic_algorithms was called since the lane's last record. Sends what came before.
  [[gnu::cold, gnu::noinline]] Status enter_determinism(std::unique_lock<FastMutex>& lock, Lane& lane,
                                                        ir::MathModes determinism, bool* flushed);
  // A storage whose buffer was asked for.
  void give_buffer(RemoteStorage* storage, uint64_t id);
  // Waits, interruptibly, while the worker is far behind. Without the lock.
  void throttle();
  void forget_trace(Lane& lane);

  static const std::array<Recorder*, kMaxDevices> all_;

  const c10::DeviceIndex device_;
  FastMutex mutex_;
  TraceEncoders encoders_;
  ir::CutPlans plans_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // the first is there from the beginning
  Lane* lane_;                                // the one that recorded last
  bool several_threads_ = false;              // have ever recorded
  std::vector<RemoteStorage*> survivors_;     // scratch of flush_locked
  bool expect_no_compile_ = false;
  bool tracing_ = false;
  std::vector<TracedRun> traced_;
  ir::CutLimits limits_before_;  // tracing
  std::optional<UnexpectedCompile> unexpected_compile_;
  std::atomic<uint64_t> records_{0};
  std::atomic<uint64_t> reset_at_{0};  // records_, when ops_recorded() was set to 0
};

// Who knows what one device's failures have to do with another one's (direct_copy.h).
class FailureObserver {
 public:
  virtual ~FailureObserver() = default;
  // A wait for the device is about to raise this. May add to it, and wait. With no lock held.
  virtual void raises(c10::DeviceIndex device, remote::OpError& error) = 0;
  // What the device has not done is dropped.
  virtual void cancels(c10::DeviceIndex device) noexcept = 0;
};
// At start, or never.
void observe_failures(FailureObserver* observer);

// At exit: ends all workers, and prints the failures that nobody has seen. `wait`: for what they still have to do.
void shutdown(bool wait);

}  // namespace torch_remote::frontend
