#include "worker/targets/cuda/device/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "worker/targets/cuda/device/copy_kernel.h"
#include "worker/targets/cuda/device/registered_memory.h"

namespace torch_remote::worker::cuda {
namespace {

// Copies to the GPU of at most this many bytes skip the staging memory; the driver copies them itself.
constexpr size_t kSmallCopyIn = 64 << 10;

// Without a given limit, 1/16 of the free memory is left to kernels and staging, and tensors may use the rest.
constexpr uint64_t kPart = 16;

// `wait` polls for this long before it sleeps.
constexpr auto kPollTime = std::chrono::microseconds(50);

// `notify` polls for this long if a small read is in flight, as a client probably waits for it. This avoids an
// interrupt and two switches of threads.
constexpr auto kReadPollTime = std::chrono::microseconds(200);

}  // namespace

// A strided view, outermost dim first. Adjacent dims that one stride can describe are merged.
struct CudaDevice::View {
  DevicePointer data = 0;
  uint32_t item_size = 0;
  std::vector<int64_t> sizes, strides;

  explicit View(const StridedBytes& bytes) : data(to_pointer(bytes.data)), item_size(bytes.item_size) {
    for (size_t d = 0; d < bytes.sizes.size(); ++d) {
      if (bytes.sizes[d] == 1) continue;
      if (!sizes.empty() && strides.back() == bytes.strides[d] * bytes.sizes[d]) {
        sizes.back() *= bytes.sizes[d];
        strides.back() = bytes.strides[d];
      } else {
        sizes.push_back(bytes.sizes[d]);
        strides.push_back(bytes.strides[d]);
      }
    }
    if (sizes.empty()) {
      sizes = {1};
      strides = {1};
    }
  }

  int64_t count() const {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    return count;
  }
  size_t nbytes() const { return static_cast<size_t>(count()) * item_size; }
  bool is_packed() const { return sizes.size() == 1 && strides[0] == 1; }
  // The `part` outermost rows that begin at `first`.
  View piece(int64_t first, int64_t part) const {
    View result = *this;
    result.data += static_cast<uint64_t>(first * strides[0]) * item_size;
    result.sizes[0] = part;
    if (part == 1 && sizes.size() > 1) {
      result.sizes.erase(result.sizes.begin());
      result.strides.erase(result.strides.begin());
    }
    return result;
  }
};

Status CudaDevice::open(const Options& options, std::unique_ptr<CudaDevice>* device) {
  std::shared_ptr<Gpu> gpu;
  if (Status status = Gpu::open(options.driver, options.ordinal, &gpu); !status.ok()) return status;
  const uint64_t limit = options.limit != 0 ? options.limit : gpu->free_memory() - gpu->free_memory() / kPart;
  std::unique_ptr<CudaDevice> opened(new CudaDevice(gpu, options, limit));
  Status status = opened->in_.open();
  if (status.ok()) status = opened->out_.open();
  if (status.ok()) *device = std::move(opened);
  return status;
}

CudaDevice::CudaDevice(const std::shared_ptr<Gpu>& gpu, const Options& options, uint64_t limit)
    : Device(CachingAllocator::create(make_segment_source(gpu), limit)),
      gpu_(gpu),
      kernels_(gpu, options.kernels),
      deferred_failures_(gpu),
      in_(gpu, options.slot_bytes, options.slots),
      out_(gpu, options.slot_bytes, options.slots),
      peers_(make_peer_memory(gpu, this->memory(), options.peer_memory_limit, [this] { queued(); })),
      small_reads_(gpu) {}

CudaDevice::~CudaDevice() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  const ContextGuard current(*gpu_);
  const Driver& driver = gpu_->driver();
  for (const Stream stream : {gpu_->copy_in_stream(), gpu_->work_stream(), gpu_->copy_out_stream()})
    (void)driver.stream_synchronize(stream);
  for (const TicketEvents& mark : ticket_events_) {
    (void)driver.event_destroy(mark.work);
    if (mark.out != nullptr) (void)driver.event_destroy(mark.out);
  }
  for (const Event event : events_) (void)driver.event_destroy(event);
}

// --- copies ----------------------------------------------------------------------------------------------------------

CudaDevice::RetainedMemory& CudaDevice::retain(std::shared_ptr<void> memory) {
  const std::lock_guard lock(mutex_);
  ++queued_;
  return retained_.emplace_back(RetainedMemory{queued_, std::move(memory), {}});
}

bool CudaDevice::copy_on_host(Stream stream, const HostCopy& copy, RetainedMemory& retained) {
  retained.copies.push_back(copy);
  const auto function = [](void* data) {
    const HostCopy& copy = *static_cast<HostCopy*>(data);
    std::memcpy(copy.to, copy.from, copy.bytes);
  };
  return check(gpu_->driver().launch_host_func(stream, function, &retained.copies.back()), "cuLaunchHostFunc");
}

bool CudaDevice::copy_in_staged(DevicePointer to, const std::byte* from, size_t bytes, bool registered,
                                RetainedMemory& retained) {
  const Driver& driver = gpu_->driver();
  const Stream in = gpu_->copy_in_stream(), work = gpu_->work_stream();
  const Staging::Slot& slot = in_.next();
  const std::byte* const source = registered ? from : slot.pinned;
  return (registered || copy_on_host(in, {slot.pinned, from, bytes}, retained)) &&
         check(driver.stream_wait_event(in, slot.emptied, 0), "cuStreamWaitEvent") &&
         check(driver.memcpy_htod_async(slot.memory, source, bytes, in), "cuMemcpyHtoDAsync") &&
         check(driver.event_record(slot.filled, in), "cuEventRecord") &&
         check(driver.stream_wait_event(work, slot.filled, 0), "cuStreamWaitEvent") &&
         check(driver.memcpy_dtod_async(to, slot.memory, bytes, work), "cuMemcpyDtoDAsync") &&
         check(driver.event_record(slot.emptied, work), "cuEventRecord");
}

void CudaDevice::copy_in(void* destination, std::span<const std::byte> source, std::shared_ptr<void> keep) {
  if (source.empty() || gpu_->is_lost()) return;
  const ContextGuard current(*gpu_);
  const DevicePointer to = to_pointer(destination);
  if (source.size() <= kSmallCopyIn) {
    const Result result = gpu_->driver().memcpy_htod_async(to, source.data(), source.size(), gpu_->work_stream());
    check(result, "cuMemcpyHtoDAsync");
    retain(std::move(keep));  // The driver may read `source` after the call returns.
    return;
  }
  const bool registered = is_registered(gpu_, source.data(), source.size());
  RetainedMemory& retained = retain(std::move(keep));
  for (size_t at = 0; at < source.size(); at += in_.slot_bytes()) {
    const size_t bytes = std::min(in_.slot_bytes(), source.size() - at);
    if (!copy_in_staged(to + at, source.data() + at, bytes, registered, retained)) return;
  }
}

void CudaDevice::copy_out(const StridedBytes& source, std::byte* destination, std::shared_ptr<void> keep) {
  const View view(source);
  if (view.count() == 0 || gpu_->is_lost()) return;
  const ContextGuard current(*gpu_);
  if (copy_out_small(view, destination, keep)) return;
  const bool registered = is_registered(gpu_, destination, view.nbytes());
  RetainedMemory& retained = retain(std::move(keep));
  has_copies_out_ = true;
  copy_out_staged(view, destination, registered, retained);
}

// False: nothing was queued, and the copy needs staging memory.
bool CudaDevice::copy_out_small(const View& view, std::byte* destination, std::shared_ptr<void>& keep) {
  std::optional<SmallReads::Memory> memory;
  DevicePointer from = view.data;
  {
    const std::lock_guard lock(mutex_);
    if (!view.is_packed() && view.nbytes() <= SmallReads::kMaxBytes) from = small_reads_.packing_memory();
    if (from != 0) memory = small_reads_.take(view.nbytes());
  }
  if (!memory) return false;
  if (!view.is_packed() && !pack(view, from)) return true;
  const Driver& driver = gpu_->driver();
  const Stream work = gpu_->work_stream();
  if (!check(driver.memcpy_dtoh_async(memory->data, from, memory->bytes, work), "cuMemcpyDtoHAsync")) return true;
  const std::lock_guard lock(mutex_);
  // The ticket is taken after the copy was queued, so its event is recorded after the copy.
  small_reads_.add(++queued_, *memory, destination);
  retained_.push_back({queued_, std::move(keep), {}});
  return true;
}

// Copies the view at once if it fits into a slot; otherwise splits it along the outermost dim.
bool CudaDevice::copy_out_staged(const View& view, std::byte*& to, bool registered, RetainedMemory& retained) {
  const size_t bytes = view.nbytes();
  const auto inner = static_cast<int64_t>(bytes / static_cast<size_t>(view.sizes[0]));
  if (bytes > out_.slot_bytes()) {
    const int64_t part = std::max<int64_t>(1, static_cast<int64_t>(out_.slot_bytes()) / inner);
    for (int64_t first = 0; first < view.sizes[0]; first += part) {
      const View piece = view.piece(first, std::min(part, view.sizes[0] - first));
      if (!copy_out_staged(piece, to, registered, retained)) return false;
    }
    return true;
  }
  const Driver& driver = gpu_->driver();
  const Stream out = gpu_->copy_out_stream(), work = gpu_->work_stream();
  const Staging::Slot& slot = out_.next();
  std::byte* const destination = std::exchange(to, to + bytes);
  return check(driver.stream_wait_event(work, slot.emptied, 0), "cuStreamWaitEvent") && pack(view, slot.memory) &&
         check(driver.event_record(slot.filled, work), "cuEventRecord") &&
         check(driver.stream_wait_event(out, slot.filled, 0), "cuStreamWaitEvent") &&
         check(driver.memcpy_dtoh_async(registered ? destination : slot.pinned, slot.memory, bytes, out),
               "cuMemcpyDtoHAsync") &&
         check(driver.event_record(slot.emptied, out), "cuEventRecord") &&
         (registered || copy_on_host(out, {destination, slot.pinned, bytes}, retained));
}

// Gathers the view's elements into contiguous memory, with a kernel of one load and one store.
bool CudaDevice::pack(const View& view, DevicePointer to) {
  if (view.is_packed()) {
    return check(gpu_->driver().memcpy_dtod_async(to, view.data, view.nbytes(), gpu_->work_stream()),
                 "cuMemcpyDtoDAsync");
  }
  std::vector<int64_t> packed(view.sizes.size(), 1);
  for (size_t d = packed.size() - 1; d-- > 0;) packed[d] = packed[d + 1] * view.sizes[d + 1];
  const ir::DType type = view.item_size == 16 ? ir::DType::kComplex128 : bits_type(view.item_size);
  const Status status = queue_copy(*gpu_, kernels_, {view.data, to, type, type, view.sizes, view.strides, packed});
  gpu_->queue().flush();  // The caller records an event after this kernel.
  return status.ok() ? !gpu_->is_lost() : check(Result::kNotSupported, status.message().c_str());
}

void CudaDevice::copy(void* destination, const void* source, uint64_t nbytes) {
  if (nbytes == 0 || gpu_->is_lost()) return;
  const ContextGuard current(*gpu_);
  const Result result =
      gpu_->driver().memcpy_dtod_async(to_pointer(destination), to_pointer(source), nbytes, gpu_->work_stream());
  check(result, "cuMemcpyDtoDAsync");
  queued();
}

void CudaDevice::fill(void* destination, std::byte value, uint64_t nbytes) {
  if (nbytes == 0 || gpu_->is_lost()) return;
  const ContextGuard current(*gpu_);
  const Result result = gpu_->driver().memset_d8_async(to_pointer(destination), static_cast<unsigned char>(value),
                                                       nbytes, gpu_->work_stream());
  check(result, "cuMemsetD8Async");
  queued();
}

uint64_t CudaDevice::take_failure_record(uint64_t run, std::shared_ptr<const std::vector<IndexedOperand>> operands) {
  const ContextGuard current(*gpu_);
  if (deferred_failures_.is_full()) {
    queued();
    (void)wait(record());
    const std::lock_guard lock(mutex_);
    deferred_failures_.collect(done_, &failures_);
  }
  return deferred_failures_.take(run, std::move(operands));
}

void CudaDevice::queued() {
  const std::lock_guard lock(mutex_);
  ++queued_;
}

// --- progress --------------------------------------------------------------------------------------------------------

Event CudaDevice::new_event() {
  if (!events_.empty()) {
    const Event event = events_.back();
    events_.pop_back();
    return event;
  }
  Event event = nullptr;
  check(gpu_->driver().event_create(&event, kEventDisableTiming | kEventBlockingSync), "cuEventCreate");
  return event;
}

Ticket CudaDevice::record() {
  const ContextGuard current(*gpu_);
  std::vector<RetainedMemory> finished;
  const std::lock_guard lock(mutex_);
  poll(&finished);
  if (is_done(queued_)) return 0;
  if (marked_ == queued_) return queued_;
  if (!gpu_->is_lost()) deferred_failures_.flush(queued_);
  TicketEvents mark{queued_, new_event(), has_copies_out_ ? new_event() : nullptr};
  const Driver& driver = gpu_->driver();
  check(driver.event_record(mark.work, gpu_->work_stream()), "cuEventRecord");
  if (mark.out != nullptr) check(driver.event_record(mark.out, gpu_->copy_out_stream()), "cuEventRecord");
  ticket_events_.push_back(mark);
  marked_ = queued_;
  has_copies_out_ = false;
  return queued_;
}

bool CudaDevice::is_reached(Event event) {
  if (event == nullptr) return true;
  const Result result = gpu_->driver().event_query(event);
  return result != Result::kNotReady && check(result, "cuEventQuery");
}

// Finishes small reads. Moves host memory that is no longer needed to `finished`, so that the caller frees it without
// the lock.
void CudaDevice::poll(std::vector<RetainedMemory>* finished) {
  while (!ticket_events_.empty() && !gpu_->is_lost()) {
    const TicketEvents& mark = ticket_events_.front();
    if (!is_reached(mark.work) || !is_reached(mark.out)) break;
    done_ = mark.ticket;
    events_.push_back(mark.work);
    if (mark.out != nullptr) events_.push_back(mark.out);
    ticket_events_.pop_front();
  }
  if (!gpu_->is_lost()) small_reads_.finish(done_);
  while (!retained_.empty() && retained_.front().ticket <= done_) {
    finished->push_back(std::move(retained_.front()));
    retained_.pop_front();
  }
}

bool CudaDevice::done(Ticket ticket) {
  const ContextGuard current(*gpu_);
  std::vector<RetainedMemory> finished;
  const std::lock_guard lock(mutex_);
  if (!is_done(ticket)) poll(&finished);
  return is_done(ticket);
}

Status CudaDevice::wait(Ticket ticket) {
  const ContextGuard current(*gpu_);
  const auto until = std::chrono::steady_clock::now() + kPollTime;
  for (;;) {
    std::vector<RetainedMemory> finished;
    std::unique_lock lock(mutex_);
    poll(&finished);
    if (is_done(ticket) || ticket_events_.empty()) return gpu_->status();
    const TicketEvents mark = ticket_events_.front();
    lock.unlock();
    if (std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
      continue;
    }
    // Another thread may see the mark reached and reuse its events in the meantime. Then this waits longer than
    // necessary.
    const Driver& driver = gpu_->driver();
    check(driver.event_synchronize(mark.work), "cuEventSynchronize");
    if (mark.out != nullptr) check(driver.event_synchronize(mark.out), "cuEventSynchronize");
  }
}

// CUDA events measure the time between two of them. Each reading adds the time since the previous one.
std::function<uint64_t()> CudaDevice::read_clock() {
  const ContextGuard current(*gpu_);
  Event made = nullptr;
  if (gpu_->is_lost() || !check(gpu_->driver().event_create(&made, kEventBlockingSync), "cuEventCreate")) {
    return [] { return uint64_t{0}; };
  }
  std::shared_ptr<void> event(made, [gpu = gpu_](void* last) {
    const ContextGuard there(*gpu);
    (void)gpu->driver().event_destroy(static_cast<Event>(last));
  });
  check(gpu_->driver().event_record(made, gpu_->work_stream()), "cuEventRecord");
  queued();
  return [this, event] {
    const ContextGuard there(*gpu_);
    float milliseconds = 0;
    if (clock_event_ && !gpu_->is_lost()) {
      check(gpu_->driver().event_elapsed_time(&milliseconds, static_cast<Event>(clock_event_.get()),
                                              static_cast<Event>(event.get())),
            "cuEventElapsedTime");
    }
    clock_event_ = event;
    clock_ns_ += static_cast<double>(milliseconds) * 1e6;
    return static_cast<uint64_t>(clock_ns_);
  };
}

// Whether the ticket is done, or becomes done while this polls.
bool CudaDevice::poll_for_reads(Ticket ticket) {
  const ContextGuard current(*gpu_);
  const auto until = std::chrono::steady_clock::now() + kReadPollTime;
  for (;;) {
    std::vector<RetainedMemory> finished;
    std::unique_lock lock(mutex_);
    if (!is_done(ticket)) poll(&finished);
    if (is_done(ticket)) return true;
    if (small_reads_.empty() || std::chrono::steady_clock::now() >= until) return false;
    lock.unlock();
    std::this_thread::yield();
  }
}

void CudaDevice::notify(Ticket ticket, std::function<void()> then) {
  if (poll_for_reads(ticket)) {
    then();
    return;
  }
  const std::lock_guard lock(mutex_);
  waiting_.emplace(ticket, std::move(then));
  if (!watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
  wake_.notify_one();
}

// Calls back for each ticket that is done. On shutdown it waits for all remaining tickets first.
void CudaDevice::watch() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Ticket ticket = waiting_.begin()->first;
    lock.unlock();
    (void)wait(ticket);
    lock.lock();
    std::vector<std::function<void()>> told;
    while (!waiting_.empty() && is_done(waiting_.begin()->first)) {
      told.push_back(std::move(waiting_.begin()->second));
      waiting_.erase(waiting_.begin());
    }
    lock.unlock();
    for (const auto& then : told) then();
    lock.lock();
  }
}

std::vector<DeferredFailure> CudaDevice::take_failures() {
  const std::lock_guard lock(mutex_);
  if (!gpu_->is_lost()) deferred_failures_.collect(done_, &failures_);
  return std::exchange(failures_, {});
}

std::vector<DeferredFailure> CudaDevice::await_failures() {
  if (!deferred_failures_.is_empty()) (void)wait(record());
  const std::lock_guard lock(mutex_);
  if (!gpu_->is_lost()) deferred_failures_.collect(done_, &failures_);
  return failures_;
}

}  // namespace torch_remote::worker::cuda
