#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "tests/emulated_gpu/fixture.h"
#include "tests/emulated_gpu/image_rules.h"

// Tests of contexts, memory, streams, events and kernels. graphs_test.cpp tests graphs.
namespace torch_remote::worker::cuda::emulated {
namespace {

using namespace std::chrono_literals;

TEST_F(EmulatedDriverTest, HasDevices) {
  int count = 0;
  DeviceNumber device = 0;
  ASSERT_OK(d.device_get_count(&count));
  EXPECT_EQ(count, 2);
  EXPECT_OK(d.device_get(&device, 1));
  EXPECT_EQ(d.device_get(&device, 2), Result::kInvalidDevice);
  char name[8] = {};
  EXPECT_OK(d.device_get_name(name, sizeof(name), 0));
  EXPECT_STREQ(name, "GPU in ");
  int value = 0;
  EXPECT_OK(d.device_get_attribute(&value, DeviceAttribute::kWarpSize, 0));
  EXPECT_EQ(value, 32);
  Uuid a{}, b{};
  EXPECT_OK(d.device_get_uuid(&a, 0));
  EXPECT_OK(d.device_get_uuid(&b, 1));
  EXPECT_NE(std::memcmp(&a, &b, sizeof(a)), 0);
  const char* text = nullptr;
  EXPECT_OK(d.get_error_name(Result::kNotReady, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_NOT_READY");
  EXPECT_EQ(d.get_error_name(static_cast<Result>(12345), &text), Result::kInvalidValue);
}

TEST_F(EmulatedDriverTest, ContextsAreCountedAndOfThreads) {
  Context again = nullptr, none = context;
  EXPECT_OK(d.primary_ctx_retain(&again, 0));
  EXPECT_EQ(again, context);
  EXPECT_OK(d.primary_ctx_release(0));
  EXPECT_OK(d.stream_query(first));  // the context is still retained
  std::thread([&] {
    EXPECT_OK(d.ctx_get_current(&none));
    EXPECT_EQ(none, nullptr);
    EXPECT_EQ(d.stream_query(first), Result::kInvalidContext);
    EXPECT_OK(d.ctx_push_current(context));
    EXPECT_OK(d.stream_query(first));
    EXPECT_OK(d.ctx_pop_current(&none));
    EXPECT_EQ(none, context);
    EXPECT_EQ(d.ctx_pop_current(&none), Result::kInvalidContext);
  }).join();
  Context other = nullptr;
  ASSERT_OK(d.primary_ctx_retain(&other, 1));
  ASSERT_OK(d.ctx_push_current(other));
  EXPECT_EQ(d.stream_query(first), Result::kInvalidContext);
  EXPECT_OK(d.ctx_pop_current(nullptr));
  EXPECT_OK(d.primary_ctx_release(1));
  EXPECT_EQ(d.primary_ctx_release(1), Result::kInvalidContext);
  EXPECT_EQ(d.ctx_set_current(other), Result::kInvalidContext);
  const Context before = context;
  stop();
  EXPECT_EQ(d.ctx_push_current(before), Result::kInvalidContext);
}

TEST_F(EmulatedDriverTest, CopiesAndFills) {
  Ints values(1000);
  std::iota(values.begin(), values.end(), 0);
  const DevicePointer a = upload(values, first), b = allocate(4000, first);
  EXPECT_EQ(download(b, 1, first), Ints{-1});  // unwritten memory has bytes 0xFF
  EXPECT_OK(d.memcpy_dtod_async(b, a, 4000, first));
  EXPECT_OK(d.memset_d32_async(b + 40, 77, 2, first));
  EXPECT_OK(d.memset_d8_async(b + 48, 1, 4, first));
  values[10] = values[11] = 77;
  values[12] = 0x01010101;
  EXPECT_EQ(download(b, 1000, first), values);
  EXPECT_EQ(d.memset_d32_async(b + 2, 0, 1, first), Result::kInvalidValue);
  EXPECT_EQ(d.memcpy_dtod_async(b + 4, a, 4000, first), Result::kInvalidValue);  // out of bounds
  EXPECT_EQ(d.memcpy_htod_async(a - 1, values.data(), 4, first), Result::kInvalidValue);
  EXPECT_EQ(d.memcpy_dtoh_async(values.data(), 0, 4, first), Result::kInvalidValue);
  EXPECT_OK(d.memcpy_dtoh_async(values.data(), 0, 0, first));
}

TEST_F(EmulatedDriverTest, NobodyElseCanGetAtItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const DevicePointer a = upload({1, 2, 3}, first);
  EXPECT_OK(d.stream_synchronize(first));
  EXPECT_DEATH(*reinterpret_cast<volatile int*>(a) = 1, "");
  EXPECT_DEATH((void)*reinterpret_cast<volatile int*>(a), "");
}

TEST_F(EmulatedDriverTest, MemoryThatWasFreedIsTold) {
  const DevicePointer a = upload({1, 2, 3}, first);
  EXPECT_EQ(d.mem_free_async(a + 4, first), Result::kInvalidValue);
  EXPECT_OK(d.mem_free_async(a, first));
  EXPECT_EQ(d.mem_free_async(a, first), Result::kInvalidValue);
  EXPECT_EQ(d.mem_free(a), Result::kInvalidValue);
  EXPECT_EQ(d.memset_d8_async(a, 0, 1, first), Result::kInvalidValue);
  DevicePointer b = 0;
  EXPECT_OK(d.mem_alloc(&b, 100));
  EXPECT_EQ(b % 256, 0u);
  EXPECT_EQ(d.mem_free_async(b, first), Result::kInvalidValue);  // not from a pool
  EXPECT_OK(d.mem_free(b));
  EXPECT_EQ(d.mem_free(b), Result::kInvalidValue);
  EXPECT_EQ(d.mem_alloc(&b, 0), Result::kInvalidValue);
  EXPECT_OK(d.stream_synchronize(first));
  EXPECT_EQ(emulated->allocated(), 0u);
}

TEST_F(EmulatedDriverTest, MemoryIsLimited) {
  start({.memory = size_t{1} << 20});
  size_t unused = 0, total = 0;
  const DevicePointer a = allocate(700 << 10, first);
  ASSERT_OK(d.mem_get_info(&unused, &total));
  EXPECT_EQ(total, 1u << 20);
  EXPECT_EQ(unused, 324u << 10);
  uint64_t used = 0;
  EXPECT_OK(d.mem_pool_get_attribute(pool, PoolAttribute::kUsed, &used));
  EXPECT_EQ(used, 700u << 10);
  DevicePointer b = 0;
  EXPECT_EQ(d.mem_alloc_from_pool_async(&b, 400 << 10, pool, first), Result::kOutOfMemory);
  EXPECT_OK(d.mem_free_async(a, first));
  EXPECT_OK(d.stream_synchronize(first));
  EXPECT_OK(d.mem_alloc_from_pool_async(&b, 400 << 10, pool, first));
  EXPECT_OK(d.mem_pool_trim_to(pool, 0));
  EXPECT_OK(d.mem_pool_destroy(pool));
  EXPECT_EQ(d.mem_pool_trim_to(pool, 0), Result::kInvalidValue);
  EXPECT_EQ(d.mem_alloc_from_pool_async(&b, 4, pool, first), Result::kInvalidValue);
}

// Copies read and write host memory when they execute.
TEST_F(EmulatedDriverTest, TheHostsMemoryIsReadLater) {
  int* pinned = nullptr;
  ASSERT_OK(d.mem_host_alloc(reinterpret_cast<void**>(&pinned), 4096, 0));
  const DevicePointer a = allocate(4, first), b = allocate(4, first);
  emulated->slow_down(20ms);
  int pageable = 1;
  *pinned = 1;
  EXPECT_OK(d.memcpy_htod_async(a, pinned, 4, first));
  EXPECT_OK(d.memcpy_htod_async(b, &pageable, 4, first));
  *pinned = pageable = 2;
  EXPECT_OK(d.stream_synchronize(first));
  EXPECT_EQ(download(a, 1, first), Ints{2});
  EXPECT_EQ(download(b, 1, first), Ints{2});
  *pinned = 5;
  EXPECT_OK(d.memcpy_dtoh_async(pinned, b, 4, first));
  EXPECT_EQ(*pinned, 5);
  EXPECT_EQ(d.stream_query(first), Result::kNotReady);
  EXPECT_OK(d.stream_synchronize(first));
  EXPECT_EQ(*pinned, 2);
  EXPECT_OK(d.mem_free_host(pinned));
  EXPECT_EQ(d.mem_free_host(pinned), Result::kInvalidValue);
}

TEST_F(EmulatedDriverTest, HostMemoryIsRegisteredOnce) {
  Ints values(4096, 3);
  EXPECT_OK(d.mem_host_register(values.data(), values.size() * 4, kHostRegisterPortable));
  EXPECT_EQ(d.mem_host_register(values.data() + 100, 4, 0), Result::kHostMemoryAlreadyRegistered);
  EXPECT_EQ(d.mem_host_register(values.data(), 0, 0), Result::kInvalidValue);
  EXPECT_NE(emulated->leaks().find("1 registered region"), std::string::npos) << emulated->leaks();
  EXPECT_OK(d.mem_host_unregister(values.data()));
  EXPECT_EQ(d.mem_host_unregister(values.data()), Result::kHostMemoryNotRegistered);
}

TEST_F(EmulatedDriverTest, EventsTellWhereStreamsAre) {
  Event begin = nullptr, end = nullptr, untimed = nullptr;
  ASSERT_OK(d.event_create(&begin, kEventDefault));
  ASSERT_OK(d.event_create(&end, kEventDefault));
  ASSERT_OK(d.event_create(&untimed, kEventDisableTiming));
  EXPECT_OK(d.event_query(begin));  // never recorded
  float took = 0;
  EXPECT_EQ(d.event_elapsed_time(&took, begin, end), Result::kInvalidHandle);
  emulated->slow_down(5ms);
  EXPECT_OK(d.event_record(begin, first));
  const DevicePointer a = allocate(4, first);
  EXPECT_OK(d.memset_d8_async(a, 0, 4, first));
  EXPECT_OK(d.event_record(end, first));
  EXPECT_OK(d.event_record(untimed, first));
  EXPECT_EQ(d.event_query(end), Result::kNotReady);
  EXPECT_EQ(d.event_elapsed_time(&took, begin, end), Result::kNotReady);
  EXPECT_OK(d.event_synchronize(end));
  EXPECT_OK(d.event_query(end));
  EXPECT_OK(d.event_elapsed_time(&took, begin, end));
  EXPECT_GE(took, 5.f);
  EXPECT_LT(took, 5000.f);
  EXPECT_EQ(d.event_elapsed_time(&took, begin, untimed), Result::kInvalidHandle);
  EXPECT_OK(d.event_destroy(begin));
  EXPECT_EQ(d.event_query(begin), Result::kInvalidHandle);
  EXPECT_EQ(d.event_create(&begin, 64), Result::kInvalidValue);
}

// Copies a value from one stream's work to another's, with or without the event that orders them.
int copied_across(const Driver& d, MemoryPool pool, Stream first, Stream second, bool ordered) {
  DevicePointer a = 0, b = 0;
  EXPECT_OK(d.mem_alloc_from_pool_async(&a, 4, pool, first));
  EXPECT_OK(d.mem_alloc_from_pool_async(&b, 4, pool, second));
  EXPECT_OK(d.memset_d32_async(a, 1, 1, first));
  EXPECT_OK(d.ctx_synchronize());
  Event event = nullptr;
  EXPECT_OK(d.event_create(&event, kEventDisableTiming));
  EXPECT_OK(d.memset_d32_async(a, 2, 1, first));
  EXPECT_OK(d.event_record(event, first));
  EXPECT_TRUE(!ordered || d.stream_wait_event(second, event, 0) == Result::kSuccess);
  EXPECT_OK(d.memcpy_dtod_async(b, a, 4, second));
  int result = 0;
  EXPECT_OK(d.memcpy_dtoh_async(&result, b, 4, second));
  EXPECT_OK(d.stream_synchronize(second));
  EXPECT_OK(d.event_destroy(event));
  return result;
}

// A missing event gives wrong numbers for some seeds. With the event, numbers are always right.
TEST_F(EmulatedDriverTest, MissingEventGivesWrongResults) {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    start({.seed = seed});
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(copied_across(d, pool, first, second, /*ordered=*/true), 2) << seed;
      wrong += copied_across(d, pool, first, second, /*ordered=*/false) != 2 ? 1 : 0;
    }
  }
  EXPECT_GT(wrong, 0);
}

// Memory may be used only after the allocation in its stream's order.
TEST_F(EmulatedDriverTest, MemoryThatIsUsedBeforeItsTimeIsOverwritten) {
  emulated->slow_down(5ms);
  EXPECT_OK(d.memset_d8_async(allocate(4, first), 0, 4, first));
  const DevicePointer a = allocate(4, first);
  EXPECT_OK(d.memset_d32_async(a, 3, 1, second));
  EXPECT_OK(d.ctx_synchronize());
  EXPECT_EQ(download(a, 1, first), Ints{-1});
}

TEST_F(EmulatedDriverTest, HostFunctionsAreDoneInOrderAndMayNotCall) {
  struct Seen {
    const Driver* driver;
    Stream stream;
    int* pinned;
    int value = 0;
    Result result = Result::kSuccess;
  } seen{&d, first, nullptr};
  ASSERT_OK(d.mem_host_alloc(reinterpret_cast<void**>(&seen.pinned), 4, 0));
  const DevicePointer a = upload({7}, first);
  EXPECT_OK(d.memcpy_dtoh_async(seen.pinned, a, 4, first));
  EXPECT_OK(d.launch_host_func(
      first,
      [](void* data) {
        Seen& seen = *static_cast<Seen*>(data);
        seen.value = *seen.pinned;
        seen.result = seen.driver->stream_query(seen.stream);
      },
      &seen));
  EXPECT_OK(d.stream_synchronize(first));
  EXPECT_EQ(seen.value, 7);
  EXPECT_EQ(seen.result, Result::kNotPermitted);
  EXPECT_EQ(d.launch_host_func(first, nullptr, nullptr), Result::kInvalidValue);
  EXPECT_OK(d.mem_free_host(seen.pinned));
}

TEST_F(EmulatedDriverTest, HandlesThatAreGoneOrWrongAreTold) {
  Event event = nullptr;
  Context other = nullptr;
  ASSERT_OK(d.primary_ctx_retain(&other, 1));
  ASSERT_OK(d.ctx_push_current(other));
  ASSERT_OK(d.event_create(&event, kEventDisableTiming));
  ASSERT_OK(d.ctx_pop_current(nullptr));
  EXPECT_EQ(d.event_record(event, first), Result::kInvalidHandle);   // an event of another device
  EXPECT_OK(d.stream_wait_event(first, event, 0));                   // waiting for it is allowed
  EXPECT_EQ(d.stream_synchronize(nullptr), Result::kInvalidHandle);  // the default stream
  EXPECT_OK(d.stream_destroy(second));
  EXPECT_EQ(d.stream_synchronize(second), Result::kInvalidHandle);
  EXPECT_EQ(d.stream_wait_event(second, event, 0), Result::kInvalidHandle);
  EXPECT_EQ(d.event_record(reinterpret_cast<Event>(first), first), Result::kInvalidHandle);
  EXPECT_OK(d.primary_ctx_release(1));
}

TEST_F(EmulatedDriverTest, RunsKernels) {
  const Function step = load();
  const DevicePointer a = upload({1, 2, 3, 4, 5}, first);
  EXPECT_OK(launch(step, a, 10, 4, first));
  EXPECT_EQ(download(a, 5, first), (Ints{11, 21, 31, 41, 5}));
  int value = 0;
  EXPECT_OK(d.func_get_attribute(&value, FunctionAttribute::kMaxThreadsPerBlock, step));
  EXPECT_EQ(value, 1024);
}

// Arguments are copied at the launch.
TEST_F(EmulatedDriverTest, ArgumentsMayGoAfterTheLaunch) {
  const Function step = load();
  DevicePointer a = upload({1}, first);
  emulated->slow_down(10ms);
  DevicePointer x = a;
  int32_t factor = 3;
  int64_t n = 1;
  void* parameters[] = {&x, &factor, &n};
  EXPECT_OK(d.launch_kernel(step, 1, 1, 1, 1, 1, 1, 0, first, parameters, nullptr));
  x = 0;
  factor = 100;
  EXPECT_EQ(download(a, 1, first), Ints{4});
}

TEST_F(EmulatedDriverTest, LaunchesAreChecked) {
  const Function step = load();
  const DevicePointer a = upload({1}, first);
  DevicePointer x = a;
  int32_t factor = 1;
  int64_t n = 1;
  void* parameters[] = {&x, &factor, &n};
  const auto with = [&](unsigned grid, unsigned block, unsigned shared, void** p, Function f) {
    return d.launch_kernel(f, grid, 1, 1, block, 1, 1, shared, first, p, nullptr);
  };
  EXPECT_EQ(with(0, 32, 0, parameters, step), Result::kInvalidValue);
  EXPECT_EQ(with(1, 0, 0, parameters, step), Result::kInvalidValue);
  EXPECT_EQ(with(1, 1025, 0, parameters, step), Result::kInvalidValue);
  EXPECT_EQ(with(1, 32, 64 << 10, parameters, step), Result::kInvalidValue);
  EXPECT_EQ(with(1, 32, 0, nullptr, step), Result::kInvalidValue);
  EXPECT_EQ(with(1, 32, 0, parameters, nullptr), Result::kInvalidHandle);
  EXPECT_OK(d.func_set_attribute(step, FunctionAttribute::kMaxDynamicShared, 64 << 10));
  EXPECT_EQ(d.func_set_attribute(step, FunctionAttribute::kMaxDynamicShared, 300 << 10), Result::kInvalidValue);
  EXPECT_OK(with(1, 32, 64 << 10, parameters, step));
  EXPECT_OK(d.stream_synchronize(first));
}

TEST_F(EmulatedDriverTest, ModulesAreChecked) {
  Module module = nullptr;
  Function function = nullptr;
  char log[200] = {};
  JitOption options[] = {JitOption::kErrorLog, JitOption::kErrorLogBytes};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
  EXPECT_EQ(d.module_load_data_ex(&module, "define nonsense", 2, options, values), Result::kInvalidImage);
  EXPECT_NE(std::string(log), "");
  EXPECT_EQ(d.module_load_data_ex(&module,
                                  "\x7f"
                                  "ELF",
                                  0, nullptr, nullptr),
            Result::kInvalidImage);
  ASSERT_OK(d.module_load_data_ex(&module, kStepKernel, 0, nullptr, nullptr));
  EXPECT_EQ(d.module_get_function(&function, module, "stride"), Result::kNotFound);
  ASSERT_OK(d.module_get_function(&function, module, "step"));
  DevicePointer scale = 0;
  size_t bytes = 0;
  EXPECT_OK(d.module_get_global(&scale, &bytes, module, "scale"));
  EXPECT_EQ(bytes, 4u);
  EXPECT_EQ(d.module_get_global(&scale, &bytes, module, "shape"), Result::kNotFound);
  EXPECT_OK(d.module_unload(module));
  EXPECT_EQ(d.module_unload(module), Result::kInvalidHandle);
  EXPECT_EQ(launch(function, scale, 1, 1, first), Result::kInvalidHandle);
}

// The driver's version decides which machine code and PTX it loads.
TEST_F(EmulatedDriverTest, ImagesAreCheckedAsByADriverOfThisVersion) {
  struct Expectation {
    int driver;
    uint32_t sm;
    std::vector<uint8_t> image;
    Result result;
  };
  const size_t bytes = std::strlen(kStepKernel) + 1;
  const auto elf = [&](uint32_t sm, int abi) { return make_elf(sm, abi, kStepKernel, bytes); };
  const auto ptx = [](uint32_t sm, int version) {
    const std::string text = make_ptx(sm, version, kStepKernel);
    return std::vector<uint8_t>(text.c_str(), text.c_str() + text.size() + 1);
  };
  const Expectation expectations[] = {
      {12000, 90, elf(90, 7), Result::kSuccess},        {12000, 86, elf(80, 7), Result::kSuccess},
      {12000, 90, elf(80, 7), Result::kNoBinaryForGpu}, {12000, 80, elf(86, 7), Result::kNoBinaryForGpu},
      {12000, 90, elf(90, 8), Result::kInvalidImage},   {12090, 90, elf(90, 8), Result::kInvalidImage},
      {13000, 90, elf(90, 8), Result::kSuccess},        {12080, 100, elf(100, 8), Result::kSuccess},
      {12000, 90, ptx(80, 80), Result::kSuccess},       {12000, 90, ptx(80, 81), Result::kUnsupportedPtxVersion},
      {12040, 90, ptx(80, 84), Result::kSuccess},       {12040, 90, ptx(80, 85), Result::kUnsupportedPtxVersion},
      {12060, 90, ptx(80, 85), Result::kSuccess},       {13000, 90, ptx(80, 90), Result::kSuccess},
      {12000, 80, ptx(90, 80), Result::kInvalidPtx},
  };
  for (const Expectation& e : expectations) {
    start({.driver = e.driver, .sm = e.sm});
    int version = 0;
    EXPECT_OK(d.driver_get_version(&version));
    EXPECT_EQ(version, e.driver);
    Module module = nullptr;
    char log[200] = {};
    JitOption options[] = {JitOption::kErrorLog, JitOption::kErrorLogBytes};
    void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
    EXPECT_EQ(d.module_load_data_ex(&module, e.image.data(), 2, options, values), e.result)
        << "driver " << e.driver << ", sm_" << e.sm << ": " << log;
    if (e.result == Result::kUnsupportedPtxVersion) {
      EXPECT_NE(std::string(log).find("Unsupported .version"), std::string::npos) << log;
    }
  }
}

TEST_F(EmulatedDriverTest, CopiesBetweenDevices) {
  Context other = nullptr;
  ASSERT_OK(d.primary_ctx_retain(&other, 1));
  ASSERT_OK(d.ctx_push_current(other));
  MemoryPool pool_of_other = nullptr;
  MemoryPoolProperties properties;
  properties.location = 1;
  ASSERT_OK(d.mem_pool_create(&pool_of_other, &properties));
  Stream stream = nullptr;
  ASSERT_OK(d.stream_create(&stream, kStreamNonBlocking, 0));
  DevicePointer there = 0;
  ASSERT_OK(d.mem_alloc_from_pool_async(&there, 8, pool_of_other, stream));
  ASSERT_OK(d.stream_synchronize(stream));
  EXPECT_EQ(d.mem_alloc_from_pool_async(&there, 8, pool, stream), Result::kInvalidValue);  // the pool is of device 0
  ASSERT_OK(d.ctx_pop_current(nullptr));
  const DevicePointer here = upload({5, 6}, first), back = allocate(8, first);
  EXPECT_EQ(d.memset_d8_async(there, 0, 8, first), Result::kInvalidValue);
  EXPECT_OK(d.memcpy_peer_async(there, other, here, context, 8, first));
  EXPECT_OK(d.memcpy_peer_async(back, context, there, other, 8, first));
  EXPECT_EQ(download(back, 2, first), (Ints{5, 6}));
  EXPECT_OK(d.ctx_enable_peer_access(other, 0));
  EXPECT_EQ(d.ctx_enable_peer_access(other, 0), Result::kPeerAccessAlreadyEnabled);
  EXPECT_OK(d.memset_d8_async(there, 0, 8, first));
  EXPECT_OK(d.stream_synchronize(first));
  EXPECT_OK(d.primary_ctx_release(1));
}

// --- faults

TEST_F(EmulatedDriverTest, TheNthAllocationFails) {
  emulated->fail_allocation(3);
  DevicePointer address = 0;
  std::vector<Result> results;
  for (int i = 0; i < 5; ++i) results.push_back(d.mem_alloc_from_pool_async(&address, 4, pool, first));
  const std::vector<Result> expected = {Result::kSuccess, Result::kSuccess, Result::kOutOfMemory, Result::kSuccess,
                                        Result::kSuccess};
  EXPECT_EQ(results, expected);
}

// After a kernel failed, every call of its device returns the error until the context is released.
void expect_lost(const Driver& d, Stream stream, Result why) {
  EXPECT_EQ(d.stream_synchronize(stream), why);
  EXPECT_EQ(d.stream_query(stream), why);
  Event event = nullptr;
  EXPECT_EQ(d.event_create(&event, 0), why);
}

TEST_F(EmulatedDriverTest, TheNthLaunchFails) {
  const Function step = load();
  const DevicePointer a = upload({1}, first);
  emulated->fail_launch(2);
  EXPECT_OK(launch(step, a, 1, 1, first));
  EXPECT_OK(d.stream_synchronize(first));
  EXPECT_OK(launch(step, a, 1, 1, first));
  expect_lost(d, first, Result::kLaunchFailed);
  stop();
  ASSERT_OK(d.primary_ctx_retain(&context, 0));
  ASSERT_OK(d.ctx_set_current(context));
  EXPECT_OK(d.ctx_synchronize());
}

TEST_F(EmulatedDriverTest, AKernelThatReadsElsewhereFails) {
  const Function step = load();
  EXPECT_OK(launch(step, DevicePointer{1} << 58 | 0x1000, 1, 1, first));
  expect_lost(d, first, Result::kLaunchFailed);
  ASSERT_EQ(emulated->findings().size(), 1u);
  EXPECT_NE(emulated->findings()[0].find("'step'"), std::string::npos) << emulated->findings()[0];
}

TEST_F(EmulatedDriverTest, ADeviceIsLost) {
  std::atomic<int> done = 0;
  emulated->lose_device(0, 3);
  Result result = Result::kSuccess;
  for (int i = 0; i < 5 && result == Result::kSuccess; ++i) {
    result = d.launch_host_func(first, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &done);
  }
  expect_lost(d, first, Result::kEccUncorrectable);
  EXPECT_EQ(done, 2);
}

// Two threads write the same byte. Only checked launches find this.
TEST_F(EmulatedDriverTest, CheckedLaunchesFindRaces) {
  start({.checked = true});
  std::string racing = kStepKernel;
  const std::string place = "%place = zext i32 %i to i64";
  racing.replace(racing.find(place), place.size(), "%half = lshr i32 %i, 1\n  %place = zext i32 %half to i64");
  const Function step = load(racing.c_str());
  EXPECT_OK(launch(step, upload(Ints(64), first), 1, 64, first));
  expect_lost(d, first, Result::kLaunchFailed);
  ASSERT_FALSE(emulated->findings().empty());
  EXPECT_NE(emulated->findings()[0].find("races with"), std::string::npos) << emulated->findings()[0];
}

TEST_F(EmulatedDriverTest, CountsCallsAndWhatIsLeft) {
  EXPECT_EQ(emulated->calls().at("cuStreamCreateWithPriority"), 2u);
  EXPECT_EQ(emulated->leaks(), "1 context, 2 streams, 1 pool");
}

}  // namespace
}  // namespace torch_remote::worker::cuda::emulated
