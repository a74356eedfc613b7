#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ir/status.h"

// Python functions that a session calls for its client, if the worker was started to do so. Each call is in a process
// of its own (python_process.py of the package), which does one after the other; there are as many as calls at once, up
// to kMostProcesses (or as many as there are cores): further calls wait.
//
// What goes to such a process and comes back is memory of parts, in a file without name (memfd): the number of parts,
// the offset and size of each (64 bits, little endian), the parts. Part 0 is for the Python at the ends: which
// function; what it returned. The others are tensors' elements, packed.
//
// A process says so when it takes a call. One that ends before that, after it answered another call, has not begun:
// the call is given to another process. So a call that follows one that was killed never fails because of it.
namespace torch_remote::worker {

inline constexpr uint64_t kMostParts = 4097;
inline constexpr unsigned kMostProcesses = 8;

struct Part {
  uint64_t offset = 0, size = 0;
};

// Memory of parts. It is written to where it is mapped, and read with pread: what another process may change under a
// reader's feet is not mapped.
class Parts {
 public:
  Parts() = default;
  ~Parts();
  Parts(Parts&& other) noexcept;
  Parts& operator=(Parts&& other) noexcept;

  // To be written: parts of these sizes.
  static Status make(const std::vector<uint64_t>& sizes, Parts* parts);
  // Of another process: owns the descriptor. An error unless all parts lie inside.
  static Status open(int descriptor, Parts* parts);

  size_t count() const { return table_.size(); }
  uint64_t size(size_t part) const { return table_[part].size; }
  std::byte* data(size_t part) const { return mapped_ + table_[part].offset; }  // of one that was made
  Status read(size_t part, uint64_t offset, std::byte* bytes, uint64_t size) const;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
  std::byte* mapped_ = nullptr;
  uint64_t nbytes_ = 0;
  std::vector<Part> table_;
};

struct PythonResult {
  uint64_t call = 0;
  Status status;  // not ok: the process did not get that far
  Parts parts;
};

// One thread, but for the threads that it has.
class Python {
 public:
  // `wake` is called when there are results, by any thread.
  Python(std::string interpreter, std::string program, std::function<void()> wake);
  // Ends all calls.
  ~Python();
  Python(const Python&) = delete;

  // Begins a call. `call` is no number of another.
  Status call(uint64_t call, Parts request);
  // Of one that has not ended; others are none of its business.
  // One that still waits for a process ends at once.
  void end(uint64_t call, bool kill);
  // Those of calls that have ended since the last time.
  std::vector<PythonResult> take_results();

 private:
  struct Process;

  Status start(std::unique_ptr<Process>* process);
  void listen(Process* process);
  // Of a process that has ended a call: that is its result, and it gets the next one. With the lock.
  void finish(Process* process, PythonResult result);
  // With the lock.
  static void give(Process* process, uint64_t call, Parts request);

  const std::string interpreter_, program_;
  const std::function<void()> wake_;
  std::mutex mutex_;  // for what follows, and what processes do
  std::vector<std::unique_ptr<Process>> processes_;
  std::deque<std::pair<uint64_t, Parts>> waiting_;
  std::vector<PythonResult> results_;
};

}  // namespace torch_remote::worker
