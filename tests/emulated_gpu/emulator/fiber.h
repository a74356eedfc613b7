#pragma once

#include <cstddef>
#include <vector>

// Stacks of fibers, and the switch between them. Each thread of a block is a fiber.
namespace torch_remote::codegen::emulator {

// Resumes `to`, and stores the position of this fiber in *from. Saves only callee-saved registers.
extern "C" void torch_remote_emulator_switch(void** from, void* to);

// Stacks of fibers. Below each is a guard page. Memory is committed on first access.
class Stacks {
 public:
  static constexpr size_t kBytes = size_t{256} << 10;

  Stacks() = default;
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  // False if there is not enough memory.
  bool resize(size_t count);
  // The stack pointer to switch to so that `start` begins on the stack. `start` must not return.
  void* prepare(size_t stack, void (*start)());
  bool contains(size_t stack, const void* address) const;
  bool is_guard(size_t stack, const void* address) const;

 private:
  std::vector<char*> stacks_;  // their lowest addresses, at the guard page
};

}  // namespace torch_remote::codegen::emulator
