#include <bit>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "passes/pass.h"
#include "passes/testing/random_program.h"
#include "remote/capture/session_writer.h"

// session FILE [OP [COUNT OPS]]: writes a capture, as a client would. Program 1 is small, has a batch size and a rate
// as parameters, and runs three times. Program 2 is a hundred training ops, and runs once. OP replaces the relu of
// program 1. COUNT random programs of about OPS ops follow, which run once.
namespace torch_remote {
namespace {

constexpr const char* kSmall = R"(graph(batch, rate) {
  bytes = batch * 4
  b0: input
  b1: input survives
  b2: fresh(bytes)
  b3: fresh(bytes)
  b4: fresh(bytes) survives
  %0: f32[batch] @b0
  %1: f32[batch] @b1
  %2: f32[batch] @b2 = aten::neg(%0) loc("train.py:12 in forward")
  %3: f32[batch] @b3 = aten::neg(%0) loc("train.py:13 in forward")
  aten::RELU_(%3!) loc("train.py:14 in forward")
  %4: f32[batch] @b4 = aten::add.Tensor(%2, %3, alpha=1) loc("train.py:15 in forward")
  aten::add_.Tensor(%1!, %4, alpha=float(rate)) loc("train.py:20 in step")
}
)";

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

ir::Graph optimized(ir::Graph graph) {
  check(passes::run_pipeline(graph, {.verify = true}));
  return graph;
}

ir::Graph small(const std::string& op) {
  std::string text = kSmall;
  text.replace(text.find("RELU"), 4, op);
  ir::Graph graph;
  check(ir::parse_graph(text, &graph));
  return graph;
}

ir::Graph imported(const ir::Trace& trace) {
  ir::Graph graph;
  check(ir::import_trace(trace, trace.survivors(), &graph));
  return graph;
}

// Loads a program that was recorded as `trace`, and runs it once.
void load_and_run(remote::SessionWriter& session, uint32_t number, const ir::Trace& trace) {
  const ir::Graph graph = imported(trace);
  std::vector<uint64_t> inputs;
  for (const ir::Buffer& buffer : graph.buffers) {
    if (buffer.kind == ir::BufferKind::kInput) inputs.push_back(100 + inputs.size());
  }
  session.load(number, &graph, optimized(graph));
  session.run(number, trace.params, inputs, number * uint64_t{1000});
}

void write(const std::string& path, const std::string& op, uint32_t count, uint32_t ops) {
  std::shared_ptr<remote::CaptureWriter> writer;
  check(remote::CaptureWriter::open({.path = path, .torch_version = "2.13.0"}, &writer));
  remote::SessionWriter session(std::move(writer));
  const std::vector<std::byte> bytes(128);
  session.upload(1, bytes);
  session.upload(2, bytes);
  const ir::Graph first = small(op);
  session.load(1, &first, optimized(first));
  const auto run = [&](int64_t batch, double rate, uint64_t first_result_id, std::vector<uint64_t> freed_ids = {}) {
    const std::vector<int64_t> params = {batch, std::bit_cast<int64_t>(rate)};
    session.run(1, params, std::vector<uint64_t>{1, 2}, first_result_id, std::move(freed_ids));
  };
  run(32, 0.5, 3);
  run(32, 0.25, 4, {3});
  run(17, 0.25, 5);
  session.read(5, 4, std::vector<int64_t>{17}, std::vector<int64_t>{1}, 0, {bytes.data(), 68});
  load_and_run(session, 2, passes::testing::perceptron_program(100));
  for (uint32_t i = 0; i < count; ++i) {
    passes::testing::Rng rng(i);
    load_and_run(session, 3 + i, passes::testing::random_program(rng, ops));
  }
}

}  // namespace
}  // namespace torch_remote

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3 && argc != 5) return 2;
  const auto number = [&](int i) { return argc > i ? static_cast<uint32_t>(std::strtoul(argv[i], nullptr, 10)) : 0; };
  torch_remote::write(argv[1], argc > 2 ? argv[2] : "relu", number(3), number(4));
  return 0;
}
