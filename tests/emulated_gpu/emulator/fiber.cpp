#include "tests/emulated_gpu/emulator/fiber.h"

#include <sys/mman.h>

namespace torch_remote::codegen::emulator {
namespace {

constexpr size_t kGuard = 4096;
constexpr size_t kColors = 13, kColorBytes = 192;
constexpr size_t kSaved = 6;  // registers that the switch saves on the old stack

}  // namespace

asm(R"(
  .text
  .globl torch_remote_emulator_switch
  .hidden torch_remote_emulator_switch
  .type torch_remote_emulator_switch, @function
torch_remote_emulator_switch:
  endbr64
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
  .size torch_remote_emulator_switch, . - torch_remote_emulator_switch
)");

Stacks::~Stacks() {
  for (char* stack : stacks_) munmap(stack, kGuard + kBytes);
}

bool Stacks::resize(size_t count) {
  while (stacks_.size() < count) {
    void* stack =
        mmap(nullptr, kGuard + kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) return false;
    mprotect(stack, kGuard, PROT_NONE);
    stacks_.push_back(static_cast<char*>(stack));
  }
  return true;
}

void* Stacks::prepare(size_t stack, void (*start)()) {
  // Stacks begin at different offsets in their pages; otherwise all would compete for the same cache lines.
  const size_t color = stack % kColors * kColorBytes;
  // At a function's entry, the stack pointer is 8 off a multiple of 16, as after a call.
  auto** top = reinterpret_cast<void**>(stacks_[stack] + kGuard + kBytes - color) - 2;
  top[0] = reinterpret_cast<void*>(start);
  top[1] = nullptr;
  return static_cast<void*>(top - kSaved);
}

bool Stacks::contains(size_t stack, const void* address) const {
  const char* begin = stacks_[stack] + kGuard;
  return address >= begin && address < begin + kBytes;
}

bool Stacks::is_guard(size_t stack, const void* address) const {
  return address >= stacks_[stack] && address < stacks_[stack] + kGuard;
}

}  // namespace torch_remote::codegen::emulator
