#include "worker/targets/cuda/device/driver.h"

#include <gtest/gtest.h>

namespace torch_remote::worker::cuda {
namespace {

std::string error_of(const std::string& library, Driver* driver) {
  const Status status = open_driver(library, driver);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(driver->init, nullptr);
  EXPECT_NE(status.message().find("apt install nvidia-driver"), std::string::npos) << status.message();
  return status.message();
}

TEST(OpenDriver, SaysWhatToInstallWhereThereIsNone) {
  Driver driver;
  const std::string error = error_of("libcuda_that_nobody_has.so.1", &driver);
  EXPECT_NE(error.find("libcuda_that_nobody_has.so.1"), std::string::npos) << error;
}

TEST(OpenDriver, RefusesAnotherLibrary) {
  Driver driver;
  const std::string error = error_of("libdl.so.2", &driver);
  EXPECT_NE(error.find("libdl.so.2 is not NVIDIA's driver"), std::string::npos) << error;
}

TEST(OpenDriver, NamesTheVersionOfAnOldOne) {
  Driver driver;
  ASSERT_EQ(setenv("FAKE_DRIVER_VERSION", "11080", 1), 0);
  const std::string error = error_of("tests/emulated_gpu/libfake_driver.so", &driver);
  EXPECT_NE(error.find("CUDA 11.8, but CUDA 12.0 is required"), std::string::npos) << error;
}

TEST(OpenDriver, NamesFunctionsThatAreMissing) {
  Driver driver;
  ASSERT_EQ(setenv("FAKE_DRIVER_VERSION", "12040", 1), 0);
  ASSERT_EQ(setenv("FAKE_DRIVER_LACKS", "cuGraphLaunch", 1), 0);
  const std::string error = error_of("tests/emulated_gpu/libfake_driver.so", &driver);
  EXPECT_NE(error.find("has no cuGraphLaunch;"), std::string::npos) << error;
}

TEST(OpenDriver, SaysThatThereIsNoGpu) {
  Driver driver;
  ASSERT_EQ(setenv("FAKE_DRIVER_VERSION", "12040", 1), 0);
  ASSERT_EQ(setenv("FAKE_DRIVER_LACKS", "", 1), 0);
  ASSERT_EQ(setenv("FAKE_DRIVER_INIT", "100", 1), 0);
  const std::string error = error_of("tests/emulated_gpu/libfake_driver.so", &driver);
  EXPECT_NE(error.find("finds no GPU"), std::string::npos) << error;
}

TEST(OpenDriver, FillsTheTable) {
  Driver driver;
  ASSERT_EQ(setenv("FAKE_DRIVER_VERSION", "12040", 1), 0);
  ASSERT_EQ(setenv("FAKE_DRIVER_LACKS", "", 1), 0);
  ASSERT_EQ(setenv("FAKE_DRIVER_INIT", "0", 1), 0);
  const Status status = open_driver("tests/emulated_gpu/libfake_driver.so", &driver);
  ASSERT_TRUE(status.ok()) << status.message();
#define TORCH_REMOTE_CUDA_IS_THERE(member, name, parameters) EXPECT_NE(driver.member, nullptr) << #name;
  TORCH_REMOTE_CUDA_FUNCTIONS(TORCH_REMOTE_CUDA_IS_THERE)
#undef TORCH_REMOTE_CUDA_IS_THERE
  int version = 0;
  EXPECT_EQ(driver.driver_get_version(&version), Result::kSuccess);
  EXPECT_EQ(version, 12040);
}

TEST(ToStatus, TellsMemoryAndLossApart) {
  Driver driver;
  driver.get_error_name = [](Result, const char** name) {
    *name = "CUDA_ERROR_SOMETHING";
    return Result::kSuccess;
  };
  driver.get_error_string = [](Result, const char** text) {
    *text = "something";
    return Result::kSuccess;
  };
  EXPECT_TRUE(to_status(driver, Result::kSuccess, "cuMemAlloc").ok());
  const Status memory = to_status(driver, Result::kOutOfMemory, "cuMemAlloc");
  EXPECT_EQ(memory.code(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(memory.exception_type(), "OutOfMemoryError");
  EXPECT_EQ(memory.message(), "cuda: cuMemAlloc: something (CUDA_ERROR_SOMETHING, 2)");
  EXPECT_EQ(to_status(driver, Result::kIllegalAddress, "cuLaunchKernel").code(), ErrorCode::kLost);
  for (const int code : {220, 226, 714, 718, 721, 810, 911}) {
    EXPECT_EQ(to_status(driver, static_cast<Result>(code), "cuLaunchKernel").code(), ErrorCode::kLost) << code;
  }
  EXPECT_EQ(to_status(driver, static_cast<Result>(716 + 4), "cuLaunchKernel").code(), ErrorCode::kInternal);
  EXPECT_EQ(to_status(driver, Result::kInvalidValue, "cuLaunchKernel").code(), ErrorCode::kInternal);
}

}  // namespace
}  // namespace torch_remote::worker::cuda
