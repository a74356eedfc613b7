#include "worker/listener.h"

#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "remote/transport/unix_transport.h"

namespace torch_remote::worker {
namespace {

constexpr std::string_view kUnix = "unix://";
// A client that ends one session and begins another one may be quicker than the old session's process.
constexpr std::chrono::milliseconds kForOneToEnd{500};
constexpr std::chrono::milliseconds kForRoom{100};
// Clients that are refused each have a process as long as it takes to tell them: so many at once, and no longer.
constexpr size_t kMostRefused = 16;
constexpr std::chrono::seconds kToRefuse{5};

Status system_error(const std::string& what) {
  return {ErrorCode::kUnsupported, "remote: " + what + ": " + std::strerror(errno)};
}

Status bind_socket(const std::string& url, int* listener) {
  if (!url.starts_with(kUnix)) return Status::invalid("remote: --listen wants unix://PATH, not '" + url + "'");
  const std::string path = url.substr(kUnix.size());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Status::invalid("remote: the path in '" + url + "' must have 1 to " +
                           std::to_string(sizeof(address.sun_path) - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // A socket that a dead worker left. One that still answers is somebody's.
  if (made >= 0 && connect(made, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    return Status::invalid("remote: another worker listens on " + path);
  }
  if (errno == ECONNREFUSED) unlink(path.c_str());
  if (made < 0 || bind(made, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 || ::listen(made, 64) != 0) {
    return system_error("cannot listen on " + path);
  }
  *listener = made;
  return {};
}

int process_of(int client) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

// The sessions' processes, each with its client's.
class Sessions {
 public:
  // Forgets those that have ended.
  void reap() {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0; clients_.erase(pid)) {
      if (refused_.erase(pid) != 0 || !WIFSIGNALED(status)) continue;
      spdlog::warn("the session of process {} (pid {}) was killed by signal {} ({})", clients_[pid], pid,
                   WTERMSIG(status), strsignal(WTERMSIG(status)));
    }
  }
  // Waits a moment for room.
  bool has_room(size_t most) {
    const auto deadline = std::chrono::steady_clock::now() + kForOneToEnd;
    for (;;) {
      reap();
      if (most == 0 || clients_.size() < most) return true;
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  void add(pid_t session, int client) { clients_[session] = client; }
  void add_refused(pid_t session) { refused_.insert(session); }
  size_t refused() const { return refused_.size(); }
  std::string clients() const {
    std::string text;
    for (const auto& [session, client] : clients_) text += (text.empty() ? "" : ", ") + std::to_string(client);
    return text;
  }

 private:
  std::map<pid_t, int> clients_;
  std::set<pid_t> refused_;
};

// The life of a session's process, after fork.
[[noreturn]] void serve_client(int client, const ServerOptions& options, pid_t listener) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != listener) _exit(0);  // it ended before that
  std::signal(SIGCHLD, SIG_DFL);
  Status status;
  try {
    const std::unique_ptr<remote::Transport> transport =
        remote::make_unix_transport(client, remote::Lending::kReadOnly);
    spdlog::debug("serving {}", transport->description());
    status = serve(*transport, options);
  } catch (const std::exception& error) {
    status = Status::internal(std::string("remote: the session ends: ") + error.what());
  }
  if (!status.ok()) spdlog::warn("{}", status.message());
  spdlog::default_logger()->flush();
  _exit(status.ok() ? 0 : 1);
}

}  // namespace

Status listen(const std::string& url, const ServerOptions& options, size_t most) {
  int listener = -1;
  if (Status status = bind_socket(url, &listener); !status) return status;
  struct sigaction child{};  // interrupts accept4
  child.sa_handler = [](int) {};
  sigaction(SIGCHLD, &child, nullptr);
  spdlog::info("listening on {}", url);
  const pid_t self = getpid();
  Sessions sessions;
  for (;;) {
    sessions.reap();
    const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == EOPNOTSUPP) {
        return system_error("cannot accept clients");
      }
      // No descriptors or no memory just now, which may be one client's doing: the others must not suffer from it.
      spdlog::warn("cannot accept a client: {}", std::strerror(errno));
      std::this_thread::sleep_for(kForRoom);
      continue;
    }
    ServerOptions its = options;
    const bool has_room = sessions.has_room(most);
    if (!has_room && sessions.refused() >= kMostRefused) {
      close(client);
      continue;
    }
    if (!has_room) {
      its.greeting = kToRefuse;
      its.unavailable = {ErrorCode::kUnsupported,
                         "remote: the worker at " + url + " (pid " + std::to_string(self) + ") is busy: it serves " +
                             std::to_string(most) + (most == 1 ? " client" : " clients") + " at most, and " +
                             (most == 1 ? "process " : "processes ") + sessions.clients() +
                             (most == 1 ? " uses it" : " use it") +
                             "; wait until one ends, start the worker with a larger --max-sessions, or start another "
                             "one: torch-remote-worker --listen unix://ANOTHER_PATH"};
    }
    const pid_t pid = fork();
    if (pid == 0) {
      close(listener);
      serve_client(client, its, self);
    }
    if (pid < 0) {
      spdlog::error("cannot start a session's process: {}", std::strerror(errno));
    } else if (has_room) {
      sessions.add(pid, process_of(client));
    } else {
      sessions.add_refused(pid);
    }
    close(client);
  }
}

}  // namespace torch_remote::worker
