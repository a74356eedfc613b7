#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/status.h"
#include "worker/device/device.h"
#include "worker/session/buffer_memory.h"
#include "worker/session/failure.h"
#include "worker/session/failure_log.h"
#include "worker/session/id_map.h"
#include "worker/session/older_contents.h"

namespace torch_remote::worker {

// The buffers of a session, by id. For one thread. Methods return an error only for a malformed message; a buffer that
// cannot be created is poisoned.
class Buffers {
 public:
  struct Entry {
    MemoryPtr memory;    // Without data: poisoned.
    FailurePtr failure;  // The reason for the poison, or the failure whose update the contents lack.
    FailurePtr check;    // The failed check after which the contents were written.
    bool poisoned() const { return memory->data() == nullptr; }
  };

  // The arguments must outlive this object.
  Buffers(Device& device, FailureLog& failures, OlderContents& older_contents);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Returns null if there is no such buffer. Valid until a buffer is added or erased.
  Entry* find(uint64_t id) { return entries_.find(id); }
  size_t size() const { return entries_.size(); }
  // Adds or replaces the buffer with this id. Does nothing if the id is 0.
  void put(uint64_t id, Entry entry) {
    if (id != 0) entries_[id] = std::move(entry);
  }
  void erase(uint64_t id) { entries_.erase(id); }
  // Drops the contents of the buffer, if it exists and has any.
  void poison(uint64_t id, const FailurePtr& failure);

  // Creates a buffer with these bytes, which `keep` owns. If Device::adopts(), the buffer uses these bytes in place.
  // Otherwise it gets a copy: the device has memory of its own, or the client may still write to what it sent. An id of
  // 0 is invalid.
  Status upload(uint64_t id, std::span<std::byte> bytes, std::shared_ptr<void> keep);
  // Creates a buffer without contents, because memory ran out.
  Status upload_failed(uint64_t id, uint64_t nbytes);
  // Creates a buffer whose bytes `fill` writes, one piece of at most 32 MiB at a time. `offset`: bytes of the buffer
  // before the piece. If `fill` fails, the buffer is poisoned with its error. If `refused` is not ok, the buffer is
  // poisoned with that, and `fill` is not called. `sequence`: the sequence number of the message. An id of 0 is
  // invalid.
  using Fill = std::function<Status(uint64_t offset, std::span<std::byte> piece)>;
  Status make(uint64_t id, uint64_t nbytes, uint64_t sequence, const Status& refused, const Fill& fill);

  // Frees the buffers in this encoded list.
  Status free(std::span<const uint8_t> ids);
  // Frees the buffers with ids from `first` to first + count - 1 that exist.
  void free_range(uint64_t first, uint64_t count);
  // A run's message lists buffers, too: set_freed() decodes the list, and erase_freed() erases the buffers after the
  // run. If memory runs out during the run, the memory of those that set_bound() does not name is reclaimed.
  Status set_freed(std::span<const uint8_t> ids);
  void erase_freed();
  // Sets the ids that the current run is bound to. They must stay valid during the run; null: no run executes. Memory
  // is reclaimed only for allocations by the thread that calls this.
  void set_bound(const std::vector<uint64_t>* ids);

  // Retains the present contents of all buffers until drop_checkpoint(), and appends their ids and their sizes in
  // bytes. Later writes go to a copy. Buffers without contents are left out. The caller makes sure that the client
  // knows all failures, and that there is no checkpoint yet.
  void make_checkpoint(std::vector<uint64_t>* ids, std::vector<uint64_t>* sizes);
  void drop_checkpoint() { checkpoint_.clear(); }
  // Returns the contents of a buffer of the checkpoint, as they were then, or null.
  MemoryPtr find_in_checkpoint(uint64_t id) const;

  // Charges the entries to the device's allocator, 256 bytes for each, in steps of 4096 entries. The charge ends only
  // with this object. Call it after each message.
  void charge();

 private:
  Status put_failed(uint64_t id, uint64_t nbytes, Status why, uint64_t sequence);
  bool reclaim();

  Device& device_;
  CachingAllocator& memory_;  // The device's.
  FailureLog& failures_;
  OlderContents& older_contents_;
  IdMap<Entry> entries_;
  std::unordered_map<uint64_t, MemoryPtr> checkpoint_;
  size_t charged_ = 0;           // Number of entries that are charged.
  std::vector<uint64_t> freed_;  // Scratch.
  const std::vector<uint64_t>* bound_ = nullptr;
  std::thread::id thread_;  // The thread that runs programs.
};

}  // namespace torch_remote::worker
