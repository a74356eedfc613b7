#include "worker/device/host_device.h"

#include <chrono>
#include <cstring>

#include "worker/device/machine.h"

namespace torch_remote::worker {
namespace {

// Segments that the client can read in place.
class TransportSource : public SegmentSource {
 public:
  explicit TransportSource(remote::Transport& transport) : transport_(transport) {}
  Segment allocate(size_t size) override {
    remote::AttachmentPtr attachment = transport_.allocate(size + CachingAllocator::kPage);
    if (!attachment) return {};
    std::byte* data = attachment->bytes().data();
    data += -reinterpret_cast<uintptr_t>(data) % CachingAllocator::kPage;
    return {data, size, std::move(attachment)};
  }

 private:
  remote::Transport& transport_;
};

CachingAllocator::Pointer make_memory(const HostDevice::Options& options) {
  const uint64_t limit = options.limit ? options.limit : machine_memory();
  if (options.inproc || !options.transport || !options.transport->shares_memory()) {
    return CachingAllocator::create(make_anonymous_source(), limit);
  }
  // The client never reads temporaries, so they use huge pages, which shared memory seldom has.
  return CachingAllocator::create(std::make_unique<TransportSource>(*options.transport), limit,
                                  make_anonymous_source());
}

}  // namespace

HostDevice::HostDevice(const Options& options)
    : Device(make_memory(options)), transport_(options.transport), trusted_(options.trusted) {}

std::string HostDevice::description() const { return processor_name(); }

void HostDevice::copy_in(void* destination, std::span<const std::byte> source, std::shared_ptr<void>) {
  if (!source.empty()) std::memcpy(destination, source.data(), source.size());
}

void HostDevice::copy_out(const StridedBytes& source, std::byte* destination, std::shared_ptr<void>) {
  copy_strided(source.data, destination, source.item_size, source.sizes, source.strides, parallel_);
}

void HostDevice::copy(void* destination, const void* source, uint64_t nbytes) {
  if (nbytes != 0) std::memcpy(destination, source, nbytes);
}

void HostDevice::fill(void* destination, std::byte value, uint64_t nbytes) {
  if (nbytes != 0) std::memset(destination, static_cast<int>(value), nbytes);
}

std::function<uint64_t()> HostDevice::read_clock() {
  return [now = std::chrono::steady_clock::now().time_since_epoch()] {
    return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
  };
}

remote::AttachmentPtr HostDevice::lend(const void* data, uint64_t nbytes, std::shared_ptr<void> keep) {
  return nbytes >= lends_from() ? transport_->share(data, nbytes, std::move(keep)) : nullptr;
}

}  // namespace torch_remote::worker
