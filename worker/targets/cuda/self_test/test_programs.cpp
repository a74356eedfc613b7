#include "worker/targets/cuda/self_test/test_programs.h"

#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "ir/philox.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr const char* kKernels = "hand-written kernels";
constexpr const char* kInstall =
    "pip install 'torch_remote[cuda]' (driver 580 or later) or 'torch_remote[cuda12]'";

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
std::vector<std::byte> floats(const std::vector<float>& values) { return bytes_of(values); }
std::vector<std::byte> integers(const std::vector<int64_t>& values) { return bytes_of(values); }
std::vector<std::byte> halves(const std::vector<uint16_t>& bits) { return bytes_of(bits); }

// `count` elements; element i is f(i).
template <typename F>
std::vector<float> floats_by(int count, F&& f) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(f(i)));
  return values;
}

// A graph with `inputs` input buffers b0, b1, ... and then `results` surviving buffers of 64 KiB.
std::string graph(int inputs, int results, std::string_view lines, std::string_view params = "") {
  std::string text = "graph(" + std::string(params) + ") {\n";
  for (int b = 0; b < inputs + results; ++b) {
    text += "  b" + std::to_string(b) + (b < inputs ? ": input survives\n" : ": fresh(65536) survives\n");
  }
  return text + std::string(lines) + "}";
}

TestProgram random_numbers() {
  constexpr uint64_t kSeed = 42, kOffset = 7;
  TestProgram made{.name = "run random.cu", .runner = kKernels};
  made.text = graph(0, 1, R"(  %0: f32[8]{1} @b0
  aten::uniform_(%0!, 0.0, 1.0, generator=philox(s0, s1))
)",
                    "s0, s1");
  made.params = {kSeed, kOffset};
  const ir::Philox philox(kSeed, kOffset);
  for (uint64_t block = 0; block < 2; ++block) {
    for (const uint32_t word : philox.block(block)) made.expected.push_back(static_cast<double>(word >> 8) * 0x1p-24);
  }
  return made;
}

// Query rows are equal, and key j has the score 0 or log(3). So the weights are 1 and 3, divided by their sum.
TestProgram attention(const char* name) {
  TestProgram made{.name = name, .runner = kKernels};
  std::vector<float> query(8, 0), keys(16, 0);
  query[0] = 1;
  keys[8] = std::log(3.0f);
  made.inputs = {floats(query), floats(keys), floats(floats_by(16, [](int i) { return i; }))};
  for (int i = 0; i < 8; ++i) made.expected.push_back(6 + i);  // (i + 3 * (8 + i)) / 4
  made.text = graph(3, 1, R"(  %0: f32[1, 1, 1, 8]{8, 8, 8, 1} @b0
  %1: f32[1, 1, 2, 8]{16, 16, 8, 1} @b1
  %2: f32[1, 1, 2, 8]{16, 16, 8, 1} @b2
  %3: f32[1, 1, 1, 8]{8, 8, 8, 1} @b3
  %3, none = remote::attention(%0, %1, %2, none, false, 1.0)
)");
  return made;
}

// The same with 64 queries and 64 keys in float16, because cuDNN takes half types only.
TestProgram cudnn_attention() {
  constexpr int kLength = 64, kSize = 64;
  constexpr uint16_t kOne = 0x3C00, kLog3 = 0x3C65, kFour = 0x4400;
  std::vector<uint16_t> query(kLength * kSize, 0), keys = query, values = query;
  for (int row = 0; row < kLength; ++row) {
    query[static_cast<size_t>(row * kSize)] = kOne;
    if (row % 2 == 0) continue;
    keys[static_cast<size_t>(row * kSize)] = kLog3;
    for (int i = 0; i < kSize; ++i) values[static_cast<size_t>(row * kSize + i)] = kFour;
  }
  TestProgram made{.name = "attention (cuDNN)", .runner = "cuDNN attention"};
  made.inputs = {halves(query), halves(keys), halves(values)};
  made.dtype = ir::DType::kFloat16;
  made.expected.assign(kLength * kSize, 3.0);
  made.tolerance = 0.02;
  made.math_modes = ir::kDeterministic;  // The session then waits for cuDNN's plan.
  made.without = "attention in half types runs without tensor cores: " + std::string(kInstall);
  made.text = graph(3, 1, R"(  %0: f16[1, 1, 64, 64]{4096, 4096, 64, 1} @b0
  %1: f16[1, 1, 64, 64]{4096, 4096, 64, 1} @b1
  %2: f16[1, 1, 64, 64]{4096, 4096, 64, 1} @b2
  %3: f16[1, 1, 64, 64]{4096, 4096, 64, 1} @b3
  %3, none = remote::attention(%0, %1, %2, none, false, 1.0)
)");
  return made;
}

// Channel c of the image is c + 1, and all weights of filter o are o + 1.
TestProgram convolution() {
  TestProgram made{.name = "convolution (cuDNN)", .runner = "cuDNN convolution"};
  made.inputs = {floats(floats_by(8 * 16, [](int i) { return i / 16 + 1; })),
                 floats(floats_by(8 * 72, [](int i) { return i / 72 + 1; }))};
  for (int i = 0; i < 32; ++i) made.expected.push_back(324.0 * (i / 4 + 1));  // 9 * (1 + ... + 8) = 324
  made.tolerance = 1e-3;
  made.math_modes = ir::kDeterministic;
  made.without = "convolutions are refused: " + std::string(kInstall);
  made.text = graph(2, 1, R"(  %0: f32[1, 8, 4, 4]{128, 16, 4, 1} @b0
  %1: f32[8, 8, 3, 3]{72, 9, 3, 1} @b1
  %2: f32[1, 8, 2, 2]{32, 4, 2, 1} @b2 = aten::convolution(%0, %1, none, [1, 1], [0, 0], [1, 1], false, [0, 0], 1)
)");
  return made;
}

// Each of the runs doubles the input six times. The launches repeat, so they become a CUDA graph.
TestProgram cuda_graph() {
  TestProgram made{.name = "CUDA graph", .runner = kKernels};
  std::string text = "graph() {\n  b0: input survives\n", lines = "  %0: f32[4]{1} @b0\n";
  for (int i = 1; i <= 6; ++i) {
    const std::string own = std::to_string(i), from = std::to_string(i - 1);
    text += "  b" + own + ": fresh(16)" + (i == 6 ? " survives\n" : "\n");
    lines += "  %" + own + ": f32[4]{1} @b" + own + " = aten::add.Tensor(%" + from + ", %" + from + ", alpha=1)\n";
  }
  made.text = text + lines + "}";
  made.inputs = {floats({1, 2, 3, -4})};
  made.expected = {64, 128, 192, -256};
  made.runs = 12;
  made.needs_graph = true;
  return made;
}

}  // namespace

std::vector<TestProgram> test_programs() {
  std::vector<TestProgram> all;
  // Adds a program of hand-written kernels.
  const auto add = [&](const char* file, std::vector<std::vector<std::byte>> inputs, int results,
                       std::vector<double> expected, std::string_view lines,
                       ir::DType dtype = ir::DType::kFloat32) -> TestProgram& {
    const int count = static_cast<int>(inputs.size());
    all.push_back({.name = std::string("run ") + file,
                   .runner = kKernels,
                   .text = graph(count, results, lines),
                   .inputs = std::move(inputs),
                   .dtype = dtype,
                   .expected = std::move(expected)});
    return all.back();
  };
  all.push_back(random_numbers());
  add("scan.cu", {floats({1, 3, 2, 4})}, 2, {1, 3, 3, 4}, R"(  %0: f32[4]{1} @b0
  %1: f32[4]{1} @b1
  %2: i64[4]{1} @b2
  %1, %2 = aten::cummax(%0, 0)
)");
  add("sort.cu", {floats({1, 5, -2, 4})}, 2, {5, 4}, R"(  %0: f32[4]{1} @b0
  %1: f32[2]{1} @b1
  %2: i64[2]{1} @b2
  %1, %2 = aten::topk(%0, 2, 0, true, true)
)");
  add("index.cu", {floats({1, 2, 3, 4, 5, 6}), integers({2, 0})}, 1, {5, 6, 1, 2}, R"(  %0: f32[3, 2]{2, 1} @b0
  %1: i64[2]{1} @b1
  %2: f32[2, 2]{2, 1} @b2
  %2 = aten::index_select(%0, 0, %1)
)");
  add("select.cu", {floats({0, 2, 0, 3})}, 1, {1, 3, -1}, R"(  %0: f32[4]{1} @b0
  %1: i64[3, 1]{1, 1} @b1
  %1 = aten::nonzero_static(%0, size=3, fill_value=-1)
)",
      ir::DType::kInt64);
  add("fill.cu", {floats({1, 2, 3, 4})}, 1, {1, 2, 0, 4}, R"(  %0: f32[2, 2]{2, 1} @b0
  %1: f32[2, 2]{2, 1} @b1
  %1 = aten::triu(%0, 0)
)");
  all.push_back(attention("run attention.cu"));
  add("image.cu", {floats(floats_by(16, [](int i) { return i; }))}, 1, {2.5, 4.5, 10.5, 12.5},
      R"(  %0: f32[1, 1, 4, 4]{16, 16, 4, 1} @b0
  %1: f32[1, 1, 2, 2]{4, 4, 2, 1} @b1
  %1 = aten::avg_pool2d(%0, [2, 2], [2, 2], [0, 0], false, true, none)
)");
  // Two steps of h = tanh(x + h).
  const double first = std::tanh(0.5), second = std::tanh(0.25 + first);
  add("rnn.cu", {floats({0.5f, 0.25f}), floats({1}), floats({1}), floats({0})}, 2, {first, second},
      R"(  %0: f32[2, 1, 1]{1, 1, 1} @b0
  %1: f32[1, 1]{1, 1} @b1
  %2: f32[1, 1]{1, 1} @b2
  %3: f32[1, 1, 1]{1, 1, 1} @b3
  %4: f32[2, 1, 1]{1, 1, 1} @b4
  %5: f32[1, 1, 1]{1, 1, 1} @b5
  %4, %5, none, none = remote::rnn(%0, [%1, %2], %3, none, 1)
)");
  add("pointwise.cu", {floats({1, 2})}, 1, {-0.5772156649, 0.4227843351}, R"(  %0: f32[2]{1} @b0
  %1: f32[2]{1} @b1
  %1 = aten::digamma(%0)
)");
  add("search.cu", {floats({1, 3, 5, 7}), floats({0, 4, 9})}, 1, {0, 2, 4}, R"(  %0: f32[1, 4]{4, 1} @b0
  %1: f32[1, 3]{3, 1} @b1
  %2: i64[1, 3]{3, 1} @b2
  %2 = aten::searchsorted.Tensor(%0, %1, out_int32=false, right=false, side=none, sorter=none)
)",
      ir::DType::kInt64);
  add("pair.cu", {floats({0, 0, 3, 4}), floats({0, 0})}, 1, {0, 5}, R"(  %0: f32[2, 2]{2, 1} @b0
  %1: f32[1, 2]{2, 1} @b1
  %2: f32[2, 1]{1, 1} @b2
  %2 = aten::_cdist_forward(%0, %1, 2.0, none)
)");
  add("bag.cu", {floats({0, 1, 10, 11, 20, 21}), integers({0, 1, 2, 0}), integers({0, 3})}, 4, {30, 33, 0, 1},
      R"(  %0: f32[3, 2]{2, 1} @b0
  %1: i64[4]{1} @b1
  %2: i64[2]{1} @b2
  %3: f32[2, 2]{2, 1} @b3
  %4: i64[4]{1} @b4
  %5: i64[2]{1} @b5
  %6: i64[2]{1} @b6
  %3, %4, %5, %6 = aten::_embedding_bag(%0, %1, %2, false, 0, false, none, false, -1)
)");
  add("grid.cu", {floats({1, 2, 3, 4}), floats({0, 0})}, 1, {2.5}, R"(  %0: f32[1, 1, 2, 2]{4, 4, 2, 1} @b0
  %1: f32[1, 1, 1, 2]{2, 2, 2, 1} @b1
  %2: f32[1, 1, 1, 1]{1, 1, 1, 1} @b2
  %2 = aten::grid_sampler_2d(%0, %1, 0, 0, false)
)");
  // (1 + 2i) * (3 + 4i). The result is read as two numbers.
  add("complex.cu", {floats({1, 2}), floats({3, 4})}, 1, {-5, 10}, R"(  %0: c64[1]{1} @b0
  %1: c64[1]{1} @b1
  %2: c64[1]{1} @b2
  %2 = aten::mul.Tensor(%0, %1)
)");
  // Three of the four paths of two steps give the target, each with probability 1/4.
  add("ctc.cu", {floats(std::vector<float>(4, std::log(0.5f))), integers({1})}, 2, {-std::log(0.75)},
      R"(  %0: f32[2, 1, 2]{2, 2, 1} @b0
  %1: i64[1, 1]{1, 1} @b1
  %2: f32[1]{1} @b2
  %3: f32[1, 2, 3]{6, 3, 1} @b3
  %2, %3 = aten::_ctc_loss(%0, %1, [2], [1], 0, false)
)");
  add("margin.cu", {floats({1, 2, 4}), integers({1})}, 1, {1}, R"(  %0: f32[1, 3]{3, 1} @b0
  %1: i64[1]{1} @b1
  %2: f32[1]{1} @b2
  %2 = aten::multi_margin_loss(%0, %1, 1, 1, none, 0)
)");
  add("interpret.cu", {floats({-1, 2})}, 1, {0, 2}, R"(  %0: f32[2]{1} @b0
  %1: f32[2]{1} @b1
  %1 = aten::relu(%0)
)");
  all.push_back({.name = "compiled kernel",
                 .runner = "",
                 .text = "graph() {\n  b0: input survives\n  b1: input survives\n  b2: fresh(16) group_local\n"
                         "  b3: fresh(16) survives\n  %0: f32[4]{1} @b0\n  %1: f32[4]{1} @b1\n  group pointwise {\n"
                         "    %2: f32[4]{1} @b2 = aten::add.Tensor(%0, %1, alpha=1)\n"
                         "    %3: f32[4]{1} @b3 = aten::mul.Tensor(%2, %1)\n  }\n}",
                 .inputs = {floats({1, 2, 3, 4}), floats({10, 20, 30, 40})},
                 .expected = {110, 440, 990, 1760},
                 .math_modes = ir::kDeterministic,
                 .needs_kernel = true,
                 .without = "nothing is fused: install torch_remote again"});
  all.push_back({.name = "GEMM (cuBLASLt)",
                 .runner = "cuBLASLt",
                 .text = graph(2, 1, R"(  %0: f32[2, 2]{2, 1} @b0
  %1: f32[2, 2]{2, 1} @b1
  %2: f32[2, 2]{2, 1} @b2 = aten::mm(%0, %1)
)"),
                 .inputs = {floats({1, 2, 3, 4}), floats({5, 6, 7, 8})},
                 .expected = {19, 22, 43, 50},
                 .tolerance = 1e-3,
                 .without = "matmuls are refused: " + std::string(kInstall)});
  all.push_back(convolution());
  all.push_back(cudnn_attention());
  all.push_back(cuda_graph());
  return all;
}

}  // namespace torch_remote::worker::cuda
