#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/math_modes.h"
#include "ir/status.h"
#include "ir/trace.h"
#include "remote/client/checkpoint.h"
#include "remote/client/connection_status.h"
#include "remote/client/device_events.h"
#include "remote/client/remote_files.h"
#include "remote/client/remote_functions.h"
#include "remote/client/shadow.h"
#include "remote/client/types.h"
#include "remote/client/worker_memory.h"
#include "remote/client/worker_profile.h"
#include "remote/transport/transport.h"

// The client's end of a connection. It finds or builds the program of a trace, sends runs, uploads and reads, and
// matches replies.
namespace torch_remote::remote {

class BufferReader;
class Channel;

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

// A result of a run that wants a reply: the sizes of a dynamic tensor, or one word for a host result.
using ResultWords = std::vector<int64_t>;

// Thread safe. Messages are sent in the order of the calls, those of the client's parts included. A call waits for the
// worker only if its comment says so, or while too many messages are in flight (back-pressure).
class Client {
 public:
  // Sends the client hello over `transport` and checks the version and the op table. Waits for the reply for at most
  // two minutes, and stops when `keep_waiting`, if not empty, returns false. Starts no thread; the builder's thread
  // starts at the first miss.
  static Status connect(std::unique_ptr<Transport> transport, BuildFunction build, const KeepWaiting& keep_waiting,
                        std::unique_ptr<Client>* client);
  ~Client();

  // The parts of the client, which live as long as it does.
  DeviceEvents& events() { return events_; }
  RemoteFiles& files() { return files_; }
  RemoteFunctions& functions() { return functions_; }
  Checkpoint& checkpoint() { return checkpoint_; }
  Shadow& shadow() { return shadow_; }
  ConnectionStatus& connection() { return connection_; }
  const ConnectionStatus& connection() const { return connection_; }

  // Sends the trace for execution and clears it. The fresh buffers that survive get consecutive ids from
  // *first_result_id on, in the order of their ordinals; *first_result_id is also set if there are none. A hit
  // allocates no memory. The trace's storages must not die during the call. Waits only while too many messages are in
  // flight. Pass `ticket` if the trace's last record has dynamic or host results. The run then wants a reply, and the
  // ticket must be passed to wait_results once.
  Status flush(ir::Trace& trace, uint64_t* first_result_id, FlushInfo* info, uint64_t* ticket = nullptr);

  // Builds a program for run() from a graph and sends it, on the builder's thread. `sources` has one entry for each
  // record that the nodes name. `sample` has typical parameters of a run. The graph must verify.
  Status load(std::shared_ptr<const ir::Graph> graph, std::vector<ir::SourceRef> sources,
              std::span<const int64_t> sample, const ProgramOptions& options, ProgramPtr* program);
  // Sets how many bytes programs may take on the worker; kMaxProgramBytes by default. Beyond that, the least recently
  // used programs of traces are dropped, here and on the worker, and built again when needed. Loaded programs are
  // dropped when nobody references them any more.
  void limit_programs(uint64_t bytes);
  // Sends a run of a loaded program; `first_result_id` and `ticket` as in flush. Fails with the build's error if the
  // program could not be built.
  Status run(const ProgramPtr& program, const RunArguments& arguments, uint64_t* first_result_id, FlushInfo* info,
             uint64_t* ticket = nullptr);
  // Waits for the results of a run that wanted a reply. Must be called without the recorder's lock.
  Status wait_results(uint64_t ticket, ResultWords* result_words, const KeepWaiting& keep_waiting, OpError* error);

  // Creates a buffer of `size` bytes, which `fill` writes once. Sets *id.
  Status upload(size_t size, const std::function<void(std::byte* destination)>& fill, uint64_t* id);

  // Reads a strided view of a buffer, packed. Waits. `take` sees the bytes once, in place. `error` reports a failure
  // that the buffer's contents depend on.
  Status read(uint64_t buffer, uint32_t item_size, std::span<const int64_t> sizes, std::span<const int64_t> strides,
              int64_t offset, const std::function<void(std::span<const std::byte>)>& take,
              const KeepWaiting& keep_waiting, OpError* error);

  // Frees a buffer; the id is sent with the next message. Never blocks for long and never throws, because destructors
  // call it.
  void free(uint64_t id);

  // Waits until everything is done. `error` reports all failures that no earlier wait reported.
  Status synchronize(const KeepWaiting& keep_waiting, OpError* error);

  // Sends a request to the worker's allocator and returns the memory available after it; ConnectionStatus::memory_use
  // is updated as well. Waits. Unreported failures remain for the next synchronize.
  Status memory(const MemoryRequest& request, const KeepWaiting& keep_waiting, MemoryLimits* limits);

  // Cancels messages that were sent but are not done. Buffers that they would have created are poisoned; buffers that
  // they would have written keep their contents. Does not wait.
  Status cancel();

  // Waits while the worker is far behind. Unlike other back-pressure, this wait can be interrupted. Call it after
  // flushes and uploads, with no lock held.
  Status throttle(const KeepWaiting& keep_waiting);

  // Asks whether the worker can execute the op of this name ("mylib::scale.out"). Waits.
  Status has_op(std::string_view name, const KeepWaiting& keep_waiting, bool* has, OpError* error);

  // Makes the worker record what it executes, or stop recording; kReadClock only reads the worker's clock. Waits.
  // `limit` is the maximum number of events to record. A failed kStop returns what the worker had sent before.
  Status profile(ProfileCommand command, uint64_t limit, const KeepWaiting& keep_waiting, WorkerProfile* profile);

  // Makes the waits of other threads, and all later calls, return kLost. The destructor still closes the session.
  void end_waits();
  // For a forked child: forgets everything without touching the connection, and no destructor runs.
  void abandon();

 private:
  explicit Client(std::unique_ptr<Channel> channel);

  // The following require Channel::order.
  // Before a program is added: drops programs beyond the limit, here and on the worker.
  Status drop_programs();
  // Encodes a Run message with inputs_ and the pending frees.
  std::span<const uint8_t> encode_run(CachedProgram& program, std::span<const int64_t> now, uint64_t first_result_id,
                                      ir::MathModes math_modes);

  const std::unique_ptr<Channel> channel_;
  const std::unique_ptr<BufferReader> reader_;
  DeviceEvents events_;
  RemoteFiles files_;
  RemoteFunctions functions_;
  Checkpoint checkpoint_;
  Shadow shadow_;
  ConnectionStatus connection_;

  // Guarded by Channel::order.
  uint64_t uses_ = 0;  // number of uses of programs so far: the clock of CachedProgram::last_use
  uint64_t most_program_bytes_ = kMaxProgramBytes;
  // reused for their capacity
  std::vector<uint64_t> survivors_, inputs_, consumed_, made_;
  std::vector<uint8_t> params_, bindings_;
};

}  // namespace torch_remote::remote
