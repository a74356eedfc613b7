#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulated_gpu/emulated_driver.h"
#include "tests/emulated_gpu/emulator/emulator.h"
#include "worker/targets/cuda/device/driver.h"

// The state behind the functions of the emulated driver. Machine::mutex guards all of it, except for what work items
// change while they run.
namespace torch_remote::worker::cuda::emulated {

namespace emulator = codegen::emulator;

// Objects by handle. A handle is a unique number that is never reused, and is not an address.
template <typename Handle, typename T>
class Handles {
 public:
  Handle add(std::shared_ptr<T> object) {
    static std::atomic<uint64_t> next{1};
    const uint64_t number = next++ << 3 | uint64_t{0xC0DA} << 48;
    objects_[number] = std::move(object);
    return reinterpret_cast<Handle>(number);  // NOLINT(performance-no-int-to-ptr): as the driver's handles are
  }
  std::shared_ptr<T> find(Handle handle) const {
    const auto found = objects_.find(reinterpret_cast<uint64_t>(handle));
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<T> take(Handle handle) {
    auto node = objects_.extract(reinterpret_cast<uint64_t>(handle));
    return node ? node.mapped() : nullptr;
  }
  const std::map<uint64_t, std::shared_ptr<T>>& all() const { return objects_; }

 private:
  std::map<uint64_t, std::shared_ptr<T>> objects_;
};

// Counts down, and returns true once, when it reaches the last one. 0 means that it does not count.
inline bool count_down(uint64_t& left) { return left != 0 && left-- == 1; }

struct Gpu {
  int ordinal = 0;
  uint64_t tag = 0;
  std::unique_ptr<emulator::Device> device;
  Context context = nullptr;  // the current primary context; null: not retained
  uint64_t retained = 0;
  Result error = Result::kSuccess;  // once set, every later call returns it
  size_t used = 0;
  std::set<int> peers;                 // ordinals of devices whose memory it may access
  uint64_t fail_after_operations = 0;  // number of operations; 0: never
};

// A position in a stream's queue.
struct StreamPosition {
  bool done = false;
  std::chrono::steady_clock::time_point time;
};
using StreamPositionPtr = std::shared_ptr<StreamPosition>;

struct LoadedModule {
  Gpu* gpu = nullptr;
  std::unique_ptr<emulator::Module> module;
  std::vector<Function> functions;
};

struct LoadedFunction {
  std::shared_ptr<LoadedModule> module;
  std::string name;
  emulator::KernelAttributes attributes;
  int most_dynamic_shared = 48 << 10;
};

struct KernelCall {
  std::shared_ptr<LoadedFunction> function;
  Function handle = nullptr;
  emulator::Dim3 grid, block;
  unsigned shared_bytes = 0;
  std::vector<std::vector<std::byte>> arguments;
  std::vector<void*> pointers;  // pointers to `arguments`, for callers that query the parameters
};

// One operation of a stream or a graph.
struct GpuOperation {
  NodeType type = NodeType::kEmpty;
  std::function<Result()> run;  // unused for kernels
  std::shared_ptr<KernelCall> kernel;
};

struct Work {
  std::function<Result()> run;       // null: only the two positions matter
  StreamPositionPtr waits, reaches;  // both may be null
};

struct Node {
  GpuOperation operation;
  std::vector<const Node*> after;
};

struct GraphState {
  Gpu* gpu = nullptr;
  std::vector<std::unique_ptr<Node>> nodes;  // in topological order
  std::map<const Node*, GraphNode> handles;
};

struct NodeState {
  std::shared_ptr<GraphState> graph;
  const Node* node = nullptr;
};

struct ExecState {
  std::shared_ptr<GraphState> graph;     // the graph as instantiated
  std::vector<GpuOperation> operations;  // the current contents of its nodes
  StreamPositionPtr last;                // completion of the last launch; launches do not overlap
};

struct StreamState;

struct Capture {
  std::shared_ptr<GraphState> graph = std::make_shared<GraphState>();
  StreamState* origin = nullptr;
  std::vector<StreamState*> streams;
  CaptureMode mode = CaptureMode::kGlobal;
  std::thread::id thread;
  bool invalid = false;
};

struct StreamState {
  Gpu* gpu = nullptr;
  std::minstd_rand random;
  std::deque<Work> queue;
  bool busy = false, closing = false;
  std::shared_ptr<Capture> capture;
  std::vector<const Node*> tail;         // nodes of the capture that the next one depends on
  std::vector<GraphNode> returned_tail;  // handles of `tail`, as returned by the last query
  std::thread thread;

  bool idle() const { return queue.empty() && !busy; }
};

struct EventState {
  Gpu* gpu = nullptr;
  unsigned flags = 0;
  StreamPositionPtr position;  // null: never recorded
  std::shared_ptr<Capture> capture;
  std::vector<const Node*> tail;
};

struct PoolState {
  Gpu* gpu = nullptr;
  uint64_t threshold = 0;
  uint64_t used = 0;
};

// Memory of cuMemAlloc is a file that other processes can map. Its last page counts the processes that have it open.
struct SharedFile {
  int descriptor = -1;
  uint64_t inode = 0;
  std::atomic<uint64_t>* open_count = nullptr;

  // `make` creates a file of `bytes` and the counter page; `open` opens one of another process. Null: errno has the
  // reason.
  static std::shared_ptr<SharedFile> make(size_t bytes);
  static std::shared_ptr<SharedFile> open(const char* path, size_t bytes);
  ~SharedFile();
};

struct Allocation {
  Gpu* gpu = nullptr;
  size_t bytes = 0;
  std::shared_ptr<PoolState> pool;  // null: allocated with cuMemAlloc
  bool freeing = false;
  std::shared_ptr<SharedFile> file = nullptr;  // of cuMemAlloc, or of another process
  bool is_imported = false;                    // memory of another process
  uint64_t open_count = 0;                     // how often this process has opened it
};

struct Machine {
  explicit Machine(const Options& options);
  ~Machine();

  const Options options;
  const uint64_t generation;
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool initialized = false;
  std::vector<std::unique_ptr<Gpu>> gpus;
  Handles<Context, Gpu> contexts;
  Handles<Stream, StreamState> streams;
  Handles<Event, EventState> events;
  Handles<MemoryPool, PoolState> pools;
  Handles<Module, LoadedModule> modules;
  Handles<Function, LoadedFunction> functions;
  Handles<Graph, GraphState> graphs;
  Handles<GraphNode, NodeState> nodes;
  Handles<GraphExec, ExecState> execs;
  std::map<DevicePointer, Allocation> allocations;
  std::map<const std::byte*, size_t> pinned, registered;      // sizes of host memory, by address
  std::vector<std::shared_ptr<StreamState>> closing_streams;  // destroyed streams whose threads are still ending
  std::vector<std::shared_ptr<Capture>> captures;             // captures in progress
  std::map<std::string, uint64_t> calls;
  std::vector<std::string> findings;
  uint64_t fail_allocation = 0, fail_launch = 0;  // countdowns; 0: off
  std::chrono::microseconds delay{0};
  uint64_t streams_made = 0;
  uint64_t launches = 0;

  void serve(StreamState& stream);  // main function of the stream's thread
  Result run_kernel(Gpu& gpu, const KernelCall& call);
  Result run_operation(Gpu& gpu, const GpuOperation& operation) {
    return operation.kernel ? run_kernel(gpu, *operation.kernel) : operation.run();
  }
  void enqueue(StreamState& stream, Work work);
  bool is_pinned(const void* address, size_t bytes) const;
  // The allocation that contains all of these bytes; null if there is none or it was freed.
  Allocation* find(DevicePointer address, size_t bytes);
  void release(DevicePointer address);
};

// One call of the driver; holds the mutex for its duration.
class Call {
 public:
  explicit Call(const char* name);

  // The check that every call makes first: the driver exists and is initialized.
  bool is_up() { return error == Result::kSuccess; }
  // Also requires a current context whose device has no error.
  bool ready();
  // These need `ready`. Null: `error` has the reason.
  StreamState* stream(Stream handle);
  EventState* event(Event handle);
  // Host address of device memory, by default of the current device. Null: `error` has the reason.
  void* memory(DevicePointer address, size_t bytes, const Gpu* of = nullptr);
  // False if the call would invalidate a capture in progress.
  bool may_synchronize();
  // Enqueues the operation, or records it if the stream is being captured.
  Result submit(StreamState& stream, GpuOperation operation);
  // Adds a finding if another thread than this one captures the stream: what this thread queues would be in its graph.
  void check_thread(const StreamState& stream);
  // Invalidates the capture, because the operation is not allowed while a stream is captured.
  Result refuse(Capture& capture);
  // Waits for a condition. Calls of other threads proceed meanwhile.
  template <typename F>
  void wait(F&& until) {
    machine->changed.wait(lock, std::forward<F>(until));
  }
  Result after_wait() const { return gpu->error; }

  Machine* machine = nullptr;
  Gpu* gpu = nullptr;  // of the current context
  Result error = Result::kSuccess;
  std::unique_lock<std::mutex> lock;
};

// The calling thread's stack of contexts; the last one is current.
std::vector<Context>& context_stack(const Machine& machine);

// Set while the calling thread executes a host function, which must not call the driver.
bool& in_host_function();

GraphNode handle_of(Call& call, const std::shared_ptr<GraphState>& graph, const Node* node);

// Copies the arguments of a kernel. The memory that `given` points to may be freed afterwards.
Result make_kernel_call(Call& call, const KernelNodeParameters& given, std::shared_ptr<KernelCall>* made);

Driver make_table();
void add_device_functions(Driver& driver);
void add_memory_functions(Driver& driver);
void add_shared_memory_functions(Driver& driver);
// For an allocation of this process that is being freed: whether no other process has it open.
bool has_no_other_user(const Allocation& allocation);
void add_stream_functions(Driver& driver);
void add_module_functions(Driver& driver);
void add_graph_functions(Driver& driver);

}  // namespace torch_remote::worker::cuda::emulated
