#include "tests/emulated_gpu/emulator/faults.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <mutex>

#include "tests/emulated_gpu/emulator/worker.h"

namespace torch_remote::codegen::emulator {
namespace {

// Two stacks: the signal handler's, and one on which the finding is composed, because the fiber's own stack may have
// overflowed.
constexpr size_t kStack = size_t{64} << 10;
constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};

int interrupt_signal() { return SIGRTMIN + 6; }

struct Fault {
  int signal = 0;
  void* address = nullptr;
  char* stack = nullptr;
};
thread_local Fault fault;
std::array<struct sigaction, 65> previous;  // earlier handlers, for signals that are not ours

void report_fault() {
  Worker& worker = *Worker::current();
  if (fault.signal == SIGFPE) worker.stop("divides an integer by zero; checked mode names the line");
  if (fault.signal == SIGILL) worker.stop("comes to code that cannot be reached");
  if (fault.signal == SIGSEGV || fault.signal == SIGBUS) worker.stop(worker.describe_fault(fault.address));
  worker.stop("runs too long (an endless loop, or it waits for what cannot come); checked mode names the loop");
}

void on_signal(int signal, siginfo_t* info, void* context) {
  Worker* worker = Worker::current();
  if (worker == nullptr || !worker->in_thread() || fault.stack == nullptr) {
    if (signal == interrupt_signal()) return;
    sigaction(signal, &previous[signal], nullptr);  // the signal repeats and reaches the earlier handler
    return;
  }
  fault.signal = signal;
  fault.address = info->si_addr;
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  registers[REG_RIP] = reinterpret_cast<greg_t>(report_fault);
  registers[REG_RSP] = reinterpret_cast<greg_t>(fault.stack + 2 * kStack - 8);  // aligned as after a call
}

void install() {
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int signal : kFaults) sigaction(signal, &action, &previous[signal]);
  sigaction(interrupt_signal(), &action, &previous[interrupt_signal()]);
}

}  // namespace

FaultGuard::FaultGuard() {
  static std::once_flag once;
  std::call_once(once, install);
  stack_ = mmap(nullptr, 2 * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack_ == MAP_FAILED) return;
  fault.stack = static_cast<char*>(stack_);
  const stack_t alternate{stack_, 0, kStack};
  sigaltstack(&alternate, nullptr);
}

FaultGuard::~FaultGuard() {
  if (stack_ == MAP_FAILED) return;
  const stack_t none{nullptr, SS_DISABLE, 0};
  sigaltstack(&none, nullptr);
  fault.stack = nullptr;
  munmap(stack_, 2 * kStack);
}

void interrupt(pthread_t thread) { pthread_kill(thread, interrupt_signal()); }

}  // namespace torch_remote::codegen::emulator
