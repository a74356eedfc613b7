#include "bazel/glibc/shims.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>

extern "C" char __libc_single_threaded;

namespace torch_remote::glibc {
namespace {

int constructed = 0;
const bool kConstructs = (++constructed, true);
int arguments = 0;
__attribute__((constructor)) void takes_arguments(int argc, char** argv, char** environment) {
  if (argc > 0 && argv[argc] == nullptr && environment == argv + argc + 1) arguments = argc;
}

std::string file_of(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 ? std::filesystem::canonical(info.dli_fname) : "";
}

// The functions that are tested below are this program's, and not the C library's.
TEST(Shims, AreThisPrograms) {
  const std::string own = file_of(reinterpret_cast<void*>(&takes_arguments));
  for (void* function :
       {reinterpret_cast<void*>(&gettid), reinterpret_cast<void*>(&pthread_cond_clockwait),
        reinterpret_cast<void*>(static_cast<int (*)(const char*, struct stat*)>(&stat)),
        reinterpret_cast<void*>(&lstat), reinterpret_cast<void*>(&fstat), reinterpret_cast<void*>(&fstat64),
        reinterpret_cast<void*>(static_cast<struct mallinfo2 (*)()>(&mallinfo2)), reinterpret_cast<void*>(&arc4random),
        reinterpret_cast<void*>(&posix_spawn_file_actions_addclosefrom_np),
#if __GLIBC_PREREQ(2, 38)
        reinterpret_cast<void*>(&strtol), reinterpret_cast<void*>(&strtoul), reinterpret_cast<void*>(&strtoll),
        reinterpret_cast<void*>(&strtoull), reinterpret_cast<void*>(&sscanf),
#endif
        static_cast<void*>(&__libc_single_threaded)}) {
    EXPECT_EQ(file_of(function), own);
  }
  EXPECT_NE(file_of(reinterpret_cast<void*>(&getpid)), own);
}

TEST(Shims, ConstructorsRunOnceBeforeMain) {
  EXPECT_TRUE(kConstructs);
  EXPECT_EQ(constructed, 1);
  EXPECT_GE(arguments, 1);
}

TEST(Shims, FilesAreDescribedAsByTheKernel) {
  const std::string file = testing::TempDir() + "/shims_file", link = testing::TempDir() + "/shims_link";
  std::ofstream(file) << "123456789";
  unlink(link.c_str());
  ASSERT_EQ(symlink(file.c_str(), link.c_str()), 0);
  const int descriptor = open(link.c_str(), O_RDONLY);
  ASSERT_GE(descriptor, 0);
  const auto same = [](const struct stat& got, const std::string& path, int flags) {
    struct statx want{};
    ASSERT_EQ(statx(AT_FDCWD, path.c_str(), flags, STATX_BASIC_STATS, &want), 0);
    EXPECT_EQ(got.st_size, static_cast<off_t>(want.stx_size));
    EXPECT_EQ(got.st_ino, want.stx_ino);
    EXPECT_EQ(got.st_mode, want.stx_mode);
    EXPECT_EQ(got.st_dev, makedev(want.stx_dev_major, want.stx_dev_minor));
    EXPECT_EQ(got.st_mtim.tv_sec, want.stx_mtime.tv_sec);
    EXPECT_EQ(got.st_mtim.tv_nsec, want.stx_mtime.tv_nsec);
  };
  struct stat about{};
  EXPECT_EQ(stat(link.c_str(), &about), 0);
  same(about, file, 0);
  EXPECT_EQ(about.st_size, 9);
  EXPECT_EQ(lstat(link.c_str(), &about), 0);
  same(about, link, AT_SYMLINK_NOFOLLOW);
  EXPECT_TRUE(S_ISLNK(about.st_mode));
  EXPECT_EQ(fstat(descriptor, &about), 0);
  same(about, file, 0);
  struct stat64 about64{};
  EXPECT_EQ(fstat64(descriptor, &about64), 0);
  EXPECT_EQ(about64.st_size, 9);
  EXPECT_EQ(about64.st_ino, about.st_ino);
  close(descriptor);
  EXPECT_EQ(stat((file + "/none").c_str(), &about), -1);
  EXPECT_EQ(errno, ENOTDIR);
}

TEST(Shims, EachThreadHasItsNumber) {
  EXPECT_EQ(gettid(), getpid());
  pid_t other = 0;
  std::thread([&] { other = gettid(); }).join();
  EXPECT_NE(other, getpid());
  EXPECT_GT(other, 0);
}

TEST(Shims, NobodyIsToldThatThereIsOneThread) { EXPECT_EQ(__libc_single_threaded, 0); }

TEST(Shims, MemoryInUseIsCounted) {
  const size_t before = mallinfo2().uordblks;
  const std::unique_ptr<char[]> block(new char[50'000]);
  __asm__ volatile("" ::"r"(block.get()));  // the block counts as used
  EXPECT_GE(mallinfo2().uordblks, before + 50'000);
}

TEST(Shims, NumbersAreRandom) {
  std::set<uint32_t> numbers;
  uint32_t ones = 0, zeros = 0;
  for (int i = 0; i < 64; ++i) {
    const uint32_t number = arc4random();
    numbers.insert(number);
    ones |= number;
    zeros |= ~number;
  }
  EXPECT_GT(numbers.size(), 60u);
  EXPECT_EQ(ones, ~0u);
  EXPECT_EQ(zeros, ~0u);
}

TEST(Shims, TextIsReadAsNumbers) {
  char* end = nullptr;
  EXPECT_EQ(strtol("-0x1f rest", &end, 0), -31);
  EXPECT_STREQ(end, " rest");
  EXPECT_EQ(strtoul("17", nullptr, 8), 15u);
  EXPECT_EQ(strtoll("-9223372036854775808", nullptr, 10), std::numeric_limits<long long>::min());
  errno = 0;
  EXPECT_EQ(strtoull("18446744073709551616", nullptr, 10), std::numeric_limits<unsigned long long>::max());
  EXPECT_EQ(errno, ERANGE);
  int number = 0;
  double fraction = 0;
  char word[8] = "";
  EXPECT_EQ(sscanf("12 0.5 abc", "%d %lf %7s", &number, &fraction, word), 3);
  EXPECT_EQ(number, 12);
  EXPECT_EQ(fraction, 0.5);
  EXPECT_STREQ(word, "abc");
}

using Wait = int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);

class Waits : public testing::TestWithParam<Wait*> {};

TEST_P(Waits, UntilTheDeadlineAndNotLonger) {
  for (const clockid_t clock : {CLOCK_MONOTONIC, CLOCK_REALTIME}) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    timespec deadline{}, end{};
    clock_gettime(clock, &deadline);
    deadline.tv_nsec += 999'000'000;  // carries into the seconds
    if (deadline.tv_nsec >= 1'000'000'000) {
      ++deadline.tv_sec;
      deadline.tv_nsec -= 1'000'000'000;
    }
    pthread_mutex_lock(&mutex);
    int error = 0, wakes = 0;
    for (; error == 0; ++wakes) error = GetParam()(&condition, &mutex, clock, &deadline);  // may wake spuriously
    EXPECT_LT(wakes, 10);
    pthread_mutex_unlock(&mutex);
    clock_gettime(clock, &end);
    EXPECT_EQ(error, ETIMEDOUT);
    const double late =
        static_cast<double>(end.tv_sec - deadline.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - deadline.tv_nsec);
    EXPECT_GE(late, 0);
    EXPECT_LT(late, 10);
  }
}

TEST_P(Waits, ForASignal) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  bool ready = false;
  timespec deadline{};
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  deadline.tv_sec += 100;
  pthread_mutex_lock(&mutex);
  std::thread other([&] {
    pthread_mutex_lock(&mutex);
    ready = true;
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&mutex);
  });
  while (!ready) EXPECT_EQ(GetParam()(&condition, &mutex, CLOCK_MONOTONIC, &deadline), 0);
  pthread_mutex_unlock(&mutex);
  other.join();
}

INSTANTIATE_TEST_SUITE_P(Shims, Waits, testing::Values(pthread_cond_clockwait, wait_on_realtime_clock));

using Closes = int(posix_spawn_file_actions_t*, int);

class Spawns : public testing::TestWithParam<Closes*> {};

TEST_P(Spawns, WithoutWhatIsOpen) {
  const int null = open("/dev/null", O_RDONLY);
  ASSERT_GE(null, 0);
  ASSERT_EQ(dup2(null, 40), 40);  // stays open at exec
  ASSERT_EQ(dup2(null, 41), 41);
  ASSERT_EQ(dup2(null, 42), 42);
  ASSERT_EQ(dup2(null, 300), 300);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  EXPECT_EQ(GetParam()(&actions, 41), 0);
  close(42);  // already closed when the child would close it
  const char* command[] = {"/bin/sh", "-c",
                           "test -e /proc/self/fd/40 && ! test -e /proc/self/fd/41 && ! test -e /proc/self/fd/300",
                           nullptr};
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, command[0], &actions, nullptr, const_cast<char**>(command), environ), 0);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  posix_spawn_file_actions_destroy(&actions);
  for (const int descriptor : {null, 40, 41, 300}) close(descriptor);
}

INSTANTIATE_TEST_SUITE_P(Shims, Spawns, testing::Values(posix_spawn_file_actions_addclosefrom_np, add_close_actions));

}  // namespace
}  // namespace torch_remote::glibc

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // Constructors register the tests: if they did not run, there would be no test to fail.
  if (testing::UnitTest::GetInstance()->total_test_count() == 0) return 1;
  return RUN_ALL_TESTS();
}
