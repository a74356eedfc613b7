#include "tests/simulator/scenario.h"

#include <netinet/in.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "remote/client/client.h"
#include "remote/net/dial.h"
#include "remote/net/handshake.h"
#include "worker/control_socket.h"
#include "worker/network_session.h"
#include "worker/runner/testing/fake_runner.h"
#include "worker/server.h"

namespace torch_remote::simulator {

extern double no_memory;

namespace {

using remote::Answer;
using remote::Client;
using remote::Opening;
using remote::OpError;

constexpr uint64_t kMostLost = 30;
constexpr const char* kToken = "a token that only both ends know";
constexpr const char* kAddInto = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  aten::add_.Tensor(%0, %1, alpha=1)
})";
constexpr const char* kMix = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: input survives
  b3: fresh(s1)
  b4: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2
  %3: f32[s0]{1} @b3 = aten::mul.Tensor(%0, %1)
  %4: f32[s0]{1} @b4 = aten::add.Tensor(%3, %2, alpha=1)
})";

// What the seed decides.
struct Plan {
  bool keeps = true;   // the session must survive all of it
  bool intact = true;  // no allocation fails
  bool damages = false;
  std::chrono::milliseconds lease{600'000}, heartbeat{1'000};
  uint64_t threads = 1, steps = 20;
  size_t largest = 2000;  // elements
  Nanoseconds worker_dies = kNever, client_dies = kNever, outage = kNever, outage_ends = 0;
  uint64_t strangers = 0;
  uint64_t memory_limit = 0;
  double slow_runs = 0;
};

struct Run {
  World world;
  Network network;
  Plan plan;
  Outcome outcome;
  uint32_t client = 0, worker = 0;
  bool client_done = false;
  std::map<uint32_t, uint64_t> executed;  // runs, by the session's process
  uint64_t admitted = 0, invited = 0;
  void (*finish)(const Outcome&, const World&) = nullptr;

  explicit Run(uint64_t seed) : world(seed), network(world) {}
};
Run* g_run = nullptr;

[[noreturn]] void end(const std::string& why) {
  Run& run = *g_run;
  run.outcome.failed = !why.empty();
  run.outcome.why = why;
  run.outcome.hash = run.world.hash();
  run.outcome.faults = run.network.counts;
  run.outcome.simulated_seconds = static_cast<double>(run.world.now() - 1000 * kSecond) / kSecond;
  run.finish(run.outcome, run.world);
  _exit(0);
}

void require(bool holds, const std::string& why) {
  if (!holds) g_run->world.fail(why);
}

void sleep(Nanoseconds time) { g_run->world.sleep_until(g_run->world.now() + time); }

template <class T>
T one_of(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.below(choices.size())];
}

void decide(Run& run) {
  Random& random = run.world.random();
  Weather& weather = run.network.weather;
  Plan& plan = run.plan;
  run.world.preemption = one_of(random, {0.0, 0.02, 0.1, 0.3});
  weather.latency = one_of<Nanoseconds>(random, {10 * kMicrosecond, 200 * kMicrosecond, 20 * kMillisecond});
  if (random.chance(0.2)) {
    weather.latency = 300 * kMillisecond;
    weather.jitter = 200 * kMillisecond;
    run.network.count(Fault::kDelay);
  }
  if (random.chance(0.2)) {
    weather.bytes_per_ns = 1.25e-3;  // 10 Mbit/s
    run.network.count(Fault::kSlow);
  }
  weather.window = one_of<uint64_t>(random, {4 << 10, 64 << 10, 1 << 20});
  if (weather.jitter > 0) weather.window = 1 << 20;  // what a long way takes to be used
  weather.partial = one_of(random, {0.0, 0.1, 0.5});
  weather.within = one_of<uint64_t>(random, {400, 4'000, 60'000});
  if (random.chance(0.85)) {
    weather.bad = one_of(random, {0.4, 0.8, 1.0});
    weather.faults = random.between(1, 12);
    const uint64_t kinds = random.between(1, 3);
    for (uint64_t i = 0; i < kinds; ++i) {
      weather.breaks.push_back(one_of(
          random, {Fault::kCut, Fault::kReset, Fault::kHalfOpen, Fault::kOneWay, Fault::kLateCut, Fault::kStall}));
    }
  }
  plan.heartbeat = std::chrono::milliseconds(one_of(random, {200, 1'000, 5'000}));
  // Of several times the way there and back: three in silence end a connection.
  if (weather.jitter > 0) plan.heartbeat = std::chrono::milliseconds(5'000);
  weather.longest_stall =
      static_cast<Nanoseconds>(plan.heartbeat.count()) * kMillisecond * one_of<uint64_t>(random, {1, 5});
  plan.steps = random.between(5, 60);
  plan.threads = random.chance(0.3) ? 2 : 1;
  plan.largest = one_of<size_t>(random, {16, 2'000, 30'000});
  plan.slow_runs = one_of(random, {0.0, 0.1});
  plan.strangers = random.chance(0.3) ? random.between(1, 4) : 0;
  const Nanoseconds begin = run.world.now();
  const auto some_time = [&] {
    return begin + random.below(one_of<Nanoseconds>(random, {kSecond, 20 * kSecond, 200 * kSecond}));
  };
  switch (random.below(12)) {
    case 0:
      plan.worker_dies = some_time();
      plan.keeps = false;
      break;
    case 1:
      plan.client_dies = some_time();
      break;
    case 2:  // longer than the lease
      plan.lease = std::chrono::milliseconds(random.between(1'000, 20'000));
      plan.outage = some_time();
      plan.outage_ends = plan.outage + 3 * static_cast<Nanoseconds>(plan.lease.count()) * kMillisecond;
      plan.keeps = false;
      break;
    case 3:  // shorter; also than a greeting may take
      plan.outage = some_time();
      plan.outage_ends = plan.outage + random.below(25 * kSecond);
      break;
    case 4:
      plan.lease = std::chrono::milliseconds(random.between(1'000, 30'000));
      plan.keeps = false;
      break;
    case 5:
      weather.breaks.assign(1, Fault::kCorrupt);
      plan.damages = true;
      plan.keeps = false;
      break;
    case 6:
      no_memory = 0.2;
      plan.largest = 30'000;
      plan.intact = false;
      break;
    case 7:
      plan.memory_limit = 256 << 10;
      plan.largest = 30'000;
      plan.intact = false;
      break;
    default:
      break;
  }
  if (!plan.intact) plan.threads = 1;
  if (plan.client_dies != kNever) {
    plan.lease = std::chrono::milliseconds(random.between(1'000, 60'000));
    plan.keeps = false;
  }
  run.world.limit = begin + 20'000 * kSecond;
}

// --- the worker's machine --------------------------------------------------------------------------------------------

// Counts, and takes its time.
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

// As worker/listener.cpp, but that processes are threads here.
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
      for (auto i = incoming_.begin(); i != incoming_.end();) i = read_opening(*i) ? std::next(i) : incoming_.erase(i);
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
    std::array<uint8_t, sizeof(Opening)> bytes{};
    size_t have = 0;
  };
  struct Session {
    uint32_t process = 0;
    int control = -1;
    remote::SessionId id{};
  };

  static void answer(int client, Answer::Code code, const std::string& text = {}) {
    const std::string bytes = remote::encode_answer(code, text);
    (void)!send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (code != Answer::kGoOn) shutdown(client, SHUT_WR);
  }

  bool read_opening(Incoming& incoming) {
    const ssize_t n = recv(incoming.socket, incoming.bytes.data() + incoming.have,
                           incoming.bytes.size() - incoming.have, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN && run_.world.now() < incoming.deadline) return true;
    if (n > 0) incoming.have += static_cast<size_t>(n);
    if (n > 0 && incoming.have < incoming.bytes.size()) return true;
    if (n > 0) begin(incoming);
    close(incoming.socket);
    return false;
  }

  void begin(const Incoming& incoming) {
    Opening opening;
    std::string text;
    const Answer::Code code = remote::check_opening({incoming.bytes.data(), incoming.have}, false, &opening, &text);
    if (code != Answer::kGoOn) return answer(incoming.socket, code, text);
    if (opening.resumes()) {
      const auto session = std::ranges::find(sessions_, opening.session, &Session::id);
      if (session == sessions_.end() || !run_.world.alive(session->process)) {
        return answer(incoming.socket, Answer::kUnknownSession, "it has ended");
      }
      answer(incoming.socket, Answer::kGoOn);
      const std::string bytes(reinterpret_cast<const char*>(&opening), sizeof(opening));
      worker::send_control(session->control, worker::Control::kReturns, bytes, incoming.socket);
      return;
    }
    int ends[2];
    if (!worker::make_control_sockets(ends).ok()) return;
    answer(incoming.socket, Answer::kGoOn);
    Session& session = sessions_.emplace_back();
    session.process = run_.world.add_process("worker");
    session.control = ends[0];
    // As a fork gives it.
    const int socket = run_.network.give(incoming.socket, session.process);
    const int control = run_.network.give(ends[1], session.process);
    close(ends[1]);
    run_.world.spawn(session.process, [this, socket, control, opening, process = session.process] {
      const Status status = worker::serve_network_client(socket, opening, control, options_, nullptr, server_, nullptr);
      run_.world.note(status.ok() ? "session ends" : "session refused", process);
      run_.world.kill(process);  // what it left open goes with its process
      run_.world.maybe_switch();
    });
  }

  void read_control(Session& session) {
    worker::ControlMessage message;
    while (worker::receive_control(session.control, &message).ok()) {
      if (message.type != worker::Control::kAsks) continue;
      std::memcpy(session.id.data(), message.body.data(), session.id.size());
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

// Somebody without a token.
void intrude(Run& run) {
  Random& random = run.world.random();
  sleep(random.below(10 * kSecond));
  const bool replays = run.network.overheard().size() == 96 && random.chance(0.6);
  run.network.count(replays ? Fault::kReplay : Fault::kStranger);
  std::string says = run.network.overheard();
  if (!replays) {
    says.assign(random.below(200), '\0');
    for (char& c : says) c = static_cast<char>(random.next());
    Opening opening;
    if (random.chance(0.8)) says = std::string(reinterpret_cast<const char*>(&opening), sizeof(opening)) + says;
  }
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in anywhere{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  // The attempt goes on; poll says when it is through.
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
  constexpr size_t kVerdict = sizeof(Answer) + 40;
  require(heard.size() <= kVerdict || heard[kVerdict] != 0, "a stranger was welcomed");
  close(socket);
}

// --- the client ------------------------------------------------------------------------------------------------------

struct Lost {};  // the session, in a way that the plan allows

class Script {
 public:
  Script(Run& run, uint64_t seed) : run_(run), random_(seed) {}

  void connect() {
    ++run_.invited;
    remote::DialOptions options;
    options.token = kToken;
    std::unique_ptr<remote::Transport> transport;
    Status status;
    for (int i = 0; i < 200; ++i) {
      status = remote::dial("tcp://127.0.0.1:4500", options, {}, &transport);
      if (status.ok()) break;
      require(status.code() == ErrorCode::kLost || status.code() == ErrorCode::kTimeout, "dial: " + status.message());
      ++run_.invited;  // the answer may have been lost, not the question
      sleep(100 * kMillisecond);
    }
    require(status.ok(), "dial: " + status.message());
    const auto build = [](const remote::BuildRequest& request, std::vector<uint8_t>* program) {
      sleep(g_run->world.random().below(5 * kMillisecond));
      *program = ir::encode_program(*request.graph);
      return Status();
    };
    check(Client::connect(std::move(transport), build, {}, &client_), "connect");
    add_into_ = load(kAddInto);
    mix_ = load(kMix);
  }

  void play() {
    if (run_.plan.threads == 1) return steps(random_.next());
    bool lost = false;
    const auto other = [&, seed = random_.next()] {
      try {
        steps(seed);
      } catch (const Lost&) {
        lost = true;
      }
    };
    std::thread thread(other);
    try {
      steps(random_.next());
    } catch (const Lost&) {
      lost = true;
    }
    thread.join();
    if (lost) throw Lost();
  }

  // Everything was done once.
  void finish() {
    OpError error;
    const Status status = client_->synchronize({}, &error);
    if (status.code() == ErrorCode::kOutOfMemory) return;
    check(status, "synchronize");
    if (run_.plan.intact) {
      const uint64_t done = run_.executed[run_.worker];
      require(done == sent_, std::to_string(sent_) + " runs were sent and " + std::to_string(done) + " were done");
    }
  }
  void disconnect() { client_ = nullptr; }

 private:
  struct Tensor {
    uint64_t id = 0;
    std::vector<float> values;
  };

  // Steps of one thread, whose tensors nobody else uses. What they hold is computed here, too.
  void steps(uint64_t seed) {
    Random random(seed);
    std::vector<Tensor> tensors;
    const size_t count = 2 + random.below(run_.plan.largest);  // a size of 1 is another program
    const auto forget_all = [&] {
      for (const Tensor& tensor : tensors) client_->free(tensor.id);
      tensors.clear();
    };
    for (uint64_t step = 0; step < run_.plan.steps; ++step) {
      while (tensors.size() < 4) {
        std::optional<Tensor> made = upload(random, count, tensors.empty());
        if (made) tensors.push_back(*std::move(made));
      }
      bool good = true;  // no failure was told
      switch (random.below(12)) {
        case 0:
        case 1:
        case 2:
          add_into(tensors[1], tensors[2]);
          break;
        case 3:
        case 4:
        case 5: {
          const size_t other = 2 + random.below(tensors.size() - 2);  // a run names a buffer once
          Tensor made = mix(tensors[1], tensors[0], tensors[other]);
          client_->free(tensors[1].id);
          tensors[1] = std::move(made);
          break;
        }
        case 6:
        case 7:
          good = read(tensors[random.below(tensors.size())], random);
          break;
        case 8:
          if (tensors.size() > 4) {
            client_->free(tensors.back().id);
            tensors.pop_back();
          } else if (std::optional<Tensor> made = upload(random, count, false)) {
            tensors.push_back(*std::move(made));
          }
          break;
        case 9:
          good = ask(random);
          break;
        case 10:
          sleep(random.below(one_of<Nanoseconds>(random, {kMillisecond, kSecond, 30 * kSecond})));
          break;
        default: {
          const Nanoseconds begin = run_.world.now();
          OpError error;
          good = told(client_->synchronize({}, &error), "synchronize");
          in_time(begin);
          break;
        }
      }
      if (!good) forget_all();
    }
    for (const Tensor& tensor : tensors) {
      if (!read(tensor, random)) break;
    }
    forget_all();
  }

  remote::ProgramPtr load(const char* text) {
    auto graph = std::make_shared<ir::Graph>();
    require(ir::parse_graph(text, graph.get()).ok(), "a graph does not parse");
    remote::ProgramPtr program;
    const int64_t sample[] = {1, 4};
    check(client_->load(graph, {}, sample, {}, &program), "load");
    return program;
  }

  std::optional<Tensor> upload(Random& random, size_t count, bool halves) {
    Tensor tensor;
    tensor.values.resize(count);
    for (float& value : tensor.values) {
      value = halves ? 0.5F : static_cast<float>(random.below(1 << 20)) / 1024;
    }
    const auto fill = [&](std::byte* to) { std::memcpy(to, tensor.values.data(), 4 * count); };
    const Status status = client_->upload(4 * count, fill, &tensor.id);
    if (!told(status, "upload")) return std::nullopt;
    return tensor;
  }

  void add_into(Tensor& to, const Tensor& from) {
    run(add_into_, {to.id, from.id}, to.values.size(), 0);
    for (size_t i = 0; i < to.values.size(); ++i) to.values[i] += from.values[i];
  }

  Tensor mix(const Tensor& a, const Tensor& b, const Tensor& c) {
    std::vector<uint64_t> inputs{a.id, b.id, c.id};
    Tensor made;
    made.id = run(mix_, inputs, a.values.size(), 1);
    made.values.resize(a.values.size());
    for (size_t i = 0; i < made.values.size(); ++i) made.values[i] = a.values[i] * b.values[i] + c.values[i];
    return made;
  }
  uint64_t run(const remote::ProgramPtr& program, const std::vector<uint64_t>& inputs, size_t count, uint64_t made) {
    const int64_t params[] = {static_cast<int64_t>(count), static_cast<int64_t>(4 * count)};
    uint64_t base = 0;
    remote::FlushInfo info;
    const Nanoseconds begin = run_.world.now();
    check(client_->run(program, {params, inputs, made}, &base, &info), "run");
    in_time(begin);
    ++sent_;
    ++run_.outcome.runs;
    return base;
  }

  bool read(const Tensor& tensor, Random& random) {
    const size_t count = tensor.values.size();
    const size_t step = 1 + random.below(3), from = random.below(count);
    const size_t many = (count - from + step - 1) / step;
    const int64_t sizes[] = {static_cast<int64_t>(many)}, strides[] = {static_cast<int64_t>(step)};
    std::vector<float> came;
    const auto take = [&](std::span<const std::byte> bytes) {
      came.resize(bytes.size() / 4);
      std::memcpy(came.data(), bytes.data(), bytes.size());
    };
    OpError error;
    const Nanoseconds begin = run_.world.now();
    const Status status =
        client_->read(tensor.id, 4, sizes, strides, static_cast<int64_t>(from), take, [] { return true; }, &error);
    in_time(begin);
    if (!told(status, "read")) return false;
    require(came.size() == many, "a read gave another number of elements");
    for (size_t i = 0; i < many; ++i) {
      require(std::bit_cast<uint32_t>(came[i]) == std::bit_cast<uint32_t>(tensor.values[from + i * step]),
              "a wrong result: " + std::to_string(came[i]) + ", not " + std::to_string(tensor.values[from + i * step]));
    }
    ++run_.outcome.reads;
    return true;
  }

  // The other questions.
  bool ask(Random& random) {
    OpError error;
    uint64_t ticket = 0;
    switch (random.below(4)) {
      case 0: {
        check(client_->mark(&ticket), "mark");
        remote::Mark mark;
        check(client_->wait_mark(ticket, {}, &mark), "wait for a mark");
        return true;
      }
      case 1: {
        bool known = false;
        check(client_->has_op("aten::add.Tensor", {}, &known, &error), "has_op");
        return true;
      }
      case 2: {
        remote::MemoryRoom room;
        remote::MemoryRequest request;
        request.trim = true;
        check(client_->memory(request, {}, &room), "memory");
        return true;
      }
      default: {
        remote::WorkerProfile profile;
        if (!told(client_->profile(remote::ProfileCommand::kStart, 1000, {}, &profile), "profile")) return false;
        return told(client_->profile(remote::ProfileCommand::kStop, 1000, {}, &profile), "profile");
      }
    }
  }

  void in_time(Nanoseconds begin) const {
    // What it may be behind: all that was sent, on the slowest line, and each connection that breaks.
    const Nanoseconds most = static_cast<Nanoseconds>(run_.plan.lease.count()) * kMillisecond + 900 * kSecond;
    require(run_.world.now() - begin <= most, "a call took longer than what it waits for can");
  }

  // False: out of memory, where that may be.
  bool told(const Status& status, const char* what) {
    if (!run_.plan.intact && (status.code() == ErrorCode::kOutOfMemory || status.kind() == "OutOfMemoryError")) {
      ++run_.outcome.out_of_memory;
      return false;
    }
    check(status, what);
    return true;
  }

  void check(const Status& status, const char* what) const {
    if (status.ok()) return;
    require(!run_.plan.keeps, std::string(what) + ": " + status.message());
    // Damaged bytes are no loss.
    const bool typed = status.code() == ErrorCode::kLost || (run_.plan.damages && status.code() == ErrorCode::kInvalid);
    require(typed && !status.message().empty(), std::string(what) + " fails otherwise: " + status.message());
    run_.world.say(std::string(what) + ": " + status.message());
    throw Lost();
  }

  Run& run_;
  Random random_;
  std::unique_ptr<Client> client_;
  remote::ProgramPtr add_into_, mix_;
  uint64_t sent_ = 0;
};

void be_client(Run& run, uint64_t seed) {
  for (bool again = true; again;) {
    Script script(run, seed);
    try {
      script.connect();
      script.play();
      script.finish();
      again = false;
    } catch (const Lost&) {
      // As restart() does: a new session works.
      require(++run.outcome.sessions_lost < kMostLost, "sessions are lost all the time");
      run.world.note("session lost");
      run.plan.steps = 5;
    }
    script.disconnect();
  }
  run.client_done = true;
}

}  // namespace

void simulate(uint64_t seed, bool prints, void (*finish)(const Outcome&, const World&)) {
  spdlog::set_level(spdlog::level::off);
  Run& run = *(g_run = new Run(seed));
  run.finish = finish;
  run.world.prints = prints;
  run.world.on_failure = [](const std::string& why) { end(why); };
  enter_world(&run.world, run.world.add_process("world"));
  set_network(&run.network);
  decide(run);
  run.world.spawn(run.world.add_process("listener"), [&run] { Listener(run).serve(); });
  run.client = run.world.add_process("client");
  run.world.spawn(run.client, [&run, seed] { be_client(run, ~seed); });
  for (uint64_t i = 0; i < run.plan.strangers; ++i) {
    run.world.spawn(run.world.add_process("stranger"), [&run] { intrude(run); });
  }
  const Plan& plan = run.plan;
  if (plan.client_dies != kNever) {
    run.world.at(plan.client_dies, [&run] {
      if (run.client_done) return;
      run.network.count(Fault::kClientDies);
      run.world.kill(run.client);
    });
  }
  if (plan.worker_dies != kNever) {
    run.world.at(plan.worker_dies, [&run] {
      if (run.worker == 0 || !run.world.alive(run.worker)) return;
      run.network.count(Fault::kWorkerDies);
      run.world.kill(run.worker);
    });
  }
  if (plan.outage != kNever) {
    run.world.at(plan.outage, [&run] {
      run.network.count(Fault::kOutage);
      run.network.outage(run.plan.outage_ends);
    });
  }
  while (!run.client_done && run.world.alive(run.client)) sleep(kSecond);
  if (run.client_done) {
    require(run.network.open_descriptors(run.client) == 0,
            std::to_string(run.network.open_descriptors(run.client)) + " descriptors of the client's are left open");
  }
  // With its client a session ends, at the latest with its lease. (It has to notice first that nobody is there.)
  const Nanoseconds until = std::max(run.world.now(), plan.outage_ends) +
                            static_cast<Nanoseconds>((plan.lease + 5 * plan.heartbeat).count()) * kMillisecond +
                            10 * kSecond;
  while (run.world.now() < until && run.worker != 0 && run.world.alive(run.worker)) sleep(kSecond);
  require(run.worker == 0 || !run.world.alive(run.worker), "a session outlives its client and its lease");
  end({});
}

}  // namespace torch_remote::simulator
