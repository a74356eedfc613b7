#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulated_gpu/compile.h"
#include "tests/emulated_gpu/emulated_driver.h"
#include "worker/targets/cuda/device/cuda_device.h"

namespace torch_remote::worker::cuda::emulated {

// An emulated GPU, one of the worker's libraries on it, zeroed memory, and a folder for stored choices that is empty
// when a test begins. After each test there must be no findings and no leaked objects.
template <typename Library, typename Prepared, typename Table>
class LibraryTest : public ::testing::Test {
 protected:
  // `left` lists the leaked objects of the library that fills the table.
  LibraryTest(const Table& functions, std::string (*left)(), uint64_t bytes, bool checked = false)
      : table(functions), left_(left), bytes_(bytes), checked_(checked) {}

  void SetUp() override {
    folder =
        std::filesystem::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder);
    driver = std::make_unique<EmulatedDriver>(Options{.checked = checked_});
    start();
  }
  void TearDown() override {
    stop();
    EXPECT_EQ(driver->findings(), std::vector<std::string>());
    EXPECT_EQ(driver->leaks(), "");
    EXPECT_EQ(left_(), "");
  }
  // `limit`: bytes that the GPU may use.
  void start(uint64_t limit = uint64_t{1} << 28) {
    Status status =
        CudaDevice::open({.driver = driver->driver(), .limit = limit, .kernels = {.compile = compile}}, &device);
    ASSERT_TRUE(status.ok()) << status.message();
    const ContextGuard current(device->gpu());
    typename Library::Options options;
    options.table = &table;
    options.folder = folder;
    status = Library::open(device->shared_gpu(), device->memory(), options, &library);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(device->memory().allocate(bytes_, &memory));
    device->fill(memory.data, std::byte{0}, bytes_);
  }
  void stop() {
    prepared = nullptr;
    library = nullptr;
    if (memory.release != nullptr) memory.release(memory.owner);
    memory = {};
    device = nullptr;
  }
  // The contents of all stored files.
  std::string file() {
    std::string text;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::ifstream stream(entry.path());
      text += {std::istreambuf_iterator<char>(stream), {}};
    }
    return text;
  }

  const Table table;
  std::filesystem::path folder;
  std::unique_ptr<EmulatedDriver> driver;
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Library> library;
  std::shared_ptr<Prepared> prepared;
  tr_buffer memory{};

 private:
  std::string (*const left_)();
  const uint64_t bytes_;
  const bool checked_;
};

}  // namespace torch_remote::worker::cuda::emulated
