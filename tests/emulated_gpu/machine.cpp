#include "tests/emulated_gpu/machine.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace torch_remote::worker::cuda::emulated {
namespace {

std::atomic<Machine*> current{nullptr};
std::atomic<uint64_t> generations{0};

// Tag bits that no host address has, a different one for each device. So a kernel faults on an address of another
// device, too.
constexpr int kFirstTagBit = 56, kMostDevices = 6;

Result failure_of(const std::string& finding) {
  if (finding.find("runs too long") != std::string::npos) return Result::kLaunchTimeout;
  if (finding.find("misaligned") != std::string::npos) return Result::kMisalignedAddress;
  return Result::kLaunchFailed;
}

[[noreturn]] void fatal(const char* what) {
  std::fprintf(stderr, "emulated driver: %s\n", what);
  std::abort();
}

}  // namespace

Machine::Machine(const Options& given) : options(given), generation(++generations) {
  if (given.devices < 0 || given.devices > kMostDevices) fatal("there are 0 to 6 devices");
  for (int i = 0; i < given.devices; ++i) {
    auto gpu = std::make_unique<Gpu>();
    gpu->ordinal = i;
    gpu->tag = uint64_t{1} << (kFirstTagBit + i);
    // Twice the address range, so that freed addresses are reused as late as possible.
    gpu->device = std::make_unique<emulator::Device>(
        emulator::DeviceOptions{.capacity = 2 * given.memory, .tag = gpu->tag, .tracked = given.checked});
    gpus.push_back(std::move(gpu));
  }
  Machine* none = nullptr;
  if (!current.compare_exchange_strong(none, this)) fatal("there is another one already");
}

Machine::~Machine() {
  {
    const std::lock_guard lock(mutex);
    for (const auto& [handle, stream] : streams.all()) closing_streams.push_back(stream);
    for (const auto& stream : closing_streams) stream->closing = true;
  }
  changed.notify_all();
  for (const auto& stream : closing_streams) stream->thread.join();
  for (const auto& [address, bytes] : pinned) std::free(const_cast<std::byte*>(address));
  current = nullptr;
}

void Machine::serve(StreamState& stream) {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] {
      if (stream.queue.empty()) return stream.closing;
      const StreamPositionPtr& waits = stream.queue.front().waits;
      return waits == nullptr || waits->done;
    });
    if (stream.queue.empty()) return;
    Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.busy = true;
    Gpu& gpu = *stream.gpu;
    if (work.run && count_down(gpu.fail_after_operations)) gpu.error = Result::kEccUncorrectable;
    const bool works = gpu.error == Result::kSuccess;
    std::chrono::microseconds pause = delay;
    if (pause.count() == 0 && stream.random() % 4 == 0) {
      pause = std::chrono::microseconds(stream.random() % (static_cast<uint64_t>(options.max_delay.count()) + 1));
    }
    lock.unlock();
    if (pause.count() != 0) std::this_thread::sleep_for(pause);
    const Result result = works && work.run ? work.run() : Result::kSuccess;
    work.run = nullptr;
    lock.lock();
    if (gpu.error == Result::kSuccess) gpu.error = result;
    stream.busy = false;
    if (work.reaches) *work.reaches = {true, std::chrono::steady_clock::now()};
    changed.notify_all();
  }
}

Result Machine::run_kernel(Gpu& gpu, const KernelCall& call) {
  emulator::LaunchOptions launch{.checked = options.checked};
  {
    const std::lock_guard lock(mutex);
    if (count_down(fail_launch)) return Result::kLaunchFailed;
    launch.seed = options.seed * 1000 + ++launches;
  }
  std::vector<void*> arguments;
  for (const std::vector<std::byte>& argument : call.arguments) {
    arguments.push_back(const_cast<std::byte*>(argument.data()));
  }
  const Status status = call.function->module->module->launch(call.function->name, call.grid, call.block,
                                                              call.shared_bytes, arguments.data(), launch);
  if (status.ok()) return Result::kSuccess;
  const std::lock_guard lock(mutex);
  findings.push_back(status.message());
  (void)gpu;
  return failure_of(status.message());
}

void Machine::enqueue(StreamState& stream, Work work) {
  stream.queue.push_back(std::move(work));
  changed.notify_all();
}

bool Machine::is_pinned(const void* address, size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(address);
  const auto contain = [&](const std::map<const std::byte*, size_t>& regions) {
    const auto next = regions.upper_bound(first);
    if (next == regions.begin()) return false;
    const auto& [begin, size] = *std::prev(next);
    const auto offset = static_cast<size_t>(first - begin);
    return offset <= size && bytes <= size - offset;
  };
  return contain(pinned) || contain(registered);
}

Allocation* Machine::find(DevicePointer address, size_t bytes) {
  const auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return nullptr;
  auto& [begin, allocation] = *std::prev(next);
  const size_t offset = address - begin;
  if (allocation.freeing || offset > allocation.bytes || bytes > allocation.bytes - offset) return nullptr;
  return &allocation;
}

void Machine::release(DevicePointer address) {
  auto node = allocations.extract(address);
  const Allocation& allocation = node.mapped();
  Gpu& gpu = *allocation.gpu;
  if (!gpu.device->memory().free(reinterpret_cast<void*>(address & ~gpu.tag)).ok()) fatal("memory is freed twice");
  if (!allocation.is_imported) gpu.used -= allocation.bytes;
  if (allocation.pool) allocation.pool->used -= allocation.bytes;
}

std::vector<Context>& context_stack(const Machine& machine) {
  thread_local uint64_t generation = 0;
  thread_local std::vector<Context> stack;
  if (generation != machine.generation) stack.clear();
  generation = machine.generation;
  return stack;
}

bool& in_host_function() {
  thread_local bool inside = false;
  return inside;
}

// --- a call ----------------------------------------------------------------------------------------------------------

Call::Call(const char* name) : machine(current) {
  if (machine == nullptr) {
    error = Result::kDeinitialized;
    return;
  }
  lock = std::unique_lock(machine->mutex);
  ++machine->calls[name];
  if (in_host_function()) {
    error = Result::kNotPermitted;
  } else if (!machine->initialized) {
    error = Result::kNotInitialized;
  }
}

bool Call::ready() {
  if (error != Result::kSuccess) return false;
  const std::vector<Context>& stack = context_stack(*machine);
  gpu = stack.empty() ? nullptr : machine->contexts.find(stack.back()).get();
  error = stack.empty() || stack.back() == nullptr ? Result::kInvalidContext
          : gpu == nullptr                         ? Result::kContextIsDestroyed
                                                   : gpu->error;
  return error == Result::kSuccess;
}

StreamState* Call::stream(Stream handle) {
  StreamState* const found = machine->streams.find(handle).get();
  if (found == nullptr) {
    error = Result::kInvalidHandle;
  } else if (found->gpu != gpu) {
    error = Result::kInvalidContext;
  }
  return error == Result::kSuccess ? found : nullptr;
}

EventState* Call::event(Event handle) {
  EventState* const found = machine->events.find(handle).get();
  if (found == nullptr) error = Result::kInvalidHandle;
  return found;
}

void* Call::memory(DevicePointer address, size_t bytes, const Gpu* of) {
  if (of == nullptr) of = gpu;
  const Allocation* found = machine->find(address, bytes);
  if (found == nullptr) {
    error = Result::kInvalidValue;
    return nullptr;
  }
  if (found->gpu != of && !of->peers.contains(found->gpu->ordinal)) {
    error = Result::kInvalidValue;
    return nullptr;
  }
  return reinterpret_cast<void*>(address & ~found->gpu->tag);
}

bool Call::may_synchronize() {
  for (const auto& capture : machine->captures) {
    if (capture->mode == CaptureMode::kRelaxed) continue;
    if (capture->mode == CaptureMode::kThreadLocal && capture->thread != std::this_thread::get_id()) continue;
    error = refuse(*capture);
  }
  return error == Result::kSuccess;
}

void Call::check_thread(const StreamState& stream) {
  if (stream.capture == nullptr || stream.capture->thread == std::this_thread::get_id()) return;
  machine->findings.emplace_back("a thread uses a stream that another thread captures");
}

Result Call::refuse(Capture& capture) {
  capture.invalid = true;
  return Result::kCaptureUnsupported;
}

Result Call::submit(StreamState& stream, GpuOperation operation) {
  if (stream.capture == nullptr) {
    machine->enqueue(stream, {[machine = machine, gpu = stream.gpu, operation = std::move(operation)] {
                                return machine->run_operation(*gpu, operation);
                              },
                              nullptr, nullptr});
    return Result::kSuccess;
  }
  check_thread(stream);
  if (stream.capture->invalid) return Result::kCaptureInvalidated;
  auto node = std::make_unique<Node>(Node{std::move(operation), stream.tail});
  stream.tail = {node.get()};
  stream.capture->graph->nodes.push_back(std::move(node));
  return Result::kSuccess;
}

// --- the driver ------------------------------------------------------------------------------------------------------

Driver make_table() {
  Driver driver;
  add_device_functions(driver);
  add_memory_functions(driver);
  add_shared_memory_functions(driver);
  add_stream_functions(driver);
  add_module_functions(driver);
  add_graph_functions(driver);
  return driver;
}

EmulatedDriver::EmulatedDriver(const Options& options)
    : machine_(std::make_unique<Machine>(options)), driver_(make_table()) {
  machine_->initialized = true;  // as after open_driver
}

EmulatedDriver::~EmulatedDriver() = default;

void EmulatedDriver::fail_allocation(uint64_t nth) {
  const std::lock_guard lock(machine_->mutex);
  machine_->fail_allocation = nth;
}

void EmulatedDriver::fail_launch(uint64_t nth) {
  const std::lock_guard lock(machine_->mutex);
  machine_->fail_launch = nth;
}

void EmulatedDriver::lose_device(int ordinal, uint64_t nth) {
  const std::lock_guard lock(machine_->mutex);
  machine_->gpus.at(ordinal)->fail_after_operations = nth;
}

void EmulatedDriver::slow_down(std::chrono::microseconds delay) {
  const std::lock_guard lock(machine_->mutex);
  machine_->delay = delay;
}

std::vector<std::string> EmulatedDriver::findings() const {
  const std::lock_guard lock(machine_->mutex);
  return machine_->findings;
}

std::map<std::string, uint64_t> EmulatedDriver::calls() const {
  const std::lock_guard lock(machine_->mutex);
  return machine_->calls;
}

size_t EmulatedDriver::allocated() const {
  const std::lock_guard lock(machine_->mutex);
  size_t bytes = 0;
  for (const auto& gpu : machine_->gpus) bytes += gpu->used;
  return bytes;
}

std::string EmulatedDriver::leaks() const {
  const std::lock_guard lock(machine_->mutex);
  std::string text;
  const auto tell = [&](size_t count, const char* what) {
    if (count == 0) return;
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what + (count == 1 ? "" : "s");
  };
  tell(machine_->contexts.all().size(), "context");
  tell(machine_->streams.all().size(), "stream");
  tell(machine_->events.all().size(), "event");
  tell(machine_->pools.all().size(), "pool");
  tell(machine_->modules.all().size(), "module");
  tell(machine_->graphs.all().size(), "graph");
  tell(machine_->execs.all().size(), "instance");
  tell(machine_->allocations.size(), "allocation");
  tell(machine_->pinned.size(), "pinned allocation");
  tell(machine_->registered.size(), "registered region");
  return text;
}

}  // namespace torch_remote::worker::cuda::emulated
