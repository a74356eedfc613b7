#include "worker/device/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>

namespace torch_remote::worker {
namespace {

constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

// The number that a file begins with; kNone if there is none ("max").
uint64_t read_number(const char* path) {
  std::ifstream file(path);
  uint64_t value;
  return file >> value ? value : kNone;
}

// The number behind a key, in a file with a line for each key.
uint64_t read_number(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string word; file >> word; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    uint64_t value;
    if (word == key) return file >> value ? value : kNone;
  }
  return kNone;
}

}  // namespace

uint64_t machine_memory() {
  const uint64_t physical = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return std::min(
      {physical, read_number("/sys/fs/cgroup/memory.max"), read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes")});
}

uint64_t available_memory() {
  uint64_t available = machine_memory();
  if (const uint64_t kib = read_number("/proc/meminfo", "MemAvailable:"); kib != kNone) {
    available = std::min(available, kib << 10);
  }
  // Of a control group: its limit less what it uses; but the kernel takes back pages of files that nobody touches.
  const uint64_t most = read_number("/sys/fs/cgroup/memory.max");
  const uint64_t now = read_number("/sys/fs/cgroup/memory.current");
  if (most != kNone && now != kNone) {
    const uint64_t files = read_number("/sys/fs/cgroup/memory.stat", "inactive_file");
    const uint64_t used = files == kNone ? now : now - std::min(now, files);
    available = std::min(available, most - std::min(most, used));
  }
  return available;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown";
}

ProcessLoad::ProcessLoad(int process) {
  clockid_t clock = 0;
  if (process != 0 && clock_getcpuclockid(process, &clock) == 0) clock_ = clock;
}

uint64_t ProcessLoad::used() const {
  timespec time{};
  if (clock_gettime(clock_, &time) != 0) return 0;
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

bool ProcessLoad::busy(uint64_t now) {
  constexpr uint64_t kWindow = 10'000'000;  // ns: more than two ticks
  if (!known()) return false;
  if (now - since_ < kWindow) return busy_;
  const uint64_t used_now = used();
  busy_ = used_now > used_ + (now - since_) / 4;
  used_ = used_now;
  since_ = now;
  return busy_;
}

void ProcessLoad::assume_busy(uint64_t now) {
  if (!known()) return;
  busy_ = true;
  used_ = used();
  since_ = now;
}

unsigned processor_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
  return static_cast<unsigned>(std::max<long>(1, sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace torch_remote::worker
