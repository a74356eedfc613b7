// Measures what a session adds to the runs of a program: its runner executes nothing. Run it on an idle machine:
//   bazel run //worker/session:session_benchmark
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "remote/wire/delta.h"
#include "worker/device/host_device.h"
#include "worker/session/session.h"

namespace torch_remote::worker {
namespace {

constexpr int kRuns = 5000;
constexpr int kRepeats = 15;

class NullProgram final : public RunnerProgram {
 public:
  bool allocates_buffer(uint32_t) const override { return false; }
  bool run(tr_run&, tr_error*) override { return true; }
};

class NullRunner final : public Runner {
 public:
  std::string name() const override { return "null"; }
  bool accepts(const ir::Graph&, uint32_t) override { return true; }
  bool has_op(const char*) override { return true; }
  Status load(const LoadRequest&, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<NullProgram>();
    return {};
  }
};

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

// `inputs` inputs, and a chain of `nodes` nodes whose last result survives. `in_place`: each node updates an input.
std::string text(int inputs, int nodes, bool in_place) {
  std::string buffers, views, ops;
  const auto number = [](int n) { return std::to_string(n); };
  for (int i = 0; i < inputs; ++i) {
    buffers += "  b" + number(i) + ": input survives\n";
    views += "  %" + number(i) + ": f32[s0]{1} @b" + number(i) + "\n";
  }
  for (int n = 0; n < nodes; ++n) {
    const std::string other = number(n % inputs);
    if (in_place) {
      ops += "  aten::add_.Tensor(%" + other + ", %" + number((n + 1) % inputs) + ", alpha=1)\n";
      continue;
    }
    const int made = inputs + n;
    buffers += "  b" + number(made) + ": fresh(s1)" + (n + 1 == nodes ? " survives\n" : "\n");
    ops += "  %" + number(made) + ": f32[s0]{1} @b" + number(made) + " = aten::add.Tensor(%" +
           number(n == 0 ? 0 : made - 1) + ", %" + other + ", alpha=1)\n";
  }
  return "graph(s0, s1) {\n" + buffers + views + ops + "}";
}

// Prints the cost of a run whose result replaces that of the run before.
void measure(const char* name, int inputs, int nodes, bool in_place) {
  HostDevice device({.trusted = true, .limit = uint64_t{1} << 32});
  Runners runners;
  runners.push_back(std::make_unique<NullRunner>());
  Session session(&device, &runners);
  ir::Graph graph;
  check(ir::parse_graph(text(inputs, nodes, in_place), &graph));
  const std::vector<uint8_t> program = ir::encode_program(graph);
  session.load_program(1, std::as_bytes(std::span(program)));
  std::vector<uint64_t> ids, freed;
  for (int i = 1; i <= inputs; ++i) {
    auto floats = std::make_shared<std::vector<float>>(16);
    check(session.buffers().upload(i, std::as_writable_bytes(std::span(*floats)), floats));
    ids.push_back(i);
  }
  const std::vector<int64_t> sizes{16, 64};
  remote::LastRun last;
  std::vector<uint8_t> params, bindings, freed_ids;
  std::vector<int64_t> result_words;
  FailurePtr failure;
  uint64_t sequence = 0;
  double best = 1e30;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRuns; ++i) {
      const uint64_t first_result_id = 1000 + ++sequence;
      params.clear(), bindings.clear(), freed_ids.clear();
      remote::encode_params(sizes, last.params, params);
      remote::encode_bindings(ids, first_result_id, last.bindings, bindings);
      freed.assign(sequence == 1 ? 0 : 1, first_result_id - 1);
      remote::encode_freed_ids(freed, freed_ids);
      check(session.run({1, first_result_id, params, bindings, freed_ids, sequence}, &result_words, &failure));
      check(failure ? failure->status : Status());
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / kRuns);
  }
  std::printf("%-28s %8.0f ns/run\n", name, best);
}

}  // namespace
}  // namespace torch_remote::worker

int main() {
  using torch_remote::worker::measure;
  measure("one op", 2, 1, false);
  measure("forward, 100 ops", 30, 100, false);
  measure("in-place step, 100 ops", 100, 100, true);
}
