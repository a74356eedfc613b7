#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "ir/status.h"
#include "worker/targets/cuda/device/driver.h"
#include "worker/targets/cuda/device/pinned_ring.h"
#include "worker/targets/cuda/device/stream_memory.h"

namespace torch_remote::worker::cuda {

// A piece of work for the GPU: a kernel launch, or a call of a library or the driver.
struct WorkItem {
  Function function = nullptr;
  unsigned grid = 1;
  std::array<unsigned, 2> block = {1, 1};
  unsigned shared_bytes = 0;
  // For a kernel: its parameters, 8 bytes each. For other work: everything that `queue` depends on, in addition to
  // `keep_alive`.
  std::vector<uint64_t> words = {};
  bool one_parameter = false;  // For a kernel: its only parameter is a struct of these words.
  // For a kernel: parameters that it can also read from GPU memory. These are the `scalar_count` words after word
  // number `scalars_word`. Word `scalars_word` itself is 0 here; if the kernel is to read the parameters from GPU
  // memory, the queue sets it to their address. `failure`: number of the word with the address of an IndexRecord. The
  // queue may replace it by the address of that address, with the bit kIndirectRecord (codegen/gpu/launch.h).
  size_t scalars_word = 0, scalar_count = 0;
  std::optional<size_t> failure = {};
  // For work without a function: an object that identifies and owns what `queue` uses, and how to queue it.
  std::shared_ptr<const void> keep_alive = nullptr;
  std::function<Status(Stream stream)> queue = nullptr;
};

// Work for the GPU's work stream. It is held back until someone uses the stream directly (`flush`); then the driver
// gets all of it. When a sequence repeats, it is captured as a CUDA graph, and each later repetition is one graph
// launch. A sequence repeats if it has the same kernels with the same grid, and the same library calls on the same
// memory.
// If kernels' addresses change, the parameters of their graph nodes are updated. If only a kernel's scalars change, it
// reads them from the graph's memory from then on. One copy before the launch writes all of these scalars. Library
// calls cannot be updated, as their kernels are unknown. Graphs that have not been used for long are dropped. Thread
// safe.
class WorkQueue {
 public:
  // `is_lost`: the GPU is lost, so queued work is discarded. `mark_lost`: marks the GPU as lost because of the status.
  WorkQueue(const Driver& driver, std::function<bool()> is_lost, std::function<void(const Status&)> mark_lost)
      : driver_(driver), is_lost_(std::move(is_lost)), mark_lost_(std::move(mark_lost)), ring_(driver) {}
  ~WorkQueue() { clear(); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Must be called before the first `add`.
  void set_stream(Stream stream, const StreamMemory& memory) {
    stream_ = stream;
    memory_ = memory;
  }
  // The GPU's context must be current, here and in `flush`.
  void add(WorkItem item);
  void flush();
  // Flushes and drops all graphs. To be called before what the graphs consist of is freed.
  void clear();

  struct Counts {
    uint64_t captured = 0, launched = 0;  // Graphs.
    uint64_t node_updates = 0;            // Updates of one kernel node's parameters.
    uint64_t scalar_copies = 0;           // Copies of a graph's scalars.
    uint64_t graphs = 0;                  // Graphs that exist now.
  };
  Counts counts() const;

  // Sequences shorter than kMinSequence are not worth a graph. At kMaxQueued items, the queue flushes by itself.
  static constexpr size_t kMinSequence = 4, kMaxQueued = 8192;
  static constexpr size_t kMaxGraphs = 64, kMaxCapturedItems = 1 << 16, kMaxSequences = 512;
  static constexpr size_t kMaxGraphsPerSequence = 4;             // Graphs per sequence.
  static constexpr size_t kMaxScalars = PinnedRing::kAreaWords;  // Words in one graph's memory.

 private:
  using Key = std::array<uint64_t, 2>;
  // A graph, and the items that it executes.
  struct CapturedGraph {
    std::vector<WorkItem> items;  // As of the last launch.
    Graph graph = nullptr;        // Owns the nodes by which `exec` is updated.
    GraphExec exec = nullptr;
    std::vector<GraphNode> nodes;  // One per item.
    DevicePointer scalars = 0;     // GPU memory of `capacity` words, or 0; the first `used` words are taken.
    size_t capacity = 0, used = 0;
    std::vector<size_t> slots = {};  // One per item: the position of its scalars in that memory, or kByValue.
  };
  static constexpr size_t kByValue = SIZE_MAX;
  // Indices of the items that differ from a graph's last ones: only in their scalars, or in anything else.
  struct Changes {
    std::vector<size_t> scalars, others;
    bool operator<(const Changes& than) const {
      return std::pair(others.size(), scalars.size()) < std::pair(than.others.size(), than.scalars.size());
    }
  };
  // A sequence that has occurred. It has several graphs if programs share it, or if its memory alternates.
  struct Sequence {
    Key key = {};
    std::list<CapturedGraph> graphs = {};  // Most recently used first.
    bool never_capture = false;            // It cannot be captured, or is not worth it.
    // Grows when most of a graph had to be updated, and shrinks when only a few nodes had to.
    uint32_t churn = 0;
    std::array<uint64_t, 8> states = {};  // Hashes of the last states that required updates, without scalars.
    size_t next_state = 0;
    size_t repeated_updates = 0;  // Updates to a state in `states`, since the last graph was made.
  };

  void queue_all(const std::vector<WorkItem>& items);
  Status queue(const WorkItem& item) const;
  bool launch_graph(std::vector<WorkItem>& items);
  bool find_graph(Sequence& sequence, const std::vector<WorkItem>& items);
  bool capture(const std::vector<WorkItem>& items, CapturedGraph& captured) const;
  bool make_graph(const std::vector<WorkItem>& items, CapturedGraph& captured);
  bool update_graph(CapturedGraph& captured, const std::vector<WorkItem>& items, const Changes& changes);
  bool take_slot(CapturedGraph& captured, size_t index, const WorkItem& item);
  bool allocate_scalars(CapturedGraph& captured, const std::vector<WorkItem>& items);
  bool write_scalars(const CapturedGraph& captured, const std::vector<WorkItem>& items);
  bool set_parameters(const CapturedGraph& captured, size_t index, const WorkItem& item);
  void drop(CapturedGraph& captured);
  void drop_graphs(Sequence& sequence);
  void evict();

  const Driver& driver_;
  const std::function<bool()> is_lost_;
  const std::function<void(const Status&)> mark_lost_;
  Stream stream_ = nullptr;
  StreamMemory memory_;
  PinnedRing ring_;  // Holds scalars on their way to the graphs' memory.
  mutable std::mutex mutex_;
  std::vector<WorkItem> items_;
  std::list<Sequence> sequences_;  // Most recently used first.
  std::map<Key, std::list<Sequence>::iterator> sequences_by_key_;
  size_t captured_items_ = 0;  // Items in all graphs.
  Counts counts_;
};

}  // namespace torch_remote::worker::cuda
