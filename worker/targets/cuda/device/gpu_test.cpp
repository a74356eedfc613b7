// GPUs as machines present them: numbers, UUIDs, compute modes, and virtual GPUs without memory pools.
#include "worker/targets/cuda/device/gpu.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "tests/emulated_gpu/compile.h"
#include "tests/emulated_gpu/emulated_driver.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/device/gpu_list.h"

namespace torch_remote::worker::cuda {
namespace {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("CUDA_VISIBLE_DEVICES"); }
  void start(const emulated::Options& options) { driver = std::make_unique<emulated::EmulatedDriver>(options); }
  std::string find(std::string_view id, int* ordinal) {
    *ordinal = -1;
    return find_gpu(driver->driver(), id, ordinal).message();
  }
  Status open(int ordinal = 0) {
    std::shared_ptr<Gpu> gpu;
    return Gpu::open(driver->driver(), ordinal, &gpu);
  }
  std::unique_ptr<emulated::EmulatedDriver> driver;
};

TEST_F(GpuTest, IsFoundByItsNumberOrUuid) {
  start({.devices = 3});
  std::vector<ListedGpu> gpus;
  ASSERT_TRUE(list_gpus(driver->driver(), &gpus).ok());
  ASSERT_EQ(gpus.size(), 3u);
  EXPECT_EQ(gpus[1].uuid, "GPU-e1e1e1e1-e1e1-e1e1-e1e1-e1e1e1e1e1e1");
  for (const ListedGpu& gpu : gpus) {
    int ordinal = 0;
    EXPECT_EQ(find(std::to_string(gpu.ordinal), &ordinal), "");
    EXPECT_EQ(ordinal, gpu.ordinal);
    EXPECT_EQ(find(gpu.uuid, &ordinal), "");
    EXPECT_EQ(ordinal, gpu.ordinal);
    EXPECT_EQ(find(gpu.uuid.substr(0, 9), &ordinal), "");  // nvidia-smi and CUDA accept the beginning, too.
    EXPECT_EQ(ordinal, gpu.ordinal);
  }
  EXPECT_EQ(driver->leaks(), "");  // No context was made.
}

TEST_F(GpuTest, ErrorListsTheGpusThatThereAre) {
  start({.devices = 2});
  int ordinal = 0;
  EXPECT_NE(find("3", &ordinal).find("there is no GPU 3: the driver shows cuda:0 GPU in software 0 (GPU-e0e0e0e0-"),
            std::string::npos)
      << find("3", &ordinal);
  EXPECT_NE(find("GPU-0123", &ordinal).find("there is no GPU GPU-0123"), std::string::npos);
  EXPECT_NE(find("GPU-e", &ordinal).find("there is more than one GPU GPU-e"), std::string::npos);
  EXPECT_EQ(find("3", &ordinal).find("CUDA_VISIBLE_DEVICES"), std::string::npos);
  ASSERT_EQ(setenv("CUDA_VISIBLE_DEVICES", "1,0", 1), 0);
  EXPECT_NE(find("3", &ordinal).find("(CUDA_VISIBLE_DEVICES=1,0 may hide some)"), std::string::npos);
  EXPECT_NE(open(3).message().find("the driver shows 2 (CUDA_VISIBLE_DEVICES=1,0 may hide some)"), std::string::npos);
  EXPECT_EQ(ordinal, -1);
}

TEST_F(GpuTest, IdsLookLikeUuids) {
  for (const char* const id : {"GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8", "MIG-8932f937"}) {
    EXPECT_TRUE(is_gpu_id(id)) << id;
  }
  for (const char* const id : {"", "0", "GPU", "GPU-", "GPU--1", "gpu-8932", "GPU-x", "GPU-8932:1", "A100"}) {
    EXPECT_FALSE(is_gpu_id(id)) << id;
  }
}

TEST_F(GpuTest, ComputeModeIsNamed) {
  start({.compute_mode = ComputeMode::kProhibited});
  EXPECT_EQ(open().code(), ErrorCode::kUnsupported);
  EXPECT_NE(open().message().find("compute mode PROHIBITED"), std::string::npos) << open().message();
  driver = nullptr;
  start({.compute_mode = ComputeMode::kExclusiveProcess});
  EXPECT_TRUE(open().ok());
  driver = nullptr;
  start({.compute_mode = ComputeMode::kExclusiveProcess, .used_elsewhere = true});
  const std::string error = open().message();
  for (const char* const part : {"compute mode EXCLUSIVE_PROCESS", "another process",
                                 "nvidia-smi -i GPU-e0e0e0e0-e0e0-e0e0-e0e0-e0e0e0e0e0e0 -c DEFAULT"}) {
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
  }
}

TEST_F(GpuTest, NeedsSm75) {
  start({.sm = 75});
  EXPECT_TRUE(open().ok());
  driver = nullptr;
  start({.sm = 70});
  EXPECT_NE(open().message().find("is too old; the worker needs sm_75"), std::string::npos) << open().message();
}

// Some virtual GPUs have no memory pools. cuda_device_without_pools_test runs all tests of devices on such a GPU.
TEST_F(GpuTest, WithoutMemoryPoolsIsUsed) {
  start({.memory_pools = false});
  std::unique_ptr<CudaDevice> device;
  const Status status = CudaDevice::open(
      {.driver = driver->driver(), .limit = 256 << 20, .kernels = {.compile = emulated::compile}}, &device);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int i = 0; i < 3; ++i) {
    tr_buffer buffer{};
    ASSERT_TRUE(device->memory().allocate(uint64_t{40} << 20, &buffer));
    device->fill(buffer.data, std::byte{1}, 1000);
    buffer.release(buffer.owner);
    EXPECT_TRUE(device->wait(device->record()).ok());
  }
  device = nullptr;
  EXPECT_EQ(driver->leaks(), "");
  EXPECT_FALSE(driver->calls().contains("cuMemPoolCreate"));
  EXPECT_FALSE(driver->calls().contains("cuMemAllocFromPoolAsync"));
  EXPECT_TRUE(driver->calls().contains("cuMemAlloc"));
}

}  // namespace
}  // namespace torch_remote::worker::cuda
