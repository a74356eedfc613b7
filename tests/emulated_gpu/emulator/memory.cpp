#include "tests/emulated_gpu/emulator/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace torch_remote::codegen::emulator {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 16, kWideAlignment = 256;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

char* reserve(size_t bytes, int protection) {
  void* address = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<char*>(address);
}

}  // namespace

DeviceMemory::DeviceMemory(size_t capacity, bool tracked) : capacity_(round_up(capacity, kPage)), tracked_(tracked) {
  base_ = reserve(capacity_, PROT_NONE);
  if (tracked) cells_ = reinterpret_cast<Cell*>(reserve(capacity_ * sizeof(Cell), PROT_READ | PROT_WRITE));
  unused_ = base_;
}

DeviceMemory::~DeviceMemory() {
  if (base_ != nullptr) munmap(base_, capacity_);
  if (cells_ != nullptr) munmap(cells_, capacity_ * sizeof(Cell));
}

// Prefers pages that were never used, so that accesses to freed memory are found; then reuses freed pages.
char* DeviceMemory::take_pages(size_t bytes) {
  if (base_ == nullptr || (tracked_ && cells_ == nullptr)) return nullptr;
  if (bytes <= static_cast<size_t>(base_ + capacity_ - unused_)) {
    char* pages = unused_;
    unused_ += bytes;
    return pages;
  }
  const auto found = freed_.lower_bound(bytes);
  if (found == freed_.end()) return nullptr;
  const auto [size, pages] = *found;
  freed_.erase(found);
  if (size > bytes) freed_.emplace(size - bytes, pages + bytes);
  return pages;
}

Status DeviceMemory::allocate(size_t bytes, void** address, std::string name, bool aligned) {
  const std::lock_guard lock(mutex_);
  const size_t rounded = round_up(std::max<size_t>(bytes, 1), aligned ? kWideAlignment : kAlignment);
  const size_t touched = round_up(rounded, kPage);
  char* pages = bytes < capacity_ ? take_pages(touched + kPage) : nullptr;
  if (pages == nullptr || mprotect(pages, touched, PROT_READ | PROT_WRITE) != 0) {
    return {ErrorCode::kOutOfMemory, "emulator: no device memory for " + std::to_string(bytes) + " bytes"};
  }
  *address = begin(pages, touched, bytes, rounded, std::move(name), /*fresh=*/true, /*of_file=*/false);
  return {};
}

void* DeviceMemory::begin(char* pages, size_t touched, size_t bytes, size_t rounded, std::string name, bool fresh,
                          bool of_file) {
  char* const first = pages + touched - rounded;
  if (fresh) std::memset(first, 0xFF, rounded);
  allocations_[first] = {bytes, pages, touched + kPage, std::move(name), unchecked_launches_, of_file};
  mark(first, bytes, fresh ? kUninitialized : kHost);
  return first;
}

size_t DeviceMemory::file_bytes(size_t bytes) {
  return round_up(round_up(std::max<size_t>(bytes, 1), kWideAlignment), kPage);
}

Status DeviceMemory::map(int file, size_t bytes, bool fresh, void** address) {
  const std::lock_guard lock(mutex_);
  const size_t touched = file_bytes(bytes), rounded = round_up(std::max<size_t>(bytes, 1), kWideAlignment);
  char* pages = bytes < capacity_ ? take_pages(touched + kPage) : nullptr;
  if (pages == nullptr || mmap(pages, touched, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    return {ErrorCode::kOutOfMemory, "emulator: no device memory for " + std::to_string(bytes) + " bytes of a file"};
  }
  *address = begin(pages, touched, bytes, rounded, "", fresh, /*of_file=*/true);
  return {};
}

Status DeviceMemory::free(void* address) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(static_cast<const char*>(address));
  if (found == allocations_.end()) return Status::invalid("emulator: no allocation begins at the address to free");
  const Allocation& allocation = found->second;
  mark(found->first, allocation.bytes, kUnallocated);
  if (allocation.of_file) {
    (void)mmap(allocation.pages, allocation.page_bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  } else {
    madvise(allocation.pages, allocation.page_bytes, MADV_DONTNEED);
    mprotect(allocation.pages, allocation.page_bytes, PROT_NONE);
  }
  freed_.emplace(allocation.page_bytes, allocation.pages);
  allocations_.erase(found);
  return {};
}

Status DeviceMemory::find(const void* address, size_t bytes) const {
  const auto* begin = static_cast<const char*>(address);
  const auto next = allocations_.upper_bound(begin);
  if (next != allocations_.begin()) {
    const auto& [first, allocation] = *std::prev(next);
    const size_t offset = begin - first;
    if (offset <= allocation.bytes && bytes <= allocation.bytes - offset) return {};
  }
  return Status::invalid("emulator: a copy of " + std::to_string(bytes) + " bytes is out of bounds: it begins at " +
                         describe_locked(address));
}

Status DeviceMemory::write(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (Status status = find(to, bytes); !status) return status;
  if (bytes != 0) std::memcpy(to, from, bytes);
  mark(to, bytes, kHost);
  return {};
}

Status DeviceMemory::read(void* to, const void* from, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  if (Status status = find(from, bytes); !status) return status;
  if (bytes != 0) std::memcpy(to, from, bytes);
  return {};
}

Status DeviceMemory::copy(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Status status = find(to, bytes);
  if (status.ok()) status = find(from, bytes);
  if (!status.ok() || bytes == 0) return status;
  std::memmove(to, from, bytes);
  mark(to, bytes, kHost);
  return {};
}

Status DeviceMemory::fill(void* to, uint8_t value, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (Status status = find(to, bytes); !status) return status;
  if (bytes != 0) std::memset(to, value, bytes);
  mark(to, bytes, kHost);
  return {};
}

Status DeviceMemory::written(void* address, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (Status status = find(address, bytes); !status) return status;
  mark(address, bytes, kHost);
  return {};
}

std::string DeviceMemory::describe(const void* address) const {
  const std::lock_guard lock(mutex_);
  return describe_locked(address);
}

std::string DeviceMemory::describe_locked(const void* address) const {
  const auto* byte = static_cast<const char*>(address);
  const auto next = allocations_.upper_bound(byte);
  if (!contains(address) || next == allocations_.begin()) return "no device memory";
  const auto& [first, allocation] = *std::prev(next);
  if (byte >= allocation.pages + allocation.page_bytes) return "no device memory";
  return "byte " + std::to_string(byte - first) + " of " +
         (allocation.name.empty() ? "an allocation" : "'" + allocation.name + "'") + " (" +
         std::to_string(allocation.bytes) + " bytes)";
}

void DeviceMemory::mark(const void* address, size_t bytes, uint32_t writer) {
  if (tracked_) std::fill_n(cells(address), bytes, Cell{writer, kUnallocated});
}

void DeviceMemory::unchecked_launch() {
  const std::lock_guard lock(mutex_);
  ++unchecked_launches_;
}

void DeviceMemory::assume_written() {
  const std::lock_guard lock(mutex_);
  if (!tracked_) return;
  for (auto& [begin, allocation] : allocations_) {
    if (allocation.accounted_launches == unchecked_launches_) continue;
    allocation.accounted_launches = unchecked_launches_;
    for (size_t i = 0; i < allocation.bytes; ++i) {
      Cell& cell = cells(begin)[i];
      if (cell.writer == kUninitialized) cell.writer = kHost;
    }
  }
}

void DeviceMemory::forget_accesses() {
  const std::lock_guard lock(mutex_);
  if (!tracked_) return;
  for (const auto& [begin, allocation] : allocations_) {
    for (size_t i = 0; i < allocation.bytes; ++i) {
      Cell& cell = cells(begin)[i];
      cell = {std::min(cell.writer, kHost), kUnallocated};
    }
  }
}

}  // namespace torch_remote::codegen::emulator
