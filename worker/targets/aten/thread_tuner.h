#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace torch_remote::worker::aten {

// Finds out by measuring which nodes of a program run faster on all threads than on one. (AtenProgram::update_threads
// estimates it, for programs that nobody asked to tune.) What is learned about a node at one size holds for smaller
// sizes where one thread won, and for larger ones where all did, so that a node whose sizes change is not measured for
// ever.
class ThreadTuner {
 public:
  // How often a node is timed in each of the two ways; the median counts. (Not the least: with all threads that is a
  // call for which every other thread happened to be awake.)
  static constexpr uint32_t kSamples = 9;

  // The nodes' sizes are new: `work` of each as `estimate_work` has it. Sets in `parallel` what is known.
  void resize(std::span<const double> work, std::vector<bool>* parallel);
  // Whether there is something to measure.
  bool open() const { return open_ > 0; }
  bool open(size_t node) const { return nodes_[node].open; }
  // The way in which an open node should run next: true for all threads.
  bool next(size_t node) const { return nodes_[node].count[1] < nodes_[node].count[0]; }
  // It took `ns` in the way that `next` said. Sets (*parallel)[node] once that is known.
  void add(size_t node, uint64_t ns, std::vector<bool>* parallel);

 private:
  struct Node {
    double one_up_to;  // work
    double all_from;
    double work = 0;
    bool open = false;
    std::array<uint32_t, 2> count{};                        // by way
    std::array<std::array<uint64_t, kSamples>, 2> times{};  // ns
  };
  std::vector<Node> nodes_;
  size_t open_ = 0;
};

}  // namespace torch_remote::worker::aten
