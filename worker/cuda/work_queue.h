#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ir/status.h"
#include "worker/cuda/driver.h"

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
  // Without a function: what it is, and how it is queued.
  std::shared_ptr<const void> what = nullptr;
  std::function<Status(Stream stream)> queue = nullptr;
};

// What is to be done on the GPU's work stream. It is held back until somebody uses the stream himself (`flush`): then
// the driver gets all of it. A sequence that comes again (the same kernels, of the same sizes, and the same products of
// the same memory) is captured as a graph of the driver the second time, and launched as one call from then on; of
// kernels that have other numbers or addresses the parameters are exchanged. (Of libraries nobody knows which kernels
// they have.) Graphs that were not used for long go. Any thread.
class WorkQueue {
 public:
  // `is_lost`: nothing that is queued counts any more; `lose`: so it is, because of that.
  WorkQueue(const Driver& driver, std::function<bool()> is_lost, std::function<void(const Status&)> lose)
      : driver_(driver), is_lost_(std::move(is_lost)), lose_(std::move(lose)) {}
  ~WorkQueue() { clear(); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Before the first work.
  void set_stream(Stream stream) { stream_ = stream; }
  // The GPU's context is current, as in `flush`.
  void add(Work work);
  void flush();
  // Flushes, and forgets all graphs: for who ends what they are made of.
  void clear();

  struct Counts {
    uint64_t captured = 0, launched = 0;  // graphs
    uint64_t exchanged = 0;               // parameters of one kernel
    uint64_t graphs = 0;                  // that there are
  };
  Counts counts() const;

  // Sequences of fewer pieces are not worth a graph; so many are not held back any longer.
  static constexpr size_t kFewest = 4, kMost = 8192;
  static constexpr size_t kMostGraphs = 64, kMostPieces = 1 << 16, kMostSeen = 512;
  static constexpr size_t kMostAlike = 4;  // graphs of one sequence

 private:
  using Key = std::array<uint64_t, 2>;
  // A graph, and what it does.
  struct Captured {
    std::vector<Work> works;  // as they were last
    Graph graph = nullptr;    // whose nodes those of `exec` are
    GraphExec exec = nullptr;
    std::vector<GraphNode> nodes;  // of each piece
  };
  // A sequence that was there. Several programs may have the same one, or one with memory that takes turns.
  struct Seen {
    Key key = {};
    std::list<Captured> graphs = {};  // the last one used first
    bool never = false;               // it cannot be captured, or is not worth it
    uint32_t restless = 0;            // how much more often than not most of a graph was exchanged
  };

  void queue_all(const std::vector<Work>& works);
  Status queue(const Work& work) const;
  bool launch_graph(std::vector<Work>& works);
  bool find_graph(Seen& seen, const std::vector<Work>& works);
  bool capture(const std::vector<Work>& works, Captured& captured) const;
  bool make_graph(const std::vector<Work>& works, Captured& captured);
  bool exchange(const Captured& captured, const std::vector<Work>& works, const std::vector<size_t>& changed);
  bool set_parameters(const Captured& captured, size_t piece, const Work& work) const;
  void drop(Captured& captured);
  void drop_graphs(Seen& seen);
  void make_room();

  const Driver& driver_;
  const std::function<bool()> is_lost_;
  const std::function<void(const Status&)> lose_;
  Stream stream_ = nullptr;
  mutable std::mutex mutex_;
  std::vector<Work> works_;
  std::list<Seen> seen_;  // the last one used first
  std::map<Key, std::list<Seen>::iterator> by_key_;
  size_t pieces_ = 0;  // of all graphs
  Counts counts_;
};

}  // namespace torch_remote::worker::cuda
