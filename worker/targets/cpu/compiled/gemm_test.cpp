#include "worker/targets/cpu/compiled/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "ir/fusion/fusion.h"
#include "worker/targets/cpu/compiled/gemm_choice.h"
#include "worker/targets/cpu/compiled/kernel_runner.h"
#include "worker/targets/cpu/compiled/library_gemm.h"
#include "worker/targets/cpu/compiled/testing/elements.h"
#include "worker/targets/cpu/loops/host.h"

// Compares GEMMs with few rows by both sets of loops with double precision: sizes that do not fill a tile, strides,
// half types, added operands. Also tests which implementation is chosen.
namespace torch_remote::worker::kernels {
namespace {

using testing::item, testing::read, testing::write;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The loops that this machine can run.
std::vector<const GemmLoops*> all_loops() {
  std::vector<const GemmLoops*> all;
  for (const auto& level : loops_of_host(kGemmLevels)) all.push_back(level.loops);
  return all;
}

struct Case {
  int64_t rows = 1, depth = 1, columns = 1;
  std::string dtype = "f32";  // bf16, f16
  std::string addend = "";    // "[columns]", "[rows, columns]", "[rows, 1]", "[]"
  double alpha = 1, beta = 1;
  int64_t gap = 0;  // between rows of operands and results
};

std::string describe(const Case& c) {
  return c.dtype + " " + std::to_string(c.rows) + "x" + std::to_string(c.depth) + "x" + std::to_string(c.columns) +
         " + " + c.addend;
}

// A graph with one GEMM, and its memory.
class Bench {
 public:
  explicit Bench(const Case& c) : c_(c), random_(7) {
    const int64_t left_line = c.depth + c.gap, right_line = c.depth + c.gap, line = c.columns + c.gap;
    std::string text = "graph() {\n  b0: input survives\n  b1: input survives\n  b2: input survives\n";
    text += "  b3: fresh(" + std::to_string(bytes(c.rows * line + 1)) + ") survives\n";
    text += "  %0: " + c.dtype + view(c.rows, c.depth, left_line, 1) + " @b0\n";
    text += "  %1: " + c.dtype + view(c.depth, c.columns, 1, right_line) + " @b1\n";
    const std::string result = std::string("  %") + (c.addend.empty() ? "2" : "3") + ": " + c.dtype +
                               view(c.rows, c.columns, line, 1) + " @b3 = ";
    if (c.addend.empty()) {
      text += result + "aten::mm(%0, %1)\n}\n";
    } else {
      const bool rows = c.addend.starts_with("[rows"), columns = c.addend.ends_with("columns]");
      const std::string strides = rows && columns ? "{" + std::to_string(line) + ", 1}"
                                  : rows          ? "{2, 1}"
                                  : columns       ? "{1}"
                                                  : "{}";
      std::string sizes = c.addend;
      const auto put = [&](const std::string& name, int64_t value) {
        if (const size_t at = sizes.find(name); at != std::string::npos)
          sizes.replace(at, name.size(), std::to_string(value));
      };
      put("rows", c.rows);
      put("columns", c.columns);
      addend_row_ = rows ? (columns ? line : 2) : 0;
      addend_column_ = columns ? 1 : 0;
      text += "  %2: " + c.dtype + sizes + strides + " @b2\n" + result +
              "aten::addmm(%2, %0, %1, beta=" + number(c.beta) + ", alpha=" + number(c.alpha) + ")\n}\n";
    }
    const Status status = ir::parse_graph(text, &graph_);
    EXPECT_TRUE(status.ok()) << status.message() << text;
    fill(&left_, c.rows * left_line + 1);
    fill(&right_, c.columns * right_line + 1);
    fill(&addend_, std::max(c.rows * line, 2 * c.rows) + 1);
    result_.assign(static_cast<size_t>(bytes(c.rows * line + 1)), std::byte{0x55});
    left_line_ = left_line;
    line_ = line;
  }

  std::unique_ptr<SmallGemm> bind(const GemmLoops& loops) {
    EXPECT_TRUE(ir::evaluate(graph_, nullptr, &values_).ok());
    return SmallGemm::bind(graph_, graph_.nodes[0], values_, loops);
  }

  void run(const SmallGemm& matmul, const ParallelFor& parallel = nullptr) {
    std::vector<tr_buffer> buffers(4);
    std::vector<std::byte>* const memory[] = {&left_, &right_, &addend_, &result_};
    for (size_t b = 0; b < 4; ++b) {
      buffers[b].data = memory[b]->data();
      buffers[b].nbytes = memory[b]->size();
    }
    matmul.run(buffers, parallel);
  }

  // Returns an empty string, or what is wrong.
  std::string compare() const {
    const double unit = c_.dtype == "f32" ? 0x1p-24 : c_.dtype == "bf16" ? 0x1p-8 : 0x1p-11;
    for (int64_t r = 0; r < c_.rows; ++r) {
      for (int64_t n = 0; n < c_.columns; ++n) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < c_.depth; ++k) {
          const double term = double{left(r, k)} * right(n, k);
          sum += term;
          size += std::abs(term);
        }
        double expected = c_.alpha * sum, error = std::abs(c_.alpha) * size * 0x1p-22;
        if (!c_.addend.empty() && c_.beta != 0) expected += c_.beta * addend(r, n);
        error += std::abs(expected) * unit * 1.01 + 1e-30;
        const double got = result(r, n);
        const bool same = std::isnan(expected) ? std::isnan(got) : expected == got || std::abs(got - expected) <= error;
        if (!same) {
          return describe(c_) + ": at " + std::to_string(r) + ", " + std::to_string(n) + " " + std::to_string(got) +
                 " instead of " + std::to_string(expected);
        }
      }
      for (int64_t n = c_.columns; n < line_; ++n) {
        std::vector<std::byte> untouched(4, std::byte{0x55});
        if (std::memcmp(&result_[static_cast<size_t>(bytes(r * line_ + n))], untouched.data(), item(c_.dtype)) != 0) {
          return describe(c_) + ": wrote between rows";
        }
      }
    }
    return "";
  }

  void set_left(int64_t r, int64_t k, float value) {
    write(left_, static_cast<size_t>(r * left_line_ + k), value, c_.dtype);
  }
  void set_right(int64_t n, int64_t k, float value) {
    write(right_, static_cast<size_t>(n * left_line_ + k), value, c_.dtype);
  }
  void set_added(float value) {
    for (size_t i = 0; i < addend_.size() / item(c_.dtype); ++i) write(addend_, i, value, c_.dtype);
  }
  const std::vector<std::byte>& result() const { return result_; }

 private:
  static std::string view(int64_t rows, int64_t columns, int64_t row, int64_t column) {
    return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]{" + std::to_string(row) + ", " +
           std::to_string(column) + "}";
  }
  static std::string number(double value) {
    std::string text = std::to_string(value);
    return text;
  }
  int64_t bytes(int64_t elements) const { return elements * static_cast<int64_t>(item(c_.dtype)); }
  void fill(std::vector<std::byte>* memory, int64_t elements) {
    memory->resize(static_cast<size_t>(bytes(elements)));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < elements; ++i) write(*memory, static_cast<size_t>(i), normal(random_), c_.dtype);
  }
  float left(int64_t r, int64_t k) const { return read(left_, static_cast<size_t>(r * left_line_ + k), c_.dtype); }
  float right(int64_t n, int64_t k) const { return read(right_, static_cast<size_t>(n * left_line_ + k), c_.dtype); }
  float addend(int64_t r, int64_t n) const {
    return read(addend_, static_cast<size_t>(r * addend_row_ + n * addend_column_), c_.dtype);
  }
  float result(int64_t r, int64_t n) const { return read(result_, static_cast<size_t>(r * line_ + n), c_.dtype); }

  const Case c_;
  std::mt19937 random_;
  ir::Graph graph_;
  std::vector<int64_t> values_;
  std::vector<std::byte> left_, right_, addend_, result_;
  int64_t left_line_ = 0, line_ = 0, addend_row_ = 0, addend_column_ = 0;
};

std::string outcome(const Case& c) {
  for (const GemmLoops* loops : all_loops()) {
    Bench bench(c);
    const std::unique_ptr<SmallGemm> matmul = bench.bind(*loops);
    if (matmul == nullptr) return describe(c) + ": is not done";
    bench.run(*matmul);
    if (std::string error = bench.compare(); !error.empty()) return error;
  }
  return "";
}

TEST(SmallGemm, EqualsTheSum) {
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 13, 31, 48}) {
    for (const int64_t columns : {1, 2, 3, 4, 5, 7, 16, 30}) {
      for (const int64_t depth : {1, 2, 7, 8, 15, 16, 17, 100}) {
        EXPECT_EQ(outcome({.rows = rows, .depth = depth, .columns = columns}), "");
      }
    }
  }
  for (const int64_t depth : {1023, 1024, 1025, 2048, 3001}) {
    EXPECT_EQ(outcome({.rows = 7, .depth = depth, .columns = 9}), "");
  }
}

TEST(SmallGemm, TakesHalfTypes) {
  for (const char* dtype : {"bf16", "f16"}) {
    for (const int64_t depth : {1, 15, 33, 1100}) {
      EXPECT_EQ(outcome({.rows = 5, .depth = depth, .columns = 9, .dtype = dtype}), "");
      EXPECT_EQ(outcome({.rows = 2, .depth = depth, .columns = 6, .dtype = dtype, .addend = "[columns]", .gap = 3}),
                "");
    }
  }
}

TEST(SmallGemm, AddsWhatIsBroadcast) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    for (const char* addend : {"[columns]", "[rows, columns]", "[rows, 1]", "[]"}) {
      EXPECT_EQ(outcome({.rows = 5, .depth = 40, .columns = 11, .dtype = dtype, .addend = addend}), "");
      EXPECT_EQ(outcome({.rows = 3,
                         .depth = 20,
                         .columns = 6,
                         .dtype = dtype,
                         .addend = addend,
                         .alpha = -0.5,
                         .beta = 3,
                         .gap = 5}),
                "");
    }
  }
}

TEST(SmallGemm, WhatIsTimesZeroDoesNotCount) {
  for (const GemmLoops* loops : all_loops()) {
    Bench bench({.rows = 3, .depth = 20, .columns = 6, .addend = "[columns]", .beta = 0});
    bench.set_added(kNaN);
    bench.run(*bench.bind(*loops));
    EXPECT_EQ(bench.compare(), "");
  }
}

TEST(SmallGemm, KeepsNanAndInfinity) {
  for (const GemmLoops* loops : all_loops()) {
    for (const int64_t depth : {20, 1030}) {
      Bench bench({.rows = 7, .depth = depth, .columns = 6});
      bench.set_left(2, depth - 1, std::numeric_limits<float>::infinity());
      bench.set_right(4, depth - 1, 0);
      bench.set_right(1, 3, kNaN);
      bench.run(*bench.bind(*loops));
      EXPECT_EQ(bench.compare(), "");
    }
  }
}

TEST(SmallGemm, PartsChangeNoBits) {
  const ParallelFor parallel = [](int64_t count, int64_t, const std::function<void(int64_t, int64_t)>& body) {
    for (int64_t i = count; i-- > 0;) body(i, i + 1);
  };
  for (const GemmLoops* loops : all_loops()) {
    Bench whole({.rows = 48, .depth = 1025, .columns = 515}), parts({.rows = 48, .depth = 1025, .columns = 515});
    whole.run(*whole.bind(*loops));
    parts.run(*parts.bind(*loops), parallel);
    EXPECT_EQ(whole.result(), parts.result());
  }
}

TEST(SmallGemm, LeavesTheRestToOthers) {
  if (all_loops().empty()) GTEST_SKIP();
  const GemmLoops& loops = *all_loops()[0];
  EXPECT_EQ(Bench({.rows = ir::kMaxMatmulRows + 1, .depth = 4, .columns = 4}).bind(loops), nullptr);
  const auto binds = [&](const std::string& nodes) {
    ir::Graph graph;
    const Status status = ir::parse_graph(
        "graph() {\n  b0: input survives\n  b1: input survives\n  b2: fresh(4096) survives\n" + nodes + "}\n", &graph);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<int64_t> values;
    EXPECT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
    return SmallGemm::bind(graph, graph.nodes[0], values, loops) != nullptr;
  };
  const auto matmul = [&](const std::string& left, const std::string& right, const std::string& result) {
    return binds("  %0: " + left + " @b0\n  %1: " + right + " @b1\n  %2: " + result + " @b2 = aten::mm(%0, %1)\n");
  };
  EXPECT_TRUE(matmul("f32[3, 8]{8, 1}", "f32[8, 5]{1, 8}", "f32[3, 5]{5, 1}"));
  EXPECT_FALSE(matmul("f32[3, 8]{8, 1}", "f32[8, 5]{5, 1}", "f32[3, 5]{5, 1}"));  // row-major weights
  EXPECT_FALSE(matmul("f32[3, 8]{1, 3}", "f32[8, 5]{1, 8}", "f32[3, 5]{5, 1}"));  // column-major left operand
  EXPECT_FALSE(matmul("f32[3, 8]{8, 1}", "f32[8, 5]{1, 8}", "f32[3, 5]{1, 3}"));  // column-major result
  EXPECT_FALSE(matmul("f64[3, 8]{8, 1}", "f64[8, 5]{1, 8}", "f64[3, 5]{5, 1}"));
  EXPECT_FALSE(matmul("f32[3, 8]{8, 1}", "f32[7, 5]{1, 7}", "f32[3, 5]{5, 1}"));  // ATen reports this error
  EXPECT_FALSE(matmul("f32[0, 8]{8, 1}", "f32[8, 5]{1, 8}", "f32[0, 5]{5, 1}"));
  EXPECT_FALSE(matmul("f32[3, 0]{1, 1}", "f32[0, 5]{1, 1}", "f32[3, 5]{5, 1}"));  // the result is all zeros
}

// --- which implementation is chosen ----------------------------------------------------------------------------------

// A clock on which everything takes one second, and slow calls five more.
struct Clock {
  double now = 0;
  bool slow() { return (now += 5) > 0; }
};

GemmChoices::Options options(std::function<bool(const tr_matmul&)> library, Clock* clock = nullptr) {
  GemmChoices::Options made;
  made.loops = all_loops().back();
  made.library = std::move(library);
  if (clock != nullptr) made.clock = [=] { return clock->now += 1; };
  return made;
}

void measure_all(GemmChoices& choices) {
  while (choices.wants_measuring()) choices.measure();
}

constexpr GemmShape kSmall{GemmType::kFloat, 3, 70, 60};

TEST(GemmChoices, TheFasterOneDoesIt) {
  if (all_loops().empty()) GTEST_SKIP();
  Clock clock;
  const auto slow = [&](const tr_matmul&) { return clock.slow(); };
  int calls = 0;
  const auto fast = [&](const tr_matmul&) { return ++calls > 0; };
  const auto chosen_by = [&](const std::function<bool(const tr_matmul&)>& library) {
    GemmChoices choices(options(library, &clock));
    EXPECT_EQ(choices.algorithm(kSmall), GemmChoices::Algorithm::kUnknown);
    EXPECT_EQ(choices.algorithm(kSmall), GemmChoices::Algorithm::kUnknown);
    const uint64_t before = choices.generation();
    measure_all(choices);
    EXPECT_FALSE(choices.measure());  // requested twice, measured once
    EXPECT_EQ(choices.generation(), before + 1);
    const GemmChoices::Algorithm chosen = choices.algorithm(kSmall);
    GemmShape alike = kSmall;
    alike.depth = 66;
    EXPECT_EQ(choices.algorithm(alike), chosen);
    return chosen;
  };
  EXPECT_EQ(chosen_by(slow), GemmChoices::Algorithm::kLoops);
  EXPECT_EQ(chosen_by(fast), GemmChoices::Algorithm::kLibrary);
  EXPECT_GT(calls, 0);
  // the library does not support it
  EXPECT_EQ(chosen_by([](const tr_matmul&) { return false; }), GemmChoices::Algorithm::kLoops);
}

TEST(GemmChoices, TheLibraryIsGivenTheProduct) {
  if (all_loops().empty()) GTEST_SKIP();
  tr_matmul seen{};
  GemmChoices choices(options([&](const tr_matmul& matmul) {
    seen = matmul;
    return true;
  }));
  choices.algorithm({GemmType::kBFloat16, 9, 100, 300});
  measure_all(choices);
  EXPECT_EQ(seen.dtype, static_cast<int>(ir::DType::kBFloat16));
  EXPECT_EQ(seen.rows, 16);
  EXPECT_EQ(seen.columns, 128);
  EXPECT_EQ(seen.depth, 256);
}

TEST(GemmChoices, IsRemembered) {
  if (all_loops().empty()) GTEST_SKIP();
  const std::string folder = ::testing::TempDir() + "/gemm_choices";
  std::filesystem::remove_all(folder);
  Clock clock;
  const auto make = [&](const std::string& about) {
    GemmChoices::Options made = options([](const tr_matmul&) { return true; }, &clock);
    made.folder = folder;
    made.about = about;
    return GemmChoices(std::move(made));
  };
  GemmChoices first = make("a processor");
  first.algorithm(kSmall);
  measure_all(first);
  GemmChoices second = make("a processor"), other = make("another processor");
  EXPECT_EQ(second.algorithm(kSmall), first.algorithm(kSmall));
  EXPECT_FALSE(second.measure());
  EXPECT_EQ(other.algorithm(kSmall), GemmChoices::Algorithm::kUnknown);
}

// A call measures for a bounded time, so that a message that arrives meanwhile does not wait for a whole class.
TEST(GemmChoices, ACallMeasuresOneRoundOfALongClass) {
  if (all_loops().empty()) GTEST_SKIP();
  Clock clock;  // each round takes longer than kTimeAtOnce
  int calls = 0;
  GemmChoices choices(options([&](const tr_matmul&) { return ++calls > 0; }, &clock));
  choices.algorithm(kSmall);
  EXPECT_FALSE(choices.measure());
  EXPECT_EQ(calls, 2);  // the first one wakes the threads
  EXPECT_FALSE(choices.measure());
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(choices.generation(), 0u);
}

TEST(GemmChoices, TimesThatVaryAreUsedButNotStored) {
  if (all_loops().empty()) GTEST_SKIP();
  const std::string folder = ::testing::TempDir() + "/unreliable_gemm_choices";
  std::filesystem::remove_all(folder);
  Clock clock;
  double extra = 1;
  const auto make = [&] {
    GemmChoices::Options made = options(
        [&](const tr_matmul&) {
          clock.now += extra *= 1.5;
          return true;
        },
        &clock);
    made.folder = folder;
    return GemmChoices(std::move(made));
  };
  GemmChoices first = make();
  first.algorithm(kSmall);
  measure_all(first);
  EXPECT_EQ(first.algorithm(kSmall), GemmChoices::Algorithm::kLoops);
  EXPECT_EQ(make().algorithm(kSmall), GemmChoices::Algorithm::kUnknown);
}

TEST(GemmChoices, NothingIsMeasuredWhereBitsAreFixed) {
  if (all_loops().empty()) GTEST_SKIP();
  GemmChoices::Options made = options([](const tr_matmul&) { return true; });
  made.fixed = true;
  GemmChoices choices(std::move(made));
  EXPECT_EQ(choices.algorithm(kSmall), GemmChoices::Algorithm::kLoops);
  EXPECT_FALSE(choices.measure());
}

constexpr GemmShape kLarge{.rows = 300, .columns = 100, .depth = 200};

TEST(GemmChoices, OneDnnDoesWhatItIsFasterAt) {
  if (all_loops().empty()) GTEST_SKIP();
  const auto chosen_by = [](int slow, bool can, const GemmShape& shape) {
    Clock clock;
    const auto library = [&](const tr_matmul& matmul) {
      if (matmul.algorithm == slow) clock.slow();
      return can || matmul.algorithm != TR_MATMUL_ONEDNN;
    };
    GemmChoices choices(options(library, &clock));
    choices.algorithm(shape);
    measure_all(choices);
    return choices.algorithm(shape);
  };
  GemmShape batch = kLarge;
  batch.batches = 6;
  for (const GemmShape& shape : {kLarge, batch}) {
    EXPECT_EQ(chosen_by(TR_MATMUL_AS_OP, true, shape), GemmChoices::Algorithm::kOneDnn);
    EXPECT_EQ(chosen_by(TR_MATMUL_ONEDNN, true, shape), GemmChoices::Algorithm::kLibrary);
    EXPECT_EQ(chosen_by(TR_MATMUL_AS_OP, false, shape), GemmChoices::Algorithm::kLibrary);
  }
  // With few rows, the loops are a third alternative.
  const GemmShape few{.rows = 32, .columns = 512, .depth = 512};
  EXPECT_NE(chosen_by(TR_MATMUL_AS_OP, true, few), GemmChoices::Algorithm::kLibrary);
  EXPECT_EQ(chosen_by(TR_MATMUL_ONEDNN, true, few), GemmChoices::Algorithm::kLibrary);
  EXPECT_EQ(chosen_by(TR_MATMUL_AS_OP, false, few), GemmChoices::Algorithm::kLoops);
}

TEST(GemmChoices, OneDnnIsNotAskedWhatTakesNoTime) {
  if (all_loops().empty()) GTEST_SKIP();
  GemmChoices choices(options([](const tr_matmul&) { return true; }));
  EXPECT_EQ(choices.algorithm({.rows = 60, .columns = 60, .depth = 60}), GemmChoices::Algorithm::kLibrary);
  EXPECT_EQ(choices.algorithm({.type = GemmType::kHalf, .rows = 600, .columns = 600, .depth = 60}),
            GemmChoices::Algorithm::kLibrary);
  EXPECT_FALSE(choices.wants_measuring());
}

TEST(GemmChoices, TheLibraryIsGivenHowMatricesLie) {
  if (all_loops().empty()) GTEST_SKIP();
  tr_matmul seen{};
  GemmChoices choices(options([&](const tr_matmul& matmul) {
    seen = matmul;
    return true;
  }));
  const GemmShape shape{.rows = 60, .columns = 100, .depth = 300, .batches = 5};
  for (const bool left : {false, true}) {
    for (const bool right : {false, true}) {
      GemmShape lies = shape;
      lies.left_transposed = left;
      lies.right_row_major = right;
      choices.algorithm(lies);
      EXPECT_TRUE(choices.wants_measuring());  // its layout makes it a class of its own
      measure_all(choices);
      EXPECT_EQ(seen.batches, 4);
      EXPECT_EQ(seen.left.batch_stride, 64 * 256);
      EXPECT_EQ(seen.left.row_stride, left ? 1 : 256);
      EXPECT_EQ(seen.left.column_stride, left ? 64 : 1);
      EXPECT_EQ(seen.right.row_stride, right ? 128 : 1);
      EXPECT_EQ(seen.right.column_stride, right ? 1 : 256);
      EXPECT_EQ(seen.result.row_stride, 128);
    }
  }
}

TEST(GemmChoices, WhatIsMeasuredIsNeverLong) {
  const GemmShape huge{.rows = 9000, .columns = 9000, .depth = 9000, .batches = 900};
  const GemmShape known = GemmChoices::class_of(huge);
  EXPECT_LE(known.rows * known.columns * known.depth * known.batches, 1 << 26);
  const GemmShape thin{.rows = 1, .columns = 9000, .depth = 16, .batches = 128, .right_row_major = true};
  EXPECT_EQ(GemmChoices::class_of(thin).rows, 1);
  EXPECT_EQ(GemmChoices::class_of(thin).depth, 16);
}

TEST(GemmChoices, OneDnnDoesItWhereBitsAreFixed) {
  if (all_loops().empty()) GTEST_SKIP();
  for (const bool can : {true, false}) {
    GemmChoices::Options made =
        options([=](const tr_matmul& matmul) { return can || matmul.algorithm != TR_MATMUL_ONEDNN; });
    made.fixed = true;
    GemmChoices choices(std::move(made));
    EXPECT_EQ(choices.algorithm(kLarge), can ? GemmChoices::Algorithm::kOneDnn : GemmChoices::Algorithm::kLibrary);
    EXPECT_EQ(choices.algorithm({.rows = 60, .columns = 60, .depth = 60}), GemmChoices::Algorithm::kLibrary);
    EXPECT_FALSE(choices.wants_measuring());
  }
}

// --- GEMMs by a library ----------------------------------------------------------------------------------------------

// The arguments that a library gets for the last node of a graph; nothing if LibraryGemm rejects the node.
std::optional<tr_matmul> given(const std::string& nodes) {
  ir::Graph graph;
  const Status status = ir::parse_graph(
      "graph() {\n  b0: input survives\n  b1: input survives\n  b2: input survives\n  b3: fresh(4096) survives\n" +
          nodes + "}\n",
      &graph);
  EXPECT_TRUE(status.ok()) << status.message() << nodes;
  std::vector<int64_t> values;
  EXPECT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
  const std::unique_ptr<LibraryGemm> matmul = LibraryGemm::bind(graph, graph.nodes.back(), values);
  if (matmul == nullptr) return std::nullopt;
  std::vector<float> memory(4096);
  std::vector<tr_buffer> buffers(4);
  for (size_t b = 0; b < 4; ++b) buffers[b].data = memory.data() + b * 1000;
  std::optional<tr_matmul> seen;
  EXPECT_TRUE(matmul->run(buffers, [&](const tr_matmul& given) {
    seen = given;
    const auto at = [&](const tr_matrix& matrix) {
      return matrix.data == nullptr ? -1 : static_cast<float*>(matrix.data) - memory.data();
    };
    EXPECT_EQ(at(given.left), 0);
    EXPECT_EQ(at(given.right), 1002);
    EXPECT_EQ(at(given.addend), given.addend.data == nullptr ? -1 : 2000);
    EXPECT_EQ(at(given.result), 3000);
    return true;
  }));
  EXPECT_FALSE(matmul->run(buffers, [](const tr_matmul&) { return false; }));
  return seen;
}

std::optional<tr_matmul> mm(const std::string& left, const std::string& right, const std::string& result,
                            const char* op = "mm") {
  return given("  %0: " + left + " @b0\n  %1: " + right + " @b1 + 2\n  %2: " + result + " @b3 = aten::" + op +
               "(%0, %1)\n");
}

std::optional<tr_matmul> addmm(const std::string& addend, const std::string& numbers, bool batches = false) {
  const char* batch = batches ? "4, " : "";
  const auto matrix = [&](const char* sizes, const char* first, const char* strides) {
    return std::string("f32[") + batch + sizes + "]{" + (batches ? first : "") + strides + "}";
  };
  return given("  %0: " + matrix("3, 8", "24, ", "8, 1") + " @b0\n  %1: " + matrix("8, 5", "40, ", "1, 8") +
               " @b1 + 2\n  %2: " + addend + " @b2\n  %3: " + matrix("3, 5", "15, ", "5, 1") +
               " @b3 = aten::" + (batches ? "baddbmm" : "addmm") + "(%2, %0, %1, " + numbers + ")\n");
}

TEST(LibraryGemm, IsGivenAsItLies) {
  const auto plain = mm("f32[3, 8]{8, 1}", "f32[8, 5]{1, 9}", "f32[3, 5]{5, 1}");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->algorithm, TR_MATMUL_ONEDNN);
  EXPECT_EQ(plain->batches, 0);
  EXPECT_EQ(std::tie(plain->rows, plain->columns, plain->depth), std::make_tuple(3, 5, 8));
  EXPECT_EQ(std::tie(plain->left.row_stride, plain->left.column_stride), std::make_tuple(8, 1));
  EXPECT_EQ(std::tie(plain->right.row_stride, plain->right.column_stride), std::make_tuple(1, 9));
  EXPECT_EQ(plain->addend.data, nullptr);
  const auto turned = mm("f32[3, 8]{1, 3}", "f32[8, 5]{5, 1}", "f32[3, 5]{5, 1}");
  ASSERT_TRUE(turned);
  EXPECT_EQ(turned->left.column_stride, 3);
  EXPECT_EQ(turned->right.row_stride, 5);
  const auto batch = mm("f32[4, 3, 8]{24, 8, 1}", "f32[4, 8, 5]{0, 1, 8}", "f32[4, 3, 5]{15, 5, 1}", "bmm");
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->batches, 4);
  EXPECT_EQ(batch->left.batch_stride, 24);
  EXPECT_EQ(batch->right.batch_stride, 0);
}

TEST(LibraryGemm, AddsWhatIsBroadcast) {
  const auto strides = [](const std::optional<tr_matmul>& matmul) {
    return matmul ? std::vector<int64_t>{matmul->addend.batch_stride, matmul->addend.row_stride,
                                         matmul->addend.column_stride}
                  : std::vector<int64_t>{};
  };
  using Strides = std::vector<int64_t>;
  EXPECT_EQ(strides(addmm("f32[5]{1}", "beta=1, alpha=1")), (Strides{0, 0, 1}));
  EXPECT_EQ(strides(addmm("f32[3, 5]{7, 1}", "beta=1, alpha=1")), (Strides{0, 7, 1}));
  EXPECT_EQ(strides(addmm("f32[3, 1]{2, 1}", "beta=1.0, alpha=1.0")), (Strides{0, 2, 0}));
  EXPECT_EQ(strides(addmm("f32[]{}", "beta=1, alpha=1")), (Strides{0, 0, 0}));
  EXPECT_EQ(strides(addmm("f32[4, 1, 5]{5, 5, 1}", "beta=1, alpha=1", true)), (Strides{5, 0, 1}));
  EXPECT_EQ(strides(addmm("f32[3, 5]{5, 1}", "beta=1, alpha=1", true)), (Strides{0, 5, 1}));
  const auto none = addmm("f32[5]{1}", "beta=0, alpha=1");  // with beta = 0 the operand is ignored
  ASSERT_TRUE(none);
  EXPECT_EQ(none->addend.data, nullptr);
}

TEST(LibraryGemm, LeavesTheRestToOps) {
  EXPECT_FALSE(mm("f64[3, 8]{8, 1}", "f64[8, 5]{1, 8}", "f64[3, 5]{5, 1}"));
  EXPECT_FALSE(mm("bf16[3, 8]{8, 1}", "bf16[8, 5]{1, 8}", "bf16[3, 5]{5, 1}"));
  EXPECT_FALSE(mm("f32[3, 8]{8, 1}", "f32[7, 5]{1, 7}", "f32[3, 5]{5, 1}"));   // ATen reports this error
  EXPECT_FALSE(mm("f32[3, 8]{16, 2}", "f32[8, 5]{1, 8}", "f32[3, 5]{5, 1}"));  // no dim has stride 1
  EXPECT_FALSE(mm("f32[3, 8]{8, 1}", "f32[8, 5]{1, 8}", "f32[3, 5]{6, 1}"));   // a gap in the result
  EXPECT_FALSE(mm("f32[3, 8]{8, 1}", "f32[8, 5]{1, 8}", "f32[3, 5]{1, 3}"));
  EXPECT_FALSE(mm("f32[0, 8]{8, 1}", "f32[8, 5]{1, 8}", "f32[0, 5]{5, 1}"));
  EXPECT_FALSE(mm("f32[3, 0]{1, 1}", "f32[0, 5]{1, 1}", "f32[3, 5]{5, 1}"));  // the result is all zeros
  EXPECT_FALSE(addmm("f32[5]{1}", "beta=1, alpha=2"));
  EXPECT_FALSE(addmm("f32[5]{1}", "beta=0.5, alpha=1"));
  EXPECT_FALSE(addmm("f32[4]{1}", "beta=1, alpha=1"));
  EXPECT_FALSE(addmm("f64[5]{1}", "beta=1, alpha=1"));
}

}  // namespace
}  // namespace torch_remote::worker::kernels
