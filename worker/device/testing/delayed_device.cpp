#include "worker/device/testing/delayed_device.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "worker/device/strided_copy.h"

namespace torch_remote::worker::testing {

// Two ranges of one size: addresses without access, and the memory that they stand for.
class AddressSpace {
 public:
  AddressSpace() : addresses_(map(PROT_NONE)), reachable_(map(PROT_READ | PROT_WRITE)) {}
  ~AddressSpace() {
    munmap(addresses_, kSize);
    munmap(reachable_, kSize);
  }

  std::byte* to_reachable(const void* address) const { return reachable_ + offset(addresses_, address); }
  std::byte* to_address(const void* reachable) const { return addresses_ + offset(reachable_, reachable); }

  // Returns the offset of a piece of this size, or kNone.
  static constexpr size_t kNone = ~size_t{0};
  size_t take(size_t size) {
    std::lock_guard lock(mutex_);
    if (const auto found = free_.find(size); found != free_.end()) {
      const size_t offset = found->second;
      free_.erase(found);
      return offset;
    }
    if (size > kSize - end_) return kNone;
    return std::exchange(end_, end_ + size);
  }
  void give(size_t offset, size_t size) {
    madvise(reachable_ + offset, size, MADV_DONTNEED);
    std::lock_guard lock(mutex_);
    free_.emplace(size, offset);
  }
  std::byte* addresses() const { return addresses_; }
  std::byte* reachable() const { return reachable_; }

 private:
  static constexpr size_t kSize = size_t{1} << 38;

  static std::byte* map(int protection) {
    void* memory = mmap(nullptr, kSize, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    return static_cast<std::byte*>(memory);
  }
  static size_t offset(const std::byte* base, const void* inside) {
    const auto offset = static_cast<size_t>(static_cast<const std::byte*>(inside) - base);
    if (offset >= kSize) std::abort();  // An address of another space: the caller mixed them up.
    return offset;
  }

  std::byte* addresses_;
  std::byte* reachable_;
  std::mutex mutex_;
  std::multimap<size_t, size_t> free_;  // By size.
  size_t end_ = 0;
};

namespace {

// Segments at accessible addresses, or at the others.
class SpaceSource final : public SegmentSource {
 public:
  SpaceSource(std::shared_ptr<AddressSpace> space, bool reachable) : space_(std::move(space)), reachable_(reachable) {}
  Segment allocate(size_t size) override {
    const size_t offset = space_->take(size);
    if (offset == AddressSpace::kNone) return {};
    std::byte* data = (reachable_ ? space_->reachable() : space_->addresses()) + offset;
    return {data, size,
            std::shared_ptr<void>(data, [space = space_, offset, size](void*) { space->give(offset, size); })};
  }

 private:
  std::shared_ptr<AddressSpace> space_;
  bool reachable_;
};

}  // namespace

DelayedDevice::DelayedDevice(const Options& options) : DelayedDevice(options, std::make_shared<AddressSpace>()) {}

DelayedDevice::DelayedDevice(const Options& options, const std::shared_ptr<AddressSpace>& space)
    : Device(CachingAllocator::create(std::make_unique<SpaceSource>(space, false), options.limit)),
      space_(space),
      scratch_(CachingAllocator::create(std::make_unique<SpaceSource>(space, true), options.limit)),
      longest_(options.longest),
      random_(options.seed),
      thread_([this] { work(); }) {}

DelayedDevice::~DelayedDevice() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DelayedDevice::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (random_() % 4 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % (static_cast<uint64_t>(longest_.count()) + 1)));
    }
    next();
    next = nullptr;  // The work releases its resources before its ticket is done.
    lock.lock();
    ++done_;
    std::vector<std::function<void()>> told;
    while (!waiting_.empty() && waiting_.begin()->first <= done_) {
      told.push_back(std::move(waiting_.begin()->second));
      waiting_.erase(waiting_.begin());
    }
    changed_.notify_all();
    if (told.empty()) continue;
    lock.unlock();
    for (const auto& then : told) then();
    lock.lock();
  }
}

void DelayedDevice::enqueue(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    ++queued_;
  }
  changed_.notify_all();
}

void DelayedDevice::enqueue_and_wait(std::function<void()> work) {
  enqueue(std::move(work));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, ticket = queued_] { return done_ >= ticket; });
}

void* DelayedDevice::reachable(const void* address) const { return address ? space_->to_reachable(address) : nullptr; }
void* DelayedDevice::address(const void* reachable) const {
  return reachable ? space_->to_address(reachable) : nullptr;
}

void DelayedDevice::copy_in(void* destination, std::span<const std::byte> source, std::shared_ptr<void> keep) {
  if (source.empty()) return;
  enqueue([=, this, keep = std::move(keep)] { std::memcpy(reachable(destination), source.data(), source.size()); });
}

void DelayedDevice::copy_out(const StridedBytes& source, std::byte* destination, std::shared_ptr<void> keep) {
  const std::vector<int64_t> sizes(source.sizes.begin(), source.sizes.end());
  const std::vector<int64_t> strides(source.strides.begin(), source.strides.end());
  enqueue([=, this, data = source.data, item_size = source.item_size, keep = std::move(keep)] {
    copy_strided(reachable(data), destination, item_size, sizes, strides);
  });
}

void DelayedDevice::copy(void* destination, const void* source, uint64_t nbytes) {
  if (nbytes == 0) return;
  enqueue([=, this] { std::memcpy(reachable(destination), reachable(source), nbytes); });
}

void DelayedDevice::fill(void* destination, std::byte value, uint64_t nbytes) {
  if (nbytes == 0) return;
  enqueue([=, this] { std::memset(reachable(destination), static_cast<int>(value), nbytes); });
}

Ticket DelayedDevice::record() {
  std::lock_guard lock(mutex_);
  return done_ == queued_ ? 0 : queued_;
}

bool DelayedDevice::done(Ticket ticket) {
  std::lock_guard lock(mutex_);
  return done_ >= ticket;
}

Status DelayedDevice::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket; });
  return {};
}

void DelayedDevice::notify(Ticket ticket, std::function<void()> then) {
  {
    std::lock_guard lock(mutex_);
    if (done_ < ticket) {
      waiting_.emplace(ticket, std::move(then));
      return;
    }
  }
  then();
}

void DelayedDevice::fail(DeferredFailure failure) {
  std::lock_guard lock(mutex_);
  failures_.push_back(std::move(failure));
}

std::function<uint64_t()> DelayedDevice::read_clock() {
  auto shown = std::make_shared<uint64_t>();
  enqueue([shown] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    *shown = static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
  });
  return [shown] { return *shown; };
}

std::vector<DeferredFailure> DelayedDevice::take_failures() {
  std::lock_guard lock(mutex_);
  return std::exchange(failures_, {});
}

}  // namespace torch_remote::worker::testing
