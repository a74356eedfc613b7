#include <algorithm>

#include "gtest/gtest.h"
#include "ir/graph.h"
#include "ir/testing/random_graph.h"

namespace torch_remote::ir {
namespace {

using testing::Rng;

TEST(Import, RandomTracesBecomeTheGraphsThatTheyAre) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    Rng rng(seed);
    testing::RandomTrace expected = testing::random_trace(rng);
    Graph graph;
    const Status status = import_trace(expected.trace, expected.trace.survivors(), &graph);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message();
    ASSERT_EQ(graph, expected.graph) << "seed " << seed << "\n" << print(graph) << print(expected.graph);
    const Status valid = verify(graph);
    ASSERT_TRUE(valid.ok()) << "seed " << seed << ": " << valid.message() << "\n" << print(graph);
  }
}

TEST(Import, DamagedCodeIsAnErrorAndNoCrash) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    Rng rng(seed);
    Trace trace = testing::random_trace(rng).trace;
    if (trace.code.empty()) continue;
    for (uint64_t flips = 1 + rng() % 3; flips > 0; --flips) {
      uint32_t& word = trace.code[rng() % trace.code.size()];
      // Opcodes and string indices are internal to this process and trusted; only the words after an opcode are
      // damaged.
      const bool opcode =
          std::ranges::any_of(trace.records, [&](const TraceRecord& r) { return &trace.code[r.code] == &word; });
      if (!opcode) word ^= 1u << rng() % 8 << (rng() % 2 == 0 ? 0 : 24);
    }
    Graph graph;
    (void)import_trace(trace, trace.survivors(), &graph).ok();
  }
}

// relu(x) of a 1 x n input, into a fresh buffer that outlives the trace.
TEST(Import, FixedDimsAreConstantsAndOthersParameters) {
  Trace trace;
  const int64_t sizes[] = {1, 5};
  const int64_t strides[] = {5, 1};
  trace.begin_record(find_op("aten::relu"), {});
  trace.new_buffer_view(42, &trace, 20, DType::kFloat32, sizes, strides, 3);
  trace.new_buffer_view(0, &trace, 20, DType::kFloat32, sizes, strides, 0);
  trace.end_record();
  Graph graph;
  ASSERT_TRUE(import_trace(trace, trace.survivors(), &graph).ok());
  EXPECT_EQ(print(graph),
            "graph(s0..s10) {\n"
            "  s11 = 1\n"
            "  b0: input survives\n"
            "  b1: fresh(s5) survives\n"
            "  %0: f32[1, s1]{s2, s3} @b0 + s4\n"
            "  %1: f32[1, s7]{s8, s9} @b1 + s10 = aten::relu(%0)\n"
            "}\n");
}

TEST(Import, LengthsThatDoNotFitAreNamed) {
  Trace trace;
  trace.begin_record(find_op("aten::relu"), {});
  trace.word(kAbsent);
  trace.end_record();
  Graph graph;
  const Status status = import_trace(trace, trace.survivors(), &graph);
  EXPECT_EQ(status.message(), "remote: the trace is damaged at record 0 (aten::relu): its code ends early");
}

}  // namespace
}  // namespace torch_remote::ir
