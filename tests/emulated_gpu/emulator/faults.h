#pragma once

#include <pthread.h>

#include <cstdint>

// Signals that kernels cause, told as findings: memory that cannot be touched, a division by zero, and time that is
// over.
namespace torch_remote::codegen::emulator {

// While it lives, the calling host thread's fibers may fault: what they then do is Worker::stop.
class FaultGuard {
 public:
  FaultGuard();
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

 private:
  void* stack_ = nullptr;
};

// Has a host thread that has a FaultGuard stop its kernel, if it is in one.
void interrupt(pthread_t thread);

}  // namespace torch_remote::codegen::emulator
