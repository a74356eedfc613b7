// Sequences of work as graphs of the driver: what is called, and that the results are those of the works one by one. On
// a GPU in software, whose streams have delays.
#include "worker/cuda/work_queue.h"

#include <gtest/gtest.h>

#include <numeric>

#include "worker/cuda/copy_kernel.h"
#include "worker/cuda/cuda_device.h"
#include "worker/cuda/emulated/compile.h"
#include "worker/cuda/emulated/emulated_driver.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int64_t kCount = 64;

class WorkQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    driver = std::make_unique<emulated::EmulatedDriver>(emulated::Options{});
    const Status status = CudaDevice::open(
        {.driver = driver->driver(), .limit = 64 << 20, .kernels = {.compile = emulated::compile}}, &device);
    ASSERT_TRUE(status.ok()) << status.message();
    for (tr_buffer& buffer : buffers) ASSERT_TRUE(device->memory().allocate(8 * kCount, &buffer));
  }
  void TearDown() override {
    for (tr_buffer& buffer : buffers) buffer.release(buffer.owner);
    device = nullptr;
    EXPECT_EQ(driver->findings(), std::vector<std::string>());
    EXPECT_EQ(driver->left(), "");
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
  // A chain from the first buffer to the last one.
  void chain(size_t last, int64_t count = kCount) {
    const Current current(device->gpu());
    for (size_t i = 0; i < last; ++i) copy(i, i + 1, count);
    device->queued();
  }
  void write(size_t buffer, int64_t first) {
    auto values = std::make_shared<std::vector<int64_t>>(kCount);
    std::iota(values->begin(), values->end(), first);
    device->copy_in(buffers[buffer].data, std::as_bytes(std::span(*values)), values);
  }
  int64_t read(size_t buffer) {
    auto values = std::make_shared<std::vector<int64_t>>(kCount);
    const int64_t count = kCount, one = 1;
    device->copy_out({buffers[buffer].data, 8, {&count, 1}, {&one, 1}}, reinterpret_cast<std::byte*>(values->data()),
                     values);
    EXPECT_TRUE(device->wait(device->record()).ok());
    for (int64_t i = 0; i < kCount; ++i) EXPECT_EQ((*values)[i], (*values)[0] + i);
    return (*values)[0];
  }
  uint64_t calls() const {
    uint64_t all = 0;
    for (const auto& [name, count] : driver->calls()) {
      if (!name.starts_with("cuCtx") && !name.starts_with("cuEvent")) all += count;
    }
    return all;
  }
  uint64_t calls(const char* name) const { return driver->calls()[name]; }
  WorkQueue::Counts counts() const { return device->gpu().queue().counts(); }

  std::unique_ptr<emulated::EmulatedDriver> driver;
  std::unique_ptr<CudaDevice> device;
  std::array<tr_buffer, 12> buffers{};
};

TEST_F(WorkQueueTest, TheSecondTimeASequenceIsAGraph) {
  std::vector<uint64_t> steps;
  for (int round = 0; round < 5; ++round) {
    write(0, 100 * round);
    const uint64_t before = calls();
    chain(10);
    EXPECT_EQ(calls(), before + (round == 0 ? calls() - before : 0));  // held back
    (void)device->record();
    steps.push_back(calls() - before);
    EXPECT_EQ(read(10), 100 * round);
  }
  // The first time also loads the kernel. From the third time on it is one call.
  EXPECT_GE(steps[0], 10u);
  EXPECT_EQ(steps[1], 10 + 10 + 2 + 1 + 1u);  // as many launches and nodes; begin, end; instantiate; launch
  EXPECT_EQ(steps[2], 1u);
  EXPECT_EQ(steps[4], 1u);
  EXPECT_EQ(calls("cuGraphLaunch"), 4u);
  EXPECT_EQ(counts().captured, 1u);
}

TEST_F(WorkQueueTest, OtherAddressesAreExchanged) {
  const auto run = [&](size_t last) {
    const Current current(device->gpu());
    for (size_t i = 0; i < 6; ++i) copy(i, i + 1);
    copy(6, last);
    device->queued();
  };
  for (int round = 0; round < 6; ++round) {
    write(0, 7 * round);
    run(8 + round % 3);
    EXPECT_EQ(read(8 + round % 3), 7 * round);
  }
  EXPECT_EQ(counts().captured, 1u);
  EXPECT_EQ(counts().exchanged, 4u);  // one kernel's, but for the first launch
  EXPECT_EQ(calls("cuGraphExecKernelNodeSetParams"), 4u);
}

TEST_F(WorkQueueTest, OtherSizesAreAnotherSequence) {
  write(0, 0);
  for (int round = 0; round < 3; ++round) {
    for (const int64_t count : {kCount, int64_t{1}}) chain(6, count), (void)device->record();
  }
  // (Sizes are parameters of kernels; only how many blocks there are makes another graph.)
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
      const Current current(device->gpu());
      for (size_t i = 0; i < 6; ++i) copy(place(i), place(i + 1));
      device->queued();
    }
    EXPECT_EQ(read(place(6)), static_cast<int64_t>(round));
  }
  EXPECT_EQ(counts().graphs, 0u);
  EXPECT_EQ(counts().captured, WorkQueue::kMostAlike);
  EXPECT_LT(calls("cuGraphLaunch"), 50u);
}

// Memory that takes turns.
TEST_F(WorkQueueTest, TwoPlacesAreTwoGraphs) {
  for (size_t round = 0; round < 12; ++round) {
    const size_t first = round % 2 * 5;
    write(first, static_cast<int64_t>(round));
    {
      const Current current(device->gpu());
      for (size_t i = first; i < first + 5; ++i) copy(i, i + 1);
      device->queued();
    }
    EXPECT_EQ(read(first + 5), static_cast<int64_t>(round));
  }
  EXPECT_EQ(counts().captured, 2u);
  EXPECT_EQ(counts().exchanged, 0u);
  EXPECT_EQ(calls("cuGraphLaunch"), 11u);
}

TEST_F(WorkQueueTest, ThereAreNotTooManyGraphs) {
  write(0, 3);
  for (size_t length = WorkQueue::kFewest; length < WorkQueue::kFewest + WorkQueue::kMostGraphs + 20; ++length) {
    for (int round = 0; round < 2; ++round) {
      const Current current(device->gpu());
      for (size_t i = 0; i < length; ++i) copy(i % 2, 1 - i % 2);
      device->queued();
      (void)device->record();
    }
  }
  EXPECT_EQ(counts().graphs, WorkQueue::kMostGraphs);
  EXPECT_EQ(counts().captured, WorkQueue::kMostGraphs + 20);
  EXPECT_EQ(read(1), 3);
}

// What is done with memory in between keeps its place.
TEST_F(WorkQueueTest, CopiesAndFillsStayInOrder) {
  for (int round = 0; round < 4; ++round) {
    write(0, round);
    chain(5);
    device->copy(buffers[6].data, buffers[5].data, 8 * kCount);
    device->fill(buffers[5].data, std::byte{0}, 8 * kCount);
    {
      const Current current(device->gpu());
      for (size_t i = 6; i < 11; ++i) copy(i, i + 1);
      device->queued();
    }
    EXPECT_EQ(read(11), round);
  }
  EXPECT_EQ(counts().captured, 2u);
  EXPECT_EQ(counts().exchanged, 0u);
}

}  // namespace
}  // namespace torch_remote::worker::cuda
