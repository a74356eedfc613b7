// Sequences of work as CUDA graphs: which driver calls are made, and that results equal those of separate launches.
// Runs on the GPU emulator, whose streams have delays.
#include "worker/targets/cuda/device/work_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>

#include "codegen/loop/loop_ir.h"
#include "tests/emulated_gpu/compile.h"
#include "tests/emulated_gpu/emulated_driver.h"
#include "worker/targets/cuda/device/copy_kernel.h"
#include "worker/targets/cuda/device/cuda_device.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int64_t kCount = 64;

// A kernel that adds `numbers` scalars to every element.
std::string adding(size_t numbers) {
  std::string text = "kernel(| j0) {\n";
  for (size_t i = 0; i < numbers; ++i) text += "s" + std::to_string(i) + ": i64\n";
  text += "a0: i64[j0]\na1: i64[j0]\n%0: i64 = load a0\n";
  for (size_t i = 0; i < numbers; ++i) {
    const std::string sum = std::to_string(2 * i), term = std::to_string(2 * i + 1), next = std::to_string(2 * i + 2);
    text.append("%").append(term).append(": i64 = scalar s").append(std::to_string(i)).append("\n");
    text.append("%").append(next).append(": i64 = add %").append(sum).append(", %").append(term).append("\n");
  }
  return text + "store a1, %" + std::to_string(2 * numbers) + "\n}";
}

// a2[i] = a0[a1[i]]
constexpr const char* kTake = R"(kernel(| j0) {
  a0: i64[_]
  a1: i64[j0]
  a2: i64[j0]
  %0: i64 = load a1
  %1: i64 = load a0[%0]
  store a2, %1
})";

class WorkQueueTest : public ::testing::Test {
 protected:
  void SetUp() override { open({}); }
  void open(const emulated::Options& options) {
    driver = std::make_unique<emulated::EmulatedDriver>(options);
    const Status status = CudaDevice::open(
        {.driver = driver->driver(), .limit = 64 << 20, .kernels = {.compile = emulated::compile}}, &device);
    ASSERT_TRUE(status.ok()) << status.message();
    for (tr_buffer& buffer : buffers) ASSERT_TRUE(device->memory().allocate(8 * kCount, &buffer));
  }
  void TearDown() override { close(); }
  void close() {
    for (tr_buffer& buffer : buffers) buffer.release(buffer.owner);
    loaded.clear();
    device = nullptr;
    EXPECT_EQ(driver->findings(), std::vector<std::string>());
    EXPECT_EQ(driver->leaks(), "");
    EXPECT_EQ(driver->allocated(), 0u);
    driver = nullptr;
  }
  DevicePointer at(size_t i) const { return reinterpret_cast<DevicePointer>(buffers[i].data); }

  void copy(size_t from, size_t to, int64_t count = kCount) {
    const int64_t one = 1;
    const Status status = queue_copy(device->gpu(), device->kernels(),
                                     {.from = at(from),
                                      .to = at(to),
                                      .from_type = ir::DType::kInt64,
                                      .to_type = ir::DType::kInt64,
                                      .sizes = {&count, 1},
                                      .from_strides = {&one, 1},
                                      .to_strides = {&one, 1}});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const LoadedKernel& kernel(const std::string& text) {
    const LoadedKernel*& known = loaded[text];
    if (known != nullptr) return *known;
    codegen::Kernel parsed;
    Status status = codegen::parse_kernel(text, &parsed);
    if (status.ok()) status = device->kernels().get(parsed, &known);
    EXPECT_TRUE(status.ok()) << status.message();
    return *known;
  }
  // to[i] = from[i] + the sum of all numbers
  void add(size_t from, size_t to, std::vector<uint64_t> numbers) {
    const std::vector<int64_t> sizes = {kCount}, strides = {1, 1};
    const std::vector<uint64_t> data = {at(from), at(to)};
    launch(device->gpu(), kernel(adding(numbers.size())),
           {.sizes = sizes, .data = data, .strides = strides, .bounds = {}, .scalars = numbers});
  }
  // to[i] = from[indices[i]]; a bad index is recorded in a buffer.
  void take(size_t from, size_t indices, size_t to, DevicePointer failure) {
    const std::vector<int64_t> sizes = {kCount}, strides = {0, 1, 1, 1}, bounds = {kCount};
    const std::vector<uint64_t> data = {at(from), at(indices), at(to)};
    launch(device->gpu(), kernel(kTake),
           {.sizes = sizes, .data = data, .strides = strides, .bounds = bounds, .scalars = {}, .failure = failure});
  }
  // A chain of such additions from the first buffer to the last one, with the numbers `first`, `first` + 1, ...
  void add_chain(size_t last, uint64_t first) {
    for (size_t i = 0; i < last; ++i) add(i, i + 1, {first + i});
  }
  // A chain of copies from the first buffer to the last one.
  void chain(size_t last, int64_t count = kCount) {
    const ContextGuard current(device->gpu());
    for (size_t i = 0; i < last; ++i) copy(i, i + 1, count);
    device->queued();
  }
  void write(size_t buffer, int64_t first) {
    auto values = std::make_shared<std::vector<int64_t>>(kCount);
    std::iota(values->begin(), values->end(), first);
    device->copy_in(buffers[buffer].data, std::as_bytes(std::span(*values)), values);
  }
  std::vector<int64_t> read_all(size_t buffer) {
    auto values = std::make_shared<std::vector<int64_t>>(kCount);
    const int64_t count = kCount, one = 1;
    device->copy_out({buffers[buffer].data, 8, {&count, 1}, {&one, 1}}, reinterpret_cast<std::byte*>(values->data()),
                     values);
    EXPECT_TRUE(device->wait(device->record()).ok());
    return *values;
  }
  int64_t read(size_t buffer) {
    const std::vector<int64_t> values = read_all(buffer);
    for (int64_t i = 0; i < kCount; ++i) EXPECT_EQ(values[i], values[0] + i);
    return values[0];
  }
  uint64_t calls() const {
    uint64_t all = 0;
    for (const auto& [name, count] : driver->calls()) {
      if (!name.starts_with("cuCtx") && !name.starts_with("cuEvent")) all += count;
    }
    return all;
  }
  uint64_t calls(const char* name) const { return driver->calls()[name]; }
  // The driver calls for one flush.
  struct Asked {
    uint64_t exchanged = 0, written = 0, launched = 0;
    bool operator==(const Asked&) const = default;
    friend void PrintTo(const Asked& asked, std::ostream* out) {
      *out << asked.exchanged << " exchanged, " << asked.written << " written, " << asked.launched << " launched";
    }
  };
  template <typename Step>
  Asked step_of(Step&& step) {
    const auto now = [&] {
      return Asked{calls("cuGraphExecKernelNodeSetParams"), calls("cuMemcpyHtoDAsync"), calls("cuGraphLaunch")};
    };
    const Asked before = now();
    {
      const ContextGuard current(device->gpu());
      step();
      device->queued();
    }
    (void)device->record();
    const Asked after = now();
    return {after.exchanged - before.exchanged, after.written - before.written, after.launched - before.launched};
  }
  WorkQueue::Counts counts() const { return device->gpu().queue().counts(); }

  std::unique_ptr<emulated::EmulatedDriver> driver;
  std::unique_ptr<CudaDevice> device;
  std::array<tr_buffer, 12> buffers{};
  std::map<std::string, const LoadedKernel*> loaded;
};

TEST_F(WorkQueueTest, TheSecondTimeASequenceIsAGraph) {
  std::vector<uint64_t> steps;
  for (int round = 0; round < 5; ++round) {
    write(0, int64_t{100} * round);
    const uint64_t before = calls();
    chain(10);
    EXPECT_EQ(calls(), before + (round == 0 ? calls() - before : 0));  // Nothing is queued yet.
    (void)device->record();
    steps.push_back(calls() - before);
    EXPECT_EQ(read(10), 100 * round);
  }
  // The first step also loads the kernel. From the third step on there is one driver call.
  EXPECT_GE(steps[0], 10u);
  // 10 launches and their 10 nodes; begin and end of the capture; instantiate; launch.
  EXPECT_EQ(steps[1], 10 + 10 + 2 + 1 + 1u);
  EXPECT_EQ(steps[2], 1u);
  EXPECT_EQ(steps[4], 1u);
  EXPECT_EQ(calls("cuGraphLaunch"), 4u);
  EXPECT_EQ(counts().captured, 1u);
}

TEST_F(WorkQueueTest, OtherAddressesAreExchanged) {
  const auto run = [&](size_t last) {
    const ContextGuard current(device->gpu());
    for (size_t i = 0; i < 6; ++i) copy(i, i + 1);
    copy(6, last);
    device->queued();
  };
  for (int round = 0; round < 6; ++round) {
    write(0, int64_t{7} * round);
    run(8 + round % 3);
    EXPECT_EQ(read(8 + round % 3), 7 * round);
  }
  EXPECT_EQ(counts().captured, 1u);
  EXPECT_EQ(counts().node_updates, 4u);  // One kernel's, at every launch except the first.
  EXPECT_EQ(calls("cuGraphExecKernelNodeSetParams"), 4u);
}

TEST_F(WorkQueueTest, OtherSizesAreAnotherSequence) {
  write(0, 0);
  for (int round = 0; round < 3; ++round) {
    for (const int64_t count : {kCount, int64_t{1}}) chain(6, count), (void)device->record();
  }
  // Sizes are kernel parameters, so only another number of blocks makes another graph.
  EXPECT_GE(counts().captured, 1u);
  chain(5);
  (void)device->record();
  EXPECT_EQ(read(5), 0);
}

TEST_F(WorkQueueTest, WhatAlwaysChangesIsNoGraph) {
  for (size_t round = 0; round < 60; ++round) {
    const auto place = [&](size_t i) { return (5 * round + i) % buffers.size(); };
    write(place(0), static_cast<int64_t>(round));
    {
      const ContextGuard current(device->gpu());
      for (size_t i = 0; i < 6; ++i) copy(place(i), place(i + 1));
      device->queued();
    }
    EXPECT_EQ(read(place(6)), static_cast<int64_t>(round));
  }
  EXPECT_EQ(counts().graphs, 0u);
  EXPECT_EQ(counts().captured, WorkQueue::kMaxGraphsPerSequence);
  EXPECT_LT(calls("cuGraphLaunch"), 50u);
}

// Memory alternates between two places.
TEST_F(WorkQueueTest, TwoPlacesAreTwoGraphs) {
  for (size_t round = 0; round < 12; ++round) {
    const size_t first = round % 2 * 5;
    write(first, static_cast<int64_t>(round));
    {
      const ContextGuard current(device->gpu());
      for (size_t i = first; i < first + 5; ++i) copy(i, i + 1);
      device->queued();
    }
    EXPECT_EQ(read(first + 5), static_cast<int64_t>(round));
  }
  EXPECT_EQ(counts().captured, 2u);
  EXPECT_EQ(counts().node_updates, 0u);
  EXPECT_EQ(calls("cuGraphLaunch"), 11u);
}

// Fewer than half of the items alternate: a second graph is made once updates to known states outnumber the kernels.
TEST_F(WorkQueueTest, PiecesWhoseMemoryTakesTurnsAreTwoGraphs) {
  constexpr uint64_t kPieces = 8, kMoved = 3, kTurns = 2 + kPieces / kMoved;
  for (size_t round = 0; round < 20; ++round) {
    write(0, static_cast<int64_t>(round));
    const size_t last = 8 + round % 2;
    {
      const ContextGuard current(device->gpu());
      for (size_t i = 0; i < 5; ++i) copy(i, i + 1);
      copy(5, last);
      copy(last, last + 2);
      copy(last + 2, 6);
      device->queued();
    }
    EXPECT_EQ(read(6), static_cast<int64_t>(round));
  }
  EXPECT_EQ(counts().captured, 2u);
  EXPECT_EQ(counts().node_updates, kTurns * kMoved);
}

TEST_F(WorkQueueTest, ThereAreNotTooManyGraphs) {
  write(0, 3);
  for (size_t length = WorkQueue::kMinSequence; length < WorkQueue::kMinSequence + WorkQueue::kMaxGraphs + 20;
       ++length) {
    for (int round = 0; round < 2; ++round) {
      const ContextGuard current(device->gpu());
      for (size_t i = 0; i < length; ++i) copy(i % 2, 1 - i % 2);
      device->queued();
      (void)device->record();
    }
  }
  EXPECT_EQ(counts().graphs, WorkQueue::kMaxGraphs);
  EXPECT_EQ(counts().captured, WorkQueue::kMaxGraphs + 20);
  EXPECT_EQ(read(1), 3);
}

// Copies and fills between the kernels stay in order.
TEST_F(WorkQueueTest, CopiesAndFillsStayInOrder) {
  for (int round = 0; round < 4; ++round) {
    write(0, round);
    chain(5);
    device->copy(buffers[6].data, buffers[5].data, 8 * kCount);
    device->fill(buffers[5].data, std::byte{0}, 8 * kCount);
    {
      const ContextGuard current(device->gpu());
      for (size_t i = 6; i < 11; ++i) copy(i, i + 1);
      device->queued();
    }
    EXPECT_EQ(read(11), round);
  }
  EXPECT_EQ(counts().captured, 2u);
  EXPECT_EQ(counts().node_updates, 0u);
}

// -- Numbers ----------------------------------------------------------------------------------------------------------

TEST_F(WorkQueueTest, NumbersThatChangeAreOneCopy) {
  const auto step = [&](uint64_t first) {
    write(0, 0);
    const Asked asked = step_of([&] { add_chain(6, first); });
    EXPECT_EQ(read(6), static_cast<int64_t>(6 * first + 15));
    return asked;
  };
  EXPECT_EQ(step(10).launched, 0u);
  EXPECT_EQ(step(20), (Asked{.exchanged = 0, .written = 0, .launched = 1}));
  // Each kernel's parameters are updated once, to the address of its numbers.
  EXPECT_EQ(step(30), (Asked{.exchanged = 6, .written = 1, .launched = 1}));
  EXPECT_EQ(step(40), (Asked{.exchanged = 0, .written = 1, .launched = 1}));
  EXPECT_EQ(step(40), (Asked{.exchanged = 0, .written = 0, .launched = 1}));
  EXPECT_EQ(step(50), (Asked{.exchanged = 0, .written = 1, .launched = 1}));
  EXPECT_EQ(counts().captured, 1u);
}

TEST_F(WorkQueueTest, NumbersAndAddressesChange) {
  const auto step = [&](uint64_t first, uint64_t last_number, size_t last) {
    write(0, 0);
    const Asked asked = step_of([&] {
      for (size_t i = 0; i < 5; ++i) add(i, i + 1, {first + i});
      add(5, last, {last_number});
    });
    EXPECT_EQ(read(last), static_cast<int64_t>(5 * first + 10 + last_number));
    return asked;
  };
  EXPECT_EQ(step(10, 1, 6).launched, 0u);
  EXPECT_EQ(step(20, 2, 6), (Asked{.exchanged = 0, .written = 0, .launched = 1}));
  // The last kernel's number stays a parameter.
  EXPECT_EQ(step(30, 3, 7), (Asked{.exchanged = 6, .written = 1, .launched = 1}));
  EXPECT_EQ(step(40, 4, 8), (Asked{.exchanged = 1, .written = 1, .launched = 1}));
  EXPECT_EQ(step(50, 5, 8), (Asked{.exchanged = 1, .written = 1, .launched = 1}));  // Until only its number changes.
  EXPECT_EQ(step(60, 6, 8), (Asked{.exchanged = 0, .written = 1, .launched = 1}));
  EXPECT_EQ(step(60, 7, 6), (Asked{.exchanged = 1, .written = 1, .launched = 1}));
  EXPECT_EQ(step(60, 7, 7), (Asked{.exchanged = 1, .written = 0, .launched = 1}));
  EXPECT_EQ(step(70, 7, 8), (Asked{.exchanged = 1, .written = 1, .launched = 1}));
  EXPECT_EQ(step(70, 8, 8), (Asked{.exchanged = 0, .written = 1, .launched = 1}));
  EXPECT_EQ(counts().captured, 1u);
}

// The address for failures differs in every run.
TEST_F(WorkQueueTest, PlacesOfFailuresAreNumbers) {
  constexpr size_t kRecords = 10;
  device->fill(buffers[kRecords].data, std::byte{0xFF}, 8 * kCount);
  for (uint64_t round = 0; round < 6; ++round) {
    const bool is_bad = round % 2 == 1;
    write(0, 100);
    write(1, is_bad ? 1 : 0);  // An index up to kCount, which is out of bounds.
    const uint64_t record = 3 * round;
    const Asked asked = step_of([&] {
      for (size_t i = 2; i < 7; ++i) take(0, 1, i, at(kRecords) + 8 * record);
    });
    if (!is_bad) {
      EXPECT_EQ(read(6), 100);
    }
    const std::vector<int64_t> records = read_all(kRecords);
    const std::vector<int64_t> bad = {0, kCount, kCount}, none = {-1, -1, -1};
    const std::vector<int64_t> found = {records[record] == -1 ? -1 : records[record] & 0xFFFFFFFF, records[record + 1],
                                        records[record + 2]};
    EXPECT_EQ(found, is_bad ? bad : none) << round;
    if (round == 2) {
      EXPECT_EQ(asked, (Asked{.exchanged = 5, .written = 1, .launched = 1}));
    }
    if (round > 2) {
      EXPECT_EQ(asked, (Asked{.exchanged = 0, .written = 1, .launched = 1}));
    }
  }
}

// Steps that the GPU has not begun have many more numbers than the pinned ring holds.
TEST_F(WorkQueueTest, NumbersOfStepsThatAreNotBegunAreKept) {
  constexpr uint64_t kNumbers = 200, kKernels = 6, kSteps = 60;
  static_assert(kSteps * kKernels * kNumbers > 2 * PinnedRing::kAreas * PinnedRing::kAreaWords);
  for (const uint64_t seed : {1, 2, 3}) {
    close();
    open({.seed = seed});
    write(0, 0);
    EXPECT_EQ(read(0), 0);
    driver->slow_down(std::chrono::microseconds(500));
    uint64_t all = 0;
    for (uint64_t step = 0; step < kSteps; ++step) {
      const std::vector<uint64_t> numbers(kNumbers, step);
      const Asked asked = step_of([&] {
        for (uint64_t i = 0; i < kKernels; ++i) add(0, 0, numbers);
      });
      EXPECT_EQ(asked.written, step < 2 ? 0u : 1u);
      all += kKernels * kNumbers * step;
    }
    driver->slow_down({});
    EXPECT_EQ(read(0), static_cast<int64_t>(all)) << seed;
  }
}

TEST_F(WorkQueueTest, NumbersWithoutMemoryStayParameters) {
  for (uint64_t first = 10; first <= 60; first += 10) {
    write(0, 0);
    EXPECT_EQ(read(0), 0);
    if (first == 30) driver->fail_allocation(1);
    const Asked asked = step_of([&] { add_chain(6, first); });
    EXPECT_EQ(read(6), static_cast<int64_t>(6 * first + 15));
    if (first >= 30) {
      EXPECT_EQ(asked, (Asked{.exchanged = 6, .written = 0, .launched = 1})) << first;
    }
  }
}

TEST_F(WorkQueueTest, NumbersThatHaveNoRoomStayParameters) {
  constexpr uint64_t kNumbers = 200, kKernels = 50, kFit = WorkQueue::kMaxScalars / kNumbers;
  static_assert(kFit < kKernels);
  for (uint64_t step = 0; step < 5; ++step) {
    write(0, 0);
    const Asked asked = step_of([&] {
      for (uint64_t i = 0; i < kKernels; ++i) add(i == 0 ? 0 : 1, 1, std::vector<uint64_t>(kNumbers, step + i));
    });
    EXPECT_EQ(read(1), static_cast<int64_t>(kNumbers * (kKernels * step + kKernels * (kKernels - 1) / 2)));
    if (step == 2) {
      EXPECT_EQ(asked, (Asked{.exchanged = kKernels, .written = 1, .launched = 1}));
    }
    if (step > 2) {
      EXPECT_EQ(asked, (Asked{.exchanged = kKernels - kFit, .written = 1, .launched = 1}));
    }
  }
}

// A graph's memory is freed with the graph.
TEST_F(WorkQueueTest, NumbersAreOfSoManyGraphs) {
  constexpr size_t kMore = 5;
  write(0, 0);
  EXPECT_EQ(read(0), 0);
  const uint64_t allocated = calls("cuMemAllocFromPoolAsync"), freed = calls("cuMemFreeAsync");
  for (size_t length = 0; length < WorkQueue::kMaxGraphs + kMore; ++length) {
    for (uint64_t step = 0; step < 3; ++step) {
      (void)step_of([&] {
        for (size_t i = 0; i < WorkQueue::kMinSequence + length; ++i) add(0, 0, {step});
      });
    }
  }
  EXPECT_EQ(counts().graphs, WorkQueue::kMaxGraphs);
  EXPECT_EQ(calls("cuMemAllocFromPoolAsync") - allocated, WorkQueue::kMaxGraphs + kMore);
  EXPECT_EQ(calls("cuMemFreeAsync") - freed, kMore);
}

}  // namespace
}  // namespace torch_remote::worker::cuda
