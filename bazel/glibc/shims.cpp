// Functions that glibc has only since versions after 2.28, for programs that must run without them (make_stubs.py).
// These are the ones that this tree, the C++ library's archive and LLVM use. They are hidden: only the program or
// library that they are linked into sees them.

#include "bazel/glibc/shims.h"

#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>

// NOLINTBEGIN(bugprone-reserved-identifier): glibc's names
#define HIDDEN extern "C" __attribute__((visibility("hidden")))

extern "C" {
// Until glibc 2.32, stat and similar functions were wrappers of these. The number is the version of the struct.
int __xstat(int version, const char* path, struct stat* out) noexcept;
int __lxstat(int version, const char* path, struct stat* out) noexcept;
int __fxstat(int version, int descriptor, struct stat* out) noexcept;

using Constructor = void (*)(int, char**, char**);
using Main = int (*)(int, char**, char**);
// glibc's own function; the function below has its name.
int start_main(Main main, int argc, char** argv, Constructor init, void (*fini)(), void (*rtld_fini)(), void* stack);
__asm__(".symver start_main, __libc_start_main@GLIBC_2.2.5");

void _init();
extern const Constructor __init_array_start[] __attribute__((visibility("hidden")));
extern const Constructor __init_array_end[] __attribute__((visibility("hidden")));
}

namespace {

constexpr int kStat = 1;  // the version on x86-64

// The C library's function of that name; null if it has none.
template <typename Function>
Function* libc_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// Until glibc 2.33 this function was part of every program, which passed it to the C library. Later versions run the
// constructors themselves if they get none.
void run_constructors(int argc, char** argv, char** environment) {
  _init();
  for (const Constructor* next = __init_array_start; next != __init_array_end; ++next) (*next)(argc, argv, environment);
}

}  // namespace

namespace torch_remote::glibc {

int wait_on_realtime_clock(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  constexpr int64_t kSecond = 1'000'000'000;
  const auto nanoseconds = [](const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; };
  timespec now{}, today{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &today);
  const int64_t until = nanoseconds(today) + nanoseconds(*deadline) - nanoseconds(now);
  const timespec time{until / kSecond, until % kSecond};
  const int error = pthread_cond_timedwait(condition, mutex, &time);
  if (error != ETIMEDOUT) return error;
  clock_gettime(clock, &now);
  // The clock was set in between. Return as after a spurious wakeup, so that the caller waits again.
  return nanoseconds(now) < nanoseconds(*deadline) ? 0 : ETIMEDOUT;
}

int add_close_actions(posix_spawn_file_actions_t* actions, int from) {
  DIR* folder = opendir("/proc/self/fd");
  if (!folder) return errno;
  int error = 0;
  while (const dirent* entry = readdir(folder)) {
    const int descriptor = std::atoi(entry->d_name);  // 0 for "." and ".."
    // It is not an error if a descriptor is closed by then.
    if (error == 0 && descriptor >= from) error = posix_spawn_file_actions_addclose(actions, descriptor);
  }
  closedir(folder);
  return error;
}

}  // namespace torch_remote::glibc

HIDDEN int __libc_start_main(Main main, int argc, char** argv, Constructor, void (*)(), void (*rtld_fini)(),
                             void* stack) {
  return start_main(main, argc, argv, run_constructors, nullptr, rtld_fini, stack);
}

// 2.30
HIDDEN pid_t gettid() noexcept { return static_cast<pid_t>(syscall(SYS_gettid)); }

HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const timespec* deadline) {
  static auto* const own = libc_function<decltype(pthread_cond_clockwait)>("pthread_cond_clockwait");
  return (own ? own : torch_remote::glibc::wait_on_realtime_clock)(condition, mutex, clock, deadline);
}

// 2.32. Code that finds it true may leave out atomic instructions.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;

// 2.33
HIDDEN int stat(const char* path, struct stat* out) noexcept { return __xstat(kStat, path, out); }
HIDDEN int lstat(const char* path, struct stat* out) noexcept { return __lxstat(kStat, path, out); }
HIDDEN int fstat(int descriptor, struct stat* out) noexcept { return __fxstat(kStat, descriptor, out); }
HIDDEN int fstat64(int descriptor, struct stat64* out) noexcept {
  return __fxstat(kStat, descriptor, reinterpret_cast<struct stat*>(out));  // the same struct
}

HIDDEN struct mallinfo2 mallinfo2() noexcept {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const struct mallinfo old = mallinfo();
#pragma GCC diagnostic pop
  const auto size = [](int field) -> size_t { return static_cast<unsigned>(field); };  // correct up to 4 GiB
  return {.arena = size(old.arena),
          .ordblks = size(old.ordblks),
          .smblks = size(old.smblks),
          .hblks = size(old.hblks),
          .hblkhd = size(old.hblkhd),
          .usmblks = size(old.usmblks),
          .fsmblks = size(old.fsmblks),
          .uordblks = size(old.uordblks),
          .fordblks = size(old.fordblks),
          .keepcost = size(old.keepcost)};
}

// 2.34
HIDDEN int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t* actions, int from) noexcept {
  static auto* const own =
      libc_function<decltype(posix_spawn_file_actions_addclosefrom_np)>("posix_spawn_file_actions_addclosefrom_np");
  return (own ? own : torch_remote::glibc::add_close_actions)(actions, from);
}

// 2.36
HIDDEN uint32_t arc4random() noexcept {
  uint32_t number;
  while (getrandom(&number, sizeof number, 0) != sizeof number) {
    if (errno != EINTR) abort();
  }
  return number;
}

// 2.38. Headers replace strtol and similar functions by these, which also read binary numbers ("0b1"). The older
// functions are declared by their names in the library, because the headers replace the names of C++.
#if __GLIBC_PREREQ(2, 38)
extern "C" {
long older_strtol(const char* text, char** end, int base) noexcept __asm__("strtol");
unsigned long older_strtoul(const char* text, char** end, int base) noexcept __asm__("strtoul");
long long older_strtoll(const char* text, char** end, int base) noexcept __asm__("strtoll");
unsigned long long older_strtoull(const char* text, char** end, int base) noexcept __asm__("strtoull");
int older_vsscanf(const char* text, const char* format, va_list out) noexcept __asm__("__isoc99_vsscanf");
}

HIDDEN long __isoc23_strtol(const char* text, char** end, int base) noexcept { return older_strtol(text, end, base); }
HIDDEN unsigned long __isoc23_strtoul(const char* text, char** end, int base) noexcept {
  return older_strtoul(text, end, base);
}
HIDDEN long long __isoc23_strtoll(const char* text, char** end, int base) noexcept {
  return older_strtoll(text, end, base);
}
HIDDEN unsigned long long __isoc23_strtoull(const char* text, char** end, int base) noexcept {
  return older_strtoull(text, end, base);
}
HIDDEN int __isoc23_sscanf(const char* text, const char* format, ...) noexcept {
  va_list out;
  va_start(out, format);
  const int count = older_vsscanf(text, format, out);
  va_end(out);
  return count;
}
#endif
// NOLINTEND(bugprone-reserved-identifier)
