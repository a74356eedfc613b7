#include "worker/targets/cuda/device/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <thread>

#include "remote/transport/shared_memory.h"
#include "tests/emulated_gpu/compile.h"
#include "tests/emulated_gpu/open.h"
#include "worker/device/testing/conformance.h"

namespace torch_remote::worker::cuda {
namespace {

using emulated::gpus;

std::unique_ptr<CudaDevice> open_device(const Driver& driver, uint64_t limit, int ordinal = 0) {
  std::unique_ptr<CudaDevice> device;
  const Status status = CudaDevice::open({.driver = driver,
                                          .ordinal = ordinal,
                                          .limit = limit,
                                          .kernels = {.compile = emulated::compile},
                                          .slot_bytes = 256 << 10},
                                         &device);
  EXPECT_TRUE(status.ok()) << status.message();
  return device;
}

class OnGpus : public ::testing::Test {
 protected:
  using Bytes = std::vector<std::byte>;

  std::shared_ptr<Bytes> bytes(size_t count, int first) {
    auto made = std::make_shared<Bytes>(count);
    for (size_t i = 0; i < count; ++i) (*made)[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(first));
    return made;
  }
  tr_buffer allocate(Device& device, size_t count) {
    tr_buffer buffer{};
    EXPECT_TRUE(device.memory().allocate(count, &buffer));
    return buffer;
  }
  std::shared_ptr<Bytes> read(Device& device, const void* data, size_t count) {
    auto made = std::make_shared<Bytes>(count);
    const auto size = static_cast<int64_t>(count);
    const int64_t one = 1;
    device.copy_out({data, 1, {&size, 1}, {&one, 1}}, made->data(), made);
    return made;
  }
};

TEST_F(OnGpus, TwoDevicesWorkBesideEachOther) {
  const auto a = open_device(gpus().driver(), 64 << 20, 0), b = open_device(gpus().driver(), 64 << 20, 1);
  EXPECT_EQ(a->description(), "GPU in software 0");
  EXPECT_EQ(b->description(), "GPU in software 1");
  const tr_buffer x = allocate(*a, 1 << 20), y = allocate(*b, 1 << 20);
  for (int i = 0; i < 10; ++i) {
    const auto to_a = bytes(1 << 20, i), to_b = bytes(1 << 20, i + 100);
    a->copy_in(x.data, *to_a, to_a);
    b->copy_in(y.data, *to_b, to_b);
    const auto from_a = read(*a, x.data, 1 << 20), from_b = read(*b, y.data, 1 << 20);
    ASSERT_TRUE(a->wait(a->record()).ok());
    ASSERT_TRUE(b->wait(b->record()).ok());
    EXPECT_EQ(*from_a, *to_a);
    EXPECT_EQ(*from_b, *to_b);
  }
  x.release(x.owner);
  y.release(y.owner);
}

TEST_F(OnGpus, ThereIsNoThirdOne) {
  std::unique_ptr<CudaDevice> device;
  const Status status =
      CudaDevice::open({.driver = gpus().driver(), .ordinal = 2, .kernels = {.compile = emulated::compile}}, &device);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("there is no GPU 2: the driver shows 2"), std::string::npos) << status.message();
}

TEST_F(OnGpus, GivesEverythingBack) {
  EXPECT_EQ(gpus().leaks(), "");
  tr_buffer kept{};
  {
    const auto device = open_device(gpus().driver(), 64 << 20);
    kept = allocate(*device, 1000);
    const auto given = bytes(1 << 20, 1);
    const tr_buffer other = allocate(*device, 1 << 20);
    device->copy_in(other.data, *given, given);
    other.release(other.owner);
  }
  EXPECT_NE(gpus().leaks(), "");  // The memory that `kept` still owns.
  kept.release(kept.owner);
  EXPECT_EQ(gpus().leaks(), "");
  EXPECT_EQ(gpus().allocated(), 0u);
}

// copy_in and copy_out return at once, however large and slow the copies are.
TEST_F(OnGpus, CopiesAreQueued) {
  const auto device = open_device(gpus().driver(), 64 << 20);
  const tr_buffer x = allocate(*device, 4 << 20);
  const auto given = bytes(4 << 20, 1);
  device->copy_in(x.data, *given, given);  // The first copy allocates the staging memory.
  ASSERT_TRUE(device->wait(device->record()).ok());
  gpus().slow_down(std::chrono::milliseconds(2));
  const auto began = std::chrono::steady_clock::now();
  device->copy_in(x.data, *given, given);
  const auto got = read(*device, x.data, 4 << 20);
  const Ticket ticket = device->record();
  EXPECT_FALSE(device->done(ticket));
  // The copies themselves take hundreds.
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(100));
  ASSERT_TRUE(device->wait(ticket).ok());
  gpus().slow_down(std::chrono::microseconds(0));
  EXPECT_EQ(*got, *given);
  x.release(x.owner);
}

using Calls = std::map<std::string, uint64_t>;

// The number of driver calls since `before`, without polling and changes of the current context.
Calls calls_since(const Calls& before) {
  Calls calls;
  for (const auto& [name, count] : gpus().calls()) {
    const auto found = before.find(name);
    const uint64_t made = count - (found == before.end() ? 0 : found->second);
    const bool polls = name == "cuEventQuery" || name == "cuEventSynchronize" || name.starts_with("cuCtx");
    if (made != 0 && !polls) calls[name] = made;
  }
  return calls;
}

TEST_F(OnGpus, ASmallReadIsOneCopyAndOneEvent) {
  const auto device = open_device(gpus().driver(), 64 << 20);
  for (const size_t count : {size_t{4}, SmallReads::kMaxBytes}) {
    const tr_buffer x = allocate(*device, count);
    const auto given = bytes(count, 1);
    for (int round = 0; round < 2; ++round) {
      device->copy_in(x.data, *given, given);
      ASSERT_TRUE(device->wait(device->record()).ok());
      const Calls before = gpus().calls();
      const auto got = read(*device, x.data, count);
      ASSERT_TRUE(device->wait(device->record()).ok());
      EXPECT_EQ(*got, *given);
      if (round == 0) continue;
      EXPECT_EQ(calls_since(before), (Calls{{"cuEventRecord", 1}, {"cuMemcpyDtoHAsync", 1}}));
    }
    x.release(x.owner);
  }
}

// A transposed view of few bytes is packed in GPU memory first.
TEST_F(OnGpus, ASmallStridedReadIsOneKernelMore) {
  const auto device = open_device(gpus().driver(), 64 << 20);
  const tr_buffer x = allocate(*device, 32);
  const auto given = bytes(32, 1);
  device->copy_in(x.data, *given, given);
  const std::vector<int64_t> sizes = {4, 8}, strides = {1, 4};
  for (int round = 0; round < 2; ++round) {
    const Calls before = gpus().calls();
    const auto got = std::make_shared<Bytes>(32);
    device->copy_out({x.data, 1, sizes, strides}, got->data(), got);
    ASSERT_TRUE(device->wait(device->record()).ok());
    for (size_t i = 0; i < 32; ++i) ASSERT_EQ((*got)[i], (*given)[i / 8 + i % 8 * 4]);
    if (round == 0) continue;
    EXPECT_EQ(calls_since(before), (Calls{{"cuEventRecord", 1}, {"cuLaunchKernel", 1}, {"cuMemcpyDtoHAsync", 1}}));
  }
  x.release(x.owner);
}

// More reads than the pinned ring holds; what it cannot hold uses staging memory. Each read sees what was written
// before it, and not what was written after it.
TEST_F(OnGpus, ManySmallReadsAreInFlight) {
  const auto device = open_device(gpus().driver(), 64 << 20);
  constexpr size_t kCount = 40'000;
  const tr_buffer x = allocate(*device, kCount);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Bytes>> got;
    const int reads = 2 * static_cast<int>(SmallReads::kRingBytes / kCount);
    const Calls before = gpus().calls();
    for (int i = 0; i < reads; ++i) {
      device->fill(x.data, static_cast<std::byte>(i), kCount);
      got.push_back(read(*device, x.data, kCount));
    }
    EXPECT_NE(calls_since(before)["cuLaunchHostFunc"], 0u);
    device->fill(x.data, std::byte{255}, kCount);
    ASSERT_TRUE(device->wait(device->record()).ok());
    for (int i = 0; i < reads; ++i) ASSERT_EQ(*got[i], Bytes(kCount, static_cast<std::byte>(i))) << i;
  }
  x.release(x.owner);
}

TEST_F(OnGpus, SmallReadsNeedNoPinnedMemory) {
  Driver poor = gpus().driver();
  static Driver real;
  real = poor;
  poor.mem_host_alloc = [](void** address, size_t bytes, unsigned flags) {
    return bytes == SmallReads::kRingBytes ? Result::kOutOfMemory : real.mem_host_alloc(address, bytes, flags);
  };
  const auto device = open_device(poor, 64 << 20);
  const tr_buffer x = allocate(*device, 100);
  const auto given = bytes(100, 1);
  device->copy_in(x.data, *given, given);
  const auto got = read(*device, x.data, 100);
  ASSERT_TRUE(device->wait(device->record()).ok());
  EXPECT_EQ(*got, *given);
  x.release(x.owner);
}

// When a ticket is done, the bytes of the reads before it are there, whichever thread polled.
TEST_F(OnGpus, ANotifiedReadIsThere) {
  const auto device = open_device(gpus().driver(), 64 << 20);
  const tr_buffer x = allocate(*device, 100);
  const auto given = bytes(100, 1);
  device->copy_in(x.data, *given, given);
  const auto got = read(*device, x.data, 100);
  std::atomic<bool> told = false;
  device->notify(device->record(), [&] {
    EXPECT_EQ(*got, *given);
    told = true;
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!told && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(told);
  x.release(x.owner);
}

// The bytes of a read that a lost device never copied are not written, even if its memory is gone.
TEST_F(OnGpus, ALostDeviceFinishesNoReads) {
  auto device = open_device(gpus().driver(), 64 << 20);
  const tr_buffer x = allocate(*device, 100);
  device->fill(x.data, std::byte{1}, 100);
  ASSERT_TRUE(device->wait(device->record()).ok());
  gpus().lose_device(0, 1);
  const auto got = read(*device, x.data, 100);
  EXPECT_EQ(device->wait(device->record()).code(), ErrorCode::kLost);
  EXPECT_EQ(*got, Bytes(100));
  x.release(x.owner);
}

// Copies 1 MiB between a segment and the device, in both directions. Returns the driver calls.
Calls copy_through(CudaDevice& device, const std::shared_ptr<remote::SharedSegment>& segment, void* memory, int value) {
  const std::span<std::byte> all(segment->data(), segment->size());
  std::ranges::fill(all, static_cast<std::byte>(value));
  const Calls before = gpus().calls();
  device.copy_in(memory, all, segment);
  EXPECT_TRUE(device.wait(device.record()).ok());
  std::ranges::fill(all, std::byte{0});
  const auto size = static_cast<int64_t>(all.size());
  const int64_t one = 1;
  device.copy_out({memory, 1, {&size, 1}, {&one, 1}}, all.data(), segment);
  EXPECT_TRUE(device.wait(device.record()).ok());
  EXPECT_EQ(std::ranges::count(all, static_cast<std::byte>(value)), size);
  return calls_since(before);
}

// The second use of a segment registers it; then no host function copies.
TEST_F(OnGpus, SharedMemoryIsRegisteredOnce) {
  const auto device = open_device(gpus().driver(), 64 << 20);
  const tr_buffer x = allocate(*device, 1 << 20);
  const Calls before = gpus().calls();
  auto segment = remote::SharedSegment::create(1 << 20, remote::MemoryAccess::kWritable);
  ASSERT_NE(segment, nullptr);
  EXPECT_EQ(copy_through(*device, segment, x.data, 1)["cuLaunchHostFunc"], 4u);  // The first use, in 4 slots.
  for (int round = 2; round < 5; ++round) {
    EXPECT_FALSE(copy_through(*device, segment, x.data, round).contains("cuLaunchHostFunc"));
  }
  EXPECT_EQ(calls_since(before)["cuMemHostRegister"], 1u);
  EXPECT_EQ(calls_since(before)["cuMemHostUnregister"], 0u);
  segment = nullptr;
  EXPECT_EQ(calls_since(before)["cuMemHostUnregister"], 1u);
  x.release(x.owner);
}

// A segment may outlive the device that registered it.
TEST_F(OnGpus, ASegmentOutlivesTheDevice) {
  const std::string before = gpus().leaks();  // Lost devices leave pinned memory.
  auto segment = remote::SharedSegment::create(1 << 20, remote::MemoryAccess::kWritable);
  ASSERT_NE(segment, nullptr);
  for (int round = 0; round < 2; ++round) {
    const auto device = open_device(gpus().driver(), 64 << 20);
    const tr_buffer x = allocate(*device, 1 << 20);
    for (int i = 1; i < 4; ++i) copy_through(*device, segment, x.data, i);
    x.release(x.owner);
  }
  segment = nullptr;
  EXPECT_EQ(gpus().leaks(), before);
}

TEST_F(OnGpus, ADriverThatRegistersNothingIsNoError) {
  Driver refusing = gpus().driver();
  refusing.mem_host_register = [](void*, size_t, unsigned) { return Result::kNotSupported; };
  const auto device = open_device(refusing, 64 << 20);
  const tr_buffer x = allocate(*device, 1 << 20);
  const auto segment = remote::SharedSegment::create(1 << 20, remote::MemoryAccess::kWritable);
  ASSERT_NE(segment, nullptr);
  for (int round = 1; round < 4; ++round) {
    EXPECT_TRUE(copy_through(*device, segment, x.data, round).contains("cuLaunchHostFunc"));
  }
  x.release(x.owner);
}

TEST_F(OnGpus, MemoryThatIsNotThereFailsOneAllocation) {
  const auto device = open_device(gpus().driver(), uint64_t{1} << 40);  // More than the GPU has.
  const tr_buffer x = allocate(*device, 1000);
  tr_buffer none{};
  EXPECT_FALSE(device->memory().allocate(uint64_t{9} << 30, &none));
  gpus().fail_allocation(1);
  const tr_buffer y = allocate(*device, 40 << 20);  // Succeeds after the pool gave memory back.
  EXPECT_EQ(device->memory().stats().num_ooms, 1u);
  const auto given = bytes(1000, 5);
  device->copy_in(x.data, *given, given);
  const auto got = read(*device, x.data, 1000);
  ASSERT_TRUE(device->wait(device->record()).ok());
  EXPECT_EQ(*got, *given);
  x.release(x.owner);
  y.release(y.owner);
}

TEST_F(OnGpus, ALostDeviceSaysSoAndNobodyWaitsForEver) {
  auto device = open_device(gpus().driver(), 64 << 20);
  const tr_buffer x = allocate(*device, 1 << 20);
  device->gpu().set_current_op("aten::relu");
  gpus().lose_device(0, 5);
  const auto given = bytes(1 << 20, 1);
  std::weak_ptr<Bytes> retained = given;
  device->copy_in(x.data, *given, given);
  device->fill(x.data, std::byte{1}, 1 << 20);
  std::atomic<bool> told = false;
  const Ticket ticket = device->record();
  device->notify(ticket, [&] { told = true; });
  const Status status = device->wait(ticket);
  EXPECT_EQ(status.code(), ErrorCode::kLost);
  EXPECT_NE(status.message().find("'aten::relu' was queued last"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("ECC"), std::string::npos) << status.message();
  EXPECT_TRUE(device->done(ticket));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!told && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(told);
  device->copy(x.data, x.data, 4);
  EXPECT_EQ(device->wait(device->record()).code(), ErrorCode::kLost);
  tr_buffer none{};
  EXPECT_FALSE(device->memory().allocate(40 << 20, &none));
  x.release(x.owner);
  device = nullptr;
  const auto again = open_device(gpus().driver(), 64 << 20);  // In a new context.
  again->fill(nullptr, std::byte{1}, 0);
  EXPECT_TRUE(again->wait(again->record()).ok());
}

// Every wait for an event matters. With a driver that ignores these waits, some copies return wrong bytes.
TEST_F(OnGpus, WithoutEventsItWouldBeWrong) {
  Driver hasty = gpus().driver();
  hasty.stream_wait_event = [](Stream, Event, unsigned) { return Result::kSuccess; };
  for (const Driver& driver : {gpus().driver(), hasty}) {
    int wrong = 0;
    // Keeps host memory alive for copies that nothing waits for; the device's destructor waits for the last ones.
    std::vector<std::shared_ptr<Bytes>> alive;
    const auto device = open_device(driver, 64 << 20);
    const tr_buffer x = allocate(*device, 3 << 20);
    for (int i = 0; i < 20; ++i) {
      const auto given = bytes(3 << 20, i);
      device->copy_in(x.data, *given, given);
      const auto got = read(*device, x.data, 3 << 20);
      alive.insert(alive.end(), {given, got});
      ASSERT_TRUE(device->wait(device->record()).ok());
      wrong += *got != *given ? 1 : 0;
    }
    (void)driver.ctx_synchronize();
    x.release(x.owner);
    EXPECT_EQ(wrong != 0, driver.stream_wait_event == hasty.stream_wait_event) << wrong;
  }
}

TEST_F(OnGpus, IndexErrorsAreThoseOfTheCpu) {
  EXPECT_EQ(index_error({0, "aten::embedding"}, 7, 3).message(), "index out of range in self");
  EXPECT_EQ(index_error({0, "aten::nll_loss_forward"}, 7, 3).message(), "Target 7 is out of bounds.");
  EXPECT_EQ(index_error({0, "aten::put_"}, 7, 3).message(),
            "out of range: tried to access index 7 on a tensor of 3 elements.");
  EXPECT_EQ(index_error({0, "aten::bernoulli.out"}, 0, 0).exception_type(), "RuntimeError");
  EXPECT_EQ(index_error({0, "aten::gather", 1}, -1, 3).message(),
            "index -1 is out of bounds for dimension 1 with size 3");
  EXPECT_EQ(index_error({0, "aten::gather"}, -1, 3).exception_type(), "IndexError");
  // A kernel that also reports what is no index.
  IndexedOperand operand{0, "aten::embedding"};
  operand.describe = [](int64_t index, int64_t bound) {
    return bound < 0 ? "offset " + std::to_string(index) : std::string();
  };
  EXPECT_EQ(index_error(operand, 7, -1).message(), "offset 7");
  EXPECT_EQ(index_error(operand, 7, -1).exception_type(), "RuntimeError");
  EXPECT_EQ(index_error(operand, 7, 3).message(), "index out of range in self");
}

}  // namespace
}  // namespace torch_remote::worker::cuda

namespace torch_remote::worker::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceConformance,
                         ::testing::Values(DeviceUnderTest{
                             [](uint64_t limit) { return cuda::open_device(cuda::gpus().driver(), limit); },
                             /*has_private_memory=*/true}));

}  // namespace
}  // namespace torch_remote::worker::testing
