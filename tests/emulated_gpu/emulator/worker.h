#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/emulated_gpu/emulator/checker.h"
#include "tests/emulated_gpu/emulator/fiber.h"
#include "tests/emulated_gpu/emulator/launch.h"
#include "tests/emulated_gpu/emulator/memory.h"

namespace torch_remote::codegen::emulator {

// The part of a thread that compiled code reads.
struct Registers {
  uint32_t tid[3], ntid[3], ctaid[3], nctaid[3];
  uint32_t lane = 0, warp = 0;
  char* shared = nullptr;
};

// Operations that threads of a warp execute together. Compiled code contains the numbers.
enum class WarpOp : uint32_t {
  kShuffleUp,
  kShuffleDown,
  kShuffleButterfly,
  kShuffleIndex,
  kAll,
  kAny,
  kUniform,
  kBallot,
  kMatchAny,
  kMatchAll,
  kAdd,
  kMin,
  kMax,
  kUnsignedMin,
  kUnsignedMax,
  kAnd,
  kOr,
  kXor,
  kSync,
};

// The result of a barrier, from the predicates of all threads that wait there.
enum class BarrierOp : uint32_t { kSync, kCount, kAnd, kOr };

struct Thread {
  enum class State : uint8_t { kReady, kAtBarrier, kAtWarpOp, kDone };

  Registers registers;
  void* stack_pointer = nullptr;
  State state = State::kDone;
  uint32_t index = 0;
  uint32_t site = 0;  // where the thread waits
  // Operands and result of the warp operation.
  WarpOp op = WarpOp::kSync;
  uint32_t mask = 0;
  uint64_t value = 0;
  uint32_t lane = 0, clamp = 0;  // of a shuffle
  uint64_t result = 0;
  uint64_t loop_iterations = 0;  // loop iterations so far
};

// Lanes of a warp, one bit per lane.
struct WarpState {
  uint32_t running = 0;
  uint32_t waiting = 0;  // in a warp operation
};

// A host thread that executes blocks one after the other. Launches share its stacks and shared memory.
class Worker {
 public:
  explicit Worker(DeviceMemory& memory) : memory_(memory) {}

  // Must be called before the blocks of a launch. `checker` is null in unchecked mode.
  Status prepare(Launch& launch, Checker* checker);
  // Executes one block on the calling thread.
  void run(uint64_t block);

  // -- Called by threads of the block that is executing --------------------------------------------------------------

  // The worker of the calling host thread; null outside of `run`.
  static Worker* current() { return current_; }
  Thread& self() { return *self_; }
  uint32_t barrier(uint32_t site, BarrierOp op, bool predicate);
  uint64_t warp(uint32_t site, WarpOp op, uint32_t mask, uint64_t value, uint32_t lane, uint32_t clamp);
  void access(const void* address, uint64_t bytes, AccessKind kind, uint64_t alignment, uint32_t site);
  // Reports an out-of-bounds access to a local variable, at this offset.
  [[noreturn]] void local_out_of_bounds(int64_t offset, uint64_t size, uint32_t site);
  [[noreturn]] void trap(uint32_t site);
  void fence(bool device_wide);
  void loop_iteration(uint32_t site);
  // Lets other threads run.
  void yield();
  [[noreturn]] void exit();
  // Reports an error and abandons the block.
  [[noreturn]] void stop(const std::string& what);
  bool in_thread() const { return self_ != nullptr; }
  // The finding for an access to an inaccessible address.
  std::string describe_fault(const void* address);

 private:
  static void thread_main();
  void fill_shared();
  void start_threads(bool fibers);
  // Adds the thread at the end, or at the front, of the ready queue.
  void push(Thread& thread);
  void push_front(Thread& thread);
  void next();
  void release_barrier();
  void release_warp(uint32_t warp, uint32_t mask);
  void leave();
  uint64_t warp_result(Thread& thread, uint32_t there);
  std::string where(uint32_t thread) const;
  std::string stuck() const;
  std::string describe(const void* address) const;

  DeviceMemory& memory_;
  Launch* launch_ = nullptr;
  Checker* checker_ = nullptr;
  Stacks stacks_;
  char* shared_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<WarpState> warps_;
  std::vector<Thread*> ready_;  // ring buffer; its size is a power of two
  uint32_t ready_mask_ = 0, ready_head_ = 0, ready_count_ = 0;
  uint64_t block_ = 0;
  uint32_t alive_ = 0, at_barrier_ = 0, barrier_site_ = 0, barrier_true_ = 0;
  Thread* self_ = nullptr;
  void* scheduler_ = nullptr;
  static inline thread_local Worker* current_ = nullptr;
  std::minstd_rand random_;
};

}  // namespace torch_remote::codegen::emulator
