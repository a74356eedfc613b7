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
  // Takes over a child that was started.
  explicit ChildProcess(int pid) : pid_(pid) {}
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Starts arguments[0] in a process group of its own, with `socket` as descriptor kSocket, nothing else but the
  // standard ones (its output goes to our standard error), and one more environment variable.
  static constexpr int kSocket = 3;
  static Status start(const std::vector<std::string>& arguments, const std::string& variable, int socket, int* pid);

  int pid() const { return pid_; }
  // How it ended ("exited with status 1", "was killed by signal 9 (Killed)"), or nothing if it still runs after
  // `timeout`.
  std::optional<std::string> wait(std::chrono::milliseconds timeout);
  // Does nothing if it has ended.
  void signal(int number);

 private:
  bool reap();  // with mutex_ held; true if it has ended

  const int pid_;
  std::mutex mutex_;
  std::optional<std::string> end_;
};

}  // namespace torch_remote::remote
