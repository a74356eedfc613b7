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

// What the functions of the emulated driver work on. All of it is guarded by Machine::mutex, but for what work does
// while it is done.
namespace torch_remote::worker::cuda::emulated {

namespace emulator = codegen::emulator;

// Objects by handle. A handle is a number that is never given twice, and no address.
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

// Counts down; true once, when nothing is left. 0: does not count.
inline bool runs_out(uint64_t& left) { return left != 0 && left-- == 1; }

struct Gpu {
  int ordinal = 0;
  uint64_t tag = 0;
  std::unique_ptr<emulator::Device> device;
  Context context = nullptr;  // of now; null: nobody retains it
  uint64_t retained = 0;
  Result error = Result::kSuccess;  // after which nothing works
  size_t used = 0;
  std::set<int> peers;      // whose memory it may access
  uint64_t lost_after = 0;  // pieces of work; 0: never
};

// Where a stream has come to.
struct Point {
  bool done = false;
  std::chrono::steady_clock::time_point time;
};
using PointPtr = std::shared_ptr<Point>;

struct LoadedModule {
  Gpu* gpu = nullptr;
  std::unique_ptr<emulator::Module> module;
  std::vector<Function> functions;
};

struct LoadedFunction {
  std::shared_ptr<LoadedModule> module;
  std::string name;
  emulator::KernelFacts facts;
  int most_dynamic_shared = 48 << 10;
};

struct KernelCall {
  std::shared_ptr<LoadedFunction> function;
  Function handle = nullptr;
  emulator::Dim3 grid, block;
  unsigned shared_bytes = 0;
  std::vector<std::vector<std::byte>> arguments;
  std::vector<void*> pointers;  // to these, for who asks
};

// What a stream or a graph does.
struct Item {
  NodeType type = NodeType::kEmpty;
  std::function<Result()> run;  // not of a kernel
  std::shared_ptr<KernelCall> kernel;
};

struct Work {
  std::function<Result()> run;  // null: only its points matter
  PointPtr waits, reaches;      // may be null
};

struct Node {
  Item item;
  std::vector<const Node*> after;
};

struct GraphState {
  Gpu* gpu = nullptr;
  std::vector<std::unique_ptr<Node>> nodes;  // each after those that it depends on
  std::map<const Node*, GraphNode> handles;
};

struct NodeState {
  std::shared_ptr<GraphState> graph;
  const Node* node = nullptr;
};

struct ExecState {
  std::shared_ptr<GraphState> graph;  // as it was instantiated
  std::vector<Item> items;            // of its nodes, as they are now
  PointPtr last;                      // launches are done one after the other
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
  std::vector<const Node*> tail;  // of the capture: what comes next depends on these
  std::vector<GraphNode> told;    // these, for who asked last
  std::thread thread;

  bool idle() const { return queue.empty() && !busy; }
};

struct EventState {
  Gpu* gpu = nullptr;
  unsigned flags = 0;
  PointPtr point;  // null: never recorded
  std::shared_ptr<Capture> capture;
  std::vector<const Node*> tail;
};

struct PoolState {
  Gpu* gpu = nullptr;
  uint64_t threshold = 0;
  uint64_t used = 0;
};

// Memory of cuMemAlloc is a file, which other processes can map. Its last page counts who has.
struct SharedFile {
  int descriptor = -1;
  uint64_t inode = 0;
  std::atomic<uint64_t>* opened = nullptr;

  // A new one (`bytes` and that page), or one of another process. Null: errno says why.
  static std::shared_ptr<SharedFile> make(size_t bytes);
  static std::shared_ptr<SharedFile> open(const char* path, size_t bytes);
  ~SharedFile();
};

struct Allocation {
  Gpu* gpu = nullptr;
  size_t bytes = 0;
  std::shared_ptr<PoolState> pool;  // null: of cuMemAlloc
  bool freeing = false;
  std::shared_ptr<SharedFile> file = nullptr;  // of cuMemAlloc, or of another process
  bool is_others = false;                      // of another process
  uint64_t opened = 0;                         // so often
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
  std::map<const std::byte*, size_t> pinned;
  std::vector<std::shared_ptr<StreamState>> closed;  // streams whose threads end by themselves
  std::vector<std::shared_ptr<Capture>> captures;    // that go on
  std::map<std::string, uint64_t> calls;
  std::vector<std::string> findings;
  uint64_t fail_allocation = 0, fail_launch = 0;  // so many more; 0: none
  std::chrono::microseconds delay{0};
  uint64_t streams_made = 0;
  uint64_t launches = 0;

  void serve(StreamState& stream);  // its thread
  Result run_kernel(Gpu& gpu, const KernelCall& call);
  Result run_item(Gpu& gpu, const Item& item) { return item.kernel ? run_kernel(gpu, *item.kernel) : item.run(); }
  void enqueue(StreamState& stream, Work work);
  bool is_pinned(const void* address, size_t bytes) const;
  // The allocation that has all of these bytes and that nobody has freed.
  Allocation* find(DevicePointer address, size_t bytes);
  void release(DevicePointer address);
};

// A call of the driver, while it is done.
class Call {
 public:
  explicit Call(const char* name);

  // What every call finds out first: the driver is there and initialised.
  bool is_up() { return error == Result::kSuccess; }
  // And a context is current, whose device works.
  bool ready();
  // These need `ready`. Null: `error` says why.
  StreamState* stream(Stream handle);
  EventState* event(Event handle);
  // Device memory; of the current device unless told otherwise. Null: `error`.
  void* memory(DevicePointer address, size_t bytes, const Gpu* of = nullptr);
  // Whether nothing is captured that this call would end.
  bool is_safe();
  // Has the stream do it, or its capture remember it.
  Result submit(StreamState& stream, Item item);
  // What may not be done with a stream that is captured ends the capture.
  Result refuse(Capture& capture);
  // Until it says so. (Calls of others go on.)
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

// The calling thread's contexts; the last one is current.
std::vector<Context>& context_stack(const Machine& machine);

// Set while the calling thread does a host function: it may not call the driver.
bool& in_host_function();

GraphNode handle_of(Call& call, const std::shared_ptr<GraphState>& graph, const Node* node);

// Takes what a kernel is called with; what `given` points to may go then.
Result make_kernel_call(Call& call, const KernelNodeParameters& given, std::shared_ptr<KernelCall>* made);

Driver make_table();
void add_device_functions(Driver& driver);
void add_memory_functions(Driver& driver);
void add_shared_memory_functions(Driver& driver);
// What the exporting process holds of an allocation that is freed. False: another one has it open.
bool is_closed_elsewhere(const Allocation& allocation);
void add_stream_functions(Driver& driver);
void add_module_functions(Driver& driver);
void add_graph_functions(Driver& driver);

}  // namespace torch_remote::worker::cuda::emulated
