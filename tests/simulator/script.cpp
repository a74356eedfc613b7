#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "remote/client/client.h"
#include "remote/net/dial.h"
#include "tests/simulator/run.h"

namespace torch_remote::simulator {
namespace {

using remote::Client;
using remote::OpError;

constexpr uint64_t kMostLost = 30;
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

constexpr uint64_t kMostHandshakeFaults = 5;  // broken connections that a handshake must survive

struct Lost {};  // the session was lost, and the plan allows it

class Script {
 public:
  Script(Run& run, uint64_t seed) : run_(run), random_(seed) {}

  void connect() {
    const auto build = [](const remote::BuildRequest& request, std::vector<uint8_t>* program) {
      sleep(g_run->world.random().below(5 * kMillisecond));
      *program = ir::encode_program(*request.graph);
      return Status();
    };
    for (;;) {
      std::unique_ptr<remote::Transport> transport = dial();
      const uint64_t faults = run_.network.fault_model.faults;
      const Status status = Client::connect(std::move(transport), build, {}, &client_);
      // A handshake has 120 s, and each attempt that meets a broken connection may take 20 s of them.
      const bool unlucky = faults - run_.network.fault_model.faults >= kMostHandshakeFaults;
      if (unlucky && status.code() == ErrorCode::kTimeout) continue;
      check(status, "connect");
      break;
    }
    add_into_ = load(kAddInto);
    mix_ = load(kMix);
  }

  std::unique_ptr<remote::Transport> dial() {
    ++run_.invited;
    remote::DialOptions options;
    options.token = kToken;
    std::unique_ptr<remote::Transport> transport;
    Status status;
    // Connecting need not outlast an outage, but this client retries.
    for (int i = 0; i < 200 || run_.world.now() < refused_until(); ++i) {
      status = remote::dial("tcp://127.0.0.1:4500", options, {}, &transport);
      if (status.ok()) break;
      require(run_.plan.corrupts || status.code() == ErrorCode::kLost || status.code() == ErrorCode::kTimeout,
              "dial: " + status.message());
      ++run_.invited;  // the answer may have been lost after the worker accepted
      sleep(100 * kMillisecond);
    }
    require(status.ok(), "dial: " + status.message());
    return transport;
  }

  Nanoseconds refused_until() const { return run_.plan.outage_ends + kSecond; }

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

  // Everything must have executed exactly once.
  void finish() {
    OpError error;
    const Status status = client_->synchronize({}, &error);
    if (status.code() == ErrorCode::kOutOfMemory) return;
    check(status, "synchronize");
    if (run_.plan.no_allocation_fails) {
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

  // Steps of one thread, whose tensors no other thread uses. Their expected values are computed here, too.
  void steps(uint64_t seed) {
    Random random(seed);
    std::vector<Tensor> tensors;
    const size_t count = 2 + random.below(run_.plan.largest);  // size 1 would be another program
    const auto forget_all = [&] {
      for (const Tensor& tensor : tensors) client_->free(tensor.id);
      tensors.clear();
    };
    for (uint64_t step = 0; step < run_.plan.steps; ++step) {
      while (tensors.size() < 4) {
        std::optional<Tensor> made = upload(random, count, tensors.empty());
        if (made) tensors.push_back(*std::move(made));
      }
      bool good = true;  // no failure was reported
      switch (random.below(12)) {
        case 0:
        case 1:
        case 2:
          add_into(tensors[1], tensors[2]);
          break;
        case 3:
        case 4:
        case 5: {
          const size_t other = 2 + random.below(tensors.size() - 2);  // a run may name a buffer only once
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
          good = succeeded(client_->synchronize({}, &error), "synchronize");
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
    if (!succeeded(status, "upload")) return std::nullopt;
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
    uint64_t first_result_id = 0;
    remote::FlushInfo info;
    const Nanoseconds begin = run_.world.now();
    check(client_->run(program, {params, inputs, made}, &first_result_id, &info), "run");
    in_time(begin);
    ++sent_;
    ++run_.outcome.runs;
    return first_result_id;
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
    if (!succeeded(status, "read")) return false;
    require(came.size() == many, "a read gave another number of elements");
    for (size_t i = 0; i < many; ++i) {
      require(std::bit_cast<uint32_t>(came[i]) == std::bit_cast<uint32_t>(tensor.values[from + i * step]),
              "a wrong result: " + std::to_string(came[i]) + ", not " + std::to_string(tensor.values[from + i * step]));
    }
    ++run_.outcome.reads;
    return true;
  }

  // The other kinds of requests.
  bool ask(Random& random) {
    OpError error;
    uint64_t ticket = 0;
    switch (random.below(4)) {
      case 0: {
        check(client_->events().record(&ticket), "record an event");
        remote::RecordedEvent event;
        check(client_->events().wait(ticket, {}, &event), "wait for an event");
        return true;
      }
      case 1: {
        bool known = false;
        check(client_->has_op("aten::add.Tensor", {}, &known, &error), "has_op");
        return true;
      }
      case 2: {
        remote::MemoryLimits limits;
        remote::MemoryRequest request;
        request.empty_cache = true;
        check(client_->memory(request, {}, &limits), "memory");
        return true;
      }
      default: {
        remote::WorkerProfile profile;
        const std::lock_guard one_at_a_time(run_.profiling);  // a session has one profiler
        if (!succeeded(client_->profile(remote::ProfileCommand::kStart, 1000, {}, &profile), "profile")) return false;
        return succeeded(client_->profile(remote::ProfileCommand::kStop, 1000, {}, &profile), "profile");
      }
    }
  }

  void in_time(Nanoseconds begin) const {
    // The call may wait for everything that was sent, on the slowest link, and for each connection that breaks.
    const Nanoseconds most = static_cast<Nanoseconds>(run_.plan.lease.count()) * kMillisecond + 900 * kSecond;
    require(run_.world.now() - begin <= most, "a call took longer than what it waits for can");
  }

  // False: the call ran out of memory, where the plan allows that.
  bool succeeded(const Status& status, const char* what) {
    if (!run_.plan.no_allocation_fails &&
        (status.code() == ErrorCode::kOutOfMemory || status.exception_type() == "OutOfMemoryError")) {
      ++run_.outcome.out_of_memory;
      return false;
    }
    check(status, what);
    return true;
  }

  void check(const Status& status, const char* what) const {
    if (status.ok()) return;
    require(!run_.plan.session_must_survive, std::string(what) + ": " + status.message());
    // Damaged bytes cause kInvalid, not kLost.
    const bool typed =
        status.code() == ErrorCode::kLost || (run_.plan.corrupts && status.code() == ErrorCode::kInvalid);
    require(typed && !status.message().empty(), std::string(what) + " fails otherwise: " + status.message());
    run_.world.log(std::string(what) + ": " + status.message());
    throw Lost();
  }

  Run& run_;
  Random random_;
  std::unique_ptr<Client> client_;
  remote::ProgramPtr add_into_, mix_;
  uint64_t sent_ = 0;
};

}  // namespace

void run_client(Run& run, uint64_t seed) {
  for (bool again = true; again;) {
    Script script(run, seed);
    try {
      script.connect();
      script.play();
      script.finish();
      again = false;
    } catch (const Lost&) {
      // A new session must work, as after restart().
      require(++run.outcome.sessions_lost < kMostLost, "sessions are lost all the time");
      run.world.note("session lost");
      run.plan.steps = 5;
    }
    script.disconnect();
  }
  run.client_done = true;
}

}  // namespace torch_remote::simulator
