#pragma once

#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "remote/transport/memory_pool.h"
#include "remote/transport/transport.h"

// Attachments in memory of this process alone.
namespace torch_remote::remote {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using HeapMemory = std::unique_ptr<std::byte, FreeMemory>;

// Returns null if there is no memory.
inline HeapMemory allocate_heap(size_t size) {
  if (size > physical_memory()) return nullptr;
  const size_t rounded = (size + kAttachmentAlignment - 1) / kAttachmentAlignment * kAttachmentAlignment;
  return HeapMemory(
      static_cast<std::byte*>(std::aligned_alloc(kAttachmentAlignment, rounded ? rounded : kAttachmentAlignment)));
}

class HeapAttachment : public Attachment {
 public:
  HeapAttachment(HeapMemory memory, size_t size) : memory_(std::move(memory)), size_(size) {}
  std::span<std::byte> bytes() override { return {memory_.get(), size_}; }

 private:
  HeapMemory memory_;
  size_t size_;
};

// Caches large blocks of released memory (MemoryPool), because malloc would return them to the system and take fresh
// pages each time. Thread safe.
class HeapPool : public std::enable_shared_from_this<HeapPool> {
 public:
  // Returns null if there is no memory.
  AttachmentPtr allocate(size_t size);

 private:
  class PooledAttachment;

  HeapMemory take(size_t size) {
    {
      std::lock_guard lock(mutex_);
      if (HeapMemory memory = pool_.take(size)) return memory;
    }
    return allocate_heap(size);
  }
  void put(size_t size, HeapMemory memory) {
    std::vector<HeapMemory> evicted;
    std::lock_guard lock(mutex_);
    pool_.put(size, std::move(memory), &evicted);
  }

  std::mutex mutex_;
  MemoryPool<HeapMemory> pool_;
};

class HeapPool::PooledAttachment : public Attachment {
 public:
  PooledAttachment(std::shared_ptr<HeapPool> pool, HeapMemory memory, size_t size)
      : pool_(std::move(pool)), memory_(std::move(memory)), size_(size) {}
  ~PooledAttachment() override { pool_->put(size_class(size_), std::move(memory_)); }
  std::span<std::byte> bytes() override { return {memory_.get(), size_}; }

 private:
  std::shared_ptr<HeapPool> pool_;
  HeapMemory memory_;
  size_t size_;
};

inline AttachmentPtr HeapPool::allocate(size_t size) {
  if (size < kSmallAttachment) {
    HeapMemory memory = allocate_heap(size);
    return memory ? std::make_shared<HeapAttachment>(std::move(memory), size) : nullptr;
  }
  if (size > physical_memory()) return nullptr;  // also rules out an overflow in size_class
  HeapMemory memory = take(size_class(size));
  return memory ? std::make_shared<PooledAttachment>(shared_from_this(), std::move(memory), size) : nullptr;
}

// An attachment in memory that this object does not own; `owner` keeps that memory alive.
class ExternalAttachment : public Attachment {
 public:
  ExternalAttachment(const void* memory, size_t size, std::shared_ptr<void> owner)
      : bytes_(static_cast<std::byte*>(const_cast<void*>(memory)), size), owner_(std::move(owner)) {}
  std::span<std::byte> bytes() override { return bytes_; }

 private:
  std::span<std::byte> bytes_;
  std::shared_ptr<void> owner_;
};

}  // namespace torch_remote::remote
