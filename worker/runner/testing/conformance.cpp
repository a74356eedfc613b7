#include "worker/runner/testing/conformance.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace torch_remote::worker::testing {
namespace {

using Floats = std::vector<float>;

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// A device, a runner, and programs in the device's memory.
class Bench {
 public:
  explicit Bench(const RunnerUnderTest& test, uint64_t limit = uint64_t{1} << 30) {
    test.make(limit, &device, &runner);
  }

  class TestProgram {
   public:
    TestProgram(Bench& bench, const std::string& text, std::vector<uint8_t> nodes = {}) : bench_(bench) {
      const Status parsed = ir::parse_graph(text, &graph);
      EXPECT_TRUE(parsed.ok()) << parsed.message();
      const Status valid = ir::verify(graph);
      EXPECT_TRUE(valid.ok()) << valid.message();
      bytes_ = ir::encode_program(graph);
      if (nodes.empty()) nodes.assign(graph.nodes.size(), 1);
      status = bench.runner->load({bytes_, graph, std::move(nodes), false}, &program_);
      buffers.resize(graph.buffers.size());
      result_words.resize(256);
    }
    ~TestProgram() { release(); }

    void release() {
      for (tr_buffer& buffer : buffers) {
        if (buffer.release) buffer.release(buffer.owner);
        buffer = {};
      }
    }

    // Sets the parameters of the next runs.
    void set(std::vector<int64_t> params) {
      const Status status = ir::evaluate(graph, params.data(), &values_);
      EXPECT_TRUE(status.ok()) << status.message();
      changed_ = true;
    }

    template <typename T>
    void give(uint32_t buffer, const std::vector<T>& values) {
      auto bytes = std::make_shared<std::vector<std::byte>>(bytes_of(values));
      if (buffers[buffer].release) buffers[buffer].release(buffers[buffer].owner);
      ASSERT_TRUE(bench_.device->memory().allocate(bytes->size(), &buffers[buffer]));
      bench_.device->copy_in(buffers[buffer].data, *bytes, bytes);
    }
    // Allocates buffers that the runner does not allocate, as a session does.
    void allocate() {
      for (uint32_t b = 0; b < buffers.size(); ++b) {
        if (graph.buffers[b].kind == ir::BufferKind::kInput || buffers[b].data || program_->allocates_buffer(b))
          continue;
        const int64_t nbytes = values_[graph.buffers[b].nbytes];
        ASSERT_TRUE(bench_.device->memory().allocate(static_cast<uint64_t>(nbytes), &buffers[b]));
      }
    }

    bool run(uint32_t first, uint32_t last, uint64_t* times = nullptr) {
      tr_run run{};
      run.struct_size = sizeof(run);
      run.symbols = values_.data();
      run.symbols_changed = changed_;
      run.first = first;
      run.last = last;
      run.buffers = buffers.data();
      run.buffer_count = static_cast<uint32_t>(buffers.size());
      run.result_words = result_words.data();
      run.result_word_capacity = static_cast<uint32_t>(result_words.size());
      run.times = times;
      run.run_id = ++run_id;
      error = {};
      error.struct_size = sizeof(error);
      const bool good = program_->run(run, &error);
      result_word_count = run.result_word_count;
      changed_ = false;
      return good;
    }
    bool run() { return run(0, static_cast<uint32_t>(graph.nodes.size())); }

    template <typename T = float>
    std::vector<T> read(uint32_t buffer, size_t count) {
      auto values = std::make_shared<std::vector<T>>(count);
      const auto size = static_cast<int64_t>(count);
      const int64_t one = 1;
      EXPECT_GE(buffers[buffer].nbytes, count * sizeof(T));
      bench_.device->copy_out({buffers[buffer].data, sizeof(T), {&size, 1}, {&one, 1}},
                              reinterpret_cast<std::byte*>(values->data()), values);
      EXPECT_TRUE(bench_.device->wait(bench_.device->record()).ok());
      return *values;
    }

    ir::Graph graph;
    Status status;
    std::vector<tr_buffer> buffers;
    std::vector<int64_t> result_words;
    uint32_t result_word_count = 0;
    uint64_t run_id = 0;
    tr_error error{};

   private:
    Bench& bench_;
    std::vector<uint8_t> bytes_;
    std::unique_ptr<RunnerProgram> program_;
    std::vector<int64_t> values_;
    bool changed_ = true;
  };

  std::unique_ptr<Device> device;
  std::unique_ptr<Runner> runner;
};

// s0 elements in s1 bytes: x + y, then times x, then relu.
constexpr const char* kChain = R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1)
  b3: fresh(s1) survives
  b4: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %1, alpha=1)
  %3: f32[s0]{1} @b3 = aten::mul.Tensor(%2, %0)
  %4: f32[s0]{1} @b4 = aten::relu(%3)
})";

TEST_P(RunnerConformance, ComputesAndFollowsSizesAndAddresses) {
  Bench bench(GetParam());
  Bench::TestProgram program(bench, kChain);
  ASSERT_TRUE(program.status.ok()) << program.status.message();
  for (const int64_t size : {3, 5, 2, 2, 70'000}) {
    for (int round = 0; round < 2; ++round) {  // At other addresses, with unchanged symbols.
      Floats x, y, product, positive;
      for (int64_t i = 0; i < size; ++i) {
        x.push_back(static_cast<float>(i % 100));
        y.push_back(static_cast<float>(i % 7 - 50 + round));
        product.push_back((x.back() + y.back()) * x.back());
        positive.push_back(std::max(product.back(), 0.f));
      }
      program.release();
      if (round == 0) program.set({size, size * 4});
      program.give(0, x);
      program.give(1, y);
      program.allocate();
      ASSERT_TRUE(program.run()) << program.error.message;
      EXPECT_EQ(program.read(3, size), product);
      EXPECT_EQ(program.read(4, size), positive);
      EXPECT_EQ(program.read(0, size), x);
    }
  }
}

TEST_P(RunnerConformance, RunsInPieces) {
  Bench bench(GetParam());
  Bench::TestProgram program(bench, kChain);
  program.set({3, 12});
  program.give(0, Floats{1, 2, 3});
  program.give(1, Floats{1, -5, 1});
  program.allocate();
  for (uint32_t n = 0; n < 3; ++n) ASSERT_TRUE(program.run(n, n + 1));
  EXPECT_EQ(program.read(3, 3), (Floats{2, -6, 12}));
  EXPECT_EQ(program.read(4, 3), (Floats{2, 0, 12}));
  program.give(0, Floats{2, 2, 2});
  ASSERT_TRUE(program.run(0, 2));
  EXPECT_EQ(program.read(3, 3), (Floats{6, -6, 6}));
  EXPECT_EQ(program.read(4, 3), (Floats{2, 0, 12}));
}

TEST_P(RunnerConformance, FindsMemoryForWhatHasNone) {
  Bench bench(GetParam());
  Bench::TestProgram program(bench, kChain);
  program.set({3, 12});
  program.give(0, Floats{1, 2, 3});
  program.give(1, Floats{1, -5, 1});
  for (uint32_t n = 0; n < 3; ++n) ASSERT_TRUE(program.run(n, n + 1)) << program.error.message;
  EXPECT_EQ(program.read(4, 3), (Floats{2, 0, 12}));
}

TEST_P(RunnerConformance, WritesInPlace) {
  Bench bench(GetParam());
  Bench::TestProgram program(bench, R"(graph(s0) {
  b0: input survives
  b1: input survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  aten::add_.Tensor(%0, %1, alpha=1)
  aten::add_.Tensor(%0, %1, alpha=1)
})");
  ASSERT_TRUE(program.status.ok()) << program.status.message();
  program.set({4});
  program.give(0, Floats{1, 2, 3, 4});
  program.give(1, Floats{10, 20, 30, 40});
  ASSERT_TRUE(program.run());
  ASSERT_TRUE(program.run());
  EXPECT_EQ(program.read(0, 4), (Floats{41, 82, 123, 164}));
  EXPECT_EQ(program.read(1, 4), (Floats{10, 20, 30, 40}));
}

TEST_P(RunnerConformance, SeesPartsOfBuffers) {
  Bench bench(GetParam());
  Bench::TestProgram program(bench, R"(graph(s0, s1, s2) {
  b0: input survives
  b1: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b0 + s2
  %2: f32[s0]{1} @b1 = aten::add.Tensor(%0, %1, alpha=1)
})");
  ASSERT_TRUE(program.status.ok()) << program.status.message();
  for (const int64_t offset : {2, 1}) {
    program.release();
    program.set({2, 8, offset});
    program.give(0, Floats{1, 2, 3, 4});
    program.allocate();
    ASSERT_TRUE(program.run());
    EXPECT_EQ(program.read(1, 2), (offset == 2 ? Floats{4, 6} : Floats{3, 5}));
  }
}

TEST_P(RunnerConformance, TellsWhatOnlyDataCanTell) {
  if (!GetParam().has_host_results) GTEST_SKIP() << "it has no op that does";
  Bench bench(GetParam());
  Bench::TestProgram program(bench, R"(graph(s0) {
  b0: input survives
  b1: fresh survives
  %0: f32[s0]{1} @b0
  %1: i64[?] @b1 = aten::nonzero(%0)
})");
  ASSERT_TRUE(program.status.ok()) << program.status.message();
  const std::vector<std::pair<Floats, std::vector<int64_t>>> cases = {
      {{0, 1, 0, 2}, {1, 3}}, {{1, 1, 1}, {0, 1, 2}}, {{0, 0}, {}}};
  for (const auto& [given, found] : cases) {
    program.release();
    program.set({static_cast<int64_t>(given.size())});
    program.give(0, given);
    ASSERT_TRUE(program.run()) << program.error.message;
    ASSERT_EQ(program.result_word_count, 6u);  // dtype, rank, two sizes, two strides.
    EXPECT_EQ(program.result_words[0], static_cast<int64_t>(ir::DType::kInt64));
    EXPECT_EQ(program.result_words[1], 2);
    EXPECT_EQ(program.result_words[2], static_cast<int64_t>(found.size()));
    EXPECT_EQ(program.result_words[3], 1);
    EXPECT_EQ(program.read<int64_t>(1, found.size()), found);
  }
  Bench::TestProgram equal(bench, R"(graph(s0) {
  b0: input survives
  b1: input survives
  %0: f32[s0]{1} @b0
  %1: f32[s0]{1} @b1
  aten::equal(%0, %1)
})");
  ASSERT_TRUE(equal.status.ok()) << equal.status.message();
  equal.set({2});
  equal.give(0, Floats{1, 2});
  for (const float second : {2.f, 3.f}) {
    equal.give(1, Floats{1, second});
    ASSERT_TRUE(equal.run());
    ASSERT_EQ(equal.result_word_count, 1u);
    EXPECT_EQ(equal.result_words[0], second == 2.f);
  }
}

// The failure is known at once, or when the device is done; in the second case the nodes after it ran.
TEST_P(RunnerConformance, NamesTheNodeThatFails) {
  Bench bench(GetParam());
  Bench::TestProgram program(bench, R"(graph(s0, s1) {
  b0: input survives
  b1: input survives
  b2: fresh(s1) survives
  b3: fresh(s1) survives
  b4: fresh(s1) survives
  %0: f32[s0]{1} @b0
  %1: i64[s0]{1} @b1
  %2: f32[s0]{1} @b2 = aten::add.Tensor(%0, %0, alpha=1)
  )" + GetParam().failing_node + R"(
  %4: f32[s0]{1} @b4 = aten::mul.Tensor(%0, %0)
})");
  ASSERT_TRUE(program.status.ok()) << program.status.message();
  program.set({3, 12});
  program.give(0, Floats{1, 2, 3});
  program.give(1, std::vector<int64_t>{1000, 1001, 1002});
  program.allocate();
  for (int round = 0; round < 3; ++round) {
    program.give(4, Floats{0, 0, 0});
    const bool good = program.run();
    ASSERT_TRUE(bench.device->wait(bench.device->record()).ok());
    const std::vector<DeferredFailure> late = bench.device->take_failures();
    ASSERT_NE(good, late.empty()) << "it did not fail, or twice";
    if (good) {
      ASSERT_EQ(late.size(), 1u);
      EXPECT_EQ(late[0].run_id, program.run_id);
      EXPECT_EQ(late[0].node, 1u);
      EXPECT_EQ(late[0].error.exception_type(), GetParam().failure_exception_type);
      EXPECT_FALSE(late[0].error.message().empty());
      EXPECT_EQ(program.read(4, 3), (Floats{1, 4, 9}));
      EXPECT_TRUE(bench.device->take_failures().empty());
    } else {
      EXPECT_EQ(program.error.node, 1u);
      EXPECT_EQ(program.error.exception_type, GetParam().failure_exception_type);
      EXPECT_NE(program.error.message[0], 0);
      EXPECT_EQ(program.read(4, 3), (Floats{0, 0, 0}));
      ASSERT_TRUE(program.run(2, 3));
      EXPECT_EQ(program.read(4, 3), (Floats{1, 4, 9}));
    }
    EXPECT_EQ(program.read(2, 3), (Floats{2, 4, 6}));
  }
}

TEST_P(RunnerConformance, GoesOnAfterMemoryRanOut) {
  Bench bench(GetParam(), uint64_t{64} << 20);
  Bench::TestProgram program(bench, kChain);
  const int64_t large = 7 << 20;
  program.set({large, large * 4});
  program.give(0, Floats(large, 1));
  program.give(1, Floats(large, 2));
  bool good = true;
  for (uint32_t n = 0; good && n < 3; ++n) good = program.run(n, n + 1);
  ASSERT_FALSE(good);
  EXPECT_STREQ(program.error.exception_type, "OutOfMemoryError");
  program.release();
  program.set({3, 12});
  program.give(0, Floats{1, 2, 3});
  program.give(1, Floats{1, -5, 1});
  program.allocate();
  ASSERT_TRUE(program.run()) << program.error.message;
  EXPECT_EQ(program.read(4, 3), (Floats{2, 0, 12}));
}

TEST_P(RunnerConformance, SaysWhenNodesRan) {
  Bench bench(GetParam());
  Bench::TestProgram program(bench, kChain);
  program.set({3, 12});
  program.give(0, Floats{1, 2, 3});
  program.give(1, Floats{1, -5, 1});
  program.allocate();
  const auto now = [] { return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()); };
  const uint64_t begin = now();
  std::vector<uint64_t> times(4);
  ASSERT_TRUE(program.run(0, 3, times.data()));
  ASSERT_TRUE(bench.device->wait(bench.device->record()).ok());
  EXPECT_LE(begin, times[0]);
  EXPECT_TRUE(std::ranges::is_sorted(times)) << ::testing::PrintToString(times);
  EXPECT_LE(times[3], now());
}

TEST_P(RunnerConformance, KeepsProgramsApart) {
  Bench bench(GetParam());
  Bench::TestProgram a(bench, kChain), b(bench, kChain);
  a.set({2, 8});
  b.set({3, 12});
  a.give(0, Floats{1, 2});
  a.give(1, Floats{1, 1});
  b.give(0, Floats{3, 4, 5});
  b.give(1, Floats{0, 0, 0});
  a.allocate();
  b.allocate();
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(a.run());
    ASSERT_TRUE(b.run());
  }
  EXPECT_EQ(a.read(3, 2), (Floats{2, 6}));
  EXPECT_EQ(b.read(3, 3), (Floats{9, 16, 25}));
}

TEST_P(RunnerConformance, DoesTheNodesThatItWasLoadedFor) {
  Bench bench(GetParam());
  Bench::TestProgram program(bench, kChain, {1, 0, 1});
  ASSERT_TRUE(program.status.ok()) << program.status.message();
  program.set({3, 12});
  program.give(0, Floats{1, 2, 3});
  program.give(1, Floats{1, -5, 1});
  program.give(3, Floats{-1, 4, 5});
  program.allocate();
  ASSERT_TRUE(program.run(0, 1));
  ASSERT_TRUE(program.run(2, 3));
  EXPECT_EQ(program.read(2, 3), (Floats{2, -3, 4}));
  EXPECT_EQ(program.read(4, 3), (Floats{0, 4, 5}));
}

TEST_P(RunnerConformance, KnowsWhatItHas) {
  Bench bench(GetParam());
  EXPECT_FALSE(bench.runner->description().empty());
  EXPECT_TRUE(bench.runner->has_op("aten::add.Tensor"));
  EXPECT_FALSE(bench.runner->has_op("aten::no_such_op_at_all"));
}

// Random sequences over few buffers, in place and not, with reads in between, compared with the definition.
TEST_P(RunnerConformance, ComputesRandomPrograms) {
  Bench bench(GetParam());
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    constexpr int kInputs = 3;
    const int nodes = 1 + random() % 12;
    const int64_t size = 2 + random() % 40;
    std::string buffers, body;
    std::vector<Floats> values(kInputs, Floats(size));  // One per view.
    for (int i = 0; i < kInputs; ++i) {
      buffers += "  b" + std::to_string(i) + ": input survives\n";
      body += "  %" + std::to_string(i) + ": f32[s0]{1} @b" + std::to_string(i) + "\n";
      for (float& value : values[i]) value = static_cast<float>(static_cast<int>(random() % 7) - 3);
    }
    const std::vector<Floats> given = values;
    for (int n = 0; n < nodes; ++n) {
      const size_t a = random() % values.size(), b = random() % values.size();
      const std::string operands = "(%" + std::to_string(a) + ", %" + std::to_string(b);
      if (random() % 3 == 0) {
        body += "  aten::add_.Tensor" + operands + ", alpha=1)\n";
        const Floats added = values[b];
        for (int64_t i = 0; i < size; ++i) values[a][i] += added[i];
        continue;
      }
      const std::string name = std::to_string(values.size());
      buffers += "  b" + name + ": fresh(s1)" + (random() % 2 ? " survives" : "") + "\n";
      body += "  %" + name + ": f32[s0]{1} @b" + name + " = ";
      Floats result(size);
      const int op = random() % 3;
      for (int64_t i = 0; i < size; ++i) {
        result[i] = op == 0   ? values[a][i] + values[b][i]
                    : op == 1 ? values[a][i] * values[b][i]
                              : std::max(values[a][i], 0.f);
      }
      body += op == 0   ? "aten::add.Tensor" + operands + ", alpha=1)\n"
              : op == 1 ? "aten::mul.Tensor" + operands + ")\n"
                        : "aten::relu(%" + std::to_string(a) + ")\n";
      values.push_back(std::move(result));
    }
    Bench::TestProgram program(bench, "graph(s0, s1) {\n" + buffers + body + "}");
    ASSERT_TRUE(program.status.ok()) << program.status.message();
    program.set({size, size * 4});
    for (uint32_t i = 0; i < kInputs; ++i) program.give(i, given[i]);
    program.allocate();
    const auto count = static_cast<uint32_t>(program.graph.nodes.size());
    const uint32_t cut = random() % (count + 1);
    ASSERT_TRUE(cut == 0 || program.run(0, cut)) << program.error.message;
    ASSERT_TRUE(cut == count || program.run(cut, count)) << program.error.message;
    for (uint32_t b = 0; b < values.size(); ++b) {
      if (program.graph.buffers[b].survives) {
        EXPECT_EQ(program.read(b, size), values[b]) << ir::print(program.graph) << b;
      }
    }
  }
}

}  // namespace
}  // namespace torch_remote::worker::testing
