#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ir/status.h"

namespace torch_remote::remote {

// A child of this process. Thread safe.
class ChildProcess {
 public:
  // Takes ownership of a child that is already running.
  explicit ChildProcess(int pid) : pid_(pid) {}
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Starts arguments[0] in a new process group with one more environment variable, `variable`. The child gets `socket`
  // as descriptor kSocket and the standard descriptors, but no others. Its output goes to our stderr.
  static constexpr int kSocket = 3;
  static Status start(const std::vector<std::string>& arguments, const std::string& variable, int socket, int* pid);

  int pid() const { return pid_; }
  // How the child ended ("exited with status 1", "was killed by signal 9 (Killed)"), or nullopt if it still runs after
  // `timeout`.
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
