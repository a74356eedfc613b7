#include "worker/cuda/work_queue.h"

#include <algorithm>
#include <string>
#include <utility>

namespace torch_remote::worker::cuda {
namespace {

// So much more often than not most of a graph may be exchanged.
constexpr uint32_t kPatience = 8;

// Two hashes of what works are, but for the parameters of kernels.
std::array<uint64_t, 2> key_of(const std::vector<Work>& works) {
  std::array<uint64_t, 2> key = {works.size(), ~works.size()};
  const auto add = [&](uint64_t word) {
    key[0] = (key[0] ^ word) * 0x9E3779B97F4A7C15;
    key[0] ^= key[0] >> 32;
    key[1] = (key[1] + word) * 0xC2B2AE3D27D4EB4F;
    key[1] ^= key[1] >> 29;
  };
  for (const Work& work : works) {
    add(work.words.size());
    if (work.function != nullptr) {
      add(reinterpret_cast<uint64_t>(work.function));
      add(work.grid);
      add(uint64_t{work.block[0]} << 32 | work.block[1]);
      add(work.shared_bytes);
    } else {
      add(reinterpret_cast<uint64_t>(work.what.get()));
      for (const uint64_t word : work.words) add(word);
    }
  }
  return key;
}

// As the driver takes a kernel's parameters.
std::vector<void*> parameters_of(const Work& work) {
  if (work.one_parameter) return {const_cast<uint64_t*>(work.words.data())};
  std::vector<void*> parameters;
  parameters.reserve(work.words.size());
  for (const uint64_t& word : work.words) parameters.push_back(const_cast<uint64_t*>(&word));
  return parameters;
}

}  // namespace

void WorkQueue::add(Work work) {
  bool full = false;
  {
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
    full = works_.size() >= kMost;
  }
  if (full) flush();
}

WorkQueue::Counts WorkQueue::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void WorkQueue::flush() {
  const std::lock_guard lock(mutex_);
  if (works_.empty()) return;
  std::vector<Work> works = std::exchange(works_, {});
  if (is_lost_()) return;
  if (works.size() < kFewest || !launch_graph(works)) queue_all(works);
}

void WorkQueue::clear() {
  flush();
  const std::lock_guard lock(mutex_);
  for (Seen& seen : seen_) drop_graphs(seen);
  by_key_.clear();
  seen_.clear();
}

Status WorkQueue::queue(const Work& work) const {
  if (work.function == nullptr) return work.queue(stream_);
  std::vector<void*> parameters = parameters_of(work);
  return to_status(driver_,
                   driver_.launch_kernel(work.function, work.grid, 1, 1, work.block[0], work.block[1], 1,
                                         work.shared_bytes, stream_, parameters.data(), nullptr),
                   "cuLaunchKernel");
}

void WorkQueue::queue_all(const std::vector<Work>& works) {
  for (const Work& work : works) {
    if (const Status status = queue(work); !status.ok()) {
      lose_(status);
      return;
    }
  }
}

// --- graphs ----------------------------------------------------------------------------------------------------------

// False: nothing was queued.
bool WorkQueue::launch_graph(std::vector<Work>& works) {
  const Key key = key_of(works);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) {
    seen_.push_front({.key = key});
    by_key_[key] = seen_.begin();
    make_room();
    return false;
  }
  seen_.splice(seen_.begin(), seen_, found->second);
  Seen& seen = seen_.front();
  if (seen.never) return false;
  if (!find_graph(seen, works)) {
    drop_graphs(seen);
    seen.never = true;
    return false;
  }
  seen.graphs.front().works = std::move(works);
  ++counts_.launched;
  const Result result = driver_.graph_launch(seen.graphs.front().exec, stream_);
  if (result != Result::kSuccess) lose_(to_status(driver_, result, "cuGraphLaunch"));
  make_room();
  return true;
}

// The first of the sequence's graphs is then one that does these works.
bool WorkQueue::find_graph(Seen& seen, const std::vector<Work>& works) {
  std::vector<size_t> changed, least;
  auto best = seen.graphs.end();
  for (auto captured = seen.graphs.begin(); captured != seen.graphs.end(); ++captured) {
    changed.clear();
    for (size_t i = 0; i < works.size(); ++i) {
      if (works[i].words != captured->works[i].words) changed.push_back(i);
    }
    if (best != seen.graphs.end() && changed.size() >= least.size()) continue;
    best = captured;
    least = changed;
  }
  const bool few = best != seen.graphs.end() && 2 * least.size() <= works.size();
  if (!few && seen.graphs.size() < kMostAlike) {
    return make_graph(works, seen.graphs.emplace_front());
  }
  seen.restless = few ? std::max(seen.restless, 1u) - 1 : seen.restless + 1;
  seen.graphs.splice(seen.graphs.begin(), seen.graphs, best);
  return seen.restless <= kPatience && exchange(seen.graphs.front(), works, least);
}

// What is queued meanwhile becomes a graph; nothing is done.
bool WorkQueue::capture(const std::vector<Work>& works, Captured& captured) const {
  if (driver_.stream_begin_capture(stream_, CaptureMode::kThreadLocal) != Result::kSuccess) return false;
  bool good = true;
  for (const Work& work : works) {
    // The node that it ends with is the work's.
    CaptureStatus status = CaptureStatus::kNone;
    uint64_t id = 0;
    Graph made = nullptr;
    const GraphNode* last = nullptr;
    size_t count = 0;
    good = queue(work).ok() &&
           driver_.stream_get_capture_info(stream_, &status, &id, &made, &last, &count) == Result::kSuccess &&
           count == 1;
    if (!good) break;
    captured.nodes.push_back(*last);
  }
  const bool ended = driver_.stream_end_capture(stream_, &captured.graph) == Result::kSuccess;
  return good && ended;
}

bool WorkQueue::make_graph(const std::vector<Work>& works, Captured& captured) {
  if (!capture(works, captured)) return false;
  if (driver_.graph_instantiate(&captured.exec, captured.graph, 0) != Result::kSuccess) {
    captured.exec = nullptr;
    return false;
  }
  ++counts_.captured;
  ++counts_.graphs;
  pieces_ += works.size();
  return true;
}

bool WorkQueue::set_parameters(const Captured& captured, size_t piece, const Work& work) const {
  std::vector<void*> words = parameters_of(work);
  KernelNodeParameters parameters;
  parameters.function = work.function;
  parameters.grid_x = work.grid;
  parameters.block_x = work.block[0];
  parameters.block_y = work.block[1];
  parameters.shared_bytes = work.shared_bytes;
  parameters.parameters = words.data();
  return driver_.graph_exec_kernel_node_set_params(captured.exec, captured.nodes[piece], &parameters) ==
         Result::kSuccess;
}

bool WorkQueue::exchange(const Captured& captured, const std::vector<Work>& works, const std::vector<size_t>& changed) {
  counts_.exchanged += changed.size();
  return std::ranges::all_of(changed, [&](size_t i) { return set_parameters(captured, i, works[i]); });
}

void WorkQueue::drop(Captured& captured) {
  if (captured.exec != nullptr) {
    --counts_.graphs;
    pieces_ -= captured.nodes.size();
    if (!is_lost_()) (void)driver_.graph_exec_destroy(captured.exec);
  }
  if (captured.graph != nullptr && !is_lost_()) (void)driver_.graph_destroy(captured.graph);
}

void WorkQueue::drop_graphs(Seen& seen) {
  for (Captured& captured : seen.graphs) drop(captured);
  seen.graphs.clear();
}

// Those that were not used for longest go first.
void WorkQueue::make_room() {
  auto seen = seen_.end();
  while (counts_.graphs > kMostGraphs || pieces_ > kMostPieces) {
    --seen;
    while (seen->graphs.empty()) --seen;
    if (seen == seen_.begin() && seen->graphs.size() == 1) break;
    drop(seen->graphs.back());
    seen->graphs.pop_back();
    seen = seen_.end();
  }
  while (seen_.size() > kMostSeen) {
    drop_graphs(seen_.back());
    by_key_.erase(seen_.back().key);
    seen_.pop_back();
  }
}

}  // namespace torch_remote::worker::cuda
