#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/math_modes.h"
#include "ir/status.h"
#include "ir/trace.h"
#include "remote/client/types.h"
#include "remote/client/worker_memory.h"
#include "remote/client/worker_profile.h"
#include "remote/transport/transport.h"

// The client's end: finds or builds the program of a trace, sends runs, uploads and reads, and matches replies.
namespace torch_remote::remote {

struct Counters {
  uint64_t flushes = 0;
  uint64_t programs_built = 0;
  uint64_t program_hits = 0;
  uint64_t programs_dropped = 0;  // by this client and its worker, as there were too many
  uint64_t programs_kept = 0;
  uint64_t kernels_compiled = 0;
  uint64_t groups_refused = 0;       // of programs, that no kernel of the worker does
  uint64_t round_trips = 0;          // waits for an answer
  uint64_t connections = 0;          // waits for a worker's greeting
  uint64_t back_pressure_waits = 0;  // waits until less is on its way
  uint64_t bytes_sent = 0;           // control
  uint64_t bytes_received = 0;       // control
  uint64_t bytes_uploaded = 0;
  uint64_t bytes_downloaded = 0;
  uint64_t worker_bytes = 0;
  uint64_t worker_peak_bytes = 0;

  // Of several clients: the sum.
  void add(const Counters& other);
};

// Each of them, under the name that users see it by. A level is what there is now; the others count events.
struct CounterField {
  const char* name;
  uint64_t Counters::* value;
  bool level = false;
};
inline constexpr CounterField kCounterFields[] = {
    {"flushes", &Counters::flushes},
    {"programs_built", &Counters::programs_built},
    {"program_hits", &Counters::program_hits},
    {"programs_dropped", &Counters::programs_dropped},
    {"programs_kept", &Counters::programs_kept, true},
    {"kernels_compiled", &Counters::kernels_compiled},
    {"groups_refused", &Counters::groups_refused},
    {"round_trips", &Counters::round_trips},
    {"connections", &Counters::connections},
    {"back_pressure_waits", &Counters::back_pressure_waits},
    {"bytes_sent", &Counters::bytes_sent},
    {"bytes_received", &Counters::bytes_received},
    {"bytes_uploaded", &Counters::bytes_uploaded},
    {"bytes_downloaded", &Counters::bytes_downloaded},
    {"worker_bytes", &Counters::worker_bytes, true},
    {"worker_peak_bytes", &Counters::worker_peak_bytes, true},
};
static_assert(std::size(kCounterFields) * sizeof(uint64_t) == sizeof(Counters), "a counter has no name");

struct FlushInfo {
  size_t ops = 0;
  bool hit = false;
  uint32_t program = 0;
  size_t bytes = 0;       // control bytes of the run message
  uint64_t sequence = 0;  // of the run message
  // On a miss: the first record that differs from the known program that agrees longest with this trace; == ops if a
  // known one only differs in which buffers outlive it; SIZE_MAX if there is no other program.
  size_t first_difference = 0;
};

// Of one run of such a program.
struct RunArguments {
  std::span<const int64_t> params;   // as many as the graph has
  std::span<const uint64_t> inputs;  // buffer ids, in the order of the graph's input buffers
  uint64_t made = 0;                 // how many fresh buffers survive
  ir::MathModes math = 0;
};

// A point of a session's work that its device has reached.
struct Mark {
  uint64_t reached = 0;  // ns on the device's clock, which begins anywhere
  bool failed = false;   // there are failures for synchronize() to tell
};

// A result of a run that wants a reply: sizes of a dynamic one, or one word for a host result.
using Words = std::vector<int64_t>;

// Thread safe. Messages go out in the order of the calls; nothing here waits for the worker except read, synchronize,
// wait_results, and any call while too much is on its way (back-pressure).
class Client {
 public:
  // Says hello over `transport` and checks version and op table; waits for the answer as long as `keep_waiting` (if it
  // is not empty) says so, at most two minutes. Starts no thread; the builder's starts at the first miss.
  static Status connect(std::unique_ptr<Transport> transport, BuildFunction build, const KeepWaiting& keep_waiting,
                        std::unique_ptr<Client>* client);
  virtual ~Client() = default;

  // Sends the trace for execution and clears it; the fresh surviving buffers' ids (consecutive, in order of their
  // ordinals) start at *base (set also when there are none). A hit costs no allocation. The trace's storages must not
  // die during the call. Does not wait for the worker but for credits. `ticket`: not null for a trace whose last record
  // has dynamic or host results; the run then wants a reply, and the ticket must be passed to wait_results once.
  virtual Status flush(ir::Trace& trace, uint64_t* base, FlushInfo* info, uint64_t* ticket = nullptr) = 0;

  // Has a graph built and sent, off this thread: a program for `run`. `sources` has one for each record that the nodes
  // name; `sample` has the parameters of a run as most will be. The graph must verify.
  virtual Status load(std::shared_ptr<const ir::Graph> graph, std::vector<ir::SourceRef> sources,
                      std::span<const int64_t> sample, const ProgramOptions& options, ProgramPtr* program) = 0;
  // What programs may take on the worker: kMostProgramBytes until this says otherwise. Beyond that, those of traces
  // that were not used for longest are dropped, here and there, and are built again when they come back. Programs that
  // were loaded go when nobody has them any more.
  virtual void limit_programs(uint64_t bytes) = 0;
  // Sends a run of it; `base` and `ticket` as in flush. If it could not be built, says why.
  virtual Status run(const ProgramPtr& program, const RunArguments& arguments, uint64_t* base, FlushInfo* info,
                     uint64_t* ticket = nullptr) = 0;
  // Waits for the results of a run that wanted a reply. Called without the recorder's lock.
  virtual Status wait_results(uint64_t ticket, Words* words, const KeepWaiting& keep_waiting, OpError* error) = 0;

  // A new buffer of `size` bytes; `fill` writes them, once. Returns its id.
  virtual Status upload(size_t size, const std::function<void(std::byte* destination)>& fill, uint64_t* id) = 0;

  // Whether the worker may read a file that it sees. Waits.
  virtual Status find_file(std::string_view path, const KeepWaiting& keep_waiting, FoundFile* file) = 0;
  // A new buffer with bytes of such a file, which the worker reads. Returns its id.
  virtual Status read_file(std::string_view path, const FileVersion& version, uint64_t offset, uint64_t size,
                           uint64_t* id) = 0;

  // Has the worker call a Python function: `request` says which. Does not wait. `ticket`: to be given to wait_call
  // until it has ended, or to forget. Results will be the buffers from *base on, at most kMostResults.
  virtual Status call(std::span<const std::byte> request, const std::vector<CallInput>& inputs, uint64_t* ticket,
                      uint64_t* base) = 0;
  // An interrupted wait can be taken up again.
  virtual Status wait_call(uint64_t ticket, const KeepWaiting& keep_waiting, CallResult* result, OpError* error) = 0;
  // Interrupts a call, as Ctrl-C does, or ends its process. Does not wait.
  virtual Status end_call(uint64_t ticket, bool kill) = 0;
  // Nobody waits for it or wants its results, which are freed if they are there. The call itself goes on.
  virtual Status forget_call(uint64_t ticket, uint64_t base) = 0;

  // Reads a strided view of a buffer, packed. An error is of what the buffer's contents depend on. `take` sees the
  // bytes once, in place.
  virtual Status read(uint64_t buffer, uint32_t item_size, std::span<const int64_t> sizes,
                      std::span<const int64_t> strides, int64_t offset,
                      const std::function<void(std::span<const std::byte>)>& take, const KeepWaiting& keep_waiting,
                      OpError* error) = 0;

  // The id goes out with the next message. Never blocks for long, never throws: called from destructors.
  virtual void free(uint64_t id) = 0;

  // Waits until everything is done. An error: all failures that no wait has told yet.
  virtual Status synchronize(const KeepWaiting& keep_waiting, OpError* error) = 0;

  // Has the worker do something with its memory, and asks for the room that there is then; memory_use() is of then,
  // too. Waits. Failures that were not told yet stay for the next synchronize.
  virtual Status memory(const MemoryRequest& request, const KeepWaiting& keep_waiting, MemoryRoom* room) = 0;

  // Has the worker drop what was sent and has not been done: what that would have made is poisoned, what it would have
  // written stays as it is. Does not wait.
  virtual Status cancel() = 0;

  // Waits while the worker is far behind: back-pressure that can be interrupted. Call it after flushes and uploads,
  // with no lock held.
  virtual Status throttle(const KeepWaiting& keep_waiting) = 0;

  // Marks this point: the worker tells when it gets there. Does not wait. `ticket`: to be given to wait_mark or forget
  // once.
  virtual Status mark(uint64_t* ticket) = 0;
  // Whether it got there, as far as is known; does not wait. Never raises what failed.
  virtual bool is_reached(uint64_t ticket) = 0;
  virtual Status wait_mark(uint64_t ticket, const KeepWaiting& keep_waiting, Mark* mark) = 0;
  // Whether everything that was sent is done, as far as is known; does not wait.
  virtual bool is_idle() = 0;
  // Nobody wants to know. Never throws.
  virtual void forget(uint64_t ticket) noexcept = 0;

  // Whether the worker can run the op of this name ("mylib::scale.out"). Waits.
  virtual Status has_op(std::string_view name, const KeepWaiting& keep_waiting, bool* known, OpError* error) = 0;

  // Has the worker record what it does, or stop that; Clock only says what time it is there. Waits. `limit`:
  // events that it may record. A Stop that fails gives what the worker had handed over.
  virtual Status profile(ProfileCommand command, uint64_t limit, const KeepWaiting& keep_waiting,
                         WorkerProfile* profile) = 0;

  virtual Counters counters() const = 0;
  virtual void reset_counters() = 0;
  // As of the worker's last message.
  virtual MemoryUse memory_use() const = 0;
  virtual MachineInfo machine() const = 0;
  // kLost once the worker is gone, with why.
  virtual Status health() const = 0;
  // For log lines and WorkerLost.
  virtual std::string description() const = 0;
  virtual uint64_t session() const = 0;
  virtual uint64_t last_acknowledged() const = 0;
  virtual uint64_t last_sent() const = 0;

  // Forked child: forget everything without touching the connection (no destructor of it runs).
  virtual void abandon() = 0;
};

}  // namespace torch_remote::remote
