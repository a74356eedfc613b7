#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ir/status.h"

namespace torch_remote::codegen::emulator {

// What checked mode knows of one byte of device memory. Accesses are told by number (see Checker); 0 is none.
struct Cell {
  uint32_t writer;  // the last write, or one of the three below
  uint32_t others;  // reads, or atomic operations, since
};
inline constexpr uint32_t kNobody = 0;         // belongs to no allocation
inline constexpr uint32_t kUninitialised = 1;  // was never written
inline constexpr uint32_t kHost = 2;           // was written by the host

// Memory of a device. The host can read and write it, too; what the host writes by itself must be told (`written`).
// Each allocation ends at a page that nobody can touch, and begins as bytes 0xFF (which are NaN). Any thread may call.
class DeviceMemory {
 public:
  // Reserves addresses; memory comes with the allocations. Checked mode needs memory that is `tracked`, which costs
  // eight bytes for each.
  explicit DeviceMemory(size_t capacity, bool tracked = true);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // At a multiple of 16, as near to the end of a page as that allows; of 256 if `aligned`, as cuMemAlloc does. The name
  // is for findings. kOutOfMemory if there is no room.
  Status allocate(size_t bytes, void** address, std::string name = "", bool aligned = false);
  // Memory that other processes map, too: the file's first bytes, at least `file_bytes` of them. `fresh`: of a file
  // that nobody has written to.
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

  // Of an address that it contains.
  Cell* cells(const void* address) const { return cells_ + (static_cast<const char*>(address) - base_); }
  void mark(const void* address, size_t bytes, uint32_t writer);
  // Forgets who accessed what: all that was written was written by the host.
  void forget_accesses();
  // A plain launch says nothing of what it writes. Later, `assume_written` takes it that it wrote all that it could.
  void plain_launch();
  void assume_written();

 private:
  struct Allocation {
    size_t bytes = 0;
    char* pages = nullptr;  // where its pages begin
    size_t page_bytes = 0;  // with the one behind that nobody can touch
    std::string name;
    uint64_t known = 0;  // of the plain launches
    bool of_file = false;
  };
  // The allocation that has these bytes.
  Status find(const void* address, size_t bytes) const;
  std::string describe_locked(const void* address) const;
  char* take_pages(size_t bytes);
  // With memory on `pages` up to `touched`.
  void* begin(char* pages, size_t touched, size_t bytes, size_t rounded, std::string name, bool fresh, bool of_file);

  const size_t capacity_;
  const bool tracked_;
  char* base_ = nullptr;
  Cell* cells_ = nullptr;
  mutable std::mutex mutex_;
  char* unused_ = nullptr;  // addresses from here on were never used
  uint64_t plain_launches_ = 0;
  std::multimap<size_t, char*> freed_;  // pages by their number of bytes
  std::map<const char*, Allocation> allocations_;
};

}  // namespace torch_remote::codegen::emulator
