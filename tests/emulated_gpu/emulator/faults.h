#pragma once

#include <pthread.h>

#include <cstdint>

// Turns signals that kernels cause into findings: inaccessible memory, an integer division by zero, and a timeout.
namespace torch_remote::codegen::emulator {

// While it lives, faults of the calling host thread's fibers become Worker::stop.
class FaultGuard {
 public:
  FaultGuard();
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

 private:
  void* stack_ = nullptr;
};

// Stops the kernel of a host thread that has a FaultGuard, if it is executing one.
void interrupt(pthread_t thread);

}  // namespace torch_remote::codegen::emulator
