#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

// The segments of shared memory that this process has mapped. A device can register a segment with its driver, so that
// it copies from and to the segment directly.
namespace torch_remote::remote {

struct MappedRegion {
  std::span<std::byte> bytes;
  bool is_writable = true;
  uint64_t uses = 0;                   // Counted by devices.
  std::shared_ptr<void> registration;  // A device's; null: none. Released before the memory is unmapped.
};

// Call add_mapped_region() after memory is mapped, and remove_mapped_region() before it is unmapped. Thread safe.
void add_mapped_region(std::span<std::byte> bytes, bool is_writable);
void remove_mapped_region(const std::byte* begin);

// Calls `use` with the region that contains all of these bytes. Returns false if there is none. The region stays mapped
// during the call. `use` must not call a function of this file. Thread safe.
bool use_mapped_region(const void* data, size_t size, const std::function<void(MappedRegion&)>& use);

}  // namespace torch_remote::remote
