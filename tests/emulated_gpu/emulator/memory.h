#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ir/status.h"

namespace torch_remote::codegen::emulator {

// Checked mode stores this for each byte of device memory. Accesses are encoded as numbers (see Checker); 0 is none.
struct Cell {
  uint32_t writer;  // the last write, or one of the three below
  uint32_t others;  // reads, or atomic operations, since the last write
};
inline constexpr uint32_t kUnallocated = 0;    // belongs to no allocation
inline constexpr uint32_t kUninitialized = 1;  // was never written
inline constexpr uint32_t kHost = 2;           // was written by the host

// Memory of a device. The host may access it directly, but must report direct writes (`written`). Each allocation ends
// at a guard page and is filled with bytes 0xFF, which are NaN. Thread-safe.
class DeviceMemory {
 public:
  // Reserves addresses; allocations commit the memory. Checked mode needs `tracked` memory, which costs eight bytes for
  // each byte.
  explicit DeviceMemory(size_t capacity, bool tracked = true);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Allocates at a multiple of 16, as near to the end of a page as possible; at a multiple of 256 if `aligned`, as
  // cuMemAlloc does. The name appears in findings. kOutOfMemory if the capacity is exhausted.
  Status allocate(size_t bytes, void** address, std::string name = "", bool aligned = false);
  // Maps the beginning of a file, which other processes may map, too. The file has at least `file_bytes` bytes.
  // `fresh`: nothing was written to it.
  static size_t file_bytes(size_t bytes);
  Status map(int file, size_t bytes, bool fresh, void** address);
  Status free(void* address);
  Status write(void* to, const void* from, size_t bytes);
  Status read(void* to, const void* from, size_t bytes) const;
  Status written(void* address, size_t bytes);
  Status copy(void* to, const void* from, size_t bytes);
  Status fill(void* to, uint8_t value, size_t bytes);

  bool tracked() const { return tracked_; }
  bool contains(const void* address) const { return address >= base_ && address < base_ + capacity_; }
  // "byte 4 of 'x' (1024 bytes)" or "no device memory".
  std::string describe(const void* address) const;

  // For an address in this memory.
  Cell* cells(const void* address) const { return cells_ + (static_cast<const char*>(address) - base_); }
  void mark(const void* address, size_t bytes, uint32_t writer);
  // Forgets which threads accessed what. Everything that was written counts as written by the host.
  void forget_accesses();
  // Unchecked launches do not report what they write. `unchecked_launch` counts one; `assume_written` then marks
  // everything that these launches could have written.
  void unchecked_launch();
  void assume_written();

 private:
  struct Allocation {
    size_t bytes = 0;
    char* pages = nullptr;  // the first page
    size_t page_bytes = 0;  // including the guard page
    std::string name;
    uint64_t accounted_launches = 0;  // value of unchecked_launches_ up to which writes are accounted for
    bool of_file = false;
  };
  // The allocation that contains these bytes.
  Status find(const void* address, size_t bytes) const;
  std::string describe_locked(const void* address) const;
  char* take_pages(size_t bytes);
  // Commits memory from `pages` to `touched`, and registers the allocation.
  void* begin(char* pages, size_t touched, size_t bytes, size_t rounded, std::string name, bool fresh, bool of_file);

  const size_t capacity_;
  const bool tracked_;
  char* base_ = nullptr;
  Cell* cells_ = nullptr;
  mutable std::mutex mutex_;
  char* unused_ = nullptr;  // addresses from here on were never used
  uint64_t unchecked_launches_ = 0;
  std::multimap<size_t, char*> freed_;  // freed pages, by number of bytes
  std::map<const char*, Allocation> allocations_;
};

}  // namespace torch_remote::codegen::emulator
