#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "codegen/cpu/call.h"
#include "codegen/cpu/executable_code.h"
#include "codegen/loop/loop_ir.h"
#include "ir/status.h"
#include "worker/runner/kernel_files.h"

// Compiled kernels of one target, in memory and on disk. A kernel that is in neither is compiled by a thread of low
// priority, while the caller continues.
namespace torch_remote::worker::kernels {

// A line of memory (codegen/cpu/call.h) that a kernel needs in addition to its operands.
struct Line {
  uint32_t item_size = 4;
  uint32_t columns = 0;   // bit c: it has an element for each index of column dim c; 0: a single element
  uint64_t identity = 0;  // bits of the reduction's initial value
};

// Code, and what its callers need to know. Its address never changes. The cache may free it once no caller refers to
// it.
struct CompiledKernel {
  enum class State : uint8_t { kPending, kReady, kFailed };
  std::atomic<State> state = State::kPending;
  bool ready() const { return state.load(std::memory_order_acquire) == State::kReady; }

  // Derived from the kernel; available immediately.
  std::vector<Line> saved_values, totals;  // of Schedule::spilled and Schedule::totals
  bool has_rows = false;                   // the kernel has a row dim
  // the kernel stores at indices, so rows that may write the same element must not run in parallel
  bool needs_row_order = false;
  // a row's columns may be split: no value reduces over them or depends on a column's index
  bool splits_columns = false;
  codegen::cpu::Variant variant;
  // Available when the kernel is ready.
  codegen::cpu::ExecutableCode code;
  codegen::cpu::RowsFunction rows = nullptr;
  codegen::cpu::FinishFunction finish = nullptr;  // null if the kernel has none
  Status status;                                  // the reason of a failure
};

struct CacheOptions {
  std::string folder;          // the cache's folder on disk, created if missing; empty: memory only
  uint64_t limit = 256 << 20;  // bytes on disk; the oldest files are deleted first
  std::string target;          // such as "x86-64-v4"
  std::string version;         // the compiler's version
  bool urgent = false;         // callers wait for kernels, so they are compiled with normal priority
  // A kernel is compiled this long after the request, unless a caller waits for it. The delay keeps compilations from
  // competing with a program's first run for the cores.
  std::chrono::nanoseconds delay{0};
  // Compiles LoopIR text to code; called by the cache's thread.
  std::function<Status(std::string_view text, const codegen::cpu::Variant& variant, std::vector<uint8_t>* bytes,
                       uint32_t* rows, uint32_t* finish)>
      compile;
  // If not null, called for the first kernel that cannot be compiled, with the reason, by any thread.
  std::function<void(const Status& why)> on_failure;
};

// Any thread may call any function.
class KernelCache {
 public:
  explicit KernelCache(CacheOptions options);
  ~KernelCache();  // waits for the kernel that is being compiled

  // Returns the kernel, ready or not, and requests it if it is new. `text` is the text of `kernel`. Returns null if the
  // kernel is too large or there are too many, because a client decides which kernels are requested.
  std::shared_ptr<CompiledKernel> get(const std::string& text, const codegen::Kernel& kernel,
                                      const codegen::cpu::Variant& variant = {});
  // Returns when the kernel is ready or has failed.
  void wait(const CompiledKernel& kernel);

  // Increases with each kernel that becomes ready.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  uint64_t compiled() const { return compiled_.load(std::memory_order_relaxed); }
  // Number of kernels that could not be compiled; their groups are executed node by node.
  uint64_t failed() const { return failed_.load(std::memory_order_relaxed); }
  // Number of kernels in memory.
  size_t size() const;

 private:
  static constexpr size_t kFirstSweep = 256;
  struct Job {
    std::string key, text;
    std::shared_ptr<CompiledKernel> kernel;
    std::chrono::steady_clock::time_point begins;  // not before this time
  };
  // Drops kernels that only the cache refers to; those not compiled yet will not be compiled. Call with mutex_ held.
  void sweep();
  void work();
  // Waits for the next job that may begin. Returns false if the cache is being destroyed. Call with mutex_ held by
  // `lock`.
  bool next_job(std::unique_lock<std::mutex>& lock, Job* job);
  void finish(CompiledKernel& kernel, const std::vector<uint8_t>& bytes, uint32_t rows, uint32_t finish);
  void fail(CompiledKernel& kernel, const Status& why);
  bool read(const std::string& key, CompiledKernel& kernel);
  void write(const std::string& key, std::vector<uint8_t> bytes, uint32_t rows, uint32_t finish) const;

  const CacheOptions options_;
  const KernelFiles files_;
  std::atomic<uint64_t> generation_{0}, compiled_{0}, failed_{0};
  mutable std::mutex mutex_;                                                  // guards the members below
  std::unordered_map<std::string, std::shared_ptr<CompiledKernel>> kernels_;  // by key: text and variant
  size_t sweep_at_ = kFirstSweep;                                             // sweep at this number of kernels
  std::deque<Job> jobs_;
  std::condition_variable wake_, done_;
  uint32_t waiting_ = 0;  // threads that wait for a kernel
  bool ends_ = false;
  std::thread thread_;  // started by the first job
};

}  // namespace torch_remote::worker::kernels
