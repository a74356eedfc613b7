#include "worker/device/machine.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <thread>

namespace torch_remote::worker {
namespace {

uint64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// Asks now and then until the answer comes, for a while.
bool becomes(ProcessLoad& load, bool busy) {
  for (int i = 0; i < 200; ++i) {
    if (load.busy(now()) == busy) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

TEST(ProcessLoad, TellsWhoComputesFromWhoSleeps) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) {
      asm volatile("");
    }
  }
  ProcessLoad load(child);
  EXPECT_TRUE(load.known());
  EXPECT_TRUE(becomes(load, true));
  kill(child, SIGSTOP);
  EXPECT_TRUE(becomes(load, false));
  load.assume_busy(now());
  EXPECT_TRUE(load.busy(now()));
  EXPECT_TRUE(becomes(load, false));
  kill(child, SIGCONT);
  EXPECT_TRUE(becomes(load, true));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(becomes(load, false));
}

TEST(ProcessLoad, AProcessElsewhereIsNeverBusy) {
  ProcessLoad load(0);
  EXPECT_FALSE(load.known());
  load.assume_busy(now());
  EXPECT_FALSE(load.busy(now()));
}

}  // namespace
}  // namespace torch_remote::worker
