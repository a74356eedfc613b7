#pragma once

#include <cstdint>
#include <string>

// The machine that the worker runs on.
namespace torch_remote::worker {

// How much of a core a process uses, summed over its threads. Not thread safe.
class ProcessLoad {
 public:
  explicit ProcessLoad(int process);  // 0: no process, which uses nothing.
  bool known() const { return clock_ != 0; }
  // Whether the process used more than a quarter of a core lately. Samples every few milliseconds: the kernel counts
  // another process's time at its timer ticks. `now`: CLOCK_MONOTONIC in ns.
  bool busy(uint64_t now);
  // Records that the process did something just now, when busy() was not called for a while. It counts as busy until a
  // sample says otherwise.
  void assume_busy(uint64_t now);
  // Processor time so far, summed over its threads, in ns; 0 if it is not known.
  uint64_t used() const;

 private:
  int clock_ = 0;
  bool busy_ = true;
  uint64_t since_ = 0;
  uint64_t used_ = 0;  // Value at `since_`.
};

// How much other processes use of the cores that this process may run on. Not thread safe.
class OtherProcessLoad {
 public:
  // `file` has the format of /proc/stat in proc(5), with the time of each core.
  explicit OtherProcessLoad(const std::string& file = "/proc/stat");
  ~OtherProcessLoad();
  OtherProcessLoad(const OtherProcessLoad&) = delete;
  OtherProcessLoad& operator=(const OtherProcessLoad&) = delete;

  // Whether other processes lately used more than half of a core while this process had work. Niced processes do not
  // count. Samples every 20 ms, which takes some 20 µs, and decides every 100 ms.
  // `now`: CLOCK_MONOTONIC in ns. `client`: processor time that the client's process has used so far, in ns, which does
  // not count. `idle`: how long this process has had no work so far, in ns; the work of others during that time is
  // harmless.
  bool busy(uint64_t now, uint64_t client, uint64_t idle);

 private:
  // Reads the processor time of all processes, in ns. Returns false if it is not known.
  bool used(uint64_t* ns) const;

  const ProcessLoad own_;
  int file_ = -1;
  bool busy_ = false;
  uint64_t since_ = 0;
  uint64_t all_ = 0, not_counted_ = 0, idle_ = 0;  // Values at `since_`.
  // Since the last decision.
  uint64_t decided_ = 0;
  uint64_t time_ = 0;  // Time in which this process had work.
  int64_t others_ = 0;
};

// Bytes that this process may use: physical memory, or the control group's limit if that is less.
uint64_t machine_memory();
// The part of machine_memory() that is unused now.
uint64_t available_memory();

// "AMD EPYC 7R13 Processor", or the architecture if the name is not known.
std::string processor_name();
// Number of cores that this process may run on.
unsigned processor_cores();

}  // namespace torch_remote::worker
