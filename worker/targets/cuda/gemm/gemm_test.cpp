// GEMMs on the GPU emulator, for every op, dtype and layout, compared with the definition.
#include "worker/targets/cuda/gemm/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <random>

#include "codegen/loop/half.h"
#include "tests/emulated_gpu/compile.h"
#include "tests/emulated_gpu/emulated_cublaslt.h"
#include "tests/emulated_gpu/open.h"
#include "worker/targets/cuda/compiled/cuda_runner.h"
#include "worker/targets/cuda/gemm/gemm_runner.h"

namespace torch_remote::worker::cuda {
namespace {

using Complex = std::complex<double>;
using Sizes = std::vector<int64_t>;
using ir::DType;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// --- tensors ---------------------------------------------------------------------------------------------------------

double from_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const double value = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (bits & 0x80) != 0 ? -value : value;
}
uint8_t to_e4m3(double value) {
  for (int bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7F) != 0x7F && from_e4m3(static_cast<uint8_t>(bits)) == value) return static_cast<uint8_t>(bits);
  }
  ADD_FAILURE() << value << " is no e4m3";
  return 0;
}

void put(DType type, Complex value, std::byte* to) {
  const auto as = [&]<typename T>(T typed) { std::memcpy(to, &typed, sizeof(typed)); };
  switch (type) {
    case DType::kFloat32:
      return as(static_cast<float>(value.real()));
    case DType::kFloat64:
      return as(value.real());
    case DType::kFloat16:
      return as(codegen::to_f16(static_cast<float>(value.real())));
    case DType::kBFloat16:
      return as(codegen::to_bf16(static_cast<float>(value.real())));
    case DType::kInt8:
      return as(static_cast<int8_t>(value.real()));
    case DType::kInt32:
      return as(static_cast<int32_t>(value.real()));
    case DType::kComplex64:
      return as(std::complex<float>(value));
    case DType::kComplex128:
      return as(value);
    case DType::kFloat8E4M3FN:
      return as(to_e4m3(value.real()));
    default:
      FAIL();
  }
}

Complex get(DType type, const std::byte* from) {
  const auto as = [&]<typename T>(T typed) {
    std::memcpy(&typed, from, sizeof(typed));
    return typed;
  };
  switch (type) {
    case DType::kFloat32:
      return as(float{});
    case DType::kFloat64:
      return as(double{});
    case DType::kFloat16:
      return codegen::from_f16(as(uint16_t{}));
    case DType::kBFloat16:
      return codegen::from_bf16(as(uint16_t{}));
    case DType::kInt8:
      return as(int8_t{});
    case DType::kInt32:
      return as(int32_t{});
    case DType::kComplex64:
      return Complex(as(std::complex<float>{}));
    case DType::kComplex128:
      return as(Complex{});
    case DType::kFloat8E4M3FN:
      return from_e4m3(as(uint8_t{}));
    default:
      return 0;
  }
}

enum class Layout { kContiguous, kTransposed, kWide, kExpanded, kStrided };

struct Tensor {
  DType type = DType::kFloat32;
  Sizes sizes, strides;
  int64_t offset = 0;
  std::vector<std::byte> bytes;

  int64_t count() const {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    return count;
  }
  std::byte* at(const Sizes& location) {
    int64_t element = offset;
    for (size_t d = 0; d < location.size(); ++d) element += location[d] * strides[d];
    return bytes.data() + element * ir::item_size(type);
  }
  Complex value(const Sizes& location) { return get(type, at(location)); }
  std::string text(size_t buffer) const {
    const auto list = [](const Sizes& numbers) {
      std::string text;
      for (const int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
      return text;
    };
    return std::string(ir::name(type)) + "[" + list(sizes) + "]{" + list(strides) + "} @b" + std::to_string(buffer) +
           (offset != 0 ? " + " + std::to_string(offset) : "");
  }
};

// Makes strides for the layout, from the innermost dim outwards.
Tensor make(DType type, const Sizes& sizes, Layout layout, int64_t offset) {
  Tensor tensor{type, sizes, Sizes(sizes.size()), offset, {}};
  std::vector<size_t> order;
  for (size_t d = sizes.size(); d-- > 0;) order.push_back(d);
  if (layout == Layout::kTransposed && sizes.size() >= 2) std::swap(order[0], order[1]);
  int64_t step = layout == Layout::kStrided ? 2 : 1;
  for (size_t i = 0; i < order.size(); ++i) {
    tensor.strides[order[i]] = step;
    step *= std::max<int64_t>(sizes[order[i]], 1);
    if (layout == Layout::kWide && i == 0) step += 3;
  }
  if (layout == Layout::kExpanded && !sizes.empty()) tensor.strides[sizes.size() - 1] = 0;
  tensor.bytes.resize(static_cast<size_t>(offset + step + 8) * ir::item_size(type));
  return tensor;
}

// Small integers, so that all sums are exact.
void fill(Tensor& tensor, std::mt19937& random) {
  const uint32_t item = ir::item_size(tensor.type);
  for (size_t at = 0; at + item <= tensor.bytes.size(); at += item) {
    const double real = static_cast<double>(random() % 5) - 2, imaginary = static_cast<double>(random() % 5) - 2;
    put(tensor.type, ir::is_complex(tensor.type) ? Complex(real, imaginary) : Complex(real), tensor.bytes.data() + at);
  }
}

// --- programs --------------------------------------------------------------------------------------------------------

class ProductTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Status status = CudaDevice::open(
        {.driver = emulated::gpus().driver(), .limit = uint64_t{1} << 30, .kernels = {.compile = emulated::compile}},
        &device);
    ASSERT_TRUE(status.ok()) << status.message();
    runner = make_gemm_runner(
        *device,
        [](lt::Table* table) {
          *table = emulated::cublaslt();
          return Status();
        },
        "");
  }
  static void TearDownTestSuite() {
    runner = nullptr;
    device = nullptr;
    EXPECT_EQ(emulated::cublaslt_leaks(), "");
    for (const std::string& finding : emulated::gpus().findings()) ADD_FAILURE() << finding;
  }

  // Runs a graph whose body is `lines`, and reads all tensors back. Buffers and views are numbered: first the inputs,
  // then `made`. `@b4` in a group is a value without memory.
  void run(std::vector<Tensor*> inputs, std::vector<Tensor*> made, const std::string& lines, int times = 1) {
    std::string text = "graph() {\n";
    for (size_t i = 0; i < inputs.size(); ++i) text += "  b" + std::to_string(i) + ": input survives\n";
    for (size_t i = 0; i < made.size(); ++i) {
      text += "  b" + std::to_string(inputs.size() + i) + ": fresh(" + std::to_string(made[i]->bytes.size()) +
              ") survives\n";
    }
    if (lines.find("group") != std::string::npos) {
      text += "  b" + std::to_string(inputs.size() + made.size()) + ": fresh(" + std::to_string(made[0]->bytes.size()) +
              ") group_local\n";
    }
    for (size_t i = 0; i < inputs.size(); ++i) text += "  %" + std::to_string(i) + ": " + inputs[i]->text(i) + "\n";
    text += lines + "}\n";
    ir::Graph graph;
    const Status parsed = ir::parse_graph(text, &graph);
    ASSERT_TRUE(parsed.ok()) << parsed.message() << "\n" << text;
    const Status valid = ir::verify(graph);
    ASSERT_TRUE(valid.ok()) << valid.message() << "\n" << text;
    for (uint32_t n = 0; n < graph.nodes.size() && graph.groups.empty(); ++n) {
      ASSERT_TRUE(runner->accepts(graph, n)) << text;
    }
    std::unique_ptr<RunnerProgram> program;
    const std::vector<uint8_t> bytes = ir::encode_program(graph);
    ASSERT_TRUE(runner->load({bytes, graph, std::vector<uint8_t>(graph.nodes.size(), 1), false}, &program).ok());
    std::vector<int64_t> values;
    ASSERT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
    std::vector<tr_buffer> buffers(graph.buffers.size());
    std::vector<Tensor*> all = inputs;
    all.insert(all.end(), made.begin(), made.end());
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(device->memory().allocate(all[i]->bytes.size(), &buffers[i]));
      auto keep = std::make_shared<std::vector<std::byte>>(all[i]->bytes);
      device->copy_in(buffers[i].data, *keep, keep);
    }
    for (const ir::Group& group : graph.groups) {
      ASSERT_TRUE(runner->accepts_group(graph, group)) << text;
      ASSERT_TRUE(program->takes(group.first, group.last + 1, values)) << text;
    }
    for (int i = 0; i < times; ++i) {
      tr_run call{};
      call.struct_size = sizeof(call);
      call.symbols = values.data();
      call.symbols_changed = 1;
      call.last = static_cast<uint32_t>(graph.nodes.size());
      call.buffers = buffers.data();
      call.buffer_count = static_cast<uint32_t>(buffers.size());
      tr_error error{};
      ASSERT_TRUE(program->run(call, &error)) << error.message << "\n" << text;
    }
    for (size_t i = 0; i < all.size(); ++i) {
      auto read = std::make_shared<std::vector<std::byte>>(all[i]->bytes.size());
      const auto size = static_cast<int64_t>(read->size());
      const int64_t one = 1;
      device->copy_out({buffers[i].data, 1, {&size, 1}, {&one, 1}}, read->data(), read);
      ASSERT_TRUE(device->wait(device->record()).ok());
      all[i]->bytes = *read;
      buffers[i].release(buffers[i].owner);
    }
    last_text = text;
  }

  static std::unique_ptr<CudaDevice> device;
  static std::unique_ptr<Runner> runner;
  std::string last_text;
};

std::unique_ptr<CudaDevice> ProductTest::device;
std::unique_ptr<Runner> ProductTest::runner;

// --- every op --------------------------------------------------------------------------------------------------------

struct Op {
  const char* name;
  int64_t left = 2, right = 2, result = 2;  // Ranks; 3: with a batch.
  bool adds = false, sums_batch = false;
  bool in_place = false;
};

const std::vector<Op>& all_ops() {
  static const std::vector<Op> ops = {
      {.name = "aten::mm"},
      {.name = "aten::bmm", .left = 3, .right = 3, .result = 3},
      {.name = "aten::addmm", .adds = true},
      {.name = "aten::addmm_", .adds = true, .in_place = true},
      {.name = "aten::baddbmm", .left = 3, .right = 3, .result = 3, .adds = true},
      {.name = "aten::baddbmm_", .left = 3, .right = 3, .result = 3, .adds = true, .in_place = true},
      {.name = "aten::addbmm", .left = 3, .right = 3, .adds = true, .sums_batch = true},
      {.name = "aten::mv", .right = 1, .result = 1},
      {.name = "aten::addmv", .right = 1, .result = 1, .adds = true},
      {.name = "aten::addr", .left = 1, .right = 1, .adds = true},
      {.name = "aten::dot", .left = 1, .right = 1, .result = 0},
      {.name = "aten::vdot", .left = 1, .right = 1, .result = 0},
  };
  return ops;
}

struct Case {
  Op op;
  DType type;
};

class EveryProduct : public ProductTest, public ::testing::WithParamInterface<Case> {};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.op.name + 6;
  std::ranges::replace(name, '.', '_');
  return name + "_" + std::string(ir::name(info.param.type));
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Op& op : all_ops()) {
    for (const DType type :
         {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kComplex64, DType::kComplex128}) {
      if (op.name != std::string_view("aten::addr") || ir::is_complex(type)) cases.push_back({op, type});
    }
  }
  return cases;
}

TEST_P(EveryProduct, EqualsTheDefinition) {
  const auto& [op, type] = GetParam();
  std::mt19937 random(7 * static_cast<uint32_t>(type) + static_cast<uint32_t>(std::strlen(op.name)));
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[random() % sizeof...(values)];
  };
  const bool outer = op.left == 1 && op.result == 2, inner = op.result == 0;
  for (int round = 0; round < 12; ++round) {
    const int64_t batch = pick(0, 1, 2, 3), m = inner ? 1 : pick(0, 1, 2, 5, 8, 16),
                  n = op.right == 1 && !outer ? 1 : pick(1, 3, 4, 8, 17);
    const int64_t k = outer ? 1 : round % 6 == 5 ? 70 : pick(0, 1, 3, 4, 8, 16);
    const auto layout = [&] {
      return pick(Layout::kContiguous, Layout::kContiguous, Layout::kTransposed, Layout::kTransposed, Layout::kWide,
                  Layout::kExpanded, Layout::kStrided);
    };
    const auto sizes = [&](int64_t rank, const Sizes& matrix, const Sizes& vector) {
      Sizes sizes = rank >= 2 ? matrix : rank == 1 ? vector : Sizes{};
      if (rank == 3) sizes.insert(sizes.begin(), batch);
      return sizes;
    };
    const int64_t offset = pick(0, 0, 1, 4, 16);
    Tensor left = make(type, sizes(op.left, {m, k}, {outer ? m : k}), layout(), offset);
    Tensor right = make(type, sizes(op.right, {k, n}, {outer ? n : k}), layout(), pick(0, 0, 3));
    const Sizes shape = sizes(op.result, {m, n}, {m});
    Tensor addend =
        make(type, shape,
             op.in_place ? pick(Layout::kContiguous, Layout::kTransposed, Layout::kWide, Layout::kStrided) : layout(),
             pick(0, 2));
    if (op.adds && !op.in_place && round % 3 == 0) {  // Broadcasts the addend: a bias, or a number.
      Sizes small = shape;
      if (random() % 2 == 0) small.erase(small.begin());
      if (!small.empty() && random() % 3 == 0) small.back() = 1;
      addend = make(type, small, Layout::kContiguous, pick(0, 1));
    }
    Tensor result = make(type, shape, Layout::kContiguous, 0);
    for (Tensor* tensor : {&left, &right, &addend, &result}) fill(*tensor, random);
    const double alpha = op.adds ? pick(1., 1., 2., -1., 0., 0.5) : 1;
    const double beta = op.adds ? pick(1., 1., 2., -1., 0., 0.5) : 0;
    if (beta == 0 && !op.in_place && !ir::is_complex(type)) {
      for (size_t at = 0; at < addend.bytes.size(); at += ir::item_size(type))
        put(type, kNan, addend.bytes.data() + at);
    }
    const Tensor before = addend;
    std::string line;
    const auto number = [](double value) { return std::to_string(value); };
    const std::string numbers = ", beta=" + number(beta) + ", alpha=" + number(alpha);
    if (!op.adds) {
      line = "  %2: " + result.text(2) + " = " + op.name + "(%0, %1)\n";
    } else if (op.in_place) {
      line = std::string("  ") + op.name + "(%2, %0, %1" + numbers + ")\n";
    } else {
      line = "  %3: " + result.text(3) + " = " + op.name + "(%2, %0, %1" + numbers + ")\n";
    }
    if (op.in_place) {
      run({&left, &right, &addend}, {}, line);
    } else if (op.adds) {
      run({&left, &right, &addend}, {&result}, line);
    } else {
      run({&left, &right}, {&result}, line);
    }
    if (HasFatalFailure()) return;

    Tensor& there = op.in_place ? addend : result;
    Tensor expected = op.in_place ? before : result;
    Tensor given = before;
    Sizes location(shape.size());
    for (int64_t i = 0; i < expected.count(); ++i) {
      int64_t rest = i;
      for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) location[d] = rest % shape[d];
      const bool batched = op.result == 3;
      const int64_t row = op.result == 0 ? 0 : location[batched ? 1 : 0], column = op.result >= 2 ? location.back() : 0;
      Complex sum = 0;
      for (int64_t b = 0; b < (op.sums_batch ? batch : 1); ++b) {
        for (int64_t l = 0; l < k; ++l) {
          const auto at = [&](int64_t rank, int64_t r, int64_t c, int64_t vector) {
            if (rank == 1) return Sizes{vector};
            return rank == 2 ? Sizes{r, c} : Sizes{op.sums_batch ? b : location[0], r, c};
          };
          Complex x = left.value(at(op.left, row, l, outer ? row : l));
          if (std::string_view(op.name) == "aten::vdot") x = std::conj(x);
          sum += x * right.value(at(op.right, l, column, outer ? column : l));
        }
      }
      Complex value = alpha * sum;
      if (op.adds && beta != 0) {
        Sizes from(location.end() - static_cast<std::ptrdiff_t>(given.sizes.size()), location.end());
        for (size_t d = 0; d < from.size(); ++d) from[d] = given.sizes[d] == 1 ? 0 : from[d];
        value += beta * given.value(from);
      }
      put(type, value, expected.at(location));
    }
    for (int64_t i = 0; i < expected.count(); ++i) {
      int64_t rest = i;
      for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) location[d] = rest % shape[d];
      ASSERT_EQ(there.value(location), expected.value(location)) << "element " << i << " of\n" << last_text;
    }
    // The memory around the result is unchanged.
    const uint32_t item = ir::item_size(type);
    for (size_t at = 0; op.in_place && at + item <= there.bytes.size(); at += item) {
      ASSERT_EQ(get(type, there.bytes.data() + at), get(type, expected.bytes.data() + at)) << at << "\n" << last_text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryProduct, ::testing::ValuesIn(all_cases()), name_of);

// --- others ----------------------------------------------------------------------------------------------------------

TEST_F(ProductTest, IntegersOfAnySizes) {
  std::mt19937 random(3);
  for (const auto& [m, k, n] :
       {std::tuple(4, 8, 12), std::tuple(17, 16, 8), std::tuple(3, 5, 7), std::tuple(1, 1, 1), std::tuple(2, 0, 3)}) {
    for (const Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kWide}) {
      Tensor left = make(DType::kInt8, {m, k}, Layout::kContiguous, 0);
      Tensor right = make(DType::kInt8, {k, n}, layout, 4);
      Tensor result = make(DType::kInt32, {m, n}, Layout::kContiguous, 0);
      fill(left, random);
      fill(right, random);
      run({&left, &right}, {&result}, "  %2: " + result.text(2) + " = aten::_int_mm(%0, %1)\n");
      if (HasFatalFailure()) return;
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          Complex sum = 0;
          for (int64_t l = 0; l < k; ++l) sum += left.value({i, l}) * right.value({l, j});
          ASSERT_EQ(result.value({i, j}), sum) << last_text;
        }
      }
    }
  }
}

TEST_F(ProductTest, Float8WithScales) {
  std::mt19937 random(3);
  for (const auto& [m, k, n] : {std::tuple(16, 16, 32), std::tuple(5, 7, 3)}) {
    for (const bool biased : {false, true}) {
      Tensor left = make(DType::kFloat8E4M3FN, {m, k}, Layout::kContiguous, 0);
      Tensor right = make(DType::kFloat8E4M3FN, {k, n}, Layout::kTransposed, 0);
      Tensor left_scale = make(DType::kFloat32, {}, Layout::kContiguous, 0), right_scale = left_scale;
      Tensor bias = make(DType::kBFloat16, {n}, Layout::kContiguous, 0);
      Tensor result = make(DType::kBFloat16, {m, n}, Layout::kContiguous, 0);
      for (Tensor* tensor : {&left, &right, &bias}) fill(*tensor, random);
      put(DType::kFloat32, 0.5, left_scale.bytes.data());
      put(DType::kFloat32, 4, right_scale.bytes.data());
      run({&left, &right, &left_scale, &right_scale, &bias}, {&result},
          "  %5: " + result.text(5) + " = aten::_scaled_mm(%0, %1, %2, %3, " + (biased ? "%4" : "none") +
              ", none, bf16, true)\n");
      if (HasFatalFailure()) return;
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          Complex sum = 0;
          for (int64_t l = 0; l < k; ++l) sum += left.value({i, l}) * right.value({l, j});
          ASSERT_EQ(result.value({i, j}), 2. * sum + (biased ? bias.value({j}) : 0.)) << last_text;
        }
      }
    }
  }
}

TEST_F(ProductTest, HalfTypesIntoFloats) {
  std::mt19937 random(3);
  Tensor left = make(DType::kBFloat16, {5, 64}, Layout::kContiguous, 0);
  Tensor right = make(DType::kBFloat16, {64, 6}, Layout::kTransposed, 0);
  Tensor result = make(DType::kFloat32, {5, 6}, Layout::kContiguous, 0);
  for (Tensor* tensor : {&left, &right}) {
    for (size_t at = 0; at < tensor->bytes.size(); at += 2) {
      put(tensor->type, static_cast<double>(random() % 100), tensor->bytes.data() + at);
    }
  }
  run({&left, &right}, {&result}, "  %2: " + result.text(2) + " = aten::mm.dtype(%0, %1, f32)\n");
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 6; ++j) {
      Complex sum = 0;
      for (int64_t l = 0; l < 64; ++l) sum += left.value({i, l}) * right.value({l, j});
      ASSERT_EQ(result.value({i, j}), sum);
    }
  }
}

double gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.))); }
double gelu_tanh(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

TEST_F(ProductTest, Activations) {
  std::mt19937 random(3);
  const std::vector<std::pair<std::string, double (*)(double)>> forms = {
      {"  %3: f32[4, 8] @b3 = aten::_addmm_activation(%2, %0, %1, beta=1, alpha=1, use_gelu=false)\n",
       [](double x) { return x < 0 ? 0. : x; }},
      {"  %3: f32[4, 8] @b3 = aten::_addmm_activation(%2, %0, %1, beta=1, alpha=1, use_gelu=true)\n", gelu},
      {"  group matmul {\n  %3: f32[4, 8] @b4 = aten::addmm(%2, %0, %1, beta=1, alpha=1)\n  %4: f32[4, 8] @b3 "
       "= aten::relu(%3)\n  }\n",
       [](double x) { return x < 0 ? 0. : x; }},
      {"  group matmul {\n  %3: f32[4, 8] @b4 = aten::addmm(%2, %0, %1, beta=1, alpha=1)\n  %4: f32[4, 8] @b3 "
       "= aten::gelu(%3, approximate=\"tanh\")\n  }\n",
       gelu_tanh},
  };
  for (const Sizes& addend : {Sizes{8}, Sizes{4, 8}, Sizes{4, 1}}) {
    for (const auto& [line, activation] : forms) {
      Tensor left = make(DType::kFloat32, {4, 16}, Layout::kContiguous, 0);
      Tensor right = make(DType::kFloat32, {16, 8}, Layout::kTransposed, 0);
      Tensor bias = make(DType::kFloat32, addend, Layout::kContiguous, 0);
      Tensor result = make(DType::kFloat32, {4, 8}, Layout::kContiguous, 0);
      for (Tensor* tensor : {&left, &right, &bias}) fill(*tensor, random);
      for (Tensor* tensor : {&left, &right, &bias}) {
        for (size_t at = 0; at < tensor->bytes.size(); at += 4) {
          put(DType::kFloat32, 0.3 * get(DType::kFloat32, tensor->bytes.data() + at), tensor->bytes.data() + at);
        }
      }
      run({&left, &right, &bias}, {&result}, line);
      if (HasFatalFailure()) return;
      for (int64_t i = 0; i < 4; ++i) {
        for (int64_t j = 0; j < 8; ++j) {
          double sum = 0;
          for (int64_t l = 0; l < 16; ++l) sum += (left.value({i, l}) * right.value({l, j})).real();
          const Sizes location = addend.size() == 1 ? Sizes{j} : Sizes{i, addend[1] == 1 ? 0 : j};
          ASSERT_NEAR(result.value({i, j}).real(), activation(sum + bias.value(location).real()), 1e-5) << last_text;
        }
      }
    }
  }
}

// The second run reads what the first one wrote: x = x y, with x as operand and result.
TEST_F(ProductTest, ReadsWhatItWrites) {
  std::mt19937 random(3);
  Tensor x = make(DType::kFloat32, {4, 4}, Layout::kContiguous, 0), y = x;
  fill(x, random);
  fill(y, random);
  const Tensor before = x;
  run({&x, &y}, {}, "  aten::addmm_(%0, %0, %1, beta=0, alpha=1)\n", 2);
  Tensor expected = before;
  for (int round = 0; round < 2; ++round) {
    Tensor next = expected;
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        Complex sum = 0;
        for (int64_t l = 0; l < 4; ++l) sum += expected.value({i, l}) * y.value({l, j});
        put(DType::kFloat32, sum, next.at({i, j}));
      }
    }
    expected = next;
  }
  EXPECT_EQ(x.bytes, expected.bytes);
}

// The layouts that models use need no copies.
TEST(ProductPlans, TransposedAndBiasedProductsMoveNothing) {
  const auto plan_of = [](const std::string& views, const std::string& node) {
    ir::Graph graph;
    const Status status = ir::parse_graph(
        "graph() {\n  b0: input\n  b1: input\n  b2: input\n  b3: fresh(0) survives\n" + views + node + "}\n", &graph);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<int64_t> values;
    EXPECT_TRUE(ir::evaluate(graph, nullptr, &values).ok());
    Gemm gemm;
    EXPECT_TRUE(find_gemm(graph, graph.nodes[0], &gemm));
    GemmPlan plan;
    EXPECT_TRUE(plan_gemm(graph, gemm, values, 0, &plan).ok());
    return plan;
  };
  // linear: x w^T + b
  GemmPlan plan = plan_of("  %0: f32[32, 64] @b0\n  %1: f32[64, 16]{1, 64} @b1\n  %2: f32[16] @b2\n",
                          "  %3: f32[32, 16] @b3 = aten::addmm(%2, %0, %1, beta=1, alpha=1)\n");
  EXPECT_TRUE(plan.before.empty() && plan.after.empty() && plan.scratch.empty());
  EXPECT_EQ(plan.problem.epilogue, static_cast<uint32_t>(lt::kBias));
  EXPECT_EQ(plan.problem.op_a, lt::Operation::kTranspose);
  EXPECT_EQ(plan.problem.op_b, lt::Operation::kNone);
  EXPECT_EQ(plan.calls[0].a.buffer, 1u);
  // Its gradients: g^T x, g w.
  plan = plan_of("  %0: f32[16, 32]{1, 16} @b0\n  %1: f32[32, 64] @b1\n", "  %2: f32[16, 64] @b3 = aten::mm(%0, %1)\n");
  EXPECT_TRUE(plan.before.empty() && plan.after.empty() && plan.scratch.empty());
  EXPECT_EQ(plan.problem.op_a, lt::Operation::kNone);
  EXPECT_EQ(plan.problem.op_b, lt::Operation::kTranspose);
  // Attention heads: slices of rows, in a batch.
  plan = plan_of("  %0: bf16[8, 10, 64]{64, 512, 1} @b0\n  %1: bf16[8, 64, 10]{64, 1, 512} @b1\n",
                 "  %2: bf16[8, 10, 10] @b3 = aten::bmm(%0, %1)\n");
  EXPECT_TRUE(plan.before.empty() && plan.after.empty() && plan.scratch.empty());
  EXPECT_EQ(plan.problem.batch, 8);
}

// A matmul of another batch would read, or write, behind the end of a tensor.
TEST(ProductPlans, DeclinesBatchesThatDoNotMatch) {
  const auto plans = [](int right, int result) {
    const std::string text = "graph() {\n  b0: input\n  b1: input\n  b2: fresh(0) survives\n  %0: f32[8, 3, 4] @b0\n" +
                             ("  %1: f32[" + std::to_string(right)) + ", 4, 5] @b1\n  %2: f32[" +
                             std::to_string(result) + ", 3, 5] @b2 = aten::bmm(%0, %1)\n}\n";
    ir::Graph graph;
    std::vector<int64_t> values;
    EXPECT_TRUE(ir::parse_graph(text, &graph).ok() && ir::evaluate(graph, nullptr, &values).ok()) << text;
    Gemm gemm;
    EXPECT_TRUE(find_gemm(graph, graph.nodes[0], &gemm));
    GemmPlan plan;
    return plan_gemm(graph, gemm, values, 0, &plan).code();
  };
  EXPECT_EQ(plans(8, 8), ErrorCode::kOk);
  EXPECT_EQ(plans(2, 8), ErrorCode::kUnsupported);
  EXPECT_EQ(plans(8, 2), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace torch_remote::worker::cuda
