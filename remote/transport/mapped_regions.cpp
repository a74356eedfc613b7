#include "remote/transport/mapped_regions.h"

#include <iterator>
#include <map>
#include <mutex>

namespace torch_remote::remote {
namespace {

struct MappedRegions {
  std::mutex mutex;
  std::map<const std::byte*, MappedRegion> by_begin;
};

// Never destroyed: threads may unmap memory while the process exits.
MappedRegions& mapped_regions() {
  static auto* const regions = new MappedRegions;
  return *regions;
}

}  // namespace

void add_mapped_region(std::span<std::byte> bytes, bool is_writable) {
  MappedRegions& regions = mapped_regions();
  const std::lock_guard lock(regions.mutex);
  regions.by_begin[bytes.data()] = {bytes, is_writable, 0, nullptr};
}

void remove_mapped_region(const std::byte* begin) {
  MappedRegions& regions = mapped_regions();
  std::map<const std::byte*, MappedRegion>::node_type removed;  // Its registration is released without the lock.
  const std::lock_guard lock(regions.mutex);
  removed = regions.by_begin.extract(begin);
}

bool use_mapped_region(const void* data, size_t size, const std::function<void(MappedRegion&)>& use) {
  const auto* const first = static_cast<const std::byte*>(data);
  MappedRegions& regions = mapped_regions();
  const std::lock_guard lock(regions.mutex);
  const auto after = regions.by_begin.upper_bound(first);
  if (after == regions.by_begin.begin()) return false;
  MappedRegion& region = std::prev(after)->second;
  const auto offset = static_cast<size_t>(first - region.bytes.data());
  if (offset > region.bytes.size() || size > region.bytes.size() - offset) return false;
  use(region);
  return true;
}

}  // namespace torch_remote::remote
