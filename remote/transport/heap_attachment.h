#pragma once

#include <cstdlib>
#include <memory>

#include "remote/transport/memory_pool.h"
#include "remote/transport/transport.h"

// Attachments in this process's own memory.
namespace torch_remote::remote {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using HeapMemory = std::unique_ptr<std::byte, FreeMemory>;

// Null if there is none.
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

}  // namespace torch_remote::remote
