#pragma once

#include <c10/core/Allocator.h>

// For the guard harness: allocates tensors next to inaccessible pages.
namespace torch_remote::worker::aten {

enum class GuardPlace { kEnd, kBegin };

// From now on torch's CPU allocator gives each block its own pages, with inaccessible memory on both sides. Blocks end
// (kEnd) or begin (kBegin) exactly at that memory, so that an access to the first byte outside is a SIGSEGV. A block of
// more than `largest` bytes raises c10::OutOfMemoryError. Freed blocks become inaccessible.
void use_guard_pages(GuardPlace place, size_t largest);

}  // namespace torch_remote::worker::aten
