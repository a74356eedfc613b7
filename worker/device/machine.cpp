#include "worker/device/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string_view>

namespace torch_remote::worker {
namespace {

constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

// Returns the number that a file begins with; kNone if there is none ("max").
uint64_t read_number(const char* path) {
  std::ifstream file(path);
  uint64_t value;
  return file >> value ? value : kNone;
}

// Returns the number after a key, in a file with one line per key.
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
  // In a control group: its limit minus what it uses. The kernel reclaims inactive file pages, so they do not count as
  // used.
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
  if (!known() || clock_gettime(clock_, &time) != 0) return 0;
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

bool ProcessLoad::busy(uint64_t now) {
  constexpr uint64_t kWindow = 10'000'000;  // Nanoseconds: more than two ticks.
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

OtherProcessLoad::OtherProcessLoad(const std::string& file) : own_(getpid()) {
  // With more cores it hardly matters that one of them is used, and reading the file takes long.
  constexpr unsigned kMostCores = 16;
  if (const unsigned cores = processor_cores(); cores > 1 && cores <= kMostCores) {
    file_ = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  }
}

OtherProcessLoad::~OtherProcessLoad() {
  if (file_ >= 0) close(file_);
}

// The file has a line for each core: "cpu1 ", and ticks as user, niced user, system, idle, waiting, interrupts, and
// soft ones.
bool OtherProcessLoad::used(uint64_t* ns) const {
  char text[16384];  // The lines of the cores come first.
  ssize_t size = file_ < 0 ? -1 : pread(file_, text, sizeof(text) - 1, 0);
  while (size > 0 && text[size - 1] != '\n') --size;  // Complete lines only.
  cpu_set_t cores;
  if (size <= 0 || sched_getaffinity(0, sizeof(cores), &cores) != 0) return false;
  text[size] = 0;
  uint64_t ticks = 0;
  bool any = false;
  for (const char* line = text; line != nullptr; line = std::strchr(line, '\n'), line += line != nullptr) {
    unsigned core;
    uint64_t user, nice, system, idle, waiting, interrupts, soft;
    if (std::sscanf(line, "cpu%u %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
                    &core, &user, &nice, &system, &idle, &waiting, &interrupts, &soft) != 8) {
      if (any) break;
      continue;  // The sum over all cores.
    }
    any = true;
    if (core < CPU_SETSIZE && CPU_ISSET(core, &cores)) ticks += user + system + interrupts + soft;
  }
  *ns = ticks * (1'000'000'000 / static_cast<uint64_t>(sysconf(_SC_CLK_TCK)));
  return any;
}

bool OtherProcessLoad::busy(uint64_t now, uint64_t client, uint64_t idle) {
  constexpr uint64_t kLook = 20'000'000, kWindow = 100'000'000;  // Nanoseconds: two of the file's ticks, and ten.
  constexpr uint64_t kForget = 1'000'000'000;
  if (file_ < 0 || now - since_ < kLook) return busy_;
  uint64_t all;
  if (!used(&all)) return busy_;
  const uint64_t not_counted = client + own_.used(), time = now - since_;
  if (since_ != 0 && idle - idle_ < time / 2) {
    time_ += time;
    others_ += static_cast<int64_t>(all - all_) - static_cast<int64_t>(not_counted - not_counted_);
  }
  const bool decides = time_ >= kWindow;
  if (decides || now - decided_ > kForget) {
    // Hysteresis: others count as busy until they use less than a quarter.
    busy_ = decides && others_ > static_cast<int64_t>(time_ / (busy_ ? 4 : 2));
    decided_ = now;
    time_ = 0;
    others_ = 0;
  }
  since_ = now;
  all_ = all;
  not_counted_ = not_counted;
  idle_ = idle;
  return busy_;
}

unsigned processor_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
  return static_cast<unsigned>(std::max<long>(1, sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace torch_remote::worker
