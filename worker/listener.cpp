#include "worker/listener.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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
#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "remote/net/handshake.h"
#include "remote/net/tcp.h"
#include "remote/transport/unix_transport.h"
#include "worker/control_socket.h"
#include "worker/network_session.h"
#include "worker/status_file.h"

namespace torch_remote::worker {
namespace {

using Clock = std::chrono::steady_clock;
using remote::Answer;
using remote::Opening;

constexpr std::string_view kUnix = "unix://", kTcp = "tcp://", kTls = "tls://";
// A client that ends one session and begins another one may be quicker than the old session's process.
constexpr std::chrono::milliseconds kForOneToEnd{500};
constexpr std::chrono::milliseconds kForRoom{100};
constexpr std::chrono::milliseconds kForEnd{50};
// Clients that are refused each have a process as long as it takes to tell them: so many at once, and no longer.
constexpr size_t kMostRefused = 16;
constexpr std::chrono::seconds kToRefuse{5};
// Over a network: connections that have not said their opening (the oldest goes), and processes whose client has not
// proved who it is.
constexpr size_t kMostOpening = 64, kMostUnproven = 32;
constexpr size_t kMostEnded = 256;  // sessions whose end is known

Status system_error(const std::string& what) {
  return {ErrorCode::kUnsupported, "remote: " + what + ": " + std::strerror(errno)};
}

Status bind_unix(const std::string& path, const std::string& url, int* listener) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Status::invalid("remote: the path in '" + url + "' must have 1 to " +
                           std::to_string(sizeof(address.sun_path) - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
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

// What a session needs is loaded once by a process that ends then: what is missing is said before anybody comes.
Status try_to_load(const ListenOptions& options, const ServerOptions& server) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error("no pipe");
  const pid_t pid = fork();
  if (pid < 0) return system_error("no process");
  if (pid == 0) {
    close(ends[0]);
    ServerOptions its = server;
    Status status = options.load(&its);
    if (status.ok()) status = its.unavailable;
    (void)!write(ends[1], status.message().data(), status.message().size());
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
                            std::to_string(WTERMSIG(ended)));
  }
  return message.empty() ? Status() : Status(ErrorCode::kUnsupported, message);
}

// One that connected over a network and says its opening.
struct Incoming {
  int socket = -1;
  Clock::time_point deadline;
  std::array<uint8_t, sizeof(Opening)> bytes{};
  size_t have = 0;
};

struct SessionProcess {
  enum class State { kServing, kUnproven, kRefused };

  pid_t pid = 0;
  State state = State::kServing;
  std::string client;  // "process 12", "127.0.0.1:4000"
  int control = -1;    // of one whose client came over a network
  std::optional<remote::Digest> routing;   // whose openings are its client's (remote/net/handshake.h)
  uint64_t attempts = 0;                   // of these that were taken
  std::optional<Clock::time_point> asked;  // for room
  size_t device = 0;                       // of ListenOptions::devices
  SessionStatus* counts = nullptr;
};

// Its process has closed its end.
bool is_gone(const SessionProcess& session) {
  pollfd polled{session.control, POLLIN, 0};
  return session.control < 0 || (poll(&polled, 1, 0) > 0 && (polled.revents & POLLHUP));
}

class Listener {
 public:
  Listener(const ListenOptions& options, const ServerOptions& server) : options_(options), server_(server) {}

  Status open();
  Status run();

 private:
  bool network() const { return !url_.starts_with(kUnix); }
  Status open_network();
  void wait_for_something(std::vector<pollfd>& polled);
  Status accept_all();
  void reap();
  size_t serving() const { return count(SessionProcess::State::kServing); }
  size_t count(SessionProcess::State state) const {
    return static_cast<size_t>(std::ranges::count(sessions_, state, &SessionProcess::state));
  }
  bool has_room() const { return options_.most == 0 || serving() < options_.most; }
  std::string busy() const;
  size_t next_device() const;
  // What a session on that device is served with.
  ServerOptions server_on(size_t device) const;
  void forget_ours();

  void begin_unix(int client);
  void begin_network(int client);
  // False: it is done with.
  bool read_opening(Incoming& incoming);
  void answer(int client, Answer::Code code, const std::string& text);
  void begin_session(int client, const Opening& opening);
  void hand_over(int client, const Opening& opening);
  // False: the other end is gone.
  bool read_control(SessionProcess& session);
  void let_in(SessionProcess& session);
  // For a session's process that is about to be made, and after that.
  SessionStatus* begin_status(const std::string& client) { return status_ ? status_->begin(client) : nullptr; }
  SessionProcess& add_session(pid_t pid, SessionProcess::State state, std::string client, SessionStatus* counts);

  const ListenOptions& options_;
  const ServerOptions& server_;
  std::string url_;
  int listener_ = -1;
  std::shared_ptr<const remote::TlsContext> tls_;
  const pid_t self_ = getpid();
  sigset_t waiting_{};  // the signals that are not taken while it waits
  std::list<Incoming> incoming_;
  std::list<SessionProcess> sessions_;
  struct Ended {
    remote::Digest routing{};
    std::string how;
  };
  std::deque<Ended> ended_;
  std::unique_ptr<StatusFile> status_;  // null if nobody wants it
};

Status Listener::open() {
  url_ = options_.url;
  Status status;
  if (url_.starts_with(kUnix)) {
    status = bind_unix(url_.substr(kUnix.size()), url_, &listener_);
  } else if (url_.starts_with(kTcp) || url_.starts_with(kTls)) {
    status = open_network();
  } else {
    status =
        Status::invalid("remote: --listen wants unix://PATH, tcp://HOST:PORT or tls://HOST:PORT, not '" + url_ + "'");
  }
  if (!status.ok()) return status;
  if (!options_.status_file.empty()) {
    if (status = StatusFile::create(options_.status_file, options_.most, &status_); !status.ok()) return status;
  }
  // They end waits, and come at no other time.
  struct sigaction child{};
  child.sa_handler = [](int) {};
  sigaction(SIGCHLD, &child, nullptr);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_BLOCK, &blocked, &waiting_);
  sigdelset(&waiting_, SIGCHLD);
  spdlog::info("listening on {}", url_);
  return {};
}

Status Listener::open_network() {
  const bool tls = url_.starts_with(kTls);
  remote::Address address;
  if (Status status = remote::parse_address(std::string_view(url_).substr(kTcp.size()), url_, &address); !status) {
    return status;
  }
  if (tls) {
    if (Status status = remote::TlsContext::for_worker(options_.tls, &tls_); !status) return status;
  }
  bool loopback = false;
  const bool any_port = address.port == 0;
  if (Status status = remote::listen_tcp(&address, &listener_, &loopback); !status) return status;
  url_ = (tls ? "tls://" : "tcp://") + address.text();
  const bool knows_clients = !options_.token.empty() || (tls && !options_.tls.authorities.empty());
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
      let_in(session);
    }
    for (auto incoming = incoming_.begin(); incoming != incoming_.end();) {
      incoming = read_opening(*incoming) ? std::next(incoming) : incoming_.erase(incoming);
    }
    if (Status status = accept_all(); !status.ok()) return status;
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
    if (session.asked) until = std::min(until, *session.asked + kForOneToEnd);
  }
  const auto left = std::max<Clock::duration>(until - Clock::now(), Clock::duration::zero());
  const timespec timeout = {std::chrono::duration_cast<std::chrono::seconds>(left).count(),
                            std::chrono::duration_cast<std::chrono::nanoseconds>(left).count() % 1'000'000'000};
  (void)ppoll(polled.data(), polled.size(), &timeout, &waiting_);
}

Status Listener::accept_all() {
  for (;;) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client >= 0) {
      network() ? begin_network(client) : begin_unix(client);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK || errno == EOPNOTSUPP) {
      return system_error("cannot accept clients");
    }
    // No descriptors or no memory just now, which may be one client's doing: the others must not suffer from it.
    spdlog::warn("cannot accept a client: {}", std::strerror(errno));
    std::this_thread::sleep_for(kForRoom);
    return {};
  }
}

// Forgets the processes that have ended.
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
    } else if (!network() && options_.most > 1) {
      client.replace(0, kProcess.size(), "processes ");
    }
    clients += (clients.empty() ? "" : ", ") + client;
  }
  const bool one = options_.most == 1;
  return "remote: the worker at " + url_ + " (pid " + std::to_string(self_) + ") is busy: it serves " +
         std::to_string(options_.most) + (one ? " client" : " clients") + " at most, and " + clients +
         (one ? " uses it" : " use it") +
         "; wait until one ends, start the worker with a larger --max-sessions, or start another one: "
         "torch-remote-worker --listen " +
         (network() ? url_.substr(0, kTcp.size()) + "HOST:ANOTHER_PORT" : "unix://ANOTHER_PATH");
}

size_t Listener::next_device() const {
  std::vector<size_t> users(std::max<size_t>(options_.devices.size(), 1));
  for (const SessionProcess& session : sessions_) {
    if (session.state != SessionProcess::State::kRefused) ++users[session.device];
  }
  return static_cast<size_t>(std::ranges::min_element(users) - users.begin());
}

ServerOptions Listener::server_on(size_t device) const {
  ServerOptions its = server_;
  if (!options_.devices.empty()) its.open_device = options_.devices[device];
  return its;
}

// In a process that was forked from this one: what is not its business.
void Listener::forget_ours() {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != self_) _exit(0);  // it ended before that
  std::signal(SIGCHLD, SIG_DFL);
  sigprocmask(SIG_SETMASK, &waiting_, nullptr);
  close(listener_);
  for (const Incoming& incoming : incoming_) {
    if (incoming.socket >= 0) close(incoming.socket);
  }
  for (const SessionProcess& session : sessions_) {
    if (session.control >= 0) close(session.control);
  }
}

[[noreturn]] void end_process(const Status& status) {
  if (!status.ok()) spdlog::warn("{}", status.message());
  spdlog::default_logger()->flush();
  _exit(status.ok() ? 0 : 1);
}

// --- over a Unix socket ----------------------------------------------------------------------------------------------

[[noreturn]] void serve_unix_client(int client, const ListenOptions& options, const ServerOptions& server,
                                    SessionStatus* counts) {
  Status status;
  try {
    std::unique_ptr<remote::Transport> transport = remote::make_unix_transport(client, remote::Lending::kReadOnly);
    if (counts != nullptr) transport = std::make_unique<CountingTransport>(std::move(transport), counts);
    spdlog::debug("serving {}", transport->description());
    ServerOptions its = server;
    if (its.unavailable.ok()) {
      if (Status loaded = options.load(&its); !loaded.ok()) its.unavailable = loaded;
    }
    status = serve(*transport, its);
  } catch (const std::exception& error) {
    status = Status::internal(std::string("remote: the session ends: ") + error.what());
  }
  end_process(status);
}

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

void Listener::begin_unix(int client) {
  const auto deadline = Clock::now() + kForOneToEnd;
  for (reap(); !has_room() && Clock::now() < deadline; reap()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  using State = SessionProcess::State;
  const State state = has_room() ? State::kServing : State::kRefused;
  if (state == State::kRefused && count(State::kRefused) >= kMostRefused) {
    close(client);
    return;
  }
  const size_t device = next_device();
  ServerOptions its = server_on(device);
  if (state == State::kRefused) {
    its.greeting = kToRefuse;
    its.unavailable = {ErrorCode::kUnsupported, busy()};
  }
  std::string name = "process " + std::to_string(process_of(client));
  SessionStatus* const counts = state == State::kServing ? begin_status(name) : nullptr;
  const pid_t pid = fork();
  if (pid == 0) {
    forget_ours();
    serve_unix_client(client, options_, its, counts);
  }
  if (pid < 0) {
    spdlog::error("cannot start a session's process: {}", std::strerror(errno));
    if (status_) status_->end(counts);
  } else {
    add_session(pid, state, std::move(name), counts).device = device;
  }
  close(client);
}

// --- over a network --------------------------------------------------------------------------------------------------

void Listener::begin_network(int client) {
  remote::set_up_tcp(client);
  if (incoming_.size() >= kMostOpening) {
    close(incoming_.front().socket);
    incoming_.pop_front();
  }
  Incoming& incoming = incoming_.emplace_back();
  incoming.socket = client;
  incoming.deadline = Clock::now() + remote::kOpeningTime;
}

bool Listener::read_opening(Incoming& incoming) {
  ssize_t n;
  do {
    n = recv(incoming.socket, incoming.bytes.data() + incoming.have, incoming.bytes.size() - incoming.have,
             MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && Clock::now() < incoming.deadline) return true;
  if (n <= 0) {
    close(incoming.socket);
    return false;
  }
  incoming.have += static_cast<size_t>(n);
  // Another protocol is answered before it has said so much.
  if (!remote::is_whole({incoming.bytes.data(), incoming.have})) return true;
  const int client = std::exchange(incoming.socket, -1);  // a session's process closes those of others
  Opening opening;
  std::string text;
  const Answer::Code code =
      remote::check_opening({incoming.bytes.data(), incoming.have}, tls_ != nullptr,
                                                  !options_.token.empty(), &opening, &text);
  if (code != Answer::kGoOn) {
    answer(client, code, text);
  } else if (opening.resumes()) {
    hand_over(client, opening);
  } else {
    begin_session(client, opening);
  }
  close(client);
  return false;
}

// A socket that nothing was sent to takes so few bytes.
void Listener::answer(int client, Answer::Code code, const std::string& text) {
  const std::string bytes = remote::encode_answer(code, text);
  (void)!send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  spdlog::info("{} is refused ({})", remote::peer_of(client), static_cast<int>(code));
  shutdown(client, SHUT_WR);
  char rest[256];  // what is not read would take the answer with it
  while (recv(client, rest, sizeof(rest), MSG_DONTWAIT) > 0) {
  }
}

void Listener::begin_session(int client, const Opening& opening) {
  if (count(SessionProcess::State::kUnproven) >= kMostUnproven) {
    return answer(client, Answer::kRefused, "too many clients connect at once; try again");
  }
  int ends[2];
  if (Status status = make_control_sockets(ends); !status.ok()) {
    spdlog::error("{}", status.message());
    return answer(client, Answer::kRefused, "it has no room just now; try again");
  }
  std::string name = remote::peer_of(client);
  SessionStatus* const counts = begin_status(name);
  const size_t device = next_device();
  const pid_t pid = fork();
  if (pid == 0) {
    forget_ours();
    close(ends[0]);
    Status status;
    try {
      status = serve_network_client(client, opening, ends[1], options_, tls_, server_on(device), counts);
    } catch (const std::exception& error) {
      status = Status::internal(std::string("remote: the session ends: ") + error.what());
    }
    end_process(status);
  }
  close(ends[1]);
  if (pid < 0) {
    spdlog::error("cannot start a session's process: {}", std::strerror(errno));
    if (status_) status_->end(counts);
    close(ends[0]);
    return answer(client, Answer::kRefused, "it has no room just now; try again");
  }
  SessionProcess& session = add_session(pid, SessionProcess::State::kUnproven, std::move(name), counts);
  session.control = ends[0];
  session.device = device;
}

void Listener::hand_over(int client, const Opening& opening) {
  const auto find = [&] {
    return std::ranges::find_if(
        sessions_, [&](const auto& session) { return session.routing && remote::is_from(opening, *session.routing); });
  };
  reap();
  auto session = find();
  // A process that dies closes its sockets a moment before it can be asked how it died.
  for (int i = 0; i < kForEnd.count() && session != sessions_.end() && is_gone(*session); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    reap();
    session = find();
  }
  if (session == sessions_.end() || session->control < 0) {
    const auto ended =
        std::ranges::find_if(ended_, [&](const Ended& it) { return remote::is_from(opening, it.routing); });
    return answer(client, Answer::kUnknownSession, ended != ended_.end() ? ended->how : std::string());
  }
  if (opening.attempt <= session->attempts) {  // was overheard, or given up by the client since
    spdlog::info("{} says again what the client of {} said", remote::peer_of(client), session->client);
    return;
  }
  session->attempts = opening.attempt;
  const std::string bytes(reinterpret_cast<const char*>(&opening), sizeof(opening));
  if (!send_control(session->control, Control::kReturns, bytes, client)) {
    spdlog::warn("the session of {} does not take its client back", session->client);
  }
}

bool Listener::read_control(SessionProcess& session) {
  for (;;) {
    ControlMessage message;
    const Status status = receive_control(session.control, &message);
    if (!status.ok()) return status.code() == ErrorCode::kTimeout;
    if (message.descriptor >= 0) close(message.descriptor);
    if (message.type != Control::kAsks || message.body.size() != sizeof(remote::Digest) ||
        session.state != SessionProcess::State::kUnproven) {
      continue;
    }
    std::memcpy(session.routing.emplace().data(), message.body.data(), sizeof(remote::Digest));
    session.asked = Clock::now();
  }
}

// Answers one that asked for room, if there is some, or was none for a while.
void Listener::let_in(SessionProcess& session) {
  if (!session.asked) return;
  if (has_room()) {
    session.state = SessionProcess::State::kServing;
    if (status_) ++status_->all().sessions;
    send_control(session.control, Control::kAdmitted, {});
  } else if (Clock::now() - *session.asked >= kForOneToEnd) {
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
  Listener listener(options, server);
  if (Status status = try_to_load(options, server); !status.ok()) return status;
  if (Status status = listener.open(); !status.ok()) return status;
  return listener.run();
}

}  // namespace torch_remote::worker
