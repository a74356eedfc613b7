// Checks that our graphs compute batch norm with cuDNN, that running statistics are updated once, and that nothing
// leaks. Runs on the GPU emulator, whose cuDNN is strict (emulated_cudnn.h). How plans are requested and chosen is
// tested in attention_library_test.cpp.
#include "worker/targets/cuda/dnn/batch_norm/batch_norm_library.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tests/emulated_gpu/emulated_cudnn.h"
#include "tests/emulated_gpu/library_fixture.h"

namespace torch_remote::worker::cuda {
namespace {

using emulated::Engine;

constexpr int64_t kBatch = 3, kChannels = 4, kSpace = 6;  // 2 by 3
constexpr size_t kImage = size_t{kBatch} * kChannels * kSpace;

class BatchNormLibraryTest
    : public emulated::LibraryTest<BatchNormLibrary, BatchNormLibrary::Prepared::element_type, dnn::Table> {
 protected:
  BatchNormLibraryTest() : LibraryTest(emulated::cudnn(), emulated::cudnn_leaks, kParts * kPart, /*checked=*/true) {}

  // Each tensor has its own part of the memory.
  enum Part : uint8_t {
    kInput,
    kOutput,
    kScale,
    kBias,
    kMean,
    kInverseStd,
    kMeanBefore,
    kVarianceBefore,
    kMeanAfter,
    kVarianceAfter,
    kGrad,
    kGradInput,
    kGradScale,
    kGradBias,
    kParts
  };
  static constexpr uint64_t kPart = 4 << 10;
  DevicePointer at(Part part) const { return reinterpret_cast<DevicePointer>(memory.data) + part * kPart; }
  static BatchNormProblem problem(bool backward, bool runs) {
    BatchNormProblem problem;
    problem.tune = true;
    problem.backward = backward;
    problem.has_running_stats = runs;
    problem.sizes = {kBatch, kChannels, 2, 3};
    return problem;
  }
  void prepare(const BatchNormProblem& problem) {
    const ContextGuard current(device->gpu());
    prepared = library->find(problem);
    library->wait(prepared);
  }
  void run() {
    const ContextGuard current(device->gpu());
    const Status status =
        library->run(prepared, {at(kInput), at(kOutput), at(kScale), at(kBias), at(kMean), at(kInverseStd),
                                at(kMeanBefore), at(kVarianceBefore), at(kMeanAfter), at(kVarianceAfter), at(kGrad),
                                at(kGradInput), at(kGradScale), at(kGradBias), 0.5F, 0.25F});
    EXPECT_TRUE(status.ok()) << status.message();
    device->queued();
    EXPECT_TRUE(device->wait(device->record()).ok());
  }
  void put(Part part, const std::vector<float>& values) {
    const auto keep = std::make_shared<std::vector<float>>(values);
    device->copy_in(reinterpret_cast<std::byte*>(memory.data) + part * kPart, std::as_bytes(std::span(*keep)), keep);
  }
  std::vector<float> get(Part part, size_t count = kChannels) {
    std::vector<float> values(count);
    const int64_t sizes[] = {static_cast<int64_t>(count)}, strides[] = {1};
    device->copy_out({reinterpret_cast<std::byte*>(memory.data) + part * kPart, 4, sizes, strides},
                     reinterpret_cast<std::byte*>(values.data()), nullptr);
    EXPECT_TRUE(device->wait(device->record()).ok());
    return values;
  }
};

std::vector<float> numbers(size_t count, size_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i * 37 + seed * 11) % 33) / 8 - 2;
  return values;
}

// A channel's elements in a channels-last image.
std::vector<double> channel_of(const std::vector<float>& image, size_t channel) {
  std::vector<double> made;
  for (size_t i = channel; i < image.size(); i += kChannels) made.push_back(static_cast<double>(image[i]));
  return made;
}

TEST_F(BatchNormLibraryTest, StatisticsRunOnceAlthoughPlansAreTimed) {
  const std::vector<float> image = numbers(kImage, 1), scale = numbers(kChannels, 2), bias = numbers(kChannels, 3),
                           mean = numbers(kChannels, 4), variance = {1, 2, 3, 4};
  put(kInput, image);
  put(kScale, scale);
  put(kBias, bias);
  put(kMeanBefore, mean);
  put(kVarianceBefore, variance);
  prepare(problem(false, true));
  ASSERT_EQ(library->state(*prepared), DeferredPlanState::kReady) << library->status(*prepared).message();
  EXPECT_EQ(prepared->plans(), 2u);
  run();
  EXPECT_GT(driver->calls()["cudnnBackendExecute"], 1u);  // Plans were timed.
  const std::vector<float> output = get(kOutput, kImage);
  for (size_t channel = 0; channel < kChannels; ++channel) {
    const std::vector<double> x = channel_of(image, channel), y = channel_of(output, channel);
    double sum = 0, squares = 0;
    for (const double each : x) sum += each;
    const double average = sum / static_cast<double>(x.size());
    for (const double each : x) squares += (each - average) * (each - average);
    const double inverse_std = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 0.5);
    EXPECT_NEAR(static_cast<double>(get(kMean)[channel]), average, 1e-5);
    EXPECT_NEAR(static_cast<double>(get(kInverseStd)[channel]), inverse_std, 1e-5);
    const auto before = static_cast<double>(mean[channel]), spread = static_cast<double>(variance[channel]);
    EXPECT_NEAR(static_cast<double>(get(kMeanAfter)[channel]), 0.75 * before + 0.25 * average, 1e-5);
    EXPECT_NEAR(static_cast<double>(get(kVarianceAfter)[channel]),
                0.75 * spread + 0.25 * squares / static_cast<double>(x.size() - 1), 1e-5);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(
          y[i],
          (x[i] - average) * inverse_std * static_cast<double>(scale[channel]) + static_cast<double>(bias[channel]),
          1e-5);
    }
  }
  EXPECT_EQ(get(kMeanBefore), mean);
}

// Compares with finite differences in f64 of sum(output * grad).
TEST_F(BatchNormLibraryTest, GradientsAreThoseOfTheForwardPass) {
  const std::vector<float> image = numbers(kImage, 5), grad = numbers(kImage, 6), scale = numbers(kChannels, 7);
  const auto value = [&](std::vector<double> x, const std::vector<double>& g, double weight) {
    double sum = 0, squares = 0, made = 0;
    for (const double each : x) sum += each;
    const double average = sum / static_cast<double>(x.size());
    for (const double each : x) squares += (each - average) * (each - average);
    for (size_t i = 0; i < x.size(); ++i)
      made += g[i] * (x[i] - average) / std::sqrt(squares / static_cast<double>(x.size()) + 0.5) * weight;
    return made;
  };
  put(kInput, image);
  put(kGrad, grad);
  put(kScale, scale);
  put(kBias, numbers(kChannels, 8));
  prepare(problem(false, false));
  run();
  prepare(problem(true, false));
  run();
  const std::vector<float> made = get(kGradInput, kImage);
  for (size_t channel = 0; channel < kChannels; ++channel) {
    const std::vector<double> x = channel_of(image, channel), g = channel_of(grad, channel),
                              got = channel_of(made, channel);
    const auto weight = static_cast<double>(scale[channel]);
    double sum = 0;
    for (const double each : g) sum += each;
    EXPECT_NEAR(static_cast<double>(get(kGradBias)[channel]), sum, 1e-4);
    EXPECT_NEAR(static_cast<double>(get(kGradScale)[channel]), value(x, g, 1), 1e-4);
    for (size_t i = 0; i < x.size(); ++i) {
      std::vector<double> more = x, less = x;
      more[i] += 1e-4;
      less[i] -= 1e-4;
      EXPECT_NEAR(got[i], (value(more, g, weight) - value(less, g, weight)) / 2e-4, 1e-4);
    }
  }
}

// As in the real library: channels are multiples of 16 bytes, and images are channels last.
TEST_F(BatchNormLibraryTest, OtherChannelsAreRefused) {
  for (const auto& [type, channels] : {std::pair{dnn::Type::kFloat32, 6}, {dnn::Type::kFloat16, 4}}) {
    BatchNormProblem odd = problem(false, true);
    odd.type = type;
    odd.sizes[1] = channels;
    prepare(odd);
    EXPECT_EQ(library->state(*prepared), DeferredPlanState::kRefused);
    EXPECT_EQ(library->status(*prepared).code(), ErrorCode::kUnsupported) << library->status(*prepared).message();
  }
}

TEST_F(BatchNormLibraryTest, ADeterministicProblemIsNeverTimed) {
  BatchNormProblem same = problem(true, false);
  same.tune = false;
  same.deterministic = true;
  prepare(same);
  EXPECT_EQ(prepared->plans(), 1u);
  for (const Part part : {kInput, kGrad, kScale, kMean, kInverseStd}) put(part, numbers(kImage, 9));
  run();
  EXPECT_EQ(driver->calls()["cudnnBackendExecute"], 1u);
}

}  // namespace
}  // namespace torch_remote::worker::cuda
