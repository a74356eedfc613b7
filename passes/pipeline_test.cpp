#include <string>

#include "gtest/gtest.h"
#include "ir/testing/random_graph.h"
#include "passes/pass.h"
#include "passes/testing/interpreter.h"
#include "passes/testing/random_program.h"

namespace torch_remote::passes {
namespace {

using ir::Graph;
using testing::Bytes;
using testing::Rng;

std::string names_of(const Graph& graph) { return ir::print(graph, {.source_lines = false}); }

TEST(Pipeline, IsFoundByName) {
  EXPECT_EQ(find_pass("cse")->run, &cse);
  EXPECT_EQ(find_pass("nothing"), nullptr);
  std::string names;
  Graph graph;
  ASSERT_TRUE(
      run_pipeline(graph, {.verify = true,
                           .observe = [&](std::string_view name, const Graph&) { names.append(name).append(" "); }})
          .ok());
  EXPECT_EQ(names, "input lift canonicalize cse accumulate dce layout fuse plan ");
}

// A context for a worker that compiles kernels of all kinds. `sample`: the graph's parameters in one run.
PassContext with_kernels(std::span<const int64_t> sample) {
  PassContext context;
  context.worker.group_kind_mask = (1u << ir::kGroupKinds) - 1;
  context.worker.dtype_mask = ~uint64_t{0};
  context.sample = sample;
  return context;
}

// Uses all valid graphs; their sizes have no meaning.
TEST(Pipeline, EveryPassKeepsGraphsValidAndIsIdempotent) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    Graph graph = ir::testing::random_graph(rng);
    std::vector<int64_t> sample(graph.params);
    for (int64_t& value : sample) value = static_cast<int64_t>(rng() % 4);
    for (const Pass& pass : pipeline()) {
      std::vector<int64_t> values;
      const bool runs = ir::evaluate(graph, sample.data(), &values).ok();  // otherwise its sizes divide by zero
      const PassContext context = runs ? with_kernels(sample) : PassContext();
      const std::string before = names_of(graph);
      const Status ran = pass.run(graph, context);
      ASSERT_TRUE(ran.ok()) << "seed " << seed << ", " << pass.name << ": " << ran.message() << "\n" << before;
      const Status valid = ir::verify(graph);
      ASSERT_TRUE(valid.ok()) << "seed " << seed << ", " << pass.name << ": " << valid.message() << "\n"
                              << before << "became\n"
                              << names_of(graph);
      Graph again = graph;
      ASSERT_TRUE(pass.run(again, context).ok());
      ASSERT_EQ(names_of(again), names_of(graph)) << "seed " << seed << ", " << pass.name;
      ASSERT_EQ(again, graph);
    }
  }
}

std::vector<std::vector<uint8_t>> random_inputs(const ir::Trace& trace, Rng& rng) {
  std::vector<std::vector<uint8_t>> inputs;
  for (const ir::TraceBuffer& buffer : trace.buffers) {
    if (buffer.fresh) continue;
    std::vector<uint8_t>& bytes = inputs.emplace_back(buffer.nbytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng());
  }
  return inputs;
}

// Compares what the first run defined with the same bytes of the second run.
std::string difference(const std::vector<Bytes>& expected, const std::vector<Bytes>& actual) {
  if (expected.size() != actual.size()) return "another number of survivors";
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].data.size() != actual[i].data.size()) return "survivor " + std::to_string(i) + " has another size";
    for (size_t j = 0; j < expected[i].data.size(); ++j) {
      if (!expected[i].defined[j]) continue;
      if (!actual[i].defined[j] || expected[i].data[j] != actual[i].data[j]) {
        return "survivor " + std::to_string(i) + " differs at byte " + std::to_string(j);
      }
    }
  }
  return {};
}

TEST(Pipeline, EveryPassKeepsWhatSurvives) {
  size_t before_nodes = 0;
  size_t after_nodes = 0;
  size_t reuses = 0;
  size_t grouped = 0, inside = 0;  // nodes in groups, buffers without memory
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    const ir::Trace trace = testing::random_program(rng, 1 + static_cast<uint32_t>(rng() % 25));
    Graph graph;
    Status status = ir::import_trace(trace, trace.survivors(), &graph);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<std::vector<uint8_t>> inputs = random_inputs(trace, rng);
    std::vector<Bytes> expected;
    status = testing::interpret(graph, trace.params, inputs, &expected);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message() << "\n" << names_of(graph);
    before_nodes += graph.nodes.size();
    const PassContext context = with_kernels(trace.params);
    for (const Pass& pass : pipeline()) {
      const std::string before = names_of(graph);
      const Status ran = pass.run(graph, context);
      ASSERT_TRUE(ran.ok()) << "seed " << seed << ", " << pass.name << ": " << ran.message() << "\n" << before;
      const Status valid = ir::verify(graph);
      ASSERT_TRUE(valid.ok()) << "seed " << seed << ", " << pass.name << ": " << valid.message() << "\n" << before;
      Graph again = graph;
      ASSERT_TRUE(pass.run(again, context).ok());
      ASSERT_EQ(names_of(again), names_of(graph)) << "seed " << seed << ", " << pass.name;
      std::vector<Bytes> actual;
      status = testing::interpret(graph, trace.params, inputs, &actual);
      ASSERT_TRUE(status.ok()) << "seed " << seed << ", " << pass.name << ": " << status.message();
      ASSERT_EQ(difference(expected, actual), "") << "seed " << seed << ", " << pass.name << "\n"
                                                  << before << "became\n"
                                                  << names_of(graph);
    }
    after_nodes += graph.nodes.size();
    for (const ir::Buffer& buffer : graph.buffers) {
      reuses += buffer.may_reuse != ir::kNoBuffer;
      inside += buffer.group_local;
    }
    for (const ir::Group& group : graph.groups) grouped += group.last + 1 - group.first;
  }
  EXPECT_LT(after_nodes, before_nodes * 9 / 10);  // otherwise the programs give the passes nothing to do
  EXPECT_GT(reuses, 500u);
  EXPECT_GT(grouped, 1000u);
  EXPECT_GT(inside, 100u);
}

TEST(Pipeline, ProgramsKeepWhatThePassesMade) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const ir::Trace trace = testing::random_program(rng, 20);
    Graph graph;
    ASSERT_TRUE(ir::import_trace(trace, trace.survivors(), &graph).ok());
    ASSERT_TRUE(run_pipeline(graph, {.verify = true}).ok());
    const std::vector<uint8_t> bytes = ir::encode_program(graph);
    Graph back;
    ASSERT_TRUE(ir::decode_program(bytes.data(), bytes.size(), &back).ok());
    ASSERT_EQ(back, graph);
  }
}

}  // namespace
}  // namespace torch_remote::passes
