#include "worker/targets/cuda/device/work_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "codegen/gpu/launch.h"

namespace torch_remote::worker::cuda {
namespace {

// A sequence is given up as a graph once most of it had to be updated this many times more often than not.
constexpr uint32_t kPatience = 8;

struct Hash {
  std::array<uint64_t, 2> words = {0, ~uint64_t{0}};
  void add(uint64_t word) {
    words[0] = (words[0] ^ word) * 0x9E3779B97F4A7C15;
    words[0] ^= words[0] >> 32;
    words[1] = (words[1] + word) * 0xC2B2AE3D27D4EB4F;
    words[1] ^= words[1] >> 29;
  }
};

// Two hashes of the works, without the parameters of kernels.
std::array<uint64_t, 2> key_of(const std::vector<Work>& works) {
  Hash hash;
  const auto add = [&](uint64_t word) { hash.add(word); };
  add(works.size());
  for (const Work& work : works) {
    add(work.words.size());
    if (work.function != nullptr) {
      add(reinterpret_cast<uint64_t>(work.function));
      add(work.grid);
      add(uint64_t{work.block[0]} << 32 | work.block[1]);
      add(work.shared_bytes);
      add(uint64_t{work.numbers} << 32 | work.number_count);
      add(work.failure ? *work.failure : ~uint64_t{0});
    } else {
      add(reinterpret_cast<uint64_t>(work.what.get()));
      for (const uint64_t word : work.words) add(word);
    }
  }
  return hash.words;
}

// A kernel's parameters in the form that cuLaunchKernel takes.
std::vector<void*> parameters_of(const std::vector<uint64_t>& words, bool one_parameter) {
  if (one_parameter) return {const_cast<uint64_t*>(words.data())};
  std::vector<void*> parameters;
  parameters.reserve(words.size());
  for (const uint64_t& word : words) parameters.push_back(const_cast<uint64_t*>(&word));
  return parameters;
}

// The number of words that may be stored in GPU memory.
size_t count_numbers(const Work& work) { return work.number_count + (work.failure ? 1 : 0); }

void put_numbers(const Work& work, uint64_t* to) {
  const uint64_t* const first = work.words.data() + work.numbers + 1;
  if (work.number_count != 0) to = std::copy_n(first, work.number_count, to);
  if (work.failure) *to = work.words[*work.failure];
}

// Compares two works with the same kernel.
bool same_numbers(const Work& x, const Work& y) {
  for (size_t i = x.numbers + 1; i <= x.numbers + x.number_count; ++i) {
    if (x.words[i] != y.words[i]) return false;
  }
  return !x.failure || x.words[*x.failure] == y.words[*x.failure];
}

bool is_number(const Work& work, size_t word) {
  return (word > work.numbers && word <= work.numbers + work.number_count) || work.failure == word;
}

bool same_others(const Work& x, const Work& y) {
  for (size_t i = 0; i < x.words.size(); ++i) {
    if (x.words[i] != y.words[i] && !is_number(x, i)) return false;
  }
  return true;
}

uint64_t hash_others(const std::vector<Work>& works) {
  Hash hash;
  for (const Work& work : works) {
    for (size_t i = 0; i < work.words.size(); ++i) {
      if (!is_number(work, i)) hash.add(work.words[i]);
    }
  }
  return hash.words[0];
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
  if (!is_lost_()) ring_.close(stream_);
}

Status WorkQueue::queue(const Work& work) const {
  if (work.function == nullptr) return work.queue(stream_);
  std::vector<void*> parameters = parameters_of(work.words, work.one_parameter);
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

// Afterwards, the sequence's first graph executes these works.
bool WorkQueue::find_graph(Seen& seen, const std::vector<Work>& works) {
  Changes least;
  auto best = seen.graphs.end();
  for (auto captured = seen.graphs.begin(); captured != seen.graphs.end(); ++captured) {
    Changes changes;
    for (size_t i = 0; i < works.size(); ++i) {
      if (works[i].words == captured->works[i].words) continue;
      (same_others(works[i], captured->works[i]) ? changes.numbers : changes.others).push_back(i);
    }
    if (best != seen.graphs.end() && !(changes < least)) continue;
    best = captured;
    least = std::move(changes);
  }
  const bool few = best != seen.graphs.end() && 2 * least.others.size() <= works.size();
  // If memory alternates between a few states, updates accumulate until they cost as much as another graph.
  if (best != seen.graphs.end() && !least.others.empty()) {
    const uint64_t state = hash_others(works);
    if (std::ranges::find(seen.states, state) == seen.states.end()) {
      seen.states[seen.next_state++ % seen.states.size()] = state;
    } else {
      seen.again += least.others.size();
    }
  }
  if ((!few || seen.again > works.size()) && seen.graphs.size() < kMostAlike) {
    seen.again = 0;
    return make_graph(works, seen.graphs.emplace_front());
  }
  seen.restless = few ? std::max(seen.restless, 1u) - 1 : seen.restless + 1;
  seen.graphs.splice(seen.graphs.begin(), seen.graphs, best);
  return seen.restless <= kPatience && exchange(seen.graphs.front(), works, least);
}

// Queues the works while the stream captures: this makes a graph, and executes nothing.
bool WorkQueue::capture(const std::vector<Work>& works, Captured& captured) const {
  if (driver_.stream_begin_capture(stream_, CaptureMode::kThreadLocal) != Result::kSuccess) return false;
  bool good = true;
  for (const Work& work : works) {
    // The last node of the capture so far is the work's.
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
  captured.slots.assign(works.size(), kByValue);
  ++counts_.captured;
  ++counts_.graphs;
  pieces_ += works.size();
  return true;
}

bool WorkQueue::set_parameters(const Captured& captured, size_t piece, const Work& work) {
  ++counts_.exchanged;
  std::vector<uint64_t> words = work.words;
  if (captured.slots[piece] != kByValue) {
    const DevicePointer at = captured.numbers + captured.slots[piece] * sizeof(uint64_t);
    if (work.number_count != 0) words[work.numbers] = at;
    if (work.failure)
      words[*work.failure] = (at + work.number_count * sizeof(uint64_t)) | codegen::gpu::kIndirectRecord;
  }
  std::vector<void*> pointers = parameters_of(words, work.one_parameter);
  KernelNodeParameters parameters;
  parameters.function = work.function;
  parameters.grid_x = work.grid;
  parameters.block_x = work.block[0];
  parameters.block_y = work.block[1];
  parameters.shared_bytes = work.shared_bytes;
  parameters.parameters = pointers.data();
  return driver_.graph_exec_kernel_node_set_params(captured.exec, captured.nodes[piece], &parameters) ==
         Result::kSuccess;
}

bool WorkQueue::exchange(Captured& captured, const std::vector<Work>& works, const Changes& changes) {
  bool others = false;  // Some numbers in GPU memory have changed.
  for (const size_t i : changes.numbers) {
    const bool was_there = captured.slots[i] != kByValue;
    const bool is_there = was_there || (open_numbers(captured, works) && take_slot(captured, i, works[i]));
    others |= is_there;
    if (!was_there && !set_parameters(captured, i, works[i])) return false;
  }
  for (const size_t i : changes.others) {
    others |= captured.slots[i] != kByValue && !same_numbers(works[i], captured.works[i]);
    if (!set_parameters(captured, i, works[i])) return false;
  }
  return !others || write_numbers(captured, works);
}

// Allocates the graph's memory for numbers. False: there is none, and numbers stay parameters.
bool WorkQueue::open_numbers(Captured& captured, const std::vector<Work>& works) {
  if (captured.most != 0) return captured.numbers != 0;
  for (const Work& work : works) captured.most += count_numbers(work);
  captured.most = std::min(captured.most, kMostNumbers);
  const size_t bytes = captured.most * sizeof(uint64_t);
  if (!ring_.open().ok() ||
      driver_.mem_alloc_from_pool_async(&captured.numbers, bytes, pool_, stream_) != Result::kSuccess) {
    captured.numbers = 0;
  }
  return captured.numbers != 0;
}

// False: the graph's memory is full.
bool WorkQueue::take_slot(Captured& captured, size_t piece, const Work& work) {
  const size_t end = captured.used + count_numbers(work);
  if (end > captured.most) return false;
  captured.slots[piece] = std::exchange(captured.used, end);
  return true;
}

// The stream executes this copy after the graph's previous launch.
bool WorkQueue::write_numbers(const Captured& captured, const std::vector<Work>& works) {
  uint64_t* room = nullptr;
  Status status = ring_.take(captured.used, stream_, &room);
  if (status.ok()) {
    for (size_t i = 0; i < works.size(); ++i) {
      if (captured.slots[i] != kByValue) put_numbers(works[i], room + captured.slots[i]);
    }
    const size_t bytes = captured.used * sizeof(uint64_t);
    status = to_status(driver_, driver_.memcpy_htod_async(captured.numbers, room, bytes, stream_), "cuMemcpyHtoDAsync");
    ++counts_.written;
  }
  if (!status.ok()) lose_(status);
  return status.ok();
}

void WorkQueue::drop(Captured& captured) {
  if (captured.exec != nullptr) {
    --counts_.graphs;
    pieces_ -= captured.nodes.size();
    if (!is_lost_()) (void)driver_.graph_exec_destroy(captured.exec);
  }
  if (captured.graph != nullptr && !is_lost_()) (void)driver_.graph_destroy(captured.graph);
  if (captured.numbers != 0 && !is_lost_()) (void)driver_.mem_free_async(captured.numbers, stream_);
}

void WorkQueue::drop_graphs(Seen& seen) {
  for (Captured& captured : seen.graphs) drop(captured);
  seen.graphs.clear();
}

// Drops the least recently used graphs first.
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
