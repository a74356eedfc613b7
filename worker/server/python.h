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

// Python functions that a session calls for its client, if the worker was started to do so. Calls run in processes of
// their own (python_process.py of the package), one at a time in each. There are up to kMostProcesses processes, or one
// per core if that is more; further calls wait.
//
// Requests and results are `Parts` in a memfd: the number of parts, the offset and size of each (64 bits, little
// endian), and the parts. Part 0 is for the Python code at both ends: it identifies the function, or holds the result.
// The other parts are elements of tensors, packed.
//
// A process reports when it takes a call. It may end before it takes the call that it was given, for example because
// the previous call was killed. Another process then gets the call, unless the ended process never answered any call. A
// killed call therefore never makes the next one fail.
namespace torch_remote::worker {

inline constexpr uint64_t kMostParts = 4097;
inline constexpr unsigned kMostProcesses = 8;

struct Part {
  uint64_t offset = 0, size = 0;
};

// The writer of Parts maps them. The reader uses pread, because another process may change the memory at any time.
class Parts {
 public:
  Parts() = default;
  ~Parts();
  Parts(Parts&& other) noexcept;
  Parts& operator=(Parts&& other) noexcept;

  // Creates parts of these sizes, to be written.
  static Status make(const std::vector<uint64_t>& sizes, Parts* parts);
  // Opens the parts of another process, and owns the descriptor. Returns an error unless all parts lie inside.
  static Status open(int descriptor, Parts* parts);

  size_t count() const { return table_.size(); }
  uint64_t size(size_t part) const { return table_[part].size; }
  std::byte* data(size_t part) const { return mapped_ + table_[part].offset; }  // Only for parts from make().
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
  Status status;  // Not ok: the process did not finish the call.
  Parts parts;
};

// For one thread; it has threads of its own.
class PythonCalls {
 public:
  // `wake` is called by any thread when there are results.
  PythonCalls(std::string interpreter, std::string program, std::function<void()> wake);
  // Ends all calls.
  ~PythonCalls();
  PythonCalls(const PythonCalls&) = delete;

  // Begins a call. `call` must differ from all other calls.
  Status call(uint64_t call, Parts request);
  // Interrupts or kills a call that has not ended; other numbers are ignored. A call that still waits for a process
  // ends at once.
  void end(uint64_t call, bool kill);
  // Returns the results of calls that have ended since the last call of this function.
  std::vector<PythonResult> take_results();

 private:
  struct Process;

  Status start(std::unique_ptr<Process>* process);
  void listen(Process* process);
  // Records the result of a process's call, and gives the process the next one. Needs the lock.
  void finish(Process* process, PythonResult result);
  // Needs the lock.
  static void assign(Process* process, uint64_t call, Parts request);

  const std::string interpreter_, program_;
  const std::function<void()> wake_;
  std::mutex mutex_;  // Guards the members below, and the state of processes.
  std::vector<std::unique_ptr<Process>> processes_;
  std::deque<std::pair<uint64_t, Parts>> waiting_;
  std::vector<PythonResult> results_;
};

}  // namespace torch_remote::worker
