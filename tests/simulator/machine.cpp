#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <vector>

#include "remote/net/handshake.h"
#include "tests/simulator/run.h"
#include "worker/process/control_socket.h"
#include "worker/process/network_session.h"
#include "worker/runner/testing/fake_runner.h"
#include "worker/server/server.h"
#include "worker/targets/cpu/cpu_target.h"

namespace torch_remote::simulator {
namespace {

using remote::ClientHello;
using remote::ServerHello;

// Counts its runs, and takes simulated time.
const tr_runner_api* counting_runner() {
  static tr_runner_api api = *worker::testing::fake_runner();
  static int (*const run_inner)(tr_runner*, tr_program*, tr_run*, tr_error*) = api.run;
  api.run = [](tr_runner* runner, tr_program* program, tr_run* run, tr_error* error) {
    g_run->world.note("run", ++g_run->executed[self()->process]);
    if (g_run->world.random().chance(g_run->plan.slow_runs)) sleep(g_run->world.random().below(2 * kSecond));
    return run_inner(runner, program, run, error);
  };
  return &api;
}

// Follows worker/process/listener.cpp, but session processes are threads here.
class Listener {
 public:
  explicit Listener(Run& run) : run_(run) {
    options_.token = kToken;
    options_.lease = run.plan.lease;
    options_.heartbeat = run.plan.heartbeat;
    options_.load = [](worker::ServerOptions* its) {
      its->runner = counting_runner();
      return Status();
    };
    server_.open_device = worker::open_cpu;
    server_.memory_limit = run.plan.memory_limit;
  }

  [[noreturn]] void serve() {
    const int listener = run_.network.make_listener();
    for (;;) {
      std::vector<pollfd> polled{{listener, POLLIN, 0}};
      for (const Incoming& incoming : incoming_) polled.push_back({incoming.socket, POLLIN, 0});
      for (const Session& session : sessions_) polled.push_back({session.control, POLLIN, 0});
      (void)poll(polled.data(), polled.size(), 1000);
      for (Session& session : sessions_) read_control(session);
      for (auto i = incoming_.begin(); i != incoming_.end();)
        i = read_client_hello(*i) ? std::next(i) : incoming_.erase(i);
      std::erase_if(sessions_, [&](const Session& session) {
        if (run_.world.alive(session.process)) return false;
        close(session.control);
        return true;
      });
      for (int client; (client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
        incoming_.push_back({client, run_.world.now() + 10 * kSecond, {}, 0});
      }
    }
  }

 private:
  struct Incoming {
    int socket = -1;
    Nanoseconds deadline = 0;
    std::array<uint8_t, sizeof(ClientHello)> bytes{};
    size_t have = 0;
  };
  struct Session {
    uint32_t process = 0;
    int control = -1;
    std::optional<remote::Digest> routing;
    uint64_t attempts = 0;
  };

  static void answer(int client, ServerHello::Code code, const std::string& text = {}) {
    const std::string bytes = remote::encode_server_hello(code, text);
    (void)!send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(client, SHUT_WR);
  }

  bool read_client_hello(Incoming& incoming) {
    const ssize_t n = recv(incoming.socket, incoming.bytes.data() + incoming.have,
                           incoming.bytes.size() - incoming.have, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN && run_.world.now() < incoming.deadline) return true;
    if (n > 0) incoming.have += static_cast<size_t>(n);
    if (n > 0 && !remote::is_whole({incoming.bytes.data(), incoming.have})) return true;
    if (n > 0) begin(incoming);
    close(incoming.socket);
    return false;
  }

  void begin(const Incoming& incoming) {
    ClientHello client_hello;
    std::string text;
    const ServerHello::Code code =
        remote::check_client_hello({incoming.bytes.data(), incoming.have}, false, true, &client_hello, &text);
    if (code != ServerHello::kGoOn) return answer(incoming.socket, code, text);
    if (client_hello.resumes()) {
      const auto session = std::ranges::find_if(
          sessions_, [&](const Session& s) { return s.routing && remote::is_from(client_hello, *s.routing); });
      if (session == sessions_.end() || !run_.world.alive(session->process)) {
        return answer(incoming.socket, ServerHello::kUnknownSession, "it has ended");
      }
      if (client_hello.attempt <= session->attempts) return;
      session->attempts = client_hello.attempt;
      const std::string bytes(reinterpret_cast<const char*>(&client_hello), sizeof(client_hello));
      worker::send_control(session->control, worker::Control::kReconnect, bytes, incoming.socket);
      return;
    }
    int ends[2];
    if (!worker::make_control_sockets(ends).ok()) return;
    Session& session = sessions_.emplace_back();
    session.process = run_.world.add_process("worker");
    session.control = ends[0];
    // A fork would duplicate the descriptors, too.
    const int socket = run_.network.duplicate(incoming.socket, session.process);
    const int control = run_.network.duplicate(ends[1], session.process);
    close(ends[1]);
    run_.world.spawn(session.process, [this, socket, control, client_hello, process = session.process] {
      const Status status =
          worker::serve_network_client(socket, client_hello, control, options_, nullptr, server_, nullptr);
      run_.world.note(status.ok() ? "session ends" : "session refused", process);
      run_.world.kill(process);  // its open descriptors close with the process
      run_.world.maybe_switch();
    });
  }

  void read_control(Session& session) {
    worker::ControlMessage message;
    while (worker::receive_control(session.control, &message).ok()) {
      if (message.type != worker::Control::kAdmissionRequest) continue;
      std::memcpy(session.routing.emplace().data(), message.body.data(), sizeof(remote::Digest));
      require(++run_.admitted <= run_.invited, "somebody was let in who has no token");
      run_.worker = session.process;
      worker::send_control(session.control, worker::Control::kAdmitted, {});
    }
  }

  Run& run_;
  worker::ListenOptions options_;
  worker::ServerOptions server_;
  std::list<Incoming> incoming_;
  std::list<Session> sessions_;
};

}  // namespace

void run_listener(Run& run) { Listener(run).serve(); }

void run_stranger(Run& run) {
  Random& random = run.world.random();
  sleep(random.below(10 * kSecond));
  const bool replays = run.network.overheard().size() > sizeof(ClientHello) && random.chance(0.6);
  run.network.count(replays ? Fault::kReplay : Fault::kStranger);
  std::string says = run.network.overheard();
  if (!replays) {
    says.assign(random.below(200), '\0');
    for (char& c : says) c = static_cast<char>(random.next());
    ClientHello client_hello;
    client_hello.flags = ClientHello::kHasToken;
    client_hello.attempt = random.below(3);  // may also claim to resume a session
    if (random.chance(0.8))
      says = std::string(reinterpret_cast<const char*>(&client_hello), sizeof(client_hello)) + says;
  }
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in anywhere{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  // Connecting goes on in the background; poll reports when it is complete.
  require(socket >= 0 && (connect(socket, reinterpret_cast<const sockaddr*>(&anywhere), sizeof(anywhere)) == 0 ||
                          errno == EINPROGRESS),
          "a stranger cannot even try");
  pollfd polled{socket, POLLOUT, 0};
  (void)poll(&polled, 1, 60'000);
  std::string heard;
  for (size_t said = 0; heard.size() < 2000;) {
    const ssize_t n = send(socket, says.data() + said, says.size() - said, MSG_NOSIGNAL);
    if (n > 0) said += static_cast<size_t>(n);
    if (n < 0 && errno != EAGAIN) break;
    polled.events = static_cast<short>(POLLIN | (said < says.size() ? POLLOUT : 0));
    if (poll(&polled, 1, 12'000) <= 0) break;
    char bytes[256];
    const ssize_t got = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) break;
    if (got > 0) heard.append(bytes, static_cast<size_t>(got));
  }
  // After its answer, a worker that trusts the peer sends its hello (a TLS handshake record). Otherwise it sends an
  // error.
  constexpr size_t kAnswer = sizeof(ServerHello) + sizeof(remote::Digest);
  constexpr char kHandshake = 22;
  require(
      heard.size() <= kAnswer || heard[sizeof(ServerHello) - 3] != ServerHello::kGoOn || heard[kAnswer] != kHandshake,
      "a stranger was welcomed");
  close(socket);
}

}  // namespace torch_remote::simulator
