#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ir/status.h"
#include "worker/device/memory.h"
#include "worker/targets/cuda/device/gpu.h"
#include "worker/targets/cuda/dnn/cudnn.h"
#include "worker/targets/cuda/dnn/cudnn_descriptors.h"
#include "worker/targets/cuda/dnn/cudnn_plans.h"
#include "worker/targets/cuda/launch/choice_file.h"

// Plans of cuDNN graphs that are not built before they are worth it, because cuDNN compiles their kernels, which takes
// up to seconds. A background thread builds them when a caller uses wait(). Without a plan, another runner executes the
// node.
namespace torch_remote::worker::cuda {

enum class DeferredPlanState : uint8_t { kWaiting, kReady, kRefused };

struct DeferredPlanOptions {
  const dnn::Table* table = nullptr;
  uint64_t workspace = uint64_t{1} << 30;  // The most bytes of workspace that a plan may need.
  size_t timed = 3;                        // How many heuristic results get plans, which are timed.
  std::string folder = {};                 // Where choices are stored; empty: nowhere. Must not be writable by others.
};

template <typename Problem>
class DeferredPlans;

// A problem and, once the thread has built them, its plans.
template <typename Problem>
class DeferredPlan {
 public:
  ~DeferredPlan() { dnn::destroy(table_, made_); }
  DeferredPlan(const DeferredPlan&) = delete;
  DeferredPlan& operator=(const DeferredPlan&) = delete;

  const Problem& problem() const { return problem_; }
  // The number of plans, and the index of the one in use. Valid while the state is kReady.
  size_t plans() const { return choice_.plans().size(); }
  size_t best() const { return choice_.best(); }

 private:
  friend class DeferredPlans<Problem>;
  DeferredPlan(const dnn::Table& table, const Problem& problem) : table_(table), problem_(problem) {}

  const dnn::Table& table_;
  const Problem problem_;
  uint32_t uses_ = 0;         // As counted by count_use().
  bool is_queued_ = false;    // The plans were requested.
  bool is_finished_ = false;  // The thread has built or refused it, so `status_` and the members below are valid.
  bool ignores_choice_file_ = false;
  Status status_;
  // Descriptors of the graph and of plans. Each one comes after those that it refers to.
  std::vector<dnn::Descriptor> made_;
  dnn::PlanChoice choice_;
};

// The plans of one kind of graph on one GPU's work stream. One thread uses this object, with the GPU's context current.
// The table must outlive it. A Problem describes a call without addresses. It is ordered, and has three members:
// - `bool tune`: several plans are timed, and the fastest one is used. Otherwise the first one that works is used.
// - `bool deterministic`: only the first plan may be used, even if memory is short. Not together with `tune`.
// - `key_of()` returns one word with everything that a stored choice depends on except the machine. Only choices of
//   tuned problems are stored.
template <typename Problem>
class DeferredPlans {
 public:
  using State = DeferredPlanState;
  using Prepared = std::shared_ptr<DeferredPlan<Problem>>;
  using Options = DeferredPlanOptions;

  virtual ~DeferredPlans() = default;  // Subclasses must call `close` in their destructors.

  // Returns the entry of a problem, and makes it at the first call.
  Prepared find(const Problem& problem);
  State state(const DeferredPlan<Problem>& prepared);
  // Why the problem is refused. Valid while the state is kRefused.
  Status status(const DeferredPlan<Problem>& prepared);
  // Counts a use of a problem without plans. True from the second use on: plans are worth building.
  static bool count_use(DeferredPlan<Problem>& prepared) { return ++prepared.uses_ >= kUses; }
  // Requests the plans and waits until they are built or refused. If an error other than kUnsupported refused them
  // before, they are requested again.
  void wait(const Prepared& prepared);

  // Whether nothing has requested the plans.
  bool is_not_requested(const DeferredPlan<Problem>& prepared);
  // The number of requests that the thread has finished, with plans or with an error.
  uint64_t finished() const { return finished_.load(std::memory_order_acquire); }

  // How often heuristics were asked, and how often the choice file named the plan instead.
  uint64_t heuristic_calls();
  uint64_t file_hits();

  static constexpr uint32_t kUses = 2;

 protected:
  // `what` names these graphs in errors.
  DeferredPlans(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options, std::string_view what)
      : gpu_(std::move(gpu)), memory_(memory), options_(std::move(options)), table_(*options_.table), what_(what) {}

  // Creates cuDNN's handle and reads the choice file, whose name has the extension `file`. Call it once, before the
  // other functions.
  Status begin(std::string_view file);
  // Waits for the background thread to end, and destroys the plans and the handle.
  void close();

  const dnn::Table& table() const { return table_; }
  dnn::Handle handle() const { return handle_; }

  // Executes a plan of a problem whose state is kReady. The first call is made at once, because only a call shows
  // whether a plan works. Later calls are queued. kUnsupported: no plan works, and the problem is refused from now on.
  // If the plan came from the choice file, plans are instead requested again without that file. kOutOfMemory: there is
  // no memory for the workspace. If the GPU is lost, this does nothing and returns ok.
  //
  // `words`: addresses and numbers, everything that distinguishes calls. `more`: bytes that the call needs after the
  // plan's workspace. `call` executes a plan; it lives as long as the queued work.
  Status run_plan(const Prepared& prepared, std::initializer_list<uint64_t> words, uint64_t more,
                  dnn::PlanChoice::Call call);

 private:
  // Builds the graph. `made` receives its descriptor and those of everything in it. Called by the thread.
  virtual Status describe(const Problem& problem, dnn::Handle handle, std::vector<dnn::Descriptor>* made,
                          dnn::Descriptor* graph) const = 0;
  // How many levels there are. The heuristics are asked level by level, until an engine has a plan. The last level
  // accepts all engines that any level accepts; a stored choice may be any of these.
  virtual size_t levels() const { return 1; }
  // Whether an engine with these numerical notes is acceptable at this level.
  virtual bool suits(const Problem&, const std::vector<dnn::NumericalNote>&, size_t /*level*/) const { return true; }
  // Returns an error if the problem must be refused although this level has plans.
  virtual Status check(const Problem&, size_t /*level*/) const { return {}; }
  // How many heuristic results get plans.
  virtual size_t max_plans(const Problem& problem) const { return problem.tune ? options_.timed : 1; }
  // Whether no other runner executes these problems. Then run_plan() returns the error of a failed call, and does not
  // refuse the problem.
  virtual bool is_only_runner() const { return false; }

  void request(const Prepared& prepared);
  void serve();  // The thread's main function.
  // Ends the timing of the problem's plans if the GPU is done with it, and stores the choice.
  void decide(DeferredPlan<Problem>& prepared);
  Status make(DeferredPlan<Problem>& prepared, dnn::Handle handle);

  static constexpr size_t kMaxProblems = 1024;  // If there are so many, find() removes those that are not in use.

  const std::shared_ptr<Gpu> gpu_;
  CachingAllocator& memory_;
  const Options options_;
  const dnn::Table& table_;
  const std::string_view what_;
  dnn::Handle handle_ = nullptr;
  std::map<Problem, Prepared> problems_;
  // The background thread calls find(), which uses only what begin() has read. The thread that uses this object calls
  // add(), which writes to disk only. So there is no lock.
  ChoiceFile file_;

  // Guards the members below, and `is_queued_`, `is_finished_` and `status_` of all problems. From the request until
  // `is_finished_` is set, the background thread owns the problem's descriptors and plans.
  std::mutex mutex_;
  std::condition_variable wake_, made_;
  std::deque<Prepared> requests_;
  bool closing_ = false;
  uint64_t heuristic_calls_ = 0, file_hits_ = 0;
  std::atomic<uint64_t> finished_ = 0;
  std::thread thread_;  // Started by the first request.
};

template <typename Problem>
Status DeferredPlans<Problem>::begin(std::string_view file) {
  Status status = dnn::to_status(table_, table_.create(&handle_), "cudnnCreate");
  const std::string environment = gpu_->name() + " sm_" + std::to_string(gpu_->sm()) + " cudnn " +
                                  std::to_string(table_.get_version()) + " " + std::to_string(options_.workspace);
  if (status.ok()) file_ = ChoiceFile(options_.folder, environment, std::string(file));
  return status;
}

template <typename Problem>
void DeferredPlans<Problem>::close() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  const ContextGuard current(*gpu_);
  gpu_->queue().clear();
  for (const auto& [problem, prepared] : problems_) {
    if (!gpu_->is_lost()) prepared->choice_.destroy_timing_events(*gpu_);
  }
  requests_.clear();
  problems_.clear();
  if (handle_ != nullptr) (void)table_.destroy(handle_);
  handle_ = nullptr;
}

// --- problems --------------------------------------------------------------------------------------------------------

template <typename Problem>
typename DeferredPlans<Problem>::Prepared DeferredPlans<Problem>::find(const Problem& problem) {
  const auto known = problems_.find(problem);
  if (known != problems_.end()) return known->second;
  if (problems_.size() >= kMaxProblems) {
    const std::lock_guard lock(mutex_);
    std::erase_if(problems_, [this](const auto& entry) {
      DeferredPlan<Problem>& unused = *entry.second;
      if (entry.second.use_count() != 1) return false;
      if (unused.is_finished_) decide(unused);
      return !unused.is_finished_ || unused.choice_.is_idle();
    });
  }
  Prepared prepared(new DeferredPlan<Problem>(table_, problem));
  problems_[problem] = prepared;
  return prepared;
}

template <typename Problem>
DeferredPlanState DeferredPlans<Problem>::state(const DeferredPlan<Problem>& prepared) {
  const std::lock_guard lock(mutex_);
  if (!prepared.is_finished_) return State::kWaiting;
  return prepared.status_.ok() ? State::kReady : State::kRefused;
}

template <typename Problem>
bool DeferredPlans<Problem>::is_not_requested(const DeferredPlan<Problem>& prepared) {
  const std::lock_guard lock(mutex_);
  return !prepared.is_queued_ && !prepared.is_finished_;
}

template <typename Problem>
Status DeferredPlans<Problem>::status(const DeferredPlan<Problem>& prepared) {
  const std::lock_guard lock(mutex_);
  return prepared.status_;
}

template <typename Problem>
void DeferredPlans<Problem>::request(const Prepared& prepared) {
  const std::lock_guard lock(mutex_);
  if (prepared->is_queued_ || prepared->is_finished_) return;
  prepared->is_queued_ = true;
  requests_.push_back(prepared);
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  wake_.notify_one();
}

template <typename Problem>
void DeferredPlans<Problem>::wait(const Prepared& prepared) {
  {
    const std::lock_guard lock(mutex_);
    if (prepared->is_finished_ && !prepared->status_.ok() && prepared->status_.code() != ErrorCode::kUnsupported) {
      prepared->is_queued_ = prepared->is_finished_ = false;
      prepared->choice_ = {};
    }
  }
  request(prepared);
  std::unique_lock lock(mutex_);
  made_.wait(lock, [&] { return prepared->is_finished_; });
}

// --- plans -----------------------------------------------------------------------------------------------------------

template <typename Problem>
void DeferredPlans<Problem>::serve() {
  const ContextGuard current(*gpu_);
  dnn::Handle handle = nullptr;  // A handle may be used by only one thread at a time.
  const Status created = dnn::to_status(table_, table_.create(&handle), "cudnnCreate");
  while (true) {
    Prepared prepared;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return closing_ || !requests_.empty(); });
      if (closing_) break;
      prepared = requests_.front();
      requests_.pop_front();
    }
    Status status = created.ok() ? make(*prepared, handle) : created;
    {
      const std::lock_guard lock(mutex_);
      prepared->status_ = std::move(status);
      prepared->is_finished_ = true;
    }
    finished_.fetch_add(1, std::memory_order_release);
    prepared.reset();
    made_.notify_all();
  }
  if (handle != nullptr) (void)table_.destroy(handle);
}

// Called by the background thread. No other thread reads `prepared` until is_finished_ is set.
template <typename Problem>
Status DeferredPlans<Problem>::make(DeferredPlan<Problem>& prepared, dnn::Handle handle) {
  const Problem& problem = prepared.problem_;
  dnn::Descriptor graph = nullptr;
  if (Status status = describe(problem, handle, &prepared.made_, &graph); !status.ok()) return status;
  const auto add = [&](dnn::HeuristicsMode mode, size_t level, size_t max_plans, const std::string* only) {
    return dnn::add_plans(
        table_, handle, graph, mode, options_.workspace, max_plans,
        [&](const std::vector<dnn::NumericalNote>& notes) { return suits(problem, notes, level); }, only,
        &prepared.made_, &prepared.choice_.plans());
  };
  if (problem.tune && !prepared.ignores_choice_file_) {
    if (const std::string* const stored = file_.find(problem.key_of()); stored != nullptr) {
      (void)add(dnn::mode_of(*stored), levels() - 1, 1, stored);
      if (prepared.plans() != 0) {
        const std::lock_guard lock(mutex_);
        ++file_hits_;
        prepared.choice_.keep_first(true);
        return {};
      }
    }
  }
  {
    const std::lock_guard lock(mutex_);
    ++heuristic_calls_;
  }
  Status status;
  for (size_t level = 0; level < levels(); ++level) {
    for (const dnn::HeuristicsMode mode : {dnn::HeuristicsMode::kA, dnn::HeuristicsMode::kFallback}) {
      // One mode may support what the other one does not.
      const Status added = add(mode, level, max_plans(problem), nullptr);
      if (!added.ok()) status = added;
      if (prepared.plans() == 0) continue;
      if (Status good = check(problem, level); !good.ok()) return good;
      if (!problem.tune || prepared.plans() == 1) prepared.choice_.keep_first(false);
      return {};
    }
  }
  return status.ok() ? dnn::to_status(table_, dnn::Result::kNotSupported, "cudnnBackendFinalize") : status;
}

// --- calls -----------------------------------------------------------------------------------------------------------

template <typename Problem>
void DeferredPlans<Problem>::decide(DeferredPlan<Problem>& prepared) {
  dnn::PlanChoice& choice = prepared.choice_;
  if (choice.decide(*gpu_)) file_.add(prepared.problem_.key_of(), choice.plans()[choice.best()].choice);
}

template <typename Problem>
Status DeferredPlans<Problem>::run_plan(const Prepared& prepared, std::initializer_list<uint64_t> words, uint64_t more,
                                        dnn::PlanChoice::Call call) {
  if (gpu_->is_lost()) return {};
  const Problem& problem = prepared->problem_;
  dnn::PlanChoice& choice = prepared->choice_;
  decide(*prepared);
  if (!choice.has_succeeded()) {
    const bool from_file = choice.is_from_file();
    Status status = choice.first_run(*gpu_, memory_, call, problem.deterministic, what_, more);
    if (status.ok() || (!from_file && (is_only_runner() || status.code() == ErrorCode::kOutOfMemory))) return status;
    status = {ErrorCode::kUnsupported, status.message()};
    {
      const std::lock_guard lock(mutex_);
      prepared->status_ = status;
      if (from_file) {  // The choice file may be wrong, so plans are requested again without it.
        prepared->ignores_choice_file_ = true;
        prepared->is_queued_ = prepared->is_finished_ = false;
        prepared->choice_ = {};
      }
    }
    if (from_file) request(prepared);
    return status;
  }
  size_t chosen = 0;
  dnn::Workspace workspace;
  if (Status status = choice.take(memory_, problem.deterministic, what_, &workspace, &chosen, more); !status.ok()) {
    return status;
  }
  const DevicePointer memory = workspace.address();
  std::vector<uint64_t> all(words);
  all.insert(all.end(), {memory, chosen});
  gpu_->queue().add({.words = std::move(all),
                     .keep_alive = prepared,
                     .queue = [prepared, memory, chosen, call = std::move(call)](Stream stream) {
                       return call(prepared->choice_.plans()[chosen], memory, stream);
                     }});
  return {};
}

template <typename Problem>
uint64_t DeferredPlans<Problem>::heuristic_calls() {
  const std::lock_guard lock(mutex_);
  return heuristic_calls_;
}
template <typename Problem>
uint64_t DeferredPlans<Problem>::file_hits() {
  const std::lock_guard lock(mutex_);
  return file_hits_;
}

}  // namespace torch_remote::worker::cuda
