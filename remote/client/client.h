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

// The client's end of a connection. It finds or builds the program of a trace, sends runs, uploads and reads, and
// matches replies.
namespace torch_remote::remote {

struct Counters {
  uint64_t flushes = 0;
  uint64_t programs_built = 0;
  uint64_t program_hits = 0;
  uint64_t programs_dropped = 0;  // by this client and on its worker, because of the limit on programs
  uint64_t programs_kept = 0;     // programs that the worker has now
  uint64_t kernels_compiled = 0;
  uint64_t groups_without_kernel = 0;  // fusion groups for which the worker has no kernel
  uint64_t round_trips = 0;            // waits for a reply
  uint64_t connections = 0;            // waits for a worker's hello
  uint64_t back_pressure_waits = 0;    // waits because too many messages are in flight
  uint64_t bytes_sent = 0;             // control bytes
  uint64_t bytes_received = 0;         // control bytes
  uint64_t bytes_uploaded = 0;
  uint64_t bytes_downloaded = 0;
  uint64_t worker_bytes = 0;  // in buffers on the worker, as of its last message
  uint64_t worker_peak_bytes = 0;

  // Adds another client's counters.
  void add(const Counters& other);
};

// A counter under the name that users see. A level is a current value; the others count events.
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
    {"groups_without_kernel", &Counters::groups_without_kernel},
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
  bool hit = false;  // the worker had a program of an equal trace
  uint32_t program = 0;
  size_t bytes = 0;       // control bytes of the run message
  uint64_t sequence = 0;  // of the run message
  // On a miss: index of the first record that differs from the known program with the longest common prefix. It equals
  // `ops` if a known program differs only in which buffers survive. It is SIZE_MAX if there is no other program.
  size_t first_difference = 0;
};

// Arguments of one run of a loaded program.
struct RunArguments {
  std::span<const int64_t> params;   // one for each parameter of the graph
  std::span<const uint64_t> inputs;  // buffer ids in the order of the graph's input buffers
  uint64_t fresh_buffers = 0;        // number of fresh buffers that survive
  ir::MathModes math_modes = 0;
};

// An event (Client::record_event) that the worker's device has reached.
struct RecordedEvent {
  uint64_t device_time_ns = 0;  // ns on the device's clock, whose origin is arbitrary
  bool failed = false;          // there are failures for synchronize() to report
};

// A result of a run that wants a reply: the sizes of a dynamic tensor, or one word for a host result.
using ResultWords = std::vector<int64_t>;

// Thread safe. Messages are sent in the order of the calls. A call waits for the worker only if its comment says so, or
// while too many messages are in flight (back-pressure).
class Client {
 public:
  // Sends the client hello over `transport` and checks the version and the op table. Waits for the reply for at most
  // two minutes, and stops when `keep_waiting`, if not empty, returns false. Starts no thread; the builder's thread
  // starts at the first miss.
  static Status connect(std::unique_ptr<Transport> transport, BuildFunction build, const KeepWaiting& keep_waiting,
                        std::unique_ptr<Client>* client);
  virtual ~Client() = default;

  // Sends the trace for execution and clears it. The fresh buffers that survive get consecutive ids from
  // *first_result_id on, in the order of their ordinals; *first_result_id is also set if there are none. A hit
  // allocates no memory. The trace's storages must not die during the call. Waits only while too many messages are in
  // flight. Pass `ticket` if the trace's last record has dynamic or host results. The run then wants a reply, and the
  // ticket must be passed to wait_results once.
  virtual Status flush(ir::Trace& trace, uint64_t* first_result_id, FlushInfo* info, uint64_t* ticket = nullptr) = 0;

  // Builds a program for run() from a graph and sends it, on the builder's thread. `sources` has one entry for each
  // record that the nodes name. `sample` has typical parameters of a run. The graph must verify.
  virtual Status load(std::shared_ptr<const ir::Graph> graph, std::vector<ir::SourceRef> sources,
                      std::span<const int64_t> sample, const ProgramOptions& options, ProgramPtr* program) = 0;
  // Sets how many bytes programs may take on the worker; kMaxProgramBytes by default. Beyond that, the least recently
  // used programs of traces are dropped, here and on the worker, and built again when needed. Loaded programs are
  // dropped when nobody references them any more.
  virtual void limit_programs(uint64_t bytes) = 0;
  // Sends a run of a loaded program; `first_result_id` and `ticket` as in flush. Fails with the build's error if the
  // program could not be built.
  virtual Status run(const ProgramPtr& program, const RunArguments& arguments, uint64_t* first_result_id,
                     FlushInfo* info, uint64_t* ticket = nullptr) = 0;
  // Waits for the results of a run that wanted a reply. Must be called without the recorder's lock.
  virtual Status wait_results(uint64_t ticket, ResultWords* result_words, const KeepWaiting& keep_waiting,
                              OpError* error) = 0;

  // Creates a buffer of `size` bytes, which `fill` writes once. Sets *id.
  virtual Status upload(size_t size, const std::function<void(std::byte* destination)>& fill, uint64_t* id) = 0;

  // Asks whether the worker finds a file at `path` and may read it. Waits.
  virtual Status find_file(std::string_view path, const KeepWaiting& keep_waiting, FoundFile* file) = 0;
  // Creates a buffer with bytes of such a file, which the worker reads. Sets *id.
  virtual Status read_file(std::string_view path, const FileVersion& version, uint64_t offset, uint64_t size,
                           uint64_t* id) = 0;

  // Makes the worker call a Python function, which `request` names. Does not wait. `ticket` must be passed to
  // wait_function until the call has ended, or to drop_function_results. The results become the buffers from
  // *first_result_id on, at most kMaxResults.
  virtual Status call_function(std::span<const std::byte> request, const std::vector<CallInput>& inputs,
                               uint64_t* ticket, uint64_t* first_result_id) = 0;
  // Waits for a call to end. After an interruption the wait can be repeated.
  virtual Status wait_function(uint64_t ticket, const KeepWaiting& keep_waiting, CallResult* result,
                               OpError* error) = 0;
  // Interrupts a call, as Ctrl-C does, or kills its process. Does not wait.
  virtual Status cancel_function(uint64_t ticket, bool kill) = 0;
  // Says that nobody waits for the call or wants its results, which are freed if they exist. The call itself continues.
  virtual Status drop_function_results(uint64_t ticket, uint64_t first_result_id) = 0;

  // Reads a strided view of a buffer, packed. Waits. `take` sees the bytes once, in place. `error` reports a failure
  // that the buffer's contents depend on.
  virtual Status read(uint64_t buffer, uint32_t item_size, std::span<const int64_t> sizes,
                      std::span<const int64_t> strides, int64_t offset,
                      const std::function<void(std::span<const std::byte>)>& take, const KeepWaiting& keep_waiting,
                      OpError* error) = 0;

  // Frees a buffer; the id is sent with the next message. Never blocks for long and never throws, because destructors
  // call it.
  virtual void free(uint64_t id) = 0;

  // Waits until everything is done. `error` reports all failures that no earlier wait reported.
  virtual Status synchronize(const KeepWaiting& keep_waiting, OpError* error) = 0;

  // Sends a request to the worker's allocator and returns the memory available after it; memory_use() is updated as
  // well. Waits. Unreported failures remain for the next synchronize.
  virtual Status memory(const MemoryRequest& request, const KeepWaiting& keep_waiting, MemoryLimits* limits) = 0;

  // Cancels messages that were sent but are not done. Buffers that they would have created are poisoned; buffers that
  // they would have written keep their contents. Does not wait.
  virtual Status cancel() = 0;

  // Waits while the worker is far behind. Unlike other back-pressure, this wait can be interrupted. Call it after
  // flushes and uploads, with no lock held.
  virtual Status throttle(const KeepWaiting& keep_waiting) = 0;

  // Records an event after the work that was sent so far; the worker reports when that is done. Does not wait. `ticket`
  // must be passed to wait_event or forget once.
  virtual Status record_event(uint64_t* ticket) = 0;
  // Whether the event was reached, as far as this end knows. Does not wait and never reports failures.
  virtual bool is_reached(uint64_t ticket) = 0;
  virtual Status wait_event(uint64_t ticket, const KeepWaiting& keep_waiting, RecordedEvent* event) = 0;
  // Whether everything that was sent is done, as far as this end knows. Does not wait.
  virtual bool is_idle() = 0;
  // Says that nobody will wait for this ticket. Never throws.
  virtual void forget(uint64_t ticket) noexcept = 0;

  // Asks whether the worker can execute the op of this name ("mylib::scale.out"). Waits.
  virtual Status has_op(std::string_view name, const KeepWaiting& keep_waiting, bool* has, OpError* error) = 0;

  // Makes the worker record what it executes, or stop recording; kClock only reads the worker's clock. Waits. `limit`
  // is the maximum number of events to record. A failed kStop returns what the worker had sent before.
  virtual Status profile(ProfileCommand command, uint64_t limit, const KeepWaiting& keep_waiting,
                         WorkerProfile* profile) = 0;

  virtual Counters counters() const = 0;
  virtual void reset_counters() = 0;
  // The worker's memory as of its last message.
  virtual MemoryUse memory_use() const = 0;
  virtual MachineInfo machine() const = 0;
  // Returns kLost and the reason once the worker is gone.
  virtual Status health() const = 0;
  // For log lines and the exception WorkerLost.
  virtual std::string description() const = 0;
  virtual uint64_t session() const = 0;
  virtual uint64_t last_acknowledged() const = 0;
  virtual uint64_t last_sent() const = 0;

  // For a forked child: forgets everything without touching the connection, and no destructor runs.
  virtual void abandon() = 0;
};

}  // namespace torch_remote::remote
