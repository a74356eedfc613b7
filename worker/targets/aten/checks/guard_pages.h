#pragma once

#include <c10/core/Allocator.h>

// For the guard harness: memory for tensors next to pages that nobody may touch.
namespace torch_remote::worker::aten {

enum class GuardPlace { kEnd, kBegin };

// Torch's CPU allocator from now on gives each block pages of its own, with inaccessible memory before and behind them.
// Blocks end (kEnd) or begin (kBegin) exactly there, so that the first byte outside is a SIGSEGV. A block of more than
// `largest` bytes is a c10::OutOfMemoryError. Blocks that are freed become inaccessible.
void use_guard_pages(GuardPlace place, size_t largest);

}  // namespace torch_remote::worker::aten
