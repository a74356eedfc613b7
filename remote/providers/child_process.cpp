#include "remote/providers/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

namespace torch_remote::remote {
namespace {

std::string describe(int status) {
  if (WIFEXITED(status)) return "exited with status " + std::to_string(WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  std::string text = "was killed by signal " + std::to_string(number) + " (" + strsignal(number) + ")";
  if (number == SIGKILL) text += "; if nobody did that, the kernel was out of memory";
  return text;
}

// The two argument objects of posix_spawn.
struct SpawnArguments {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;

  SpawnArguments() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnArguments() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
};

}  // namespace

// posix_spawn instead of fork: it neither copies this process nor runs the atfork handlers of libraries.
Status ChildProcess::start(const std::vector<std::string>& arguments, const std::string& variable, int socket,
                           int* pid) {
  SpawnArguments spawn;
  posix_spawn_file_actions_addopen(&spawn.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&spawn.files, STDERR_FILENO, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&spawn.files, socket, kSocket);  // unlike `socket`, kSocket stays open across exec
#if defined(__GLIBC_PREREQ) && __GLIBC_PREREQ(2, 34)
  posix_spawn_file_actions_addclosefrom_np(&spawn.files, kSocket + 1);
#endif
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  for (int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&defaults, number);
  posix_spawnattr_setsigmask(&spawn.attributes, &none);
  posix_spawnattr_setsigdefault(&spawn.attributes, &defaults);
  posix_spawnattr_setpgroup(&spawn.attributes, 0);
  posix_spawnattr_setflags(&spawn.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<char*> argv, environment;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const std::string name = variable.substr(0, variable.find('=') + 1);
  for (char** entry = environ; *entry; ++entry) {
    if (std::strncmp(*entry, name.c_str(), name.size()) != 0) environment.push_back(*entry);
  }
  environment.push_back(const_cast<char*>(variable.c_str()));
  environment.push_back(nullptr);
  const int error = posix_spawn(pid, argv[0], &spawn.files, &spawn.attributes, argv.data(), environment.data());
  if (error == 0) return {};
  return {ErrorCode::kUnsupported, "remote: cannot start the worker " + arguments[0] + ": " + std::strerror(error)};
}

bool ChildProcess::reap() {
  if (end_) return true;
  int status;
  const pid_t reaped = waitpid(pid_, &status, WNOHANG);
  if (reaped == pid_) {
    end_ = describe(status);
  } else if (reaped < 0 && errno == ECHILD) {
    end_ = "ended";  // other code in this process waits for all children
  }
  return end_.has_value();
}

std::optional<std::string> ChildProcess::wait(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (reap()) return end_;
    }
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void ChildProcess::signal(int number) {
  std::lock_guard lock(mutex_);  // until the child is reaped, its pid cannot be reused
  if (!reap()) kill(pid_, number);
}

}  // namespace torch_remote::remote
