#include "worker/targets/cpu/compiled/attention/attention.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "worker/targets/cpu/compiled/attention/attention_runner.h"
#include "worker/targets/cpu/compiled/kernel_runner.h"
#include "worker/targets/cpu/compiled/testing/elements.h"
#include "worker/targets/cpu/loops/host.h"

// Compares attention by both sets of loops with the formula in double precision: sizes that do not fill a block, shared
// heads, masks, strides, half precision, keys split into pieces.
namespace torch_remote::worker::kernels {
namespace {

using testing::item, testing::read, testing::write;

// The score of a masked key.
constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Case {
  int64_t batch = 1, heads = 1, shared = 1, queries = 1, keys = 1, size = 8, value_size = 8;
  bool causal = false;
  std::string dtype = "f32";  // bf16, f16
  std::string bias = "";      // "bool", "add": [queries, keys]; "row": [batch, 1, 1, keys]
  double scale = 0;           // 0: the default
  bool heads_inside = false;  // the memory order is [batch, rows, heads, size], as projections return it
};

float round_to(float value, const std::string& dtype) {
  if (dtype == "bf16") {
    const auto bits = std::bit_cast<uint32_t>(value);
    return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
  }
  return dtype == "f16" ? static_cast<float>(static_cast<_Float16>(value)) : value;
}

ir::Arg arg(ir::ArgTag tag, uint32_t value) {
  ir::Arg made;
  made.tag = tag;
  made.a = value;
  return made;
}

// The tensors of a case, in the memory that a run uses.
class Bench {
 public:
  explicit Bench(const Case& c) : c_(c) {
    const int64_t all = c.heads * c.shared;
    add("q", c.dtype, {c.batch, all, c.queries, c.size});
    add("k", c.dtype, {c.batch, c.heads, c.keys, c.size});
    add("v", c.dtype, {c.batch, c.heads, c.keys, c.value_size});
    add("g", c.dtype, {c.batch, all, c.queries, c.value_size});
    add("o", c.dtype, {c.batch, all, c.queries, c.value_size});
    add("l", "f32", {c.batch, all, c.queries});
    add("dq", c.dtype, {c.batch, all, c.queries, c.size});
    add("dk", c.dtype, {c.batch, c.heads, c.keys, c.size});
    add("dv", c.dtype, {c.batch, c.heads, c.keys, c.value_size});
    if (c.bias == "bool" || c.bias == "add") add("b", c.bias == "bool" ? "bool" : c.dtype, {c.queries, c.keys});
    if (c.bias == "row") add("b", c.dtype, {c.batch, 1, 1, c.keys});
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (const char* name : {"q", "k", "v", "g", "b"}) {
      for (Tensor& t : tensors_) {
        if (t.name != name) continue;
        for (float& value : t.values)
          value = t.dtype == "bool" ? (random() % 3 != 0 ? 1.0f : 0.0f) : round_to(normal(random), t.dtype);
        for_each(t, [&](size_t i, size_t place) { write(t.bytes, place, t.values[i], t.dtype); });
      }
    }
  }

  // Runs forward and backward. Returns an empty string, or what is wrong.
  std::string run(const AttentionLoops& loops) {
    if (std::string error = run_node(loops, true); !error.empty()) return error;
    if (std::string error = run_node(loops, false); !error.empty()) return error;
    return compare();
  }

 private:
  struct Tensor {
    std::string name, dtype;
    std::vector<int64_t> sizes, strides;
    std::vector<float> values;  // row-major
    std::vector<std::byte> bytes;
  };

  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& sizes) {
    Tensor t{name, dtype, sizes, std::vector<int64_t>(sizes.size()), {}, {}};
    std::vector<size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (c_.heads_inside && sizes.size() == 4 && name != "b") std::swap(order[1], order[2]);
    int64_t count = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
      t.strides[order[i]] = count;
      count *= sizes[order[i]];
    }
    t.values.resize(static_cast<size_t>(count));
    t.bytes.resize(static_cast<size_t>(count) * item(dtype), std::byte{0x7F});
    tensors_.push_back(t);
  }
  Tensor* find(const std::string& name) {
    for (Tensor& t : tensors_) {
      if (t.name == name) return &t;
    }
    return nullptr;
  }
  template <typename F>
  static void for_each(const Tensor& t, F&& f) {
    for (size_t i = 0; i < t.values.size(); ++i) {
      size_t rest = i, place = 0;
      for (size_t d = t.sizes.size(); d-- > 0;) {
        place += rest % static_cast<size_t>(t.sizes[d]) * static_cast<size_t>(t.strides[d]);
        rest /= static_cast<size_t>(t.sizes[d]);
      }
      f(i, place);
    }
  }

  std::string run_node(const AttentionLoops& loops, bool forward) {
    ir::Graph graph;
    ir::Node node;
    std::vector<tr_buffer> buffers;
    const auto view = [&](const char* name, bool result) {
      Tensor* t = find(name);
      if (t == nullptr) return ir::Arg{};
      ir::View made;
      made.buffer = static_cast<uint32_t>(buffers.size());
      made.dtype = t->dtype == "f32"    ? ir::DType::kFloat32
                   : t->dtype == "f16"  ? ir::DType::kFloat16
                   : t->dtype == "bool" ? ir::DType::kBool
                                        : ir::DType::kBFloat16;
      for (const int64_t size : t->sizes) made.sizes.push_back(graph.constant(size));
      for (const int64_t stride : t->strides) made.strides.push_back(graph.constant(stride));
      made.offset = graph.constant(0);
      tr_buffer buffer{};
      buffer.data = t->bytes.data();
      buffers.push_back(buffer);
      graph.buffers.push_back({result ? ir::BufferKind::kFresh : ir::BufferKind::kInput});
      graph.views.push_back(made);
      return arg(ir::ArgTag::kView, static_cast<uint32_t>(graph.views.size() - 1));
    };
    const ir::Arg causal = arg(ir::ArgTag::kBool, graph.constant(c_.causal ? 1 : 0));
    const ir::Arg scale =
        c_.scale == 0 ? ir::Arg{} : arg(ir::ArgTag::kFloat, graph.constant(std::bit_cast<int64_t>(c_.scale)));
    if (forward) {
      node.opcode = ir::find_op("remote::attention");
      node.args = {view("q", false), view("k", false), view("v", false), view("b", false), causal, scale};
      node.results = {view("o", true), view("l", true)};
    } else {
      node.opcode = ir::find_op("remote::attention_backward");
      node.args = {view("g", false), view("q", false), view("k", false),
                   view("v", false), view("o", false), view("l", false),
                   view("b", false), causal,           scale};
      node.results = {view("dq", true), view("dk", true), view("dv", true)};
    }
    std::vector<int64_t> values;
    EXPECT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
    const std::unique_ptr<Attention> attention = Attention::bind(graph, node, values, loops);
    if (attention == nullptr) return "not taken";
    // Two threads, in reverse order.
    attention->run(buffers, [](int64_t count, int64_t, const std::function<void(int64_t, int64_t)>& body) {
      body(count / 2, count);
      body(0, count / 2);
    });
    return {};
  }

  // An array, because a vector here would be a heap allocation per multiplication: minutes under a sanitizer.
  static double at(const Tensor& t, const std::array<int64_t, 4>& place) {
    size_t i = 0;
    for (size_t d = 0; d < t.sizes.size(); ++d) {
      const int64_t index = place[place.size() - t.sizes.size() + d];
      i = i * static_cast<size_t>(t.sizes[d]) + static_cast<size_t>(t.sizes[d] == 1 ? 0 : index);
    }
    return t.values[i];
  }

  std::string compare() {
    const Tensor &q = *find("q"), &k = *find("k"), &v = *find("v"), &g = *find("g");
    const Tensor* b = find("b");
    const int64_t all = c_.heads * c_.shared;
    const double scale = c_.scale == 0 ? 1 / std::sqrt(static_cast<double>(c_.size)) : c_.scale;
    std::vector<double> dk(find("dk")->values.size()), dv(find("dv")->values.size());
    double worst = 0;
    std::string where;
    const auto check = [&](const char* name, std::initializer_list<int64_t> indices, double expected) {
      const Tensor& t = *find(name);
      const std::span<const int64_t> place(indices.begin(), indices.size());
      size_t offset = 0;
      for (size_t d = 0; d < place.size(); ++d) offset += static_cast<size_t>(place[d] * t.strides[d]);
      const double found = read(t.bytes, offset, t.dtype);
      if (std::isnan(expected) && std::isnan(found)) return;
      if (expected == found) return;
      const double step = t.dtype == "f32" ? 2e-6 : t.dtype == "f16" ? 1e-3 : 8e-3;
      const double error = std::abs(found - expected) / (step * (4 + std::abs(expected)));
      if (!(error <= worst)) {
        worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
        where = std::string(name) + ": " + std::to_string(found) + " instead of " + std::to_string(expected);
      }
    };
    for (int64_t n = 0; n < c_.batch; ++n) {
      for (int64_t h = 0; h < all; ++h) {
        const int64_t kv = h / c_.shared;
        for (int64_t i = 0; i < c_.queries; ++i) {
          std::vector<double> weights(static_cast<size_t>(c_.keys));
          double most = kNever, sum = 0;
          for (int64_t j = 0; j < c_.keys; ++j) {
            double score = 0;
            for (int64_t d = 0; d < c_.size; ++d) score += at(q, {n, h, i, d}) * at(k, {n, kv, j, d});
            score *= scale;
            if (b != nullptr && b->dtype != "bool") score += at(*b, {n, h, i, j});
            if ((b != nullptr && b->dtype == "bool" && at(*b, {n, h, i, j}) == 0) || (c_.causal && j > i)) {
              score = kNever;
            }
            weights[static_cast<size_t>(j)] = score;
            most = std::max(most, score);
          }
          for (double& weight : weights) sum += weight = most == kNever ? 0 : std::exp(weight - most);
          check("l", {n, h, i}, most + std::log(sum));
          for (double& weight : weights) weight = sum == 0 ? 0 : weight / sum;
          double delta = 0;
          for (int64_t e = 0; e < c_.value_size; ++e) {
            double out = 0;
            for (int64_t j = 0; j < c_.keys; ++j) out += weights[static_cast<size_t>(j)] * at(v, {n, kv, j, e});
            check("o", {n, h, i, e}, out);
            delta += out * at(g, {n, h, i, e});
          }
          std::vector<double> dq(static_cast<size_t>(c_.size));
          for (int64_t j = 0; j < c_.keys; ++j) {
            const double weight = weights[static_cast<size_t>(j)];
            double slope = 0;
            for (int64_t e = 0; e < c_.value_size; ++e) {
              slope += at(g, {n, h, i, e}) * at(v, {n, kv, j, e});
              dv[static_cast<size_t>(((n * c_.heads + kv) * c_.keys + j) * c_.value_size + e)] +=
                  weight * at(g, {n, h, i, e});
            }
            slope = weight * (slope - delta) * scale;
            for (int64_t d = 0; d < c_.size; ++d) {
              dq[static_cast<size_t>(d)] += slope * at(k, {n, kv, j, d});
              dk[static_cast<size_t>(((n * c_.heads + kv) * c_.keys + j) * c_.size + d)] += slope * at(q, {n, h, i, d});
            }
          }
          for (int64_t d = 0; d < c_.size; ++d) check("dq", {n, h, i, d}, dq[static_cast<size_t>(d)]);
        }
      }
    }
    for (int64_t n = 0; n < c_.batch; ++n) {
      for (int64_t h = 0; h < c_.heads; ++h) {
        for (int64_t j = 0; j < c_.keys; ++j) {
          const auto row = static_cast<size_t>((n * c_.heads + h) * c_.keys + j);
          for (int64_t d = 0; d < c_.size; ++d) {
            check("dk", {n, h, j, d}, dk[row * static_cast<size_t>(c_.size) + static_cast<size_t>(d)]);
          }
          for (int64_t e = 0; e < c_.value_size; ++e) {
            check("dv", {n, h, j, e}, dv[row * static_cast<size_t>(c_.value_size) + static_cast<size_t>(e)]);
          }
        }
      }
    }
    return worst <= 1 ? std::string() : where;
  }

  Case c_;
  std::vector<Tensor> tensors_;
};

std::vector<std::pair<std::string, const AttentionLoops*>> all_loops() {
  std::vector<std::pair<std::string, const AttentionLoops*>> loops;
  for (const auto& level : loops_of_host(kAttentionLevels)) loops.emplace_back(level.target, level.loops);
  return loops;
}

std::string text_of(const Case& c) {
  std::ostringstream text;
  text << "batch " << c.batch << ", heads " << c.heads << " x " << c.shared << ", " << c.queries << " queries, "
       << c.keys << " keys, sizes " << c.size << " and " << c.value_size << ", causal " << c.causal << ", " << c.dtype
       << ", bias '" << c.bias << "'";
  return text.str();
}

void check(const Case& c) {
  for (const auto& [name, loops] : all_loops()) EXPECT_EQ(Bench(c).run(*loops), "") << name << ", " << text_of(c);
}

TEST(Attention, SizesThatFillNoBlock) {
  for (const int64_t queries : {1, 3, 16, 63, 64, 65, 130}) {
    for (const int64_t keys : {1, 7, 64, 67, 129}) check({.batch = 2, .queries = queries, .keys = keys, .size = 20});
  }
  for (const int64_t size : {1, 2, 3, 5, 8, 13, 16, 33, 64, 80}) {
    check({.heads = 2, .queries = 5, .keys = 9, .size = size, .value_size = 81 - size});
  }
}

TEST(Attention, SharedHeads) {
  for (const int64_t queries : {1, 9, 40}) {
    for (const bool causal : {false, true}) {
      check({.batch = 2, .heads = 2, .shared = 4, .queries = queries, .keys = 70, .causal = causal});
    }
  }
}

TEST(Attention, Masks) {
  for (const char* bias : {"bool", "add", "row"}) {
    for (const bool causal : {false, true}) {
      check({.batch = 2, .heads = 2, .shared = 2, .queries = 66, .keys = 71, .causal = causal, .bias = bias});
    }
  }
  // With a mask and few keys, some rows see no key.
  check({.heads = 2, .queries = 64, .keys = 2, .bias = "bool"});
  check({.queries = 200, .keys = 200, .causal = true, .scale = 0.5});
}

TEST(Attention, HalfPrecision) {
  for (const char* dtype : {"bf16", "f16"}) {
    check({.batch = 2, .heads = 2, .shared = 2, .queries = 70, .keys = 90, .size = 16, .dtype = dtype, .bias = "add"});
    check({.queries = 1, .keys = 1200, .size = 64, .value_size = 64, .dtype = dtype});
  }
}

TEST(Attention, LayoutsOfProjections) {
  check({.batch = 2, .heads = 3, .shared = 2, .queries = 33, .keys = 65, .size = 24, .heads_inside = true});
  check({.batch = 2, .heads = 3, .queries = 33, .keys = 65, .dtype = "bf16", .heads_inside = true});
}

TEST(Attention, ManyKeysInPieces) {
  check({.batch = 1, .heads = 2, .queries = 1, .keys = 2500, .size = 64, .value_size = 64});
  check({.heads = 2, .shared = 4, .queries = 2, .keys = 1537, .size = 32, .value_size = 32, .causal = true});
  check({.queries = 3, .keys = 1100, .bias = "bool"});
}

// With few queries, the work is reading each element of keys and values once. With many it is the multiplications.
TEST(Attention, OfFewQueriesIsWorthWhatItReads) {
  const AttentionLoops* loops = attention_loops(host_target());
  if (loops == nullptr) GTEST_SKIP() << "a processor without AVX2";
  const auto points = [&](int64_t queries) {
    ir::Graph graph;
    const Status parsed = ir::parse_graph(
        "graph(s0) {\n  s1 = 64\n  s2 = s0 * s1\n  b0: input survives\n  b1: input survives\n  b2: fresh(s0) survives "
        "written_once\n"
        "  %0: f32[1, 2, s0, 64]{s2, s2, 64, 1} @b0\n  %1: f32[1, 2, 1000, 64]{64000, 64000, 64, 1} @b1\n"
        "  %2: f32[1, 2, s0, 64]{s2, s2, 64, 1} @b2, none = remote::attention(%0, %1, %1, none, false, none)\n}\n",
        &graph);
    EXPECT_TRUE(parsed.ok()) << parsed.message();
    std::vector<int64_t> values;
    EXPECT_TRUE(ir::evaluate(graph, &queries, &values).ok());
    const std::unique_ptr<Attention> attention = Attention::bind(graph, graph.nodes[0], values, *loops);
    return attention == nullptr ? -1 : attention->points();
  };
  constexpr double kElements = 2 * 2 * 1000 * 64;
  EXPECT_EQ(points(1), kElements);
  EXPECT_EQ(points(16), kElements);
  EXPECT_EQ(points(320), 10 * kElements);
}

// The runner takes the group, but not one of another dtype.
TEST(Attention, IsTheRunnersGroup) {
  if (attention_loops(host_target()) == nullptr) GTEST_SKIP() << "a processor without AVX2";
  const auto taken = [](const std::string& dtype, std::vector<float>* out) {
    const std::string view = dtype + "[1, 2, s0, 4]{s1, s1, 4, 1} @";
    ir::Graph graph;
    const std::string text =
        "graph(s0, s1, s2) {\n  b0: input survives\n  b1: fresh(s2) survives written_once\n  %0: " + view +
        "b0\n  group attention {\n    %1: " + view +
        "b1, none = remote::attention(%0, %0, %0, none, false, none)\n  }\n}\n";
    const Status parsed = ir::parse_graph(text, &graph);
    EXPECT_TRUE(parsed.ok()) << parsed.message();
    std::vector<int64_t> values;
    const int64_t params[] = {3, 12, 96};
    EXPECT_TRUE(ir::evaluate(graph, params, &values).ok());
    const std::unique_ptr<Runner> runner = make_attention_runner({});
    if (!runner->accepts_group(graph, graph.groups[0])) return false;
    std::unique_ptr<RunnerProgram> program;
    EXPECT_TRUE(runner->load({{}, graph, {}, false}, &program).ok());
    if (!program->takes(0, 1, values)) return false;
    std::vector<float> given(24, 0.5f);
    tr_buffer buffers[2] = {};
    buffers[0].data = given.data();
    buffers[1].data = out->data();
    tr_run run{};
    run.last = 1;
    run.buffers = buffers;
    run.buffer_count = 2;
    tr_error error{};
    EXPECT_TRUE(program->run(run, &error));
    return true;
  };
  std::vector<float> out(24);
  EXPECT_TRUE(taken("f32", &out));
  EXPECT_EQ(out, std::vector<float>(24, 0.5f));
  EXPECT_FALSE(taken("f64", &out));
}

}  // namespace
}  // namespace torch_remote::worker::kernels
