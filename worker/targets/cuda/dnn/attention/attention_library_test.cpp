// When cuDNN's attention plans are requested, which one is chosen, that nothing leaks, and that results are right. Runs
// on the GPU emulator, whose cuDNN is strict (emulated_cudnn.h).
#include "worker/targets/cuda/dnn/attention/attention_library.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "codegen/loop/half.h"
#include "tests/emulated_gpu/emulated_cudnn.h"
#include "tests/emulated_gpu/library_fixture.h"
#include "worker/targets/cuda/dnn/cudnn_descriptors.h"

namespace torch_remote::worker::cuda {
namespace {

using emulated::Engine;
using State = AttentionLibrary::State;

// Numbers of elements in the problem below: in rows of queries, rows of keys, and a bias.
constexpr size_t kRows = size_t{2} * 4 * 9, kKeys = size_t{2} * 2 * 12, kBias = size_t{4} * 9 * 16;
constexpr Engine kAllEngines[] = {Engine::kBroken, Engine::kWorkspace, Engine::kFallback};

class AttentionLibraryTest : public emulated::LibraryTest<AttentionLibrary, PreparedAttention, dnn::Table> {
 protected:
  AttentionLibraryTest() : LibraryTest(emulated::cudnn(), emulated::cudnn_leaks, kBytes, /*checked=*/true) {}

  void TearDown() override {
    for (const Engine engine : kAllEngines) {
      emulated::slow_down(engine, std::chrono::microseconds(0));
      emulated::exclude_engine(engine, false);
    }
    LibraryTest::TearDown();
  }

  static AttentionProblem problem(AttentionPass pass = AttentionPass::kForward, int64_t keys = 12) {
    AttentionProblem problem;
    problem.pass = pass;
    problem.tune = true;
    problem.batch = 2;
    problem.heads = 4;
    problem.key_heads = 2;
    problem.queries = 9;
    problem.keys = keys;
    problem.size = problem.value_size = 8;
    problem.query = problem.out = problem.grad = problem.grad_query = packed_heads(4, 9, 8);
    problem.key = problem.value = problem.grad_key = problem.grad_value = packed_heads(2, keys, 8);
    return problem;
  }
  void prepare(const AttentionProblem& problem) {
    const ContextGuard current(device->gpu());
    prepared = library->find(problem);
    library->wait(prepared);
  }
  // Each tensor has its own part of the memory.
  DevicePointer part(int number) const {
    return reinterpret_cast<DevicePointer>(memory.data) + static_cast<uint64_t>(number) * kPart;
  }
  Status run(int times = 1) {
    const ContextGuard current(device->gpu());
    Status status;
    for (int i = 0; i < times && status.ok(); ++i) {
      status = library->run(prepared, {.query = part(0),
                                       .key = part(1),
                                       .value = part(2),
                                       .out = part(3),
                                       .logsumexp = part(4),
                                       .bias = part(5),
                                       .grad = part(6),
                                       .grad_query = part(7),
                                       .grad_key = part(8),
                                       .grad_value = part(9),
                                       .scale = 0.5F});
      device->queued();
      EXPECT_TRUE(device->wait(device->record()).ok());
    }
    return status;
  }
  void put(int number, const std::vector<float>& values) {
    auto bits = std::make_shared<std::vector<uint16_t>>();
    bits->reserve(values.size());
    for (const float value : values) bits->push_back(codegen::to_f16(value));
    device->copy_in(reinterpret_cast<std::byte*>(memory.data) + static_cast<uint64_t>(number) * kPart,
                    std::as_bytes(std::span(*bits)), bits);
  }
  std::vector<float> get(int number, size_t count, bool is_wide = false) {
    const size_t item = is_wide ? 4 : 2;
    std::vector<std::byte> bytes(count * item);
    const int64_t sizes[] = {static_cast<int64_t>(count)}, strides[] = {1};
    const StridedBytes source = {reinterpret_cast<std::byte*>(memory.data) + static_cast<uint64_t>(number) * kPart,
                                 static_cast<uint32_t>(item), sizes, strides};
    device->copy_out(source, bytes.data(), nullptr);
    EXPECT_TRUE(device->wait(device->record()).ok());
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      if (is_wide) {
        std::memcpy(&values[i], bytes.data() + i * item, item);
      } else {
        uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + i * item, item);
        values[i] = codegen::from_f16(bits);
      }
    }
    return values;
  }
  uint64_t calls(const char* name = "cudnnBackendExecute") { return driver->calls()[name]; }

  static constexpr uint64_t kPart = 8 << 10, kBytes = 10 * kPart;
};

// Varied numbers that are exact in f16.
std::vector<float> numbers(size_t count, int64_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((static_cast<int64_t>(i) * 37 + seed * 11) % 33 - 16) / 16;
  return values;
}

TEST_F(AttentionLibraryTest, IsAskedForByTheSecondUse) {
  const ContextGuard current(device->gpu());
  prepared = library->find(problem());
  EXPECT_EQ(library->state(*prepared), State::kWaiting);
  EXPECT_FALSE(library->count_use(*prepared));
  EXPECT_TRUE(library->is_not_requested(*prepared));
  EXPECT_TRUE(library->count_use(*prepared));
  EXPECT_EQ(calls("cudnnBackendGetAttribute"), 0u);
  library->wait(prepared);
  EXPECT_EQ(library->state(*prepared), State::kReady);
  EXPECT_EQ(library->heuristic_calls(), 1u);
  EXPECT_EQ(library->find(problem()), prepared);
}

TEST_F(AttentionLibraryTest, TimesOnceBehindTheFirstUse) {
  prepare(problem());
  EXPECT_EQ(prepared->plans(), 2u);  // The broken engine's plan is left out.
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(calls(), 1 + 1 + 2 * 2u);  // The run itself; the other plan to warm up; both twice between marks.
  ASSERT_TRUE(run(3).ok());
  EXPECT_EQ(calls("cuEventElapsedTime"), 2u);
}

TEST_F(AttentionLibraryTest, ChoicesAreKept) {
  emulated::slow_down(Engine::kWorkspace, std::chrono::milliseconds(20));
  prepare(problem());
  ASSERT_TRUE(run(3).ok());
  EXPECT_EQ(prepared->best(), 1u);
  const std::string kept = file();
  EXPECT_NE(kept.find(" A2 "), std::string::npos) << kept;  // Engine 0 is broken, engine 1 is slow.
  stop();
  start();
  prepare(problem());
  EXPECT_EQ(library->file_hits(), 1u);
  EXPECT_EQ(library->heuristic_calls(), 0u);
  EXPECT_EQ(prepared->plans(), 1u);
  const uint64_t before = calls();
  ASSERT_TRUE(run(3).ok());
  EXPECT_EQ(calls() - before, 3u);  // Nothing is timed.
  EXPECT_EQ(file(), kept);
}

// In deterministic mode, earlier timings do not change which plan runs.
TEST_F(AttentionLibraryTest, DeterministicIsTheFavouriteAlone) {
  AttentionProblem wanted = problem(AttentionPass::kBackward);
  wanted.deterministic = true;
  wanted.tune = false;
  prepare(wanted);
  EXPECT_EQ(prepared->plans(), 1u);
  ASSERT_TRUE(run(2).ok());
  EXPECT_EQ(calls(), 2u);
  EXPECT_EQ(file(), "");
}

// By default, the file of choices is not read either.
TEST_F(AttentionLibraryTest, OnlyTunedProblemsAreTimed) {
  emulated::slow_down(Engine::kWorkspace, std::chrono::milliseconds(20));
  prepare(problem());
  ASSERT_TRUE(run(3).ok());
  const std::string kept = file();
  const uint64_t elapsed = calls("cuEventElapsedTime"), before = calls();
  AttentionProblem plain = problem();
  plain.tune = false;
  prepare(plain);
  EXPECT_EQ(prepared->plans(), 1u);
  ASSERT_TRUE(run(3).ok());
  EXPECT_EQ(calls() - before, 3u);
  EXPECT_EQ(calls("cuEventElapsedTime"), elapsed);
  EXPECT_EQ(library->file_hits(), 0u);
  EXPECT_EQ(file(), kept);
}

TEST_F(AttentionLibraryTest, RefusesWhatNoEngineDoes) {
  AttentionProblem odd = problem();
  odd.size = 12;  // Not a multiple of 8.
  odd.query = packed_heads(4, 9, 16);
  odd.key = packed_heads(2, 12, 16);
  prepare(odd);
  EXPECT_EQ(library->state(*prepared), State::kRefused);
  EXPECT_EQ(library->status(*prepared).code(), ErrorCode::kUnsupported);
  odd = problem();
  odd.query[2] = 12;  // Rows do not begin at multiples of 16 bytes.
  prepare(odd);
  EXPECT_EQ(library->state(*prepared), State::kRefused);
  for (const Engine engine : kAllEngines) emulated::exclude_engine(engine, true);
  prepare(problem(AttentionPass::kBackward));
  EXPECT_EQ(library->state(*prepared), State::kRefused);
}

TEST_F(AttentionLibraryTest, ManyAreMadeInTurn) {
  const ContextGuard current(device->gpu());
  std::vector<std::shared_ptr<PreparedAttention>> all;
  all.reserve(80);
  for (int64_t keys = 9; keys < 89; ++keys) {
    all.push_back(library->find(problem(AttentionPass::kForward, keys)));
  }
  for (const auto& each : all) {
    library->wait(each);
    EXPECT_EQ(library->state(*each), State::kReady);
  }
}

// A repeated sequence of calls is captured and launched as a CUDA graph.
TEST_F(AttentionLibraryTest, BecomesPartOfAGraph) {
  const AttentionProblem wanted = problem();
  put(0, numbers(kRows * 8, 1));
  put(1, numbers(kKeys * 8, 2));
  put(2, numbers(kKeys * 8, 3));
  prepare(wanted);
  ASSERT_TRUE(run(3).ok());  // Until the fastest plan is known.
  const std::vector<float> expected = get(3, kRows * 8);
  const uint64_t before = calls();
  for (int i = 0; i < 4; ++i) {
    const ContextGuard current(device->gpu());
    device->fill(reinterpret_cast<void*>(part(3)), std::byte{0}, kPart);  // NOLINT(performance-no-int-to-ptr)
    for (size_t piece = 0; piece < WorkQueue::kMinSequence; ++piece) {
      ASSERT_TRUE(library
                      ->run(prepared, {.query = part(0),
                                       .key = part(1),
                                       .value = part(2),
                                       .out = part(3),
                                       .logsumexp = part(4),
                                       .scale = 0.5F})
                      .ok());
    }
    device->gpu().queue().flush();
    EXPECT_EQ(get(3, expected.size()), expected);
  }
  EXPECT_EQ(device->gpu().queue().counts().launched, 3u);
  EXPECT_EQ(calls() - before, 2 * WorkQueue::kMinSequence);  // Once as calls, and once during the capture.
}

// The emulated cuDNN rejects what the real one rejects, and graphs that are inconsistent.
TEST_F(AttentionLibraryTest, GraphsAreStrict) {
  using dnn::Attribute;
  using dnn::AttributeType;
  using dnn::Descriptor;
  using dnn::DescriptorType;
  const ContextGuard current(device->gpu());
  dnn::Temporary temporary(table);
  dnn::Handle handle = nullptr;
  ASSERT_EQ(table.create(&handle), dnn::Result::kSuccess);
  dnn::Builder builder(table, &temporary.made);
  const auto tensor = [&](int64_t id, const std::vector<int64_t>& sizes, Attribute what = {}) {
    builder.make(DescriptorType::kTensor)
        .set_one(Attribute::kTensorType, AttributeType::kDataType, dnn::Type::kFloat16)
        .set(Attribute::kTensorSizes, AttributeType::kInt64, sizes)
        .set(Attribute::kTensorStrides, AttributeType::kInt64,
             std::vector<int64_t>{sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1})
        .set_one(Attribute::kTensorId, AttributeType::kInt64, id)
        .set_one(Attribute::kTensorAlignment, AttributeType::kInt64, int64_t{16});
    if (what != Attribute{}) builder.set_one(what, AttributeType::kBool, true);
    return builder.finish();
  };
  const auto product = [&](Descriptor left, Descriptor right, Descriptor result) {
    builder.make(DescriptorType::kMatmul)
        .set_one(Attribute::kMatmulPrecision, AttributeType::kDataType, dnn::Type::kFloat32);
    const Descriptor how = builder.finish();
    builder.make(DescriptorType::kMatmulOperation)
        .set_one(Attribute::kMatmulLeft, AttributeType::kDescriptor, left)
        .set_one(Attribute::kMatmulRight, AttributeType::kDescriptor, right)
        .set_one(Attribute::kMatmulResult, AttributeType::kDescriptor, result)
        .set_one(Attribute::kMatmulDescriptor, AttributeType::kDescriptor, how);
    return builder.finish();
  };
  const auto graph_of = [&](const std::vector<Descriptor>& operations) {
    EXPECT_TRUE(builder.status().ok()) << builder.status().message();
    dnn::Builder graph(table, &temporary.made);
    graph.make(DescriptorType::kGraph)
        .set_one(Attribute::kGraphHandle, AttributeType::kHandle, handle)
        .set(Attribute::kGraphOperations, AttributeType::kDescriptor, operations);
    const Descriptor made = graph.finish();
    if (made == nullptr) return graph.status().message();
    std::vector<Descriptor> configs;
    return dnn::query_heuristics(table, made, dnn::HeuristicsMode::kA, &temporary, &configs).message();
  };
  const Descriptor left = tensor(1, {1, 2, 8, 8}), right = tensor(2, {1, 2, 8, 16}), result = tensor(3, {1, 2, 8, 16}),
                   between = tensor(4, {1, 2, 8, 16}, Attribute::kTensorIsVirtual), twin = tensor(1, {1, 2, 8, 16});
  const auto has = [](const std::string& text, const char* what) { return text.find(what) != std::string::npos; };
  EXPECT_PRED2(has, graph_of({product(left, right, result)}), "no attention: matmul");
  EXPECT_PRED2(has, graph_of({product(left, right, between)}), "is not used");
  EXPECT_PRED2(has, graph_of({product(left, between, result)}), "is not made before");
  EXPECT_PRED2(has, graph_of({product(left, right, result), product(left, right, result)}), "made twice");
  EXPECT_PRED2(has, graph_of({product(left, twin, result)}), "an id of two tensors");
  (void)product(left, left, result);  // The sizes do not match.
  EXPECT_PRED2(has, builder.status().message(), "sizes do not fit");
  dnn::destroy(table, temporary.made);
  EXPECT_EQ(table.destroy(handle), dnn::Result::kSuccess);
}

// Compares with the formulas in f64: heads that share keys, a bias, causal attention.
TEST_F(AttentionLibraryTest, ComputesAttentionAndItsGradients) {
  const AttentionProblem p = problem();
  const auto q = numbers(kRows * 8, 1), k = numbers(kKeys * 8, 2), v = numbers(kKeys * 8, 3), g = numbers(kRows * 8, 4),
             bias = numbers(kBias, 5);
  put(0, q);
  put(1, k);
  put(2, v);
  put(5, bias);
  put(6, g);
  for (const bool causal : {false, true}) {
    for (const bool biased : {false, true}) {
      for (const bool deterministic : {false, true}) {
        const auto told = [&](AttentionPass pass) {
          AttentionProblem problem = this->problem(pass);
          problem.causal = causal;
          problem.deterministic = deterministic;
          problem.tune = !deterministic;
          if (biased) {
            problem.bias_batch = 1;
            problem.bias_heads = 4;
            problem.bias_row = 16;
          }
          return problem;
        };
        prepare(told(AttentionPass::kForward));
        ASSERT_EQ(library->state(*prepared), State::kReady) << library->status(*prepared).message();
        ASSERT_TRUE(run().ok());
        prepare(told(AttentionPass::kBackward));
        ASSERT_EQ(library->state(*prepared), State::kReady) << library->status(*prepared).message();
        ASSERT_TRUE(run().ok());
        std::vector<double> out(q.size()), sums(kRows), dq(q.size()), dk(k.size()), dv(v.size());
        for (size_t line = 0; line < 8; ++line) {
          const size_t shared = line / 4 * 2 + line % 4 / 2;
          for (size_t i = 0; i < 9; ++i) {
            const size_t row = (line * 9 + i) * 8, seen = causal ? i + 1 : 12;
            std::vector<double> weights(12);
            double sum = 0;
            for (size_t j = 0; j < seen; ++j) {
              double score = 0;
              for (size_t e = 0; e < 8; ++e) score += double{q[row + e]} * k[(shared * 12 + j) * 8 + e];
              weights[j] = std::exp(score * 0.5 + (biased ? bias[(line % 4 * 9 + i) * 16 + j] : 0.0F));
              sum += weights[j];
            }
            sums[line * 9 + i] = std::log(sum);
            double delta = 0;
            std::vector<double> grads(12);
            for (size_t j = 0; j < seen; ++j) {
              weights[j] /= sum;
              for (size_t e = 0; e < 8; ++e) {
                out[row + e] += weights[j] * v[(shared * 12 + j) * 8 + e];
                dv[(shared * 12 + j) * 8 + e] += weights[j] * g[row + e];
                grads[j] += double{g[row + e]} * v[(shared * 12 + j) * 8 + e];
              }
              delta += weights[j] * grads[j];
            }
            for (size_t j = 0; j < seen; ++j) {
              const double score = weights[j] * (grads[j] - delta) * 0.5;
              for (size_t e = 0; e < 8; ++e) {
                dq[row + e] += score * k[(shared * 12 + j) * 8 + e];
                dk[(shared * 12 + j) * 8 + e] += score * q[row + e];
              }
            }
          }
        }
        const auto same = [&](int number, const std::vector<double>& expected, bool is_wide = false) {
          const auto got = get(number, expected.size(), is_wide);
          for (size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(got[i], expected[i], 0.02) << number << " at " << i << (causal ? " causal" : "");
        };
        same(3, out);
        same(4, sums, true);
        same(7, dq);
        same(8, dk);
        same(9, dv);
      }
    }
  }
  EXPECT_EQ(p.key_of(), problem().key_of());
}

}  // namespace
}  // namespace torch_remote::worker::cuda
