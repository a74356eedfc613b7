#include "worker/process/listener.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "remote/net/handshake.h"
#include "remote/net/tcp.h"
#include "remote/net/worker_url.h"
#include "remote/transport/unix_transport.h"
#include "worker/process/control_socket.h"
#include "worker/process/session_process.h"
#include "worker/process/status_file.h"
#include "worker/process/trial.h"
#include "worker/sandbox/sandbox.h"

namespace torch_remote::worker {
namespace {

using Clock = std::chrono::steady_clock;
using remote::ClientHello;
using remote::ServerHello;

// A client that ends one session and begins another may be faster than the exit of the old session's process.
constexpr std::chrono::milliseconds kSessionExitTime{500};
constexpr std::chrono::milliseconds kAcceptRetryTime{100};
constexpr std::chrono::milliseconds kForEnd{50};
// Limits for a Unix socket: clients that wait to be admitted, and clients that are being refused. Each of the latter
// has a process until it has its answer.
constexpr size_t kMostWaiting = 64, kMostRefused = 16;
// Limits for a network: connections without a client hello yet (the oldest is dropped), and processes whose client is
// not authenticated.
constexpr size_t kMostIncoming = 64, kMostUnproven = 32;
constexpr size_t kMostEnded = 256;  // Number of ended sessions whose end is remembered.

// Removes the socket of a dead worker. Keeps a socket that still answers, and any other file.
Status remove_stale_socket(const std::string& path, const sockaddr_un& address) {
  struct stat there{};
  if (lstat(path.c_str(), &there) != 0) return {};
  if (!S_ISSOCK(there.st_mode)) {
    return Status::invalid("remote: cannot listen on " + path + ": this path exists and is not a socket; remove it, " +
                           "or give --listen another path");
  }
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) return system_error("no socket");
  const bool answers = connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const bool refused = !answers && errno == ECONNREFUSED;
  close(made);
  if (answers) return Status::invalid("remote: another worker listens on " + path);
  if (refused) unlink(path.c_str());
  return {};
}

// `mode`: mode of the socket's file, independent of the umask.
Status bind_unix(const std::string& path, const std::string& url, mode_t mode, int* listener) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Status::invalid("remote: the path in '" + url + "' must have 1 to " +
                           std::to_string(sizeof(address.sun_path) - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  if (Status status = remove_stale_socket(path, address); !status.ok()) return status;
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const mode_t before = umask(static_cast<mode_t>(~mode & 0777));
  const bool bound = made >= 0 && bind(made, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  umask(before);
  if (!bound || ::listen(made, 64) != 0) return system_error("cannot listen on " + path);
  *listener = made;
  return {};
}

ucred peer_of(int client) {
  ucred peer{0, static_cast<uid_t>(-1), static_cast<gid_t>(-1)};
  socklen_t size = sizeof(peer);
  (void)getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  return peer;
}

// A network connection that has not sent its whole client hello.
struct Incoming {
  int socket = -1;
  Clock::time_point deadline;
  std::array<uint8_t, sizeof(ClientHello)> bytes{};
  size_t have = 0;
};

struct SessionProcess {
  enum class State { kServing, kUnproven, kRefused };

  pid_t pid = 0;
  State state = State::kServing;
  std::string client;  // "process 12", "127.0.0.1:4000"
  int control = -1;    // Control socket of a network session; else -1.
  // Recognizes the client hellos of this session's client (remote/net/handshake.h).
  std::optional<remote::Digest> routing;
  uint64_t attempts = 0;                   // The latest attempt number in these client hellos.
  std::optional<Clock::time_point> asked;  // When it asked to be admitted.
  size_t device = 0;                       // Index into ListenOptions::devices.
  SessionStatus* counts = nullptr;
};

// Whether the session's process has closed its end.
bool is_gone(const SessionProcess& session) {
  pollfd polled{session.control, POLLIN, 0};
  return session.control < 0 || (poll(&polled, 1, 0) > 0 && (polled.revents & POLLHUP));
}

class Listener {
 public:
  Listener(const ListenOptions& options, const ServerOptions& server, TrialRun trial)
      : options_(options), server_(server), trial_(std::move(trial)) {}

  Status open();
  Status run();

 private:
  bool network() const { return at_.is_network(); }
  Status open_network();
  void wait_for_something(std::vector<pollfd>& polled);
  Status accept_some();
  void reap();
  size_t serving() const { return count(SessionProcess::State::kServing); }
  size_t count(SessionProcess::State state) const {
    return static_cast<size_t>(std::ranges::count(sessions_, state, &SessionProcess::state));
  }
  bool has_capacity() const { return options_.max_sessions == 0 || serving() < options_.max_sessions; }
  std::string busy() const;
  size_t next_device() const;
  // Starts a session's process, or returns the reason why it cannot.
  Status start(const SessionStart& start, pid_t* pid) const;

  void accept_unix(int client);
  void admit_unix();
  void begin_unix(int client, SessionProcess::State state);
  void begin_network(int client);
  // Returns false if the connection is finished.
  bool read_client_hello(Incoming& incoming);
  void answer(int client, ServerHello::Code code, const std::string& text);
  void begin_session(int client, const ClientHello& client_hello);
  void hand_over(int client, const ClientHello& client_hello);
  // Returns false if the other end is gone.
  bool read_control(SessionProcess& session);
  void answer_admission(SessionProcess& session);
  // Reserves a status slot for a session's process that is about to be started.
  SessionStatus* begin_status(const std::string& client) { return status_ ? status_->begin(client) : nullptr; }
  uint64_t slot_of(const SessionStatus* counts) const {
    return counts != nullptr ? status_->number_of(counts) : WorkerStatus::kSessions;  // An invalid slot.
  }
  SessionProcess& add_session(pid_t pid, SessionProcess::State state, std::string client, SessionStatus* counts);

  const ListenOptions& options_;
  const ServerOptions& server_;
  const TrialRun trial_;
  std::string url_;  // The text of at_, for messages.
  remote::WorkerUrl at_;
  int listener_ = -1;
  const pid_t self_ = getpid();
  sigset_t waiting_{};  // The signal mask while it waits.
  std::list<Incoming> incoming_;
  struct Waiting {
    int client = -1;
    Clock::time_point until;
  };
  std::deque<Waiting> waiting_for_admission_;  // Over a Unix socket, in the order of arrival.
  std::list<SessionProcess> sessions_;
  struct Ended {
    remote::Digest routing{};
    std::string how;
  };
  std::deque<Ended> ended_;
  std::unique_ptr<StatusFile> status_;  // Null if no status file is wanted.
};

Status Listener::open() {
  url_ = options_.url;
  Status status;
  if (!remote::scheme_of(url_)) {
    return Status::invalid("remote: --listen needs unix://PATH, tcp://HOST:PORT or tls://HOST:PORT, not '" + url_ +
                           "'");
  }
  if (status = remote::parse_worker_url(url_, &at_); !status.ok()) return status;
  if (!network()) {
    const bool others = !options_.users.empty();
    status = bind_unix(at_.path, url_, others ? 0666 : 0600, &listener_);
  } else {
    status = open_network();
  }
  if (!status.ok()) return status;
  if (!options_.status_file.empty()) {
    if (status = StatusFile::create(options_.status_file, options_.max_sessions, &status_); !status.ok()) return status;
  }
  // SIGCHLD ends a wait, and arrives at no other time.
  struct sigaction child{};
  child.sa_handler = [](int) {};
  sigaction(SIGCHLD, &child, nullptr);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_BLOCK, &blocked, &waiting_);
  sigdelset(&waiting_, SIGCHLD);
  spdlog::log(trial_.failed ? spdlog::level::warn : spdlog::level::info, "sessions are confined: {}", trial_.confined);
  const std::string limit =
      server_.memory_limit ? std::to_string(server_.memory_limit >> 20) + " MiB" : std::string("all memory");
  spdlog::info("sessions are limited: {} at once (--max-sessions), {} for the tensors of each (--memory-limit)",
               options_.max_sessions ? std::to_string(options_.max_sessions) : "any number", limit);
  spdlog::info("listening on {}", url_);
  return {};
}

Status Listener::open_network() {
  if (at_.is_tls()) {  // Sessions read the files themselves; this finds errors before a client connects.
    std::shared_ptr<const remote::TlsContext> context;
    if (Status status = remote::TlsContext::for_worker(options_.tls, &context); !status) return status;
  }
  bool loopback = false;
  const bool any_port = at_.address.port == 0;
  if (Status status = remote::listen_tcp(&at_.address, &listener_, &loopback); !status) return status;
  url_ = at_.text();
  const bool knows_clients = !options_.token.empty() || (at_.is_tls() && !options_.tls.authorities.empty());
  if (!loopback && !knows_clients) {
    return Status::invalid("remote: " + url_ +
                           " can be reached from other machines, and whoever connects runs programs here: give a token "
                           "(--token-file FILE) that clients must know, or listen on 127.0.0.1");
  }
  if (!knows_clients) {
    spdlog::warn("every user of this machine may use the worker at {}: --token-file keeps others out", url_);
  }
  if (any_port) {
    std::printf("%s\n", url_.c_str());
    std::fflush(stdout);
  }
  return {};
}

Status Listener::run() {
  std::vector<pollfd> polled;
  for (;;) {
    reap();
    wait_for_something(polled);
    for (SessionProcess& session : sessions_) {
      if (session.control >= 0 && !read_control(session)) {
        close(session.control);
        session.control = -1;
      }
      answer_admission(session);
    }
    admit_unix();
    for (auto incoming = incoming_.begin(); incoming != incoming_.end();) {
      incoming = read_client_hello(*incoming) ? std::next(incoming) : incoming_.erase(incoming);
    }
    if (Status status = accept_some(); !status.ok()) return status;
  }
}

void Listener::wait_for_something(std::vector<pollfd>& polled) {
  polled.assign(1, {listener_, POLLIN, 0});
  auto until = Clock::now() + std::chrono::hours(1);
  for (const Incoming& incoming : incoming_) {
    polled.push_back({incoming.socket, POLLIN, 0});
    until = std::min(until, incoming.deadline);
  }
  for (const SessionProcess& session : sessions_) {
    if (session.control >= 0) polled.push_back({session.control, POLLIN, 0});
    if (session.asked) until = std::min(until, *session.asked + kSessionExitTime);
  }
  if (!waiting_for_admission_.empty()) until = std::min(until, waiting_for_admission_.front().until);
  const auto left = std::max<Clock::duration>(until - Clock::now(), Clock::duration::zero());
  const timespec timeout = {std::chrono::duration_cast<std::chrono::seconds>(left).count(),
                            std::chrono::duration_cast<std::chrono::nanoseconds>(left).count() % 1'000'000'000};
  (void)ppoll(polled.data(), polled.size(), &timeout, &waiting_);
}

// Accepts a part of the waiting clients. The others follow in the next round, so that sessions are served in between.
Status Listener::accept_some() {
  for (size_t i = 0; i < kMostIncoming; ++i) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client >= 0) {
      network() ? begin_network(client) : accept_unix(client);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == EOPNOTSUPP) {
      return system_error("cannot accept clients");
    }
    // Out of descriptors or memory, which one client may have caused: the others must not suffer from it.
    spdlog::warn("cannot accept a client: {}", std::strerror(errno));
    std::this_thread::sleep_for(kAcceptRetryTime);
    return {};
  }
  return {};
}

// Removes the processes that have ended.
void Listener::reap() {
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto session = std::ranges::find(sessions_, pid, &SessionProcess::pid);
    if (session == sessions_.end()) continue;
    std::string how = "it has ended";
    if (status_) {
      status_->end(session->counts);
      if (WIFSIGNALED(status)) ++status_->all().killed;
    }
    if (WIFSIGNALED(status)) {
      how = "it was killed by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
      if (session->state != SessionProcess::State::kRefused) {
        spdlog::warn("the session of {} (pid {}) was killed by signal {} ({})", session->client, pid, WTERMSIG(status),
                     strsignal(WTERMSIG(status)));
      }
    }
    if (session->routing) ended_.push_back({*session->routing, std::move(how)});
    if (ended_.size() > kMostEnded) ended_.pop_front();
    if (session->control >= 0) close(session->control);
    sessions_.erase(session);
  }
}

std::string Listener::busy() const {
  std::string clients;
  for (const SessionProcess& session : sessions_) {
    if (session.state != SessionProcess::State::kServing) continue;
    std::string client = session.client;
    // "processes 1, 2"
    if (constexpr std::string_view kProcess = "process "; !network() && !clients.empty()) {
      client.erase(0, kProcess.size());
    } else if (!network() && options_.max_sessions > 1) {
      client.replace(0, kProcess.size(), "processes ");
    }
    clients += (clients.empty() ? "" : ", ") + client;
  }
  const bool one = options_.max_sessions == 1;
  return "remote: the worker at " + url_ + " (pid " + std::to_string(self_) + ") is busy: it serves " +
         std::to_string(options_.max_sessions) + (one ? " client" : " clients") + " at most, and " + clients +
         (one ? " uses it" : " use it") +
         "; wait until one ends, start the worker with a larger --max-sessions, or start another one: "
         "torch-remote-worker --listen " +
         (at_.is_tls() ? "tls://HOST:ANOTHER_PORT"
          : network()  ? "tcp://HOST:ANOTHER_PORT"
                       : "unix://ANOTHER_PATH");
}

size_t Listener::next_device() const {
  std::vector<size_t> users(std::max<size_t>(options_.devices.size(), 1));
  for (const SessionProcess& session : sessions_) {
    if (session.state != SessionProcess::State::kRefused) ++users[session.device];
  }
  return static_cast<size_t>(std::ranges::min_element(users) - users.begin());
}

Status Listener::start(const SessionStart& start, pid_t* pid) const {
  SessionStart its = start;
  its.libraries = trial_.libraries;
  its.has_warned = trial_.failed;
  its.status = status_ ? status_->descriptor() : -1;
  return start_session(its, options_.command, waiting_, options_.sandbox.processes, pid);
}

// --- over a Unix socket ----------------------------------------------------------------------------------------------

SessionProcess& Listener::add_session(pid_t pid, SessionProcess::State state, std::string client,
                                      SessionStatus* counts) {
  SessionProcess& session = sessions_.emplace_back();
  session.pid = pid;
  session.state = state;
  session.client = std::move(client);
  session.counts = counts;
  if (counts != nullptr) counts->process = static_cast<uint64_t>(pid);
  if (status_ && state == SessionProcess::State::kServing) ++status_->all().sessions;
  if (status_ && state == SessionProcess::State::kRefused) ++status_->all().refused;
  return session;
}

void Listener::accept_unix(int client) {
  const ucred peer = peer_of(client);
  if (peer.uid != 0 && peer.uid != geteuid() && std::ranges::find(options_.users, peer.uid) == options_.users.end()) {
    spdlog::warn("process {} of user {} is refused (--allow-user)", peer.pid, peer.uid);
    close(client);
  } else if (waiting_for_admission_.size() >= kMostWaiting) {
    close(client);
  } else {
    waiting_for_admission_.push_back({client, Clock::now() + kSessionExitTime});
    admit_unix();
  }
}

// Admits or refuses waiting clients: admits while there is capacity, refuses after a timeout.
void Listener::admit_unix() {
  using State = SessionProcess::State;
  reap();
  while (!waiting_for_admission_.empty() && (has_capacity() || Clock::now() >= waiting_for_admission_.front().until)) {
    const int client = waiting_for_admission_.front().client;
    waiting_for_admission_.pop_front();
    if (has_capacity()) {
      begin_unix(client, State::kServing);
    } else if (count(State::kRefused) < kMostRefused) {
      begin_unix(client, State::kRefused);
    }
    close(client);
  }
}

void Listener::begin_unix(int client, SessionProcess::State state) {
  const bool serves = state == SessionProcess::State::kServing;
  std::string name = "process " + std::to_string(peer_of(client).pid);
  SessionStatus* const counts = serves ? begin_status(name) : nullptr;
  SessionStart its;
  its.client = client;
  its.device = next_device();
  its.status_slot = slot_of(counts);
  if (!serves) its.refusal = busy();
  pid_t pid = -1;
  if (const Status status = start(its, &pid); !status.ok()) {
    spdlog::error("{}", status.message());
    if (status_) status_->end(counts);
    return;
  }
  add_session(pid, state, std::move(name), counts).device = its.device;
}

// --- over a network --------------------------------------------------------------------------------------------------

void Listener::begin_network(int client) {
  remote::set_up_tcp(client);
  if (incoming_.size() >= kMostIncoming) {
    close(incoming_.front().socket);
    incoming_.pop_front();
  }
  Incoming& incoming = incoming_.emplace_back();
  incoming.socket = client;
  incoming.deadline = Clock::now() + remote::kHelloTimeout;
  // We read at once, so that many strangers that connect after a client cannot displace it.
  if (!read_client_hello(incoming)) incoming_.pop_back();
}

bool Listener::read_client_hello(Incoming& incoming) {
  const ssize_t n = TEMP_FAILURE_RETRY(recv(incoming.socket, incoming.bytes.data() + incoming.have,
                                            incoming.bytes.size() - incoming.have, MSG_DONTWAIT));
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && Clock::now() < incoming.deadline) return true;
  if (n <= 0) {
    close(incoming.socket);
    return false;
  }
  incoming.have += static_cast<size_t>(n);
  // Another protocol is recognized after fewer bytes.
  if (!remote::is_whole({incoming.bytes.data(), incoming.have})) return true;
  const int client = std::exchange(incoming.socket, -1);
  ClientHello client_hello;
  std::string text;
  const ServerHello::Code code = remote::check_client_hello({incoming.bytes.data(), incoming.have}, at_.is_tls(),
                                                            !options_.token.empty(), &client_hello, &text);
  if (code != ServerHello::kGoOn) {
    answer(client, code, text);
  } else if (client_hello.resumes()) {
    hand_over(client, client_hello);
  } else {
    begin_session(client, client_hello);
  }
  close(client);
  return false;
}

// A new socket's send buffer takes so few bytes without blocking.
void Listener::answer(int client, ServerHello::Code code, const std::string& text) {
  const std::string bytes = remote::encode_server_hello(code, text);
  (void)!send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  spdlog::info("{} is refused: {}{}{}", remote::peer_of(client), remote::refusal_reason(code), text.empty() ? "" : ": ",
               text);
  shutdown(client, SHUT_WR);
  char rest[256];  // Unread data would reset the connection and discard the answer.
  while (recv(client, rest, sizeof(rest), MSG_DONTWAIT) > 0) {
  }
}

void Listener::begin_session(int client, const ClientHello& client_hello) {
  if (count(SessionProcess::State::kUnproven) >= kMostUnproven) {
    return answer(client, ServerHello::kRefused, "too many clients connect at once; try again");
  }
  int ends[2];
  if (Status status = make_control_sockets(ends); !status.ok()) {
    spdlog::error("{}", status.message());
    return answer(client, ServerHello::kRefused, "it cannot start a session at the moment; try again");
  }
  std::string name = remote::peer_of(client);
  SessionStatus* const counts = begin_status(name);
  SessionStart its;
  its.network = true;
  its.client = client;
  its.control = ends[1];
  its.device = next_device();
  its.client_hello = client_hello;
  its.token = options_.token;
  its.status_slot = slot_of(counts);
  pid_t pid = -1;
  const Status started = start(its, &pid);
  close(ends[1]);
  if (!started.ok()) {
    spdlog::error("{}", started.message());
    if (status_) status_->end(counts);
    close(ends[0]);
    return answer(client, ServerHello::kRefused, "it cannot start a session at the moment; try again");
  }
  SessionProcess& session = add_session(pid, SessionProcess::State::kUnproven, std::move(name), counts);
  session.control = ends[0];
  session.device = its.device;
}

void Listener::hand_over(int client, const ClientHello& client_hello) {
  const auto find = [&] {
    return std::ranges::find_if(sessions_, [&](const auto& session) {
      return session.routing && remote::is_from(client_hello, *session.routing);
    });
  };
  reap();
  auto session = find();
  // A dying process closes its sockets a moment before waitpid() reports how it died.
  for (int i = 0; i < kForEnd.count() && session != sessions_.end() && is_gone(*session); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    reap();
    session = find();
  }
  if (session == sessions_.end() || session->control < 0) {
    const auto ended =
        std::ranges::find_if(ended_, [&](const Ended& it) { return remote::is_from(client_hello, it.routing); });
    return answer(client, ServerHello::kUnknownSession, ended != ended_.end() ? ended->how : std::string());
  }
  if (client_hello.attempt <=
      session->attempts) {  // The client hello is a replay, or the client has given it up since.
    spdlog::info("{} sent an old client hello of the client of {}", remote::peer_of(client), session->client);
    return;
  }
  session->attempts = client_hello.attempt;
  const std::string bytes(reinterpret_cast<const char*>(&client_hello), sizeof(client_hello));
  if (!send_control(session->control, Control::kReconnect, bytes, client)) {
    spdlog::warn("the session of {} does not accept its client's new connection", session->client);
  }
}

bool Listener::read_control(SessionProcess& session) {
  for (;;) {
    ControlMessage message;
    const Status status = receive_control(session.control, &message);
    if (!status.ok()) return status.code() == ErrorCode::kTimeout;
    if (message.descriptor >= 0) close(message.descriptor);
    if (message.type != Control::kAdmissionRequest || message.body.size() != sizeof(remote::Digest) ||
        session.state != SessionProcess::State::kUnproven) {
      continue;
    }
    std::memcpy(session.routing.emplace().data(), message.body.data(), sizeof(remote::Digest));
    session.asked = Clock::now();
  }
}

// Answers a session that asked to be admitted: yes while there is capacity, no after a timeout.
void Listener::answer_admission(SessionProcess& session) {
  if (!session.asked) return;
  if (has_capacity()) {
    session.state = SessionProcess::State::kServing;
    if (status_) ++status_->all().sessions;
    send_control(session.control, Control::kAdmitted, {});
  } else if (Clock::now() - *session.asked >= kSessionExitTime) {
    session.state = SessionProcess::State::kRefused;
    session.routing.reset();
    if (status_) ++status_->all().refused;
    send_control(session.control, Control::kRefused, busy());
  } else {
    return;
  }
  session.asked.reset();
}

}  // namespace

Status listen(const ListenOptions& options, const ServerOptions& server) {
  protect_secrets();
  TrialRun trial;
  if (Status status = run_trial(options, server, &trial); !status.ok()) return status;
  Listener listener(options, server, std::move(trial));
  if (Status status = listener.open(); !status.ok()) return status;
  return listener.run();
}

}  // namespace torch_remote::worker
