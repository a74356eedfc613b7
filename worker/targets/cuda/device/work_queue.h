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

namespace torch_remote::worker::cuda {

// A piece of work for the GPU: a kernel launch, or a call of a library or the driver.
struct Work {
  Function function = nullptr;
  unsigned grid = 1;
  std::array<unsigned, 2> block = {1, 1};
  unsigned shared_bytes = 0;
  // For a kernel: its parameters, 8 bytes each. For other work: everything that `queue` depends on, in addition to
  // `what`.
  std::vector<uint64_t> words = {};
  bool one_parameter = false;  // For a kernel: its only parameter is a struct of these words.
  // For a kernel: parameters that it can also read from GPU memory. These are the `number_count` words after word
  // `numbers`. Word `numbers` is their address in that case, and 0 here. The word `failure` can be replaced by the
  // address of its value, flagged with kIndirectRecord.
  size_t numbers = 0, number_count = 0;
  std::optional<size_t> failure = {};
  // For work without a function: what it is, and how to queue it.
  std::shared_ptr<const void> what = nullptr;
  std::function<Status(Stream stream)> queue = nullptr;
};

// Work for the GPU's work stream. It is held back until someone uses the stream directly (`flush`); then the driver
// gets all of it. When a sequence repeats, it is captured as a CUDA graph, and each later repetition is one graph
// launch. A sequence repeats if it has the same kernels with the same grid, and the same library calls on the same
// memory.
// If kernels' addresses change, the parameters of their graph nodes are updated. If only a kernel's numbers change, it
// reads them from the graph's memory from then on. One copy before the launch writes all of these numbers. Library
// calls cannot be updated, as their kernels are unknown. Graphs that have not been used for long are dropped. Thread
// safe.
class WorkQueue {
 public:
  // `is_lost`: the GPU is lost, so queued work is discarded. `lose`: marks the GPU as lost because of the status.
  WorkQueue(const Driver& driver, std::function<bool()> is_lost, std::function<void(const Status&)> lose)
      : driver_(driver), is_lost_(std::move(is_lost)), lose_(std::move(lose)), ring_(driver) {}
  ~WorkQueue() { clear(); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Must be called before the first `add`.
  void set_stream(Stream stream, MemoryPool pool) {
    stream_ = stream;
    pool_ = pool;
  }
  // The GPU's context must be current, here and in `flush`.
  void add(Work work);
  void flush();
  // Flushes and drops all graphs. To be called before what the graphs consist of is freed.
  void clear();

  struct Counts {
    uint64_t captured = 0, launched = 0;  // Graphs.
    uint64_t exchanged = 0;               // Updates of one kernel node's parameters.
    uint64_t written = 0;                 // Copies of a graph's numbers.
    uint64_t graphs = 0;                  // Graphs that exist now.
  };
  Counts counts() const;

  // Sequences shorter than kFewest are not worth a graph. At kMost works, the queue flushes by itself.
  static constexpr size_t kFewest = 4, kMost = 8192;
  static constexpr size_t kMostGraphs = 64, kMostPieces = 1 << 16, kMostSeen = 512;
  static constexpr size_t kMostAlike = 4;                         // Graphs per sequence.
  static constexpr size_t kMostNumbers = PinnedRing::kAreaWords;  // Words in one graph's memory.

 private:
  using Key = std::array<uint64_t, 2>;
  // A graph, and the works that it executes.
  struct Captured {
    std::vector<Work> works;  // As of the last launch.
    Graph graph = nullptr;    // Owns the nodes by which `exec` is updated.
    GraphExec exec = nullptr;
    std::vector<GraphNode> nodes;  // One per work.
    DevicePointer numbers = 0;     // GPU memory of `most` words, or 0; the first `used` words are taken.
    size_t most = 0, used = 0;
    std::vector<size_t> slots = {};  // One per work: the position of its numbers in that memory, or kByValue.
  };
  static constexpr size_t kByValue = SIZE_MAX;
  // Works that differ from a graph's last ones: only in their numbers, or in anything else.
  struct Changes {
    std::vector<size_t> numbers, others;
    bool operator<(const Changes& than) const {
      return std::pair(others.size(), numbers.size()) < std::pair(than.others.size(), than.numbers.size());
    }
  };
  // A sequence that has occurred. It has several graphs if programs share it, or if its memory alternates.
  struct Seen {
    Key key = {};
    std::list<Captured> graphs = {};      // Most recently used first.
    bool never = false;                   // It cannot be captured, or is not worth it.
    uint32_t restless = 0;                // How much more often than not most of a graph had to be updated.
    std::array<uint64_t, 8> states = {};  // Hashes of the last states that required updates, without numbers.
    size_t next_state = 0;
    size_t again = 0;  // Updates to a state in `states`, since the last graph was made.
  };

  void queue_all(const std::vector<Work>& works);
  Status queue(const Work& work) const;
  bool launch_graph(std::vector<Work>& works);
  bool find_graph(Seen& seen, const std::vector<Work>& works);
  bool capture(const std::vector<Work>& works, Captured& captured) const;
  bool make_graph(const std::vector<Work>& works, Captured& captured);
  bool exchange(Captured& captured, const std::vector<Work>& works, const Changes& changes);
  bool take_slot(Captured& captured, size_t piece, const Work& work);
  bool open_numbers(Captured& captured, const std::vector<Work>& works);
  bool write_numbers(const Captured& captured, const std::vector<Work>& works);
  bool set_parameters(const Captured& captured, size_t piece, const Work& work);
  void drop(Captured& captured);
  void drop_graphs(Seen& seen);
  void make_room();

  const Driver& driver_;
  const std::function<bool()> is_lost_;
  const std::function<void(const Status&)> lose_;
  Stream stream_ = nullptr;
  MemoryPool pool_ = nullptr;
  PinnedRing ring_;  // Holds numbers on their way to the graphs' memory.
  mutable std::mutex mutex_;
  std::vector<Work> works_;
  std::list<Seen> seen_;  // Most recently used first.
  std::map<Key, std::list<Seen>::iterator> by_key_;
  size_t pieces_ = 0;  // Works in all graphs.
  Counts counts_;
};

}  // namespace torch_remote::worker::cuda
