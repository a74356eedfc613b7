// Kernels in memory, on disk and compiled by background threads; on the GPU emulator.
#include "worker/targets/cuda/device/kernel_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>

#include "tests/emulated_gpu/compile.h"
#include "tests/emulated_gpu/emulated_driver.h"
#include "tests/emulated_gpu/fixture.h"
#include "tests/emulated_gpu/image_rules.h"
#include "worker/targets/cuda/device/copy_kernel.h"

namespace torch_remote::worker::cuda {
namespace {

namespace fs = std::filesystem;

// The driver functions that fail instead of being called.
bool load_fails = false, function_fails = false;

const size_t kStepBytes = std::strlen(emulated::kStepKernel) + 1;

class KernelStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options.folder = fs::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(options.folder);
    options.version = "1";
    options.compile = [this](std::string_view text, uint32_t sm, CompiledKernel* compiled) {
      ++compiles;
      return emulated::compile(text, sm, compiled);
    };
    open({});
  }
  void open(const emulated::Options& given) {
    gpu = nullptr;
    driver = nullptr;
    driver = std::make_unique<emulated::EmulatedDriver>(given);
    static Driver working;
    working = driver->driver();
    Driver failing = working;
    failing.module_load_data_ex = [](auto... arguments) {
      return load_fails ? Result::kOutOfMemory : working.module_load_data_ex(arguments...);
    };
    failing.module_get_function = [](auto... arguments) {
      return function_fails ? Result::kOutOfMemory : working.module_get_function(arguments...);
    };
    ASSERT_TRUE(Gpu::open(failing, 0, &gpu).ok());
  }
  void TearDown() override {
    load_fails = function_fails = false;
    gpu = nullptr;
    EXPECT_EQ(driver->leaks(), "");
  }
  static codegen::Kernel kernel(ir::DType type) {
    const int64_t sizes[] = {4}, strides[] = {1};
    return make_copy_kernel(
        {.from_type = type, .to_type = type, .sizes = sizes, .from_strides = strides, .to_strides = strides});
  }
  Status get(KernelStore& store, ir::DType type) {
    const LoadedKernel* loaded = nullptr;
    Status status = store.get(kernel(type), &loaded);
    EXPECT_TRUE(!status.ok() || loaded->module != nullptr);
    return status;
  }

  KernelOptions options;
  std::atomic<int> compiles = 0;
  std::unique_ptr<emulated::EmulatedDriver> driver;
  std::shared_ptr<Gpu> gpu;
};

TEST_F(KernelStoreTest, OnesOnDiskAreNotCompiledAgain) {
  for (int i = 0; i < 2; ++i) {
    KernelStore store(gpu, options);
    EXPECT_TRUE(get(store, ir::DType::kFloat32).ok());
    EXPECT_TRUE(get(store, ir::DType::kFloat32).ok());
    EXPECT_EQ(store.compiled(), i == 0 ? 1u : 0u);
  }
  EXPECT_EQ(compiles, 1);
  options.version = "2";  // Stands for another compiler.
  KernelStore store(gpu, options);
  EXPECT_TRUE(get(store, ir::DType::kFloat32).ok());
  EXPECT_EQ(compiles, 2);
}

TEST_F(KernelStoreTest, ADamagedOneIsCompiledAgain) {
  {
    KernelStore store(gpu, options);
    EXPECT_TRUE(get(store, ir::DType::kFloat32).ok());
  }
  const fs::path path = fs::directory_iterator(options.folder)->path();
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(fs::file_size(path) / 2));
  file.put('\x5A');
  file.put('\xA5');
  file.close();
  for (int i = 0; i < 2; ++i) {
    KernelStore store(gpu, options);
    EXPECT_TRUE(get(store, ir::DType::kFloat32).ok());
    EXPECT_EQ(compiles, 2);
  }
}

// Two threads compile while the caller continues; the caller compiles a third kernel itself when it waits for it.
TEST_F(KernelStoreTest, AskingDoesNotWait) {
  std::latch begun(2), go(1);
  options.threads = 2;
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> own = 0;
  options.compile = [&](std::string_view text, uint32_t sm, CompiledKernel* compiled) {
    if (std::this_thread::get_id() == caller) {
      ++own;
    } else {
      begun.count_down();
      go.wait();
    }
    return emulated::compile(text, sm, compiled);
  };
  KernelStore store(gpu, options);
  KernelStore::Request* const first = store.request(kernel(ir::DType::kFloat32));
  KernelStore::Request* const second = store.request(kernel(ir::DType::kFloat64));
  begun.wait();
  EXPECT_EQ(store.request(kernel(ir::DType::kFloat32)), first);
  store.request(kernel(ir::DType::kInt8));
  EXPECT_TRUE(get(store, ir::DType::kInt8).ok());
  EXPECT_EQ(own, 1);
  go.count_down();
  const LoadedKernel* loaded = nullptr;
  EXPECT_TRUE(store.get(*first, &loaded).ok());
  EXPECT_TRUE(store.get(*second, &loaded).ok());
  EXPECT_EQ(own, 1);
  EXPECT_EQ(store.compiled(), 3u);
}

TEST_F(KernelStoreTest, WhatFailsIsTriedAgainButForWhatThereIsNoCodeOf) {
  ErrorCode code = ErrorCode::kInternal;
  options.compile = [&](std::string_view, uint32_t, CompiledKernel*) {
    ++compiles;
    return Status(code, "no");
  };
  KernelStore store(gpu, options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get(store, ir::DType::kFloat32).code(), ErrorCode::kInternal);
  EXPECT_EQ(compiles, 3);
  code = ErrorCode::kUnsupported;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get(store, ir::DType::kFloat64).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(compiles, 4);
}

TEST_F(KernelStoreTest, WhatCouldNotBeLoadedIsLoadedAgain) {
  const std::string before = driver->leaks();  // The GPU's objects; it is open.
  for (bool* const fails : {&load_fails, &function_fails}) {
    {
      KernelStore store(gpu, options);
      *fails = true;
      EXPECT_EQ(get(store, ir::DType::kFloat32).code(), ErrorCode::kOutOfMemory);
      *fails = false;
      const Status status = get(store, ir::DType::kFloat32);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(driver->leaks(), before);
  }
  EXPECT_EQ(compiles, 1);  // Later the kernel is on disk.
}

// A cubin stands for the output of an assembler that is later than the driver. LLVM bitcode stands for PTX.
TEST_F(KernelStoreTest, DriverTranslatesPtxOfRefusedMachineCode) {
  std::vector<std::string> warnings;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  options.assemble = [](std::string_view, uint32_t, std::vector<uint8_t>*) { return Status::internal("unused"); };
  options.compile = [this](std::string_view text, uint32_t sm, CompiledKernel* compiled) {
    ++compiles;
    Status status = emulated::compile(text, sm, compiled);
    compiled->ptx = compiled->image;
    compiled->image = emulated::make_elf(sm, 8, compiled->ptx.data(), compiled->ptx.size());
    return status;
  };
  open({.driver = 13000});
  {
    KernelStore store(gpu, options);
    EXPECT_TRUE(get(store, ir::DType::kFloat32).ok());
    EXPECT_EQ(warnings.size(), 0u);
  }
  open({.driver = 12000});
  for (int i = 0; i < 2; ++i) {
    KernelStore store(gpu, options);
    for (const ir::DType type : {ir::DType::kFloat32, ir::DType::kFloat64}) {
      const Status status = get(store, type);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  EXPECT_EQ(compiles, 3);  // The second store finds the PTX on disk.
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("CUDA_ERROR_INVALID_IMAGE"), std::string::npos) << warnings[0];
}

// Modules that the store did not compile, as machine code and as PTX.
TEST_F(KernelStoreTest, LoadsTheFirstFormThatTheDriverAccepts) {
  const auto elf = [](int abi) { return emulated::make_elf(90, abi, emulated::kStepKernel, kStepBytes); };
  const std::vector<uint8_t> accepted = elf(7), refused = elf(8);
  const std::string ptx = emulated::make_ptx(80, 80, emulated::kStepKernel);
  const std::string later_ptx = emulated::make_ptx(80, 85, emulated::kStepKernel);
  const auto bytes = [](const std::string& text) {
    return std::span(reinterpret_cast<const uint8_t*>(text.c_str()), text.size() + 1);
  };
  int assembled = 0;
  options.assemble = [&](std::string_view text, uint32_t sm, std::vector<uint8_t>* cubin) {
    ++assembled;
    EXPECT_EQ(text, ptx);
    EXPECT_EQ(sm, 90u);
    *cubin = accepted;
    return Status();
  };
  const auto load = [&](std::span<const uint8_t> code, std::span<const uint8_t> text) {
    KernelStore store(gpu, options);
    Module module = nullptr;
    Status status = store.load(code, text, &module);
    const ContextGuard current(*gpu);
    EXPECT_TRUE(!status.ok() || gpu->driver().module_unload(module) == Result::kSuccess);
    return status;
  };
  EXPECT_TRUE(load(accepted, bytes(ptx)).ok());
  EXPECT_EQ(assembled, 0);
  EXPECT_TRUE(load(refused, bytes(ptx)).ok());
  EXPECT_TRUE(load(refused, bytes(ptx)).ok());
  EXPECT_TRUE(load({}, bytes(ptx)).ok());
  EXPECT_EQ(assembled, 1) << "the machine code is not on disk";
  options.assemble = nullptr;
  EXPECT_TRUE(load(refused, bytes(ptx)).ok());
  const std::string error = load(refused, bytes(later_ptx)).message();
  for (const char* const part : {"the driver (CUDA 12.0)", "(sm_90)", "machine code: ", "CUDA_ERROR_INVALID_IMAGE",
                                 "Unsupported .version 8.5", "install a later driver"}) {
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
  }
  EXPECT_FALSE(load({}, {}).ok());
}

// The store can be destroyed while threads compile and while no one has waited for a kernel.
TEST_F(KernelStoreTest, MayGoAtAnyTime) {
  KernelStore store(gpu, options);
  for (const ir::DType type : {ir::DType::kFloat32, ir::DType::kFloat64, ir::DType::kInt8, ir::DType::kInt64}) {
    store.request(kernel(type));
  }
}

}  // namespace
}  // namespace torch_remote::worker::cuda
