#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "tests/emulated_gpu/emulated_driver.h"

namespace torch_remote::worker::cuda {

inline void PrintTo(Result result, std::ostream* stream) { *stream << "CUresult " << static_cast<int>(result); }

}  // namespace torch_remote::worker::cuda

namespace torch_remote::worker::cuda::emulated {

#define EXPECT_OK(call) EXPECT_EQ(call, Result::kSuccess)
#define ASSERT_OK(call) ASSERT_EQ(call, Result::kSuccess)

// A kernel: x[i] = x[i] * factor + 1 for i < n.
inline constexpr const char* kStepKernel = R"(
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()

@scale = addrspace(1) externally_initialized global i32 7, align 4

define void @step(ptr %x, i32 %factor, i64 %n) {
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %threads = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %first = mul i32 %block, %threads
  %i = add i32 %first, %thread
  %place = zext i32 %i to i64
  %inside = icmp ult i64 %place, %n
  br i1 %inside, label %do, label %end
do:
  %address = getelementptr i32, ptr %x, i64 %place
  %old = load i32, ptr %address, align 4
  %scaled = mul i32 %old, %factor
  %new = add i32 %scaled, 1
  store i32 %new, ptr %address, align 4
  br label %end
end:
  ret void
}

!nvvm.annotations = !{!0}
!0 = !{ptr @step, !"kernel", i32 1}
)";

// A driver, a current context of device 0, a pool and two streams.
class EmulatedDriverTest : public ::testing::Test {
 protected:
  using Ints = std::vector<int32_t>;

  void SetUp() override { start({.devices = 2}); }
  void TearDown() override {
    if (!emulated) return;
    stop();
    EXPECT_EQ(emulated->leaks(), "");
  }

  void start(const Options& options) {
    emulated = nullptr;
    emulated = std::make_unique<EmulatedDriver>(options);
    d = emulated->driver();
    ASSERT_OK(d.primary_ctx_retain(&context, 0));
    ASSERT_OK(d.ctx_set_current(context));
    const MemoryPoolProperties properties;
    ASSERT_OK(d.mem_pool_create(&pool, &properties));
    ASSERT_OK(d.stream_create(&first, kStreamNonBlocking, 0));
    ASSERT_OK(d.stream_create(&second, kStreamNonBlocking, 0));
  }
  // Releases the context, and with it all of its objects except graphs and pinned memory.
  void stop() {
    if (context == nullptr) return;
    EXPECT_OK(d.primary_ctx_release(0));
    EXPECT_OK(d.ctx_set_current(nullptr));
    context = nullptr;
  }

  DevicePointer allocate(size_t bytes, Stream stream) {
    DevicePointer address = 0;
    EXPECT_OK(d.mem_alloc_from_pool_async(&address, bytes, pool, stream));
    return address;
  }
  DevicePointer upload(const Ints& values, Stream stream) {
    const DevicePointer address = allocate(values.size() * 4, stream);
    EXPECT_OK(d.memcpy_htod_async(address, values.data(), values.size() * 4, stream));
    EXPECT_OK(d.stream_synchronize(stream));
    return address;
  }
  Ints download(DevicePointer address, size_t count, Stream stream) {
    Ints values(count);
    EXPECT_OK(d.memcpy_dtoh_async(values.data(), address, count * 4, stream));
    EXPECT_OK(d.stream_synchronize(stream));
    return values;
  }
  Function load(const char* text = kStepKernel, const char* name = "step") {
    Module module = nullptr;
    Function function = nullptr;
    EXPECT_OK(d.module_load_data_ex(&module, text, 0, nullptr, nullptr));
    EXPECT_OK(d.module_get_function(&function, module, name));
    return function;
  }
  Result launch(Function function, DevicePointer x, int32_t factor, int64_t n, Stream stream, unsigned blocks = 4) {
    void* parameters[] = {&x, &factor, &n};
    return d.launch_kernel(function, blocks, 1, 1, 64, 1, 1, 0, stream, parameters, nullptr);
  }

  std::unique_ptr<EmulatedDriver> emulated;
  Driver d;
  Context context = nullptr;
  MemoryPool pool = nullptr;
  Stream first = nullptr, second = nullptr;
};

}  // namespace torch_remote::worker::cuda::emulated
