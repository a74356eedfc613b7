#include "worker/targets/aten/threads.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "ir/cost/work.h"
#include "worker/device/machine.h"
#include "worker/targets/aten/testing.h"
#include "worker/targets/aten/thread_tuner.h"

// From torch's OpenMP, which this file is not compiled for.
extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);
__attribute__((weak)) int omp_get_thread_num();
}

namespace torch_remote::worker::aten {
namespace {

TEST(Threads, GivesOneThreadToWhatIsNotParallel) {
  std::thread([] {
    Threads threads(3, /*fixed=*/false);
    EXPECT_EQ(at::get_num_threads(), 3);
    threads.set(false);
    EXPECT_EQ(at::get_num_threads(), 1);
    threads.set(true);
    EXPECT_EQ(at::get_num_threads(), 3);
  }).join();
}

TEST(Threads, LeavesACore) {
  std::thread([] {
    const int cores = static_cast<int>(processor_cores());
    Threads few(1, /*fixed=*/false);
    EXPECT_EQ(few.has_spare_core(), cores > 1);
    Threads all(cores, /*fixed=*/false);
    EXPECT_EQ(all.has_spare_core(), cores == 1);
    all.set(true);
    EXPECT_EQ(at::get_num_threads(), cores);
    all.leave_one_core();
    EXPECT_EQ(at::get_num_threads(), std::max(1, cores - 1));
  }).join();
}

// Runs sums of this many elements with as many threads as there are cores. Returns the last op's number of threads.
int threads_of_sums(TestRunner& runner, int64_t elements, tr_client_activity client) {
  const at::Tensor a = at::ones({elements});
  TestGraph builder;
  const at::Tensor first = a + a, second = first + a;
  builder.call("aten::add.Tensor", {a, a, 1}, {first});
  builder.call("aten::add.Tensor", {first, a, 1}, {second});
  TestRunner::Loaded program(runner, builder);
  runner.client = client;
  EXPECT_EQ(program.run().code, 0);
  const int count = at::get_num_threads();
  EXPECT_EQ(program.tensor(builder.graph.nodes[1].results[0].a).min().item<float>(), 3);
  program.release();
  return count;
}

TEST(Threads, AClientThatComputesKeepsItsCore) {
  std::thread([] {
    const int cores = static_cast<int>(processor_cores());
    TestRunner runner(false, uint64_t{1} << 30, cores);
    constexpr int64_t kMuch = static_cast<int64_t>(kMinWakeWork / ir::kWorkPerElement);
    EXPECT_EQ(threads_of_sums(runner, kMuch, TR_CLIENT_IDLE), cores);
    EXPECT_EQ(threads_of_sums(runner, kMuch, TR_CLIENT_COMPUTING), std::max(1, cores - 1));
    EXPECT_EQ(threads_of_sums(runner, kMuch, TR_CLIENT_IDLE), cores);
    EXPECT_EQ(threads_of_sums(runner, kMuch / 4, TR_CLIENT_POLLING), std::max(1, cores - 1));
    EXPECT_EQ(threads_of_sums(runner, kMuch, TR_CLIENT_POLLING), cores);
  }).join();
}

TEST(Threads, ALittleWorkDoesNotWakeThem) {
  std::thread([] {
    const int cores = static_cast<int>(processor_cores());
    TestRunner runner(false, uint64_t{1} << 30, cores);
    constexpr int64_t kMuch = static_cast<int64_t>(kMinWakeWork / ir::kWorkPerElement), kSome = kMuch / 4;
    EXPECT_EQ(threads_of_sums(runner, kMuch, TR_CLIENT_IDLE), cores);
    EXPECT_EQ(threads_of_sums(runner, kSome, TR_CLIENT_IDLE), cores);  // the threads are awake
    runner.api->on_idle(runner.runner);
    EXPECT_EQ(threads_of_sums(runner, kSome, TR_CLIENT_IDLE), 1);
    EXPECT_EQ(threads_of_sums(runner, kMuch, TR_CLIENT_IDLE), cores);
  }).join();
}

TEST(Threads, LeavesTheUsersProcessAlone) {
  std::thread([] {
    const int before = at::get_num_threads();
    Threads threads(before + 2, /*fixed=*/true);
    threads.set(false);
    EXPECT_EQ(at::get_num_threads(), before);
  }).join();
}

// A parallel region's number of threads, and the CPU time that its last thread has used so far, in ns.
struct Region {
  int threads = 1;
  int64_t last_used = 0;
};
Region run_region() {
  Region region;
  GOMP_parallel(
      [](void* data) {
        if (omp_get_thread_num() == 0) return;
        auto& region = *static_cast<Region*>(data);
        region.threads = 2;
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        region.last_used = time.tv_sec * 1'000'000'000 + time.tv_nsec;
      },
      &region, 0, 0);
  return region;
}

TEST(Threads, SleepWhileTheyRestAndComeBack) {
  std::thread([] {
    Threads threads(2, /*fixed=*/false);
    threads.set(true);
    int64_t used = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < 3; ++i) {  // other processes use the machine, too
      const Region before = run_region();
      EXPECT_EQ(before.threads, 2);
      threads.sleep();
      EXPECT_EQ(run_region().threads, 1);  // work in between still runs
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      threads.begin_wake();
      threads.set(true);
      EXPECT_EQ(at::get_num_threads(), 2);
      const Region after = run_region();
      EXPECT_EQ(after.threads, 2);
      used = std::min(used, after.last_used - before.last_used);
    }
    EXPECT_LT(used, 10'000'000);  // threads that are not put to sleep spin for longer
    threads.set(false);
    threads.sleep();
    threads.set(false);
    EXPECT_EQ(at::get_num_threads(), 1);
    threads.wake();
    EXPECT_EQ(at::get_num_threads(), 1);
    threads.set(true);
    EXPECT_EQ(run_region().threads, 2);
    threads.sleep();  // they are destroyed while they sleep
  }).join();
}

void use_core(int core) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  ASSERT_EQ(sched_setaffinity(0, sizeof(only), &only), 0);
}

TEST(Cores, WhoSleptOnTheCallersCoreWakesOnAnotherOne) {
  if (processor_cores() < 2) GTEST_SKIP() << "there is one core";
  std::thread([] {
    cpu_set_t all;
    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    const int here = sched_getcpu();
    Cores cores(2);
    std::atomic<int> asleep = 1;
    int woke_on = -1;
    cpu_set_t after{};
    std::thread sleeper([&] {
      use_core(here);
      cores.sleeps(1);
      sched_setaffinity(0, sizeof(all), &all);
      asleep.store(2);
      asleep.notify_all();
      asleep.wait(2);
      woke_on = sched_getcpu();
      cores.woke(1);
      sched_getaffinity(0, sizeof(after), &after);
    });
    asleep.wait(1);
    use_core(here);  // the system may have moved this thread
    sched_setaffinity(0, sizeof(all), &all);
    const int caller = sched_getcpu();
    cores.spread();
    asleep.store(0);
    asleep.notify_all();
    sleeper.join();
    EXPECT_NE(woke_on, caller);
    EXPECT_TRUE(CPU_EQUAL(&after, &all));  // it is not pinned
  }).join();
}

std::vector<bool> parallel_of(TestGraph& builder) {
  builder.finish();
  std::vector<int64_t> values;
  EXPECT_TRUE(ir::evaluate(builder.graph, builder.params.data(), &values).ok());
  std::vector<double> work;
  ir::estimate_work(builder.graph, values.data(), &work);
  std::vector<bool> parallel;
  parallel.reserve(work.size());
  for (const double w : work) parallel.push_back(w >= kMinParallelWork);
  return parallel;
}

TEST(EstimateWork, TellsOpsThatAreWorthThreads) {
  TestGraph builder;
  const auto mm = [&](int64_t m, int64_t k, int64_t n) {
    builder.call("aten::mm", {at::empty({m, k}), at::empty({k, n})}, {at::empty({m, n})});
  };
  mm(16, 32, 64);
  mm(64, 256, 512);
  builder.call("aten::relu", {at::empty({1024})}, {at::empty({1024})});
  builder.call("aten::relu", {at::empty({1 << 20})}, {at::empty({1 << 20})});
  const auto inverse = [&](int64_t n) {
    builder.call("aten::linalg_inv_ex", {at::empty({n, n}), false}, {at::empty({n, n}), at::empty({}, at::kInt)});
  };
  inverse(8);
  inverse(512);
  EXPECT_EQ(parallel_of(builder), (std::vector<bool>{false, true, false, true, false, true}));
}

// Runs the node until its choice is known. `ns`: its time with one thread and with all threads.
void tune(ThreadTuner& tuner, size_t node, std::array<uint64_t, 2> ns, std::vector<bool>& parallel) {
  uint32_t times = 0;
  for (; tuner.needs_samples(node); ++times) {
    // Any single run may be disturbed.
    tuner.add(node, ns[tuner.next(node)] + (times % 3 == 0 ? 1'000'000 : 0), &parallel);
  }
  EXPECT_EQ(times, 2 * ThreadTuner::kSamples);
}

TEST(ThreadTuner, KeepsTheFasterWay) {
  ThreadTuner tuner;
  std::vector<bool> parallel;
  const std::vector<double> work = {kMinParallelWork / 2, kMinParallelWork * 2, kMinParallelWork / 1000,
                                    kMinParallelWork * 1000};
  tuner.resize(work, &parallel);
  EXPECT_EQ(parallel, (std::vector<bool>{false, true, false, true}));  // the estimates, until more is known
  EXPECT_TRUE(tuner.needs_samples(0) && tuner.needs_samples(1));
  EXPECT_FALSE(tuner.needs_samples(2) || tuner.needs_samples(3));
  tune(tuner, 0, {9000, 6000}, parallel);
  EXPECT_TRUE(tuner.needs_samples());
  tune(tuner, 1, {9000, 8900}, parallel);  // the gain is too small to take the other cores
  EXPECT_FALSE(tuner.needs_samples());
  EXPECT_EQ(parallel, (std::vector<bool>{true, false, false, true}));
}

TEST(ThreadTuner, LearnsForOtherSizesToo) {
  ThreadTuner tuner;
  std::vector<bool> parallel;
  tuner.resize(std::vector<double>{kMinParallelWork}, &parallel);
  tune(tuner, 0, {5000, 9000}, parallel);
  tuner.resize(std::vector<double>{kMinParallelWork / 3}, &parallel);
  EXPECT_FALSE(tuner.needs_samples() || parallel[0]);
  tuner.resize(std::vector<double>{kMinParallelWork * 8}, &parallel);
  ASSERT_TRUE(tuner.needs_samples());
  tune(tuner, 0, {40000, 25000}, parallel);
  EXPECT_TRUE(parallel[0]);
  tuner.resize(std::vector<double>{kMinParallelWork * 9}, &parallel);
  EXPECT_TRUE(!tuner.needs_samples() && parallel[0]);
  tuner.resize(std::vector<double>{kMinParallelWork * 4}, &parallel);  // between two known sizes
  EXPECT_TRUE(tuner.needs_samples() && parallel[0]);
}

TEST(ThreadTuner, TunedProgramsComputeTheSame) {
  TestRunner runner(/*inproc=*/false, uint64_t{1} << 30, /*threads=*/2);
  TestGraph builder;
  const at::Tensor a = at::randn({128, 64}), b = at::randn({64, 96}), product = at::empty({128, 96});
  builder.call("aten::mm", {a, b}, {product});
  TestRunner::Loaded loaded(runner, builder, /*tune=*/true);
  const uint32_t result = builder.graph.nodes[0].results[0].a;
  for (uint32_t i = 0; i < 2 * ThreadTuner::kSamples + 3; ++i) {
    loaded.fill_inputs();
    const TestRunner::Outcome outcome = loaded.run(i == 0);
    ASSERT_EQ(outcome.code, 0) << outcome.error.message;
    EXPECT_TRUE(at::allclose(loaded.tensor(result), at::mm(a, b), 1e-4, 1e-5));
  }
}

}  // namespace
}  // namespace torch_remote::worker::aten
