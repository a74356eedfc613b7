#pragma once

#include <cstdint>
#include <string>

// The machine that the worker runs on.
namespace torch_remote::worker {

// How much of a core a process uses, all of its threads together. Not thread safe.
class ProcessLoad {
 public:
  explicit ProcessLoad(int process);  // 0: none, which uses nothing
  bool known() const { return clock_ != 0; }
  // Whether it used more than a quarter of a core lately. Looks every some milliseconds: the kernel counts another
  // process's time when its timer ticks. `now`: CLOCK_MONOTONIC in ns.
  bool busy(uint64_t now);
  // It did something just now, after nobody asked for a while: taken for busy until it turns out otherwise.
  void assume_busy(uint64_t now);
  // Processor time so far, of all its threads together, in ns; 0 if it is not known.
  uint64_t used() const;

 private:
  int clock_ = 0;
  bool busy_ = true;
  uint64_t since_ = 0;
  uint64_t used_ = 0;  // at that time
};

// How much of the cores that this process may run on others use. Not thread safe.
class OtherLoad {
 public:
  // `file`: as proc(5) describes /proc/stat, with the time of each core.
  explicit OtherLoad(const std::string& file = "/proc/stat");
  ~OtherLoad();
  OtherLoad(const OtherLoad&) = delete;
  OtherLoad& operator=(const OtherLoad&) = delete;

  // Whether they lately used more than half of a core while this process had something to do; what gives way to others
  // (nice) counts as nothing. Looks every fiftieth of a second, which takes some 20 us, and decides by a tenth. `now`:
  // CLOCK_MONOTONIC in ns. `client`: one that is not to count, and the processor time that it used so far. `idle`: how
  // long this process has had nothing to do so far, in ns. (Who works while this process rests is in nobody's way.)
  bool busy(uint64_t now, uint64_t client, uint64_t idle);

 private:
  // Of all processes, in ns. False: nobody knows.
  bool used(uint64_t* ns) const;

  const ProcessLoad own_;
  int file_ = -1;
  bool busy_ = false;
  uint64_t since_ = 0;
  uint64_t all_ = 0, not_counted_ = 0, idle_ = 0;  // at that time
  // Since it was last decided.
  uint64_t decided_ = 0;
  uint64_t time_ = 0;  // in which this process had something to do
  int64_t others_ = 0;
};

// Bytes that this process may use: physical memory, or the control group's limit if that is less.
uint64_t machine_memory();
// What of that nobody uses now.
uint64_t available_memory();

// "AMD EPYC 7R13 Processor", or its architecture if it does not tell.
std::string processor_name();
// Of its cores, those that this process may run on.
unsigned processor_cores();

}  // namespace torch_remote::worker
