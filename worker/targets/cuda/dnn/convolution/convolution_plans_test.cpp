// NVIDIA's cuDNN builds plans for our convolution graphs, for GPUs that are absent: the test describes their
// capabilities to it. Needs cuDNN and cuBLASLt in one folder (TORCH_REMOTE_CUDA_LIB), and no GPU: see docs/build.md.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/emulated_gpu/compile.h"
#include "tests/emulated_gpu/emulated_driver.h"
#include "tests/emulated_gpu/real_cudnn.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/dnn/convolution/convolution_library.h"

namespace torch_remote::worker::cuda {
namespace {

class ConvolutionPlansTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    testing::open_real_cudnn(GetParam());
    if (HasFatalFailure()) return;
    table = testing::without_gpu();
    driver = std::make_unique<emulated::EmulatedDriver>(emulated::Options{});
    Status status = CudaDevice::open(
        {.driver = driver->driver(), .limit = 1 << 28, .kernels = {.compile = emulated::compile}}, &device);
    ASSERT_TRUE(status.ok()) << status.message();
    const ContextGuard current(device->gpu());
    status = ConvolutionLibrary::open(device->shared_gpu(), device->memory(), {.table = &table}, &library);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void TearDown() override {
    library = nullptr;
    device = nullptr;
    testing::close_real_cudnn();
  }

  dnn::Table table;
  std::unique_ptr<emulated::EmulatedDriver> driver;
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<ConvolutionLibrary> library;
};

// batch, channels, size, output channels, kernel, stride, padding, dilation, groups, dims
struct Shape {
  int64_t batch, channels, size, outputs, kernel, stride, padding, dilation, groups, dims;
};
constexpr Shape kShapes[] = {
    {32, 3, 224, 64, 7, 2, 3, 1, 1, 2},   {32, 64, 56, 64, 3, 1, 1, 1, 1, 2}, {32, 256, 14, 512, 1, 2, 0, 1, 1, 2},
    {32, 96, 28, 96, 3, 1, 1, 1, 96, 2},  {8, 64, 32, 64, 3, 1, 2, 2, 1, 2},  {4, 32, 16, 64, 3, 1, 1, 1, 4, 2},
    {2, 16, 12, 32, 3, 1, 1, 1, 1, 3},    {2, 5, 9, 7, 3, 2, 1, 1, 1, 2},     {1, 1, 1, 1, 1, 1, 0, 1, 1, 2},
    {16, 128, 32, 128, 4, 2, 1, 1, 1, 2},
};

TEST_P(ConvolutionPlansTest, PlansWhatModelsHave) {
  const ContextGuard current(device->gpu());
  for (const Shape& shape : kShapes) {
    for (const dnn::Type type : {dnn::Type::kFloat32, dnn::Type::kFloat16, dnn::Type::kBFloat16, dnn::Type::kFloat64}) {
      for (const auto pass :
           {ConvolutionPass::kForward, ConvolutionPass::kBackwardData, ConvolutionPass::kBackwardFilter}) {
        std::string line;
        bool any = false;
        for (const bool last : {false, true}) {
          for (const bool bias : {false, true}) {
            if (bias && pass != ConvolutionPass::kForward) continue;
            ConvolutionProblem problem;
            problem.pass = pass;
            problem.type = type;
            problem.channels_last = last;
            problem.adds_bias = bias;
            const auto dims = static_cast<size_t>(shape.dims);
            const int64_t made =
                (shape.size + 2 * shape.padding - shape.dilation * (shape.kernel - 1) - 1) / shape.stride + 1;
            problem.image = {shape.batch, shape.channels};
            problem.filter = {shape.outputs, shape.channels / shape.groups};
            problem.output = {shape.batch, shape.outputs};
            problem.image.resize(dims + 2, shape.size);
            problem.filter.resize(dims + 2, shape.kernel);
            problem.output.resize(dims + 2, made);
            problem.padding.assign(dims, shape.padding);
            problem.padding_after = problem.padding;
            problem.stride.assign(dims, shape.stride);
            problem.dilation.assign(dims, shape.dilation);
            std::shared_ptr<PreparedConvolution> prepared;
            const Status status = library->prepare(problem, &prepared);
            any = any || (status.ok() && !bias);
            line += std::string(last ? " last" : " first") + (bias ? "+bias " : " ") +
                    (status.ok() ? std::to_string(prepared->plans()) + " plans" : status.message());
            // Any error must say that it is unsupported, not that our graph is invalid.
            EXPECT_TRUE(status.ok() || status.code() == ErrorCode::kUnsupported) << status.message();
          }
        }
        EXPECT_TRUE(any) << line;
        std::printf("sm_%d c%ld k%ld g%ld type %d pass %d:%s\n", GetParam(), shape.channels, shape.kernel, shape.groups,
                    static_cast<int>(type), static_cast<int>(pass), line.c_str());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, ConvolutionPlansTest, ::testing::Values(80, 90));

}  // namespace
}  // namespace torch_remote::worker::cuda
