#pragma once

#include <cstddef>
#include <vector>

// Stacks to switch between: a thread of a block is a fiber.
namespace torch_remote::codegen::emulator {

// Goes on where `to` was left, and leaves where this is in *from. (Only what a call must preserve is saved.)
extern "C" void torch_remote_emulator_switch(void** from, void* to);

// Stacks of fibers. Below each is a page that nobody can touch; memory comes when it is touched.
class Stacks {
 public:
  static constexpr size_t kBytes = size_t{256} << 10;

  Stacks() = default;
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  // False if there is no memory.
  bool resize(size_t count);
  // What to switch to so that `start` begins on a stack. It must not return.
  void* prepare(size_t stack, void (*start)());
  bool contains(size_t stack, const void* address) const;
  bool is_guard(size_t stack, const void* address) const;

 private:
  std::vector<char*> stacks_;  // where they begin, the guard first
};

}  // namespace torch_remote::codegen::emulator
