#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ir/status.h"

namespace torch_remote::remote {

// A child of this process. Thread safe. The destructor neither ends nor reaps the child: call signal() and wait().
class ChildProcess {
 public:
  // Takes ownership of a child that is already running.
  explicit ChildProcess(int pid) : pid_(pid) {}
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Starts the file arguments[0] in a new process group. `variable` ("NAME=value") is added to the environment, or
  // replaces the variable of that name. The child gets `socket` as descriptor kSocket; the caller still owns `socket`.
  // With glibc 2.34 or later, the child gets no other descriptors but the standard ones. Its input is empty, and its
  // output goes to our stderr. Returns kUnsupported if it cannot be started.
  static constexpr int kSocket = 3;
  static Status start(const std::vector<std::string>& arguments, const std::string& variable, int socket, int* pid);

  int pid() const { return pid_; }
  // Waits for the child, and reaps it. Returns how it ended ("exited with status 1", "was killed by signal 15
  // (Terminated)"), or "ended" if other code has reaped it. Returns nullopt if it still runs after `timeout`.
  std::optional<std::string> wait(std::chrono::milliseconds timeout);
  // Sends a signal; does nothing if the child has ended.
  void signal(int number);

 private:
  bool reap();  // requires mutex_; returns true if the child has ended

  const int pid_;
  std::mutex mutex_;
  std::optional<std::string> end_;
};

}  // namespace torch_remote::remote
