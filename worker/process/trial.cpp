#include "worker/process/trial.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <istream>
#include <iterator>
#include <memory>
#include <sstream>

#include "remote/transport/unix_transport.h"
#include "worker/sandbox/sandbox.h"

namespace torch_remote::worker {
namespace {

// Runs in the trial process. Does what a session does, but finds the folders of libraries before it enters the sandbox.
Status try_all(const ListenOptions& options, const ServerOptions& server, TrialRun* found) {
  ServerOptions its = server;
  Status status = options.load(&its);
  if (status.ok()) status = its.unavailable;
  if (status.ok() && options.opens_first) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return system_error("no socket");
    const std::unique_ptr<remote::Transport> transport =
        remote::make_unix_transport(ends[0], remote::MemoryAccess::kReadOnly);
    std::vector<DeviceOpener> devices = options.devices;
    if (devices.empty()) devices.push_back(server.open_device);
    for (const DeviceOpener& open : devices) {
      auto* opened = new OpenDevice;  // Lives until the process ends.
      if (status = open(*transport, its, {}, opened); !status.ok()) break;
    }
  }
  if (!status.ok()) return status;
  found->libraries = library_folders();
  SandboxOptions sandbox = options.sandbox;
  std::ranges::copy(found->libraries, std::back_inserter(sandbox.readable));
  SandboxReport report;
  if (status = enter_sandbox(sandbox, &report); !status.ok()) return status;
  found->confined = report.text();
  found->failed = report.failed;
  if (!options.sandbox.user.empty() && access(its.plugin.c_str(), R_OK) != 0) {
    return system_error("the user '" + options.sandbox.user + "' of --session-user cannot read " + its.plugin);
  }
  return {};
}

}  // namespace

Status run_trial(const ListenOptions& options, const ServerOptions& server, TrialRun* found) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error("cannot create a pipe");
  const pid_t pid = fork();
  if (pid < 0) return system_error("cannot create a process");
  if (pid == 0) {
    close(ends[0]);
    Status status;
    try {
      status = try_all(options, server, found);
    } catch (const std::exception& error) {
      status = Status::internal(std::string("remote: ") + error.what());
    }
    // Sends the error, or these lines: an empty one, whether a protection failed, the sandbox, folders.
    std::string text = status.message();
    if (status.ok()) {
      text = std::string(found->failed ? "\n1\n" : "\n0\n") + found->confined;
      for (const std::string& folder : found->libraries) text += '\n' + folder;
    }
    (void)!write(ends[1], text.data(), text.size());
    _exit(0);
  }
  close(ends[1]);
  std::string message;
  std::array<char, 1024> bytes;
  for (ssize_t n; (n = read(ends[0], bytes.data(), bytes.size())) > 0 || (n < 0 && errno == EINTR);) {
    if (n > 0) message.append(bytes.data(), static_cast<size_t>(n));
  }
  close(ends[0]);
  int ended = 0;
  while (waitpid(pid, &ended, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(ended)) {
    return Status::internal(std::string("remote: the process that loads the plugin was killed by signal ") +
                            std::to_string(WTERMSIG(ended)) + " (" + strsignal(WTERMSIG(ended)) + ")");
  }
  if (!message.starts_with('\n')) return {ErrorCode::kUnsupported, message};
  std::istringstream lines(message);
  lines.ignore();
  std::string failed;
  std::getline(lines, failed);
  found->failed = failed == "1";
  std::getline(lines, found->confined);
  for (std::string folder; std::getline(lines, folder);) found->libraries.push_back(folder);
  return {};
}

}  // namespace torch_remote::worker
