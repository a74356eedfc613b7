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
#include "codegen/cpu/place.h"
#include "codegen/loop/loop_ir.h"
#include "ir/status.h"
#include "worker/runner/kernel_files.h"

// Compiled kernels of one target, in memory and on disk. A kernel that is on neither is compiled by a thread of low
// priority, while whoever asked does something else.
namespace torch_remote::worker::kernels {

// What a kernel is called with, beside its operands.
struct Line {
  uint32_t item_size = 4;
  uint32_t columns = 0;  // bit c: it has an element for each place of column dim c; 0: it is one element
  uint64_t neutral = 0;  // bits of what a reduction begins with
};

// Code, and what who calls it must know. Never moves; goes some time after everybody who asked for it let it go.
struct CompiledKernel {
  enum class State : uint8_t { kWaits, kReady, kFailed };
  std::atomic<State> state = State::kWaits;
  bool ready() const { return state.load(std::memory_order_acquire) == State::kReady; }

  // From the kernel; known at once.
  std::vector<Line> kept, totals;
  bool has_rows = false;        // a row dim
  bool in_order = false;        // it stores at indices: rows that may have one place are not done side by side
  bool splits_columns = false;  // a row's columns may be done in parts: no reduction over them, and no index of them
  codegen::cpu::Variant variant;
  // When it is ready.
  codegen::cpu::PlacedCode code;
  codegen::cpu::RowsFunction rows = nullptr;
  codegen::cpu::FinishFunction finish = nullptr;  // null if it has none
  Status status;                                  // why it failed
};

struct CacheOptions {
  std::string folder;          // on disk; empty: memory only. Made if it is not there
  uint64_t limit = 256 << 20;  // bytes on disk; the oldest go first
  std::string target;          // "x86-64-v4"
  std::string version;         // of the compiler
  bool urgent = false;         // somebody waits for kernels: they are compiled with normal priority
  // A kernel is compiled so long after it was asked for, unless somebody waits: what a program does the first time is
  // not to share its cores with that.
  std::chrono::nanoseconds delay{0};
  // LoopIR's text to code; called by the cache's thread.
  std::function<Status(std::string_view text, const codegen::cpu::Variant& variant, std::vector<uint8_t>* bytes,
                       uint32_t* rows, uint32_t* finish)>
      compile;
  // If not null: told of the first kernel that there is no code for, and why; by any thread.
  std::function<void(const Status& why)> tell_failure;
};

// All functions may be called by any thread.
class KernelCache {
 public:
  explicit KernelCache(CacheOptions options);
  ~KernelCache();  // waits for what is being compiled now

  // The kernel, ready or not; asks for it if nobody has. `text` is that of `kernel`. Null for one that is too large, or
  // if there are too many: a client decides what is asked for.
  std::shared_ptr<CompiledKernel> get(const std::string& text, const codegen::Kernel& kernel,
                                      const codegen::cpu::Variant& variant = {});
  // Returns when it is ready, or has failed.
  void wait(const CompiledKernel& kernel);

  // Grows with each kernel that becomes ready.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  uint64_t compiled() const { return compiled_.load(std::memory_order_relaxed); }
  // Kernels that could not be compiled: their groups are done node by node.
  uint64_t failed() const { return failed_.load(std::memory_order_relaxed); }
  // In memory.
  size_t size() const;

 private:
  static constexpr size_t kFirstSweep = 256;
  struct Job {
    std::string key, text;
    std::shared_ptr<CompiledKernel> kernel;
    std::chrono::steady_clock::time_point begins;  // no sooner
  };
  // Lets go of kernels that nobody else has; those that were not compiled yet will not be. With mutex_ held.
  void sweep();
  void work();
  // The next job that may begin, if the cache goes on. With mutex_ held by `lock`.
  bool next_job(std::unique_lock<std::mutex>& lock, Job* job);
  void finish(CompiledKernel& kernel, const std::vector<uint8_t>& bytes, uint32_t rows, uint32_t finish);
  void fail(CompiledKernel& kernel, const Status& why);
  bool read(const std::string& key, CompiledKernel& kernel);
  void write(const std::string& key, std::vector<uint8_t> bytes, uint32_t rows, uint32_t finish) const;

  const CacheOptions options_;
  const KernelFiles files_;
  std::atomic<uint64_t> generation_{0}, compiled_{0}, failed_{0};
  mutable std::mutex mutex_;                                                  // of what follows
  std::unordered_map<std::string, std::shared_ptr<CompiledKernel>> kernels_;  // by key: text and variant
  size_t sweep_at_ = kFirstSweep;                                             // so many kernels
  std::deque<Job> jobs_;
  std::condition_variable wake_, done_;
  uint32_t waiting_ = 0;  // threads that wait for a kernel
  bool ends_ = false;
  std::thread thread_;  // started by the first job
};

}  // namespace torch_remote::worker::kernels
