#include "worker/targets/cuda/dnn/cudnn_plans.h"

#include <algorithm>
#include <utility>

#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/launch/timed_choice.h"

namespace torch_remote::worker::cuda::dnn {
namespace {

constexpr int kRepeats = 2;  // Timed runs per plan, after one warm-up run.

}  // namespace

std::string choice_of(HeuristicsMode mode, size_t number) {
  return std::string(mode == HeuristicsMode::kA ? "A" : "F") + std::to_string(number);
}
HeuristicsMode mode_of(std::string_view choice) {
  return choice.starts_with("A") ? HeuristicsMode::kA : HeuristicsMode::kFallback;
}

Status add_plans(const Table& table, Handle handle, Descriptor graph, HeuristicsMode mode, uint64_t workspace,
                 size_t max_plans, const std::function<bool(const std::vector<NumericalNote>& notes)>& wanted,
                 const std::string* only, std::vector<Descriptor>* made, std::vector<Plan>* plans) {
  Temporary temporary(table);
  std::vector<Descriptor> configs;
  if (Status status = query_heuristics(table, graph, mode, &temporary, &configs); !status.ok()) return status;
  Status status;
  for (size_t number = 0; number < configs.size(); ++number) {
    std::string choice = choice_of(mode, number);
    if (only != nullptr && choice != *only) continue;
    if (plans->size() >= max_plans) break;
    std::vector<NumericalNote> notes;
    if (!find_notes(table, configs[number], &notes) || !wanted(notes)) continue;
    std::vector<Descriptor> own;
    Plan plan{.choice = std::move(choice)};
    const Status planned = make_plan(table, handle, configs[number], workspace, &own, &plan.plan, &plan.workspace);
    if (planned.ok()) {
      // A plan's descriptors live as long as the plan.
      std::erase(temporary.made, configs[number]);
      made->push_back(configs[number]);
      made->insert(made->end(), own.begin(), own.end());
      plans->push_back(std::move(plan));
    } else {  // The heuristics returned the config, but it has no plan.
      status = planned;
      destroy(table, own);
    }
  }
  return status;
}

uint64_t bytes_of(const Plan& plan, uint64_t more) {
  constexpr uint64_t kAlignment = 256;
  return more == 0 ? plan.workspace : (plan.workspace + kAlignment - 1) / kAlignment * kAlignment + more;
}

void PlanChoice::keep_first(bool from_file) {
  decided_ = true;
  from_file_ = from_file;
}

Status PlanChoice::first_run(Gpu& gpu, CachingAllocator& memory, const Call& call, bool settled, std::string_view what,
                             uint64_t more) {
  Status status;
  while (!plans_.empty()) {
    const Plan plan = plans_.front();
    Workspace workspace;
    status = workspace.take(memory, bytes_of(plan, more)) ? call(plan, workspace.address(), gpu.work_stream())
                                                          : no_memory(bytes_of(plan, more), what);
    if (status.ok()) break;
    if (plans_.size() == 1 && !from_file_) return status;
    if (settled && status.code() == ErrorCode::kOutOfMemory) return status;
    plans_.erase(plans_.begin());
    if (from_file_) return status;
  }
  has_succeeded_ = true;
  from_file_ = false;
  decided_ = decided_ || settled || plans_.size() == 1;
  if (!decided_) time(gpu, memory, call, more);
  return {};
}

Status PlanChoice::take(CachingAllocator& memory, bool settled, std::string_view what, Workspace* workspace,
                        size_t* chosen, uint64_t more) const {
  *chosen = best_;
  if (workspace->take(memory, bytes_of(plans_[best_], more))) return {};
  if (settled) return no_memory(bytes_of(plans_[best_], more), what);
  const auto least = std::ranges::min_element(plans_, {}, &Plan::workspace);
  *chosen = static_cast<size_t>(least - plans_.begin());
  const uint64_t bytes = bytes_of(*least, more);
  return workspace->take(memory, bytes) ? Status() : no_memory(bytes, what);
}

// All plans write the same results to the same memory. The first plan runs last, so its results remain.
void PlanChoice::time(Gpu& gpu, CachingAllocator& memory, const Call& call, uint64_t more) {
  const auto most = std::ranges::max_element(plans_, {}, &Plan::workspace);
  Workspace workspace;
  if (!workspace.take(memory, bytes_of(*most, more))) {
    decided_ = true;
    return;
  }
  const Driver& driver = gpu.driver();
  const Stream stream = gpu.work_stream();
  const auto repeat = [&](const Plan& plan) { return call(plan, workspace.address(), stream).ok(); };
  for (size_t i = plans_.size(); i-- > 1;) {
    if (!repeat(plans_[i])) plans_.erase(plans_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const auto mark = [&] {
    Event event = nullptr;
    if (!gpu.check(driver.event_create(&event, kEventDefault), "cuEventCreate")) return;
    timing_events_.push_back(event);
    gpu.check(driver.event_record(event, stream), "cuEventRecord");
  };
  mark();
  for (size_t i = plans_.size(); i-- > 0;) {
    for (int times = 0; times < kRepeats; ++times) (void)repeat(plans_[i]);
    mark();
  }
}

bool PlanChoice::decide(Gpu& gpu) {
  if (timing_events_.empty()) return false;
  const Driver& driver = gpu.driver();
  const cuda::Result result = driver.event_query(timing_events_.back());
  if (result == cuda::Result::kNotReady || !gpu.check(result, "cuEventQuery")) return false;
  const size_t plans = plans_.size();
  if (timing_events_.size() != plans + 1) return false;
  std::vector<float> times(plans);
  for (size_t i = 0; i < plans; ++i) {
    float& time = times[plans - 1 - i];
    if (!gpu.check(driver.event_elapsed_time(&time, timing_events_[i], timing_events_[i + 1]), "cuEventElapsedTime")) {
      return false;
    }
    time /= kRepeats;
  }
  best_ = fastest(times);
  for (const Event event : timing_events_) gpu.check(driver.event_destroy(event), "cuEventDestroy");
  timing_events_.clear();
  decided_ = true;
  return true;
}

void PlanChoice::destroy_timing_events(const Gpu& gpu) {
  for (const Event event : timing_events_) (void)gpu.driver().event_destroy(event);
  timing_events_.clear();
}

}  // namespace torch_remote::worker::cuda::dnn
