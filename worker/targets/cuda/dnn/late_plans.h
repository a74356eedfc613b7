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

// cuDNN graphs whose kernels cuDNN compiles, which takes seconds. A background thread builds plans for problems that
// are used more than once. Until a plan exists, another runner executes the node.
namespace torch_remote::worker::cuda {

enum class LateState : uint8_t { kWaiting, kReady, kRefused };

struct LatePlanOptions {
  const dnn::Table* table = nullptr;
  uint64_t workspace = uint64_t{1} << 30;  // The most bytes of workspace that a plan may need.
  size_t timed = 3;                        // How many heuristic results are timed.
  std::string folder = {};                 // Where choices are stored; empty: nowhere. Must not be writable by others.
};

template <typename Problem>
class LatePlans;

// A problem and, once the thread has built them, its plans.
template <typename Problem>
class LatePlan {
 public:
  ~LatePlan() { dnn::destroy(table_, made_); }
  LatePlan(const LatePlan&) = delete;
  LatePlan& operator=(const LatePlan&) = delete;

  const Problem& problem() const { return problem_; }
  size_t plans() const { return choice_.plans().size(); }
  size_t best() const { return choice_.best(); }

 private:
  friend class LatePlans<Problem>;
  LatePlan(const dnn::Table& table, const Problem& problem) : table_(table), problem_(problem) {}

  const dnn::Table& table_;
  const Problem problem_;
  uint32_t uses_ = 0;      // Uses without a plan.
  bool is_asked_ = false;  // Queued for the thread.
  bool is_made_ = false;   // The thread is done with it, so `status_` and the members below are valid.
  bool distrusts_file_ = false;
  Status status_;
  std::vector<dnn::Descriptor> made_;  // Each after those that it refers to.
  dnn::PlanChoice choice_;
};

// The plans of one kind of graph on one GPU's work stream. Used by one thread, with the GPU's context current. The
// table must outlive it. A Problem is ordered and has `bool deterministic`: always the same algorithm, even if another
// one is faster. Its key_of() is one word with everything that a plan depends on except the machine.
template <typename Problem>
class LatePlans {
 public:
  using State = LateState;
  using Prepared = std::shared_ptr<LatePlan<Problem>>;
  using Options = LatePlanOptions;

  virtual ~LatePlans() = default;  // Subclasses must call `close` in their destructors.

  // Returns the entry of a problem, and makes it at the first call.
  Prepared find(const Problem& problem);
  State state(const LatePlan<Problem>& prepared);
  // Why it is refused.
  Status status(const LatePlan<Problem>& prepared);
  // Notes that another runner executed it. The second use requests the plans; they are not worth building for a single
  // use.
  void note_use(const Prepared& prepared);
  // Requests the plans and waits until they are built or refused. Errors that are not kUnsupported are tried again.
  void wait(const Prepared& prepared);

  // Whether the plans are not requested yet, as the problem was not used often enough.
  bool is_unasked(const LatePlan<Problem>& prepared);
  // Grows with each problem whose plans are built or refused.
  uint64_t built() const { return built_.load(std::memory_order_acquire); }

  // How often heuristics were asked, and how often the choice file named the plan instead.
  uint64_t asked();
  uint64_t found();

  static constexpr uint32_t kUses = 2;

 protected:
  // `what` names these graphs in errors.
  LatePlans(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options, std::string_view what)
      : gpu_(std::move(gpu)), memory_(memory), options_(std::move(options)), table_(*options_.table), what_(what) {}

  // `file`: the kind of the choice file. Must be called first.
  Status begin(std::string_view file);
  void close();

  const dnn::Table& table() const { return table_; }
  dnn::Handle handle() const { return handle_; }

  // Queues a problem that is ready. The first call is immediate, as only the call shows whether the plan works.
  // kUnsupported: it does not, and the problem is refused from now on. `words`: addresses and numbers, everything that
  // distinguishes calls. `more`: bytes after the plan's workspace. `call` executes a plan, and is stored as long as the
  // queued work.
  Status run_plan(const Prepared& prepared, std::initializer_list<uint64_t> words, uint64_t more,
                  dnn::PlanChoice::Call call);

 private:
  // Builds the graph. `made` receives its descriptor and those of everything in it. Called by the thread.
  virtual Status describe(const Problem& problem, dnn::Handle handle, std::vector<dnn::Descriptor>* made,
                          dnn::Descriptor* graph) const = 0;
  // Heuristics are asked level by level until an engine has a plan. A stored choice may be of any level.
  virtual size_t levels() const { return 1; }
  // Whether an engine with these notes is acceptable.
  virtual bool suits(const Problem&, const std::vector<dnn::Note>&, size_t /*level*/) const { return true; }
  // An error: plans of this level are rejected.
  virtual Status check(const Problem&, size_t /*level*/) const { return {}; }
  // How many heuristic results get plans.
  virtual size_t most(const Problem& problem) const { return problem.deterministic ? 1 : options_.timed; }
  // No other runner executes it, so an error of one call does not refuse later ones.
  virtual bool is_only_way() const { return false; }

  void ask(const Prepared& prepared);
  void serve();  // The thread's main function.
  Status make(LatePlan<Problem>& prepared, dnn::Handle handle);

  static constexpr size_t kMostKnown = 1024, kMostAskedFor = 64;

  const std::shared_ptr<Gpu> gpu_;
  CachingAllocator& memory_;
  const Options options_;
  const dnn::Table& table_;
  const std::string_view what_;
  dnn::Handle handle_ = nullptr;
  std::map<Problem, Prepared> known_;
  ChoiceFile file_;  // Read by the background thread, written by the user's thread.

  std::mutex mutex_;  // Guards the members below, and what the thread does with requested problems.
  std::condition_variable wake_, made_;
  std::deque<Prepared> asked_for_;
  bool closing_ = false;
  uint64_t asked_ = 0, found_ = 0;
  std::atomic<uint64_t> built_ = 0;
  std::thread thread_;  // Started by the first request.
};

template <typename Problem>
Status LatePlans<Problem>::begin(std::string_view file) {
  Status status = dnn::to_status(table_, table_.create(&handle_), "cudnnCreate");
  const std::string about = gpu_->name() + " sm_" + std::to_string(gpu_->sm()) + " cudnn " +
                            std::to_string(table_.get_version()) + " " + std::to_string(options_.workspace);
  if (status.ok()) file_ = ChoiceFile(options_.folder, about, std::string(file));
  return status;
}

template <typename Problem>
void LatePlans<Problem>::close() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  const Current current(*gpu_);
  gpu_->queue().clear();
  for (const auto& [problem, prepared] : known_) {
    if (!gpu_->is_lost()) prepared->choice_.destroy_marks(*gpu_);
  }
  asked_for_.clear();
  known_.clear();
  if (handle_ != nullptr) (void)table_.destroy(handle_);
  handle_ = nullptr;
}

// --- problems --------------------------------------------------------------------------------------------------------

template <typename Problem>
typename LatePlans<Problem>::Prepared LatePlans<Problem>::find(const Problem& problem) {
  const auto known = known_.find(problem);
  if (known != known_.end()) return known->second;
  if (known_.size() >= kMostKnown) {
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& entry) {
      return entry.second.use_count() == 1 && (!entry.second->is_made_ || entry.second->choice_.is_quiet());
    });
  }
  Prepared prepared(new LatePlan<Problem>(table_, problem));
  known_[problem] = prepared;
  return prepared;
}

template <typename Problem>
LateState LatePlans<Problem>::state(const LatePlan<Problem>& prepared) {
  const std::lock_guard lock(mutex_);
  if (!prepared.is_made_) return State::kWaiting;
  return prepared.status_.ok() ? State::kReady : State::kRefused;
}

template <typename Problem>
bool LatePlans<Problem>::is_unasked(const LatePlan<Problem>& prepared) {
  const std::lock_guard lock(mutex_);
  return !prepared.is_asked_ && !prepared.is_made_;
}

template <typename Problem>
Status LatePlans<Problem>::status(const LatePlan<Problem>& prepared) {
  const std::lock_guard lock(mutex_);
  return prepared.status_;
}

template <typename Problem>
void LatePlans<Problem>::note_use(const Prepared& prepared) {
  if (++prepared->uses_ >= kUses) ask(prepared);
}

template <typename Problem>
void LatePlans<Problem>::ask(const Prepared& prepared) {
  const std::lock_guard lock(mutex_);
  // If the queue is full, a later use requests it.
  if (prepared->is_asked_ || prepared->is_made_ || asked_for_.size() >= kMostAskedFor) return;
  prepared->is_asked_ = true;
  asked_for_.push_back(prepared);
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  wake_.notify_one();
}

template <typename Problem>
void LatePlans<Problem>::wait(const Prepared& prepared) {
  {
    const std::lock_guard lock(mutex_);
    if (prepared->is_made_ && !prepared->status_.ok() && prepared->status_.code() != ErrorCode::kUnsupported) {
      prepared->is_asked_ = prepared->is_made_ = false;
      prepared->choice_ = {};
    }
  }
  while (true) {
    ask(prepared);
    std::unique_lock lock(mutex_);
    if (prepared->is_made_) return;
    // The queue was full: wait until an entry is done.
    const size_t before = asked_for_.size();
    made_.wait(lock, [&] { return prepared->is_made_ || (!prepared->is_asked_ && asked_for_.size() < before); });
  }
}

// --- plans -----------------------------------------------------------------------------------------------------------

template <typename Problem>
void LatePlans<Problem>::serve() {
  const Current current(*gpu_);
  dnn::Handle handle = nullptr;  // A handle may be used by only one thread at a time.
  const Status created = dnn::to_status(table_, table_.create(&handle), "cudnnCreate");
  while (true) {
    Prepared prepared;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return closing_ || !asked_for_.empty(); });
      if (closing_) break;
      prepared = asked_for_.front();
      asked_for_.pop_front();
    }
    Status status = created.ok() ? make(*prepared, handle) : created;
    {
      const std::lock_guard lock(mutex_);
      prepared->status_ = std::move(status);
      prepared->is_made_ = true;
    }
    built_.fetch_add(1, std::memory_order_release);
    prepared.reset();
    made_.notify_all();
  }
  if (handle != nullptr) (void)table_.destroy(handle);
}

// Called by the background thread. No other thread reads `prepared` until is_made_ is set.
template <typename Problem>
Status LatePlans<Problem>::make(LatePlan<Problem>& prepared, dnn::Handle handle) {
  const Problem& problem = prepared.problem_;
  dnn::Descriptor graph = nullptr;
  if (Status status = describe(problem, handle, &prepared.made_, &graph); !status.ok()) return status;
  const auto add = [&](dnn::HeuristicsMode mode, size_t level, size_t most, const std::string* only) {
    return dnn::add_plans(
        table_, handle, graph, mode, options_.workspace, most,
        [&](const std::vector<dnn::Note>& notes) { return suits(problem, notes, level); }, only, &prepared.made_,
        &prepared.choice_.plans());
  };
  if (!problem.deterministic && !prepared.distrusts_file_) {
    if (const std::string* const kept = file_.find(problem.key_of()); kept != nullptr) {
      (void)add(dnn::mode_of(*kept), levels() - 1, 1, kept);
      if (prepared.plans() != 0) {
        const std::lock_guard lock(mutex_);
        ++found_;
        prepared.choice_.settle(true);
        return {};
      }
    }
  }
  {
    const std::lock_guard lock(mutex_);
    ++asked_;
  }
  Status status;
  for (size_t level = 0; level < levels(); ++level) {
    for (const dnn::HeuristicsMode mode : {dnn::HeuristicsMode::kA, dnn::HeuristicsMode::kFallback}) {
      // One mode may support what the other one does not.
      const Status added = add(mode, level, most(problem), nullptr);
      if (!added.ok()) status = added;
      if (prepared.plans() == 0) continue;
      if (Status good = check(problem, level); !good.ok()) return good;
      if (problem.deterministic || prepared.plans() == 1) prepared.choice_.settle(false);
      return {};
    }
  }
  return status.ok() ? dnn::to_status(table_, dnn::Result::kNotSupported, "cudnnBackendFinalize") : status;
}

// --- calls -----------------------------------------------------------------------------------------------------------

template <typename Problem>
Status LatePlans<Problem>::run_plan(const Prepared& prepared, std::initializer_list<uint64_t> words, uint64_t more,
                                    dnn::PlanChoice::Call call) {
  if (gpu_->is_lost()) return {};
  const Problem& problem = prepared->problem_;
  dnn::PlanChoice& choice = prepared->choice_;
  if (choice.decide(*gpu_)) file_.add(problem.key_of(), choice.plans()[choice.best()].choice);
  if (!choice.is_proven()) {
    const bool kept = choice.is_kept();
    Status status = choice.first_run(*gpu_, memory_, call, problem.deterministic, what_, more);
    if (status.ok() || (!kept && (is_only_way() || status.code() == ErrorCode::kOutOfMemory))) return status;
    status = {ErrorCode::kUnsupported, status.message()};
    {
      const std::lock_guard lock(mutex_);
      prepared->status_ = status;
      if (kept) {  // The choice file may be wrong, so plans are requested again without it.
        prepared->distrusts_file_ = true;
        prepared->is_asked_ = prepared->is_made_ = false;
        prepared->choice_ = {};
      }
    }
    if (kept) ask(prepared);
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
                     .what = prepared,
                     .queue = [prepared, memory, chosen, call = std::move(call)](Stream stream) {
                       return call(prepared->choice_.plans()[chosen], memory, stream);
                     }});
  return {};
}

template <typename Problem>
uint64_t LatePlans<Problem>::asked() {
  const std::lock_guard lock(mutex_);
  return asked_;
}
template <typename Problem>
uint64_t LatePlans<Problem>::found() {
  const std::lock_guard lock(mutex_);
  return found_;
}

}  // namespace torch_remote::worker::cuda
