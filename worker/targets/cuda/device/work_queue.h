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

// A piece of work for the GPU: a kernel, or what a library or the driver does.
struct Work {
  Function function = nullptr;
  unsigned grid = 1;
  std::array<unsigned, 2> block = {1, 1};
  unsigned shared_bytes = 0;
  // Of a kernel: its parameters, each of 8 bytes. Of anything else: all that `queue` makes of it but for `what`.
  std::vector<uint64_t> words = {};
  bool one_parameter = false;  // of a kernel: its only parameter is a struct of these words
  // Of a kernel: words that it can read from memory, too. So many behind word `numbers`, which is their address then,
  // and 0 here; and one whose place's address, with kElsewhere, can stand for it.
  size_t numbers = 0, number_count = 0;
  std::optional<size_t> failure = {};
  // Without a function: what it is, and how it is queued.
  std::shared_ptr<const void> what = nullptr;
  std::function<Status(Stream stream)> queue = nullptr;
};

// What is to be done on the GPU's work stream. It is held back until somebody uses the stream himself (`flush`): then
// the driver gets all of it. A sequence that comes again (the same kernels, of the same sizes, and the same products of
// the same memory) is captured as a graph of the driver the second time, and launched as one call from then on. Of
// kernels that have other addresses the parameters are exchanged. One whose numbers alone are others gets them from the
// graph's memory from then on, all of which is written by one copy before the launch. (Of libraries nobody knows which
// kernels they have.) Graphs that were not used for long go. Any thread.
class WorkQueue {
 public:
  // `is_lost`: nothing that is queued counts any more; `lose`: so it is, because of that.
  WorkQueue(const Driver& driver, std::function<bool()> is_lost, std::function<void(const Status&)> lose)
      : driver_(driver), is_lost_(std::move(is_lost)), lose_(std::move(lose)), ring_(driver) {}
  ~WorkQueue() { clear(); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Before the first work.
  void set_stream(Stream stream, MemoryPool pool) {
    stream_ = stream;
    pool_ = pool;
  }
  // The GPU's context is current, as in `flush`.
  void add(Work work);
  void flush();
  // Flushes, and forgets all graphs: for who ends what they are made of.
  void clear();

  struct Counts {
    uint64_t captured = 0, launched = 0;  // graphs
    uint64_t exchanged = 0;               // parameters of one kernel
    uint64_t written = 0;                 // a graph's numbers
    uint64_t graphs = 0;                  // that there are
  };
  Counts counts() const;

  // Sequences of fewer pieces are not worth a graph; so many are not held back any longer.
  static constexpr size_t kFewest = 4, kMost = 8192;
  static constexpr size_t kMostGraphs = 64, kMostPieces = 1 << 16, kMostSeen = 512;
  static constexpr size_t kMostAlike = 4;                         // graphs of one sequence
  static constexpr size_t kMostNumbers = PinnedRing::kAreaWords;  // of 8 bytes, in a graph's memory

 private:
  using Key = std::array<uint64_t, 2>;
  // A graph, and what it does.
  struct Captured {
    std::vector<Work> works;  // as they were last
    Graph graph = nullptr;    // whose nodes those of `exec` are
    GraphExec exec = nullptr;
    std::vector<GraphNode> nodes;  // of each piece
    DevicePointer numbers = 0;     // memory of `most` words, if any of them is there; the first `used` ones are
    size_t most = 0, used = 0;
    std::vector<size_t> slots = {};  // of each piece: where its numbers are there, or kByValue
  };
  static constexpr size_t kByValue = SIZE_MAX;
  // Pieces that are others than a graph's last ones: in their numbers alone, in anything.
  struct Changes {
    std::vector<size_t> numbers, others;
    bool operator<(const Changes& than) const {
      return std::pair(others.size(), numbers.size()) < std::pair(than.others.size(), than.numbers.size());
    }
  };
  // A sequence that was there. Several programs may have the same one, or one with memory that takes turns.
  struct Seen {
    Key key = {};
    std::list<Captured> graphs = {};      // the last one used first
    bool never = false;                   // it cannot be captured, or is not worth it
    uint32_t restless = 0;                // how much more often than not most of a graph was exchanged
    std::array<uint64_t, 8> states = {};  // hashes of what is no number, of the last ones that were exchanged
    size_t next_state = 0;
    size_t again = 0;  // pieces that were exchanged to a state that was there, since the last graph was made
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
  PinnedRing ring_;  // of numbers on their way to graphs' memory
  mutable std::mutex mutex_;
  std::vector<Work> works_;
  std::list<Seen> seen_;  // the last one used first
  std::map<Key, std::list<Seen>::iterator> by_key_;
  size_t pieces_ = 0;  // of all graphs
  Counts counts_;
};

}  // namespace torch_remote::worker::cuda
