#include "frontend/hooks/hooks.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/engine.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "frontend/device/backward_threads.h"
#include "frontend/device/current_device.h"
#include "frontend/device/device_state.h"
#include "frontend/device/generator.h"
#include "frontend/device/tensor.h"
#include "frontend/device/without_gil.h"
#include "frontend/record/recorder.h"
#include "frontend/record/requests.h"
#include "frontend/record/storages.h"
#include "frontend/record/wait_span.h"
#include "remote/client/event_log.h"

namespace torch_remote::frontend {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

// -- memory
// ---------------------------------------------------------------------------------------------------------------

class RemoteAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t) override { return make_token(current_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "remote: device memory cannot be copied through a pointer; use tensor.copy_");
  }
  bool initialized() override {
    for (int i = 0; i < device_count(); ++i) {
      if (existing_client(static_cast<DeviceIndex>(i)) != nullptr) return true;
    }
    return false;
  }
  void emptyCache(c10::MempoolId_t) override {
    remote::MemoryRequest request;
    request.empty_cache = true;
    ask_if_connected(current_device(), request);
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const std::shared_ptr<remote::Client> worker = running_client(checked_device(device));
    if (worker == nullptr) return stats;
    const remote::MemoryUse use = worker->connection().memory_use();
    const auto set = [](c10::CachingAllocator::StatArray& all, const remote::MemoryStat& stat) {
      auto& sum = all[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
      sum.current = static_cast<int64_t>(stat.current);
      sum.peak = static_cast<int64_t>(stat.peak);
      sum.allocated = static_cast<int64_t>(stat.allocated);
      sum.freed = static_cast<int64_t>(stat.freed);
    };
    set(stats.allocation, use.allocations);
    set(stats.active, use.allocations);
    set(stats.segment, use.segments);
    set(stats.allocated_bytes, use.allocated);
    set(stats.active_bytes, use.allocated);
    set(stats.requested_bytes, use.allocated);
    set(stats.reserved_bytes, use.reserved);
    stats.num_alloc_retries = static_cast<int64_t>(use.num_alloc_retries);
    stats.num_ooms = static_cast<int64_t>(use.num_ooms);
    stats.num_device_alloc = static_cast<int64_t>(use.segments.allocated);
    stats.num_device_free = static_cast<int64_t>(use.segments.freed);
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    remote::MemoryRequest request;
    request.reset_totals = true;
    ask_if_connected(device, request);
  }
  void resetPeakStats(DeviceIndex device) override {
    remote::MemoryRequest request;
    request.reset_peak = true;
    ask_if_connected(device, request);
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return {request_memory(checked_device(device), {}).free, client(device)->connection().machine().memory};
  }

 private:
  // A device without a worker has no memory statistics yet.
  static void ask_if_connected(DeviceIndex device, const remote::MemoryRequest& request) {
    if (existing_client(checked_device(device)) != nullptr) (void)request_memory(device, request);
  }
};

RemoteAllocator& allocator() {
  static auto* instance = new RemoteAllocator;
  return *instance;
}

// Pageable host memory that torch sees as pinned. Copies to the worker read it directly.
class PinnedAllocator final : public at::HostAllocator {
 public:
  at::DataPtr allocate(size_t size) override {
    void* memory = nullptr;
    if (size != 0 && posix_memalign(&memory, 4096, size) != 0) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "remote: cannot allocate ", size, " bytes of pinned host memory");
    }
    if (memory != nullptr) {
      std::lock_guard lock(mutex());
      ranges()[reinterpret_cast<uintptr_t>(memory)] = size;
      blocks().increase(1);
      bytes().increase(size);
    }
    return {memory, memory, &release, Device(DeviceType::CPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* destination, const void* source, size_t count) const override {
    default_copy_data(destination, source, count);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    std::lock_guard lock(mutex());
    at::HostStats stats;
    stats.active_requests = stats.allocations = blocks();
    stats.active_bytes = stats.allocated_bytes = bytes();
    stats.num_host_alloc = blocks().allocated;
    stats.num_host_free = blocks().freed;
    return stats;
  }
  void reset_accumulated_stats() override {
    std::lock_guard lock(mutex());
    blocks().reset_accumulated();
    bytes().reset_accumulated();
  }
  void reset_peak_stats() override {
    std::lock_guard lock(mutex());
    blocks().reset_peak();
    bytes().reset_peak();
  }

  static bool contains(const void* data) {
    std::lock_guard lock(mutex());
    const auto address = reinterpret_cast<uintptr_t>(data);
    auto after = ranges().upper_bound(address);
    if (after == ranges().begin()) return false;
    --after;
    return address < after->first + after->second;
  }

 private:
  static std::mutex& mutex() {
    static auto* instance = new std::mutex;
    return *instance;
  }
  static std::map<uintptr_t, size_t>& ranges() {
    static auto* instance = new std::map<uintptr_t, size_t>;
    return *instance;
  }
  // Statistics over all ranges; guarded by mutex().
  static c10::CachingAllocator::Stat& blocks() {
    static c10::CachingAllocator::Stat stat;
    return stat;
  }
  static c10::CachingAllocator::Stat& bytes() {
    static c10::CachingAllocator::Stat stat;
    return stat;
  }
  static void release(void* memory) {
    if (memory == nullptr) return;
    {
      std::lock_guard lock(mutex());
      const auto range = ranges().find(reinterpret_cast<uintptr_t>(memory));
      blocks().decrease(1);
      bytes().decrease(range->second);
      ranges().erase(range);
    }
    std::free(memory);
  }
};

PinnedAllocator& pinned_allocator() {
  static auto* instance = new PinnedAllocator;
  return *instance;
}

// -- hooks
// ----------------------------------------------------------------------------------------------------------------

struct RemoteHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex device) const override {
    return device < device_count() && existing_client(device) != nullptr;
  }
  void init() const override { check_not_forked(); }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count()); }
  void setCurrentDevice(DeviceIndex device) const override { set_current_device(device); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return maybeExchangeDevice(device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    const DeviceIndex previous = current_device();
    if (device >= 0) set_current_device(device);
    return previous;
  }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(DeviceIndex device) const override { return new_generator(device); }
  at::Device getDeviceFromPtr(void*) const override { return Device(DeviceType::PrivateUse1, current_device()); }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::contains(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    resize_storage(storage, size);
  }
};

// -- guard, with streams and events
// ------------------------------------------------------------------------------

// A device executes the ops of all streams in one order: the order of the calls. This order satisfies every event that
// the program may record. So a stream is just a number, and waiting for another stream does nothing.
constexpr uint32_t kStreams = 32;  // in addition to the default stream 0; the size of CUDA's stream pools
thread_local std::array<c10::StreamId, kMaxDevices> current_streams{};

// The device's index; without one, that of the current device. Raises if there is no such device.
DeviceIndex index_of(Device device) { return device.has_index() ? checked_device(device.index()) : current_device(); }

Stream stream_of(DeviceIndex device, c10::StreamId id) {
  return Stream(Stream::UNSAFE, Device(DeviceType::PrivateUse1, device), id);
}

Stream next_stream(Device device) {
  static std::array<std::atomic<uint32_t>, kMaxDevices> next{};
  const DeviceIndex index = index_of(device);
  return stream_of(index, 1 + next[index].fetch_add(1, std::memory_order_relaxed) % kStreams);
}

// A point in program order. A timed event flushes the recorded ops and sends a RecordEvent message after them. An
// untimed event does that only when it is queried or waited for, so it may also wait for ops that were recorded after
// it.
struct Event {
  enum class State : uint8_t { kRecorded, kSent, kDone };

  DeviceIndex device = 0;
  bool timed = false;
  State state = State::kRecorded;
  bool has_time = false;          // `recorded` is filled in
  bool checked_failures = false;  // whether failures were reported for an event that was not sent
  uint64_t session = 0;
  uint64_t ticket = 0;  // in the client with this session
  remote::RecordedEvent recorded;

  // The client to which the event was sent. Null if it was not sent or if that worker is gone.
  std::shared_ptr<remote::Client> receiver() const {
    std::shared_ptr<remote::Client> worker = state == State::kSent ? running_client(device) : nullptr;
    return worker != nullptr && worker->connection().session() == session ? worker : nullptr;
  }
  void forget() noexcept {
    if (const std::shared_ptr<remote::Client> worker = receiver()) worker->events().forget(ticket);
    state = State::kRecorded;
    has_time = checked_failures = recorded.failed = false;
  }
  void send() {
    const WithoutGil without_gil;  // torch holds it when it records or queries an event
    Recorder::get(device).flush("event");
    const std::shared_ptr<remote::Client> worker = timed ? client(device) : running_client(device);
    if (worker == nullptr || (!timed && worker->events().is_idle())) {
      state = State::kDone;
      return;
    }
    check(worker->events().record(&ticket));
    session = worker->connection().session();
    state = State::kSent;
  }
  bool is_reached() {
    if (state == State::kRecorded) send();
    if (state == State::kDone) return true;
    const std::shared_ptr<remote::Client> worker = receiver();
    return worker == nullptr || worker->events().is_reached(ticket);
  }
  void wait() {
    if (state == State::kRecorded) send();
    if (state == State::kDone) return;
    if (const std::shared_ptr<remote::Client> worker = receiver(); worker != nullptr) {
      const WaitSpan span("event", wait_line());
      const Status status = worker->events().wait(ticket, keep_waiting, &recorded);
      if (status.code() != ErrorCode::kInterrupted) state = State::kDone;
      check(status);
      has_time = true;
    }
    state = State::kDone;
  }
};

struct RemoteGuard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::PrivateUse1; }
  Device exchangeDevice(Device device) const override {
    const Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  Device getDevice() const override { return Device(DeviceType::PrivateUse1, current_device()); }
  void setDevice(Device device) const override {
    if (device.has_index()) set_current_device(device.index());
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index() && device.index() >= 0 && device.index() < device_count()) {
      detail::current_device = device.index();
    }
  }
  Stream getStream(Device device) const override {
    choose_backward_thread();
    const DeviceIndex index = index_of(device);
    return stream_of(index, current_streams[index]);
  }
  Stream getDefaultStream(Device device) const override { return stream_of(index_of(device), 0); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return next_stream(device); }
  Stream getNewStream(Device device, int) const override { return next_stream(device); }
  Stream exchangeStream(Stream stream) const override {  // getStream calls choose_backward_thread
    const Stream previous = getStream(stream.device());
    current_streams[previous.device_index()] = stream.id();
    return previous;
  }
  void* getStreamNativeHandle(const Stream) const override { return nullptr; }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(device_count()); }

  void record(void** event, const Stream& stream, const DeviceIndex device, const c10::EventFlag flag) const override {
    const DeviceIndex index = checked_device(device < 0 ? stream.device_index() : device);
    if (*event == nullptr) *event = new Event;
    auto* e = static_cast<Event*>(*event);
    e->forget();
    e->device = index;
    e->timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    if (e->timed) e->send();
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void* event) const override {
    auto* e = static_cast<Event*>(event);
    return e == nullptr || e->is_reached();
  }
  void synchronizeEvent(void* event) const override {
    auto* e = static_cast<Event*>(event);
    if (e == nullptr) return;
    e->wait();
    const bool unknown = !e->has_time && !std::exchange(e->checked_failures, true);  // completed without being sent
    if (std::exchange(e->recorded.failed, false) || unknown) Recorder::get(e->device).synchronize();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    const std::unique_ptr<Event> e(static_cast<Event*>(event));
    if (e != nullptr) e->forget();
  }
  // torch has checked that both events were recorded with timing and are complete.
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    auto* from = static_cast<Event*>(first);
    auto* to = static_cast<Event*>(second);
    TORCH_CHECK(
        from->device == to->device,
        "remote: elapsed_time() got events on two devices, whose clocks are not related; record both on one device");
    for (Event* e : {from, to}) {
      e->wait();
      TORCH_CHECK(e->has_time, "remote: elapsed_time() got an event whose worker is gone; record it again");
    }
    TORCH_CHECK(from->session == to->session, "remote: elapsed_time() got events on two workers; record both again");
    return (static_cast<double>(to->recorded.device_time_ns) - static_cast<double>(from->recorded.device_time_ns)) *
           1e-6;
  }
  // Whether all ops sent to the device are done. The stream does not matter, because a device has one order.
  bool queryStream(const Stream& stream) const override {
    const DeviceIndex device = checked_device(stream.device_index());
    const WithoutGil without_gil;
    Recorder::get(device).flush("stream");
    const std::shared_ptr<remote::Client> worker = running_client(device);
    return worker == nullptr || worker->events().is_idle();
  }
  void synchronizeStream(const Stream& stream) const override { synchronizeDevice(stream.device_index()); }
  void synchronizeDevice(const DeviceIndex device) const override {
    Recorder::get(checked_device(device)).synchronize();
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability capability;
    uint64_t& bits = capability.capability_data.capability_bits;
    for (const c10::ScalarType unsupported : {c10::ScalarType::QInt8, c10::ScalarType::QUInt8, c10::ScalarType::QInt32,
                                              c10::ScalarType::QUInt4x2, c10::ScalarType::QUInt2x4}) {
      bits &= ~(uint64_t{1} << static_cast<int>(unsupported));
    }
    return capability;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, RemoteGuard)

// Reads a protected member of torch's engine: whether it has counted devices. Never instantiated.
struct EngineState : torch::autograd::Engine {
  static bool has_counted(Engine& engine) { return engine.*(&EngineState::thread_pool_shared_) != nullptr; }
};

}  // namespace

void register_device() {
  c10::SetAllocator(DeviceType::PrivateUse1, &allocator());
  at::setHostAllocator(DeviceType::PrivateUse1, &pinned_allocator());
  static RemoteHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  register_storage();
  if (EngineState::has_counted(torch::autograd::Engine::get_default_engine())) every_thread_runs_backward();
}

}  // namespace torch_remote::frontend
