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

// Two hashes of the items, without the parameters of kernels.
std::array<uint64_t, 2> key_of(const std::vector<WorkItem>& items) {
  Hash hash;
  const auto add = [&](uint64_t word) { hash.add(word); };
  add(items.size());
  for (const WorkItem& item : items) {
    add(item.words.size());
    if (item.function != nullptr) {
      add(reinterpret_cast<uint64_t>(item.function));
      add(item.grid);
      add(uint64_t{item.block[0]} << 32 | item.block[1]);
      add(item.shared_bytes);
      add(uint64_t{item.scalars_word} << 32 | item.scalar_count);
      add(item.failure ? *item.failure : ~uint64_t{0});
    } else {
      add(reinterpret_cast<uint64_t>(item.keep_alive.get()));
      for (const uint64_t word : item.words) add(word);
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
size_t count_scalars(const WorkItem& item) { return item.scalar_count + (item.failure ? 1 : 0); }

void copy_scalars(const WorkItem& item, uint64_t* to) {
  const uint64_t* const first = item.words.data() + item.scalars_word + 1;
  if (item.scalar_count != 0) to = std::copy_n(first, item.scalar_count, to);
  if (item.failure) *to = item.words[*item.failure];
}

// Compares two items with the same kernel.
bool same_scalars(const WorkItem& x, const WorkItem& y) {
  for (size_t i = x.scalars_word + 1; i <= x.scalars_word + x.scalar_count; ++i) {
    if (x.words[i] != y.words[i]) return false;
  }
  return !x.failure || x.words[*x.failure] == y.words[*x.failure];
}

bool is_scalar(const WorkItem& item, size_t word) {
  return (word > item.scalars_word && word <= item.scalars_word + item.scalar_count) || item.failure == word;
}

bool same_others(const WorkItem& x, const WorkItem& y) {
  for (size_t i = 0; i < x.words.size(); ++i) {
    if (x.words[i] != y.words[i] && !is_scalar(x, i)) return false;
  }
  return true;
}

uint64_t hash_others(const std::vector<WorkItem>& items) {
  Hash hash;
  for (const WorkItem& item : items) {
    for (size_t i = 0; i < item.words.size(); ++i) {
      if (!is_scalar(item, i)) hash.add(item.words[i]);
    }
  }
  return hash.words[0];
}

}  // namespace

void WorkQueue::add(WorkItem item) {
  bool full = false;
  {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    full = items_.size() >= kMaxQueued;
  }
  if (full) flush();
}

WorkQueue::Counts WorkQueue::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void WorkQueue::flush() {
  const std::lock_guard lock(mutex_);
  if (items_.empty()) return;
  std::vector<WorkItem> items = std::exchange(items_, {});
  if (is_lost_()) return;
  if (items.size() < kMinSequence || !launch_graph(items)) queue_all(items);
}

void WorkQueue::clear() {
  flush();
  const std::lock_guard lock(mutex_);
  for (Sequence& sequence : sequences_) drop_graphs(sequence);
  sequences_by_key_.clear();
  sequences_.clear();
  if (!is_lost_()) ring_.close(stream_);
}

Status WorkQueue::queue(const WorkItem& item) const {
  if (item.function == nullptr) return item.queue(stream_);
  std::vector<void*> parameters = parameters_of(item.words, item.one_parameter);
  return to_status(driver_,
                   driver_.launch_kernel(item.function, item.grid, 1, 1, item.block[0], item.block[1], 1,
                                         item.shared_bytes, stream_, parameters.data(), nullptr),
                   "cuLaunchKernel");
}

void WorkQueue::queue_all(const std::vector<WorkItem>& items) {
  for (const WorkItem& item : items) {
    if (const Status status = queue(item); !status.ok()) {
      mark_lost_(status);
      return;
    }
  }
}

// --- graphs ----------------------------------------------------------------------------------------------------------

// False: nothing was queued.
bool WorkQueue::launch_graph(std::vector<WorkItem>& items) {
  const Key key = key_of(items);
  const auto found = sequences_by_key_.find(key);
  if (found == sequences_by_key_.end()) {
    sequences_.push_front({.key = key});
    sequences_by_key_[key] = sequences_.begin();
    evict();
    return false;
  }
  sequences_.splice(sequences_.begin(), sequences_, found->second);
  Sequence& sequence = sequences_.front();
  if (sequence.never_capture) return false;
  if (!find_graph(sequence, items)) {
    drop_graphs(sequence);
    sequence.never_capture = true;
    return false;
  }
  sequence.graphs.front().items = std::move(items);
  ++counts_.launched;
  const Result result = driver_.graph_launch(sequence.graphs.front().exec, stream_);
  if (result != Result::kSuccess) mark_lost_(to_status(driver_, result, "cuGraphLaunch"));
  evict();
  return true;
}

// Afterwards, the sequence's first graph executes these items.
bool WorkQueue::find_graph(Sequence& sequence, const std::vector<WorkItem>& items) {
  Changes least;
  auto best = sequence.graphs.end();
  for (auto captured = sequence.graphs.begin(); captured != sequence.graphs.end(); ++captured) {
    Changes changes;
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].words == captured->items[i].words) continue;
      (same_others(items[i], captured->items[i]) ? changes.scalars : changes.others).push_back(i);
    }
    if (best != sequence.graphs.end() && !(changes < least)) continue;
    best = captured;
    least = std::move(changes);
  }
  const bool few = best != sequence.graphs.end() && 2 * least.others.size() <= items.size();
  // If memory alternates between a few states, updates accumulate until they cost as much as another graph.
  if (best != sequence.graphs.end() && !least.others.empty()) {
    const uint64_t state = hash_others(items);
    if (std::ranges::find(sequence.states, state) == sequence.states.end()) {
      sequence.states[sequence.next_state++ % sequence.states.size()] = state;
    } else {
      sequence.repeated_updates += least.others.size();
    }
  }
  if ((!few || sequence.repeated_updates > items.size()) && sequence.graphs.size() < kMaxGraphsPerSequence) {
    sequence.repeated_updates = 0;
    return make_graph(items, sequence.graphs.emplace_front());
  }
  sequence.churn = few ? std::max(sequence.churn, 1u) - 1 : sequence.churn + 1;
  sequence.graphs.splice(sequence.graphs.begin(), sequence.graphs, best);
  return sequence.churn <= kPatience && update_graph(sequence.graphs.front(), items, least);
}

// Queues the items while the stream captures: this makes a graph, and executes nothing.
bool WorkQueue::capture(const std::vector<WorkItem>& items, CapturedGraph& captured) const {
  if (driver_.stream_begin_capture(stream_, CaptureMode::kThreadLocal) != Result::kSuccess) return false;
  bool good = true;
  for (const WorkItem& item : items) {
    // The last node of the capture so far is the item's.
    CaptureStatus status = CaptureStatus::kNone;
    uint64_t id = 0;
    Graph made = nullptr;
    const GraphNode* last = nullptr;
    size_t count = 0;
    good = queue(item).ok() &&
           driver_.stream_get_capture_info(stream_, &status, &id, &made, &last, &count) == Result::kSuccess &&
           count == 1;
    if (!good) break;
    captured.nodes.push_back(*last);
  }
  const bool ended = driver_.stream_end_capture(stream_, &captured.graph) == Result::kSuccess;
  return good && ended;
}

bool WorkQueue::make_graph(const std::vector<WorkItem>& items, CapturedGraph& captured) {
  if (!capture(items, captured)) return false;
  if (driver_.graph_instantiate(&captured.exec, captured.graph, 0) != Result::kSuccess) {
    captured.exec = nullptr;
    return false;
  }
  captured.slots.assign(items.size(), kByValue);
  ++counts_.captured;
  ++counts_.graphs;
  captured_items_ += items.size();
  return true;
}

bool WorkQueue::set_parameters(const CapturedGraph& captured, size_t index, const WorkItem& item) {
  ++counts_.node_updates;
  std::vector<uint64_t> words = item.words;
  if (captured.slots[index] != kByValue) {
    const DevicePointer at = captured.scalars + captured.slots[index] * sizeof(uint64_t);
    if (item.scalar_count != 0) words[item.scalars_word] = at;
    if (item.failure)
      words[*item.failure] = (at + item.scalar_count * sizeof(uint64_t)) | codegen::gpu::kIndirectRecord;
  }
  std::vector<void*> pointers = parameters_of(words, item.one_parameter);
  KernelNodeParameters parameters;
  parameters.function = item.function;
  parameters.grid_x = item.grid;
  parameters.block_x = item.block[0];
  parameters.block_y = item.block[1];
  parameters.shared_bytes = item.shared_bytes;
  parameters.parameters = pointers.data();
  return driver_.graph_exec_kernel_node_set_params(captured.exec, captured.nodes[index], &parameters) ==
         Result::kSuccess;
}

bool WorkQueue::update_graph(CapturedGraph& captured, const std::vector<WorkItem>& items, const Changes& changes) {
  bool others = false;  // Some scalars in GPU memory have changed.
  for (const size_t i : changes.scalars) {
    const bool was_there = captured.slots[i] != kByValue;
    const bool is_there = was_there || (allocate_scalars(captured, items) && take_slot(captured, i, items[i]));
    others |= is_there;
    if (!was_there && !set_parameters(captured, i, items[i])) return false;
  }
  for (const size_t i : changes.others) {
    others |= captured.slots[i] != kByValue && !same_scalars(items[i], captured.items[i]);
    if (!set_parameters(captured, i, items[i])) return false;
  }
  return !others || write_scalars(captured, items);
}

// Allocates the graph's memory for scalars. False: there is none, and scalars stay parameters.
bool WorkQueue::allocate_scalars(CapturedGraph& captured, const std::vector<WorkItem>& items) {
  if (captured.capacity != 0) return captured.scalars != 0;
  for (const WorkItem& item : items) captured.capacity += count_scalars(item);
  captured.capacity = std::min(captured.capacity, kMaxScalars);
  const size_t bytes = captured.capacity * sizeof(uint64_t);
  if (!ring_.open().ok() || memory_.allocate(&captured.scalars, bytes) != Result::kSuccess) captured.scalars = 0;
  return captured.scalars != 0;
}

// False: the graph's memory is full.
bool WorkQueue::take_slot(CapturedGraph& captured, size_t index, const WorkItem& item) {
  const size_t end = captured.used + count_scalars(item);
  if (end > captured.capacity) return false;
  captured.slots[index] = std::exchange(captured.used, end);
  return true;
}

// The stream executes this copy after the graph's previous launch.
bool WorkQueue::write_scalars(const CapturedGraph& captured, const std::vector<WorkItem>& items) {
  uint64_t* words = nullptr;
  Status status = ring_.take(captured.used, stream_, &words);
  if (status.ok()) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (captured.slots[i] != kByValue) copy_scalars(items[i], words + captured.slots[i]);
    }
    const size_t bytes = captured.used * sizeof(uint64_t);
    status =
        to_status(driver_, driver_.memcpy_htod_async(captured.scalars, words, bytes, stream_), "cuMemcpyHtoDAsync");
    ++counts_.scalar_copies;
  }
  if (!status.ok()) mark_lost_(status);
  return status.ok();
}

void WorkQueue::drop(CapturedGraph& captured) {
  if (captured.exec != nullptr) {
    --counts_.graphs;
    captured_items_ -= captured.nodes.size();
    if (!is_lost_()) (void)driver_.graph_exec_destroy(captured.exec);
  }
  if (captured.graph != nullptr && !is_lost_()) (void)driver_.graph_destroy(captured.graph);
  if (captured.scalars != 0 && !is_lost_()) (void)memory_.free(captured.scalars);
}

void WorkQueue::drop_graphs(Sequence& sequence) {
  for (CapturedGraph& captured : sequence.graphs) drop(captured);
  sequence.graphs.clear();
}

// Drops the least recently used graphs first.
void WorkQueue::evict() {
  auto sequence = sequences_.end();
  while (counts_.graphs > kMaxGraphs || captured_items_ > kMaxCapturedItems) {
    --sequence;
    while (sequence->graphs.empty()) --sequence;
    if (sequence == sequences_.begin() && sequence->graphs.size() == 1) break;
    drop(sequence->graphs.back());
    sequence->graphs.pop_back();
    sequence = sequences_.end();
  }
  while (sequences_.size() > kMaxSequences) {
    drop_graphs(sequences_.back());
    sequences_by_key_.erase(sequences_.back().key);
    sequences_.pop_back();
  }
}

}  // namespace torch_remote::worker::cuda
