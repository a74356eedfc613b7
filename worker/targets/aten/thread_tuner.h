#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace torch_remote::worker::aten {

// Measures which nodes of a program run faster on all threads than on one. Without tuning, AtenProgram::update_threads
// estimates this. What one size shows applies to smaller sizes if one thread was faster, and to larger sizes if all
// threads were. So a node whose sizes keep changing is not measured forever.
class ThreadTuner {
 public:
  // How often a node is timed with one thread and with all. The medians are compared: all threads must take 25 % less
  // time. The minimum would mislead: with all threads it is a call for which every other thread happened to be awake.
  static constexpr uint32_t kSamples = 9;

  // The nodes' sizes have changed. `work`: each node's work, from `estimate_work`. Sets (*parallel)[node] for each node
  // whose faster choice is known.
  void resize(std::span<const double> work, std::vector<bool>* parallel);
  // Whether any node still needs measurements.
  bool needs_samples() const { return unmeasured_ > 0; }
  bool needs_samples(size_t node) const { return nodes_[node].needs_samples; }
  // How a node that needs samples should run next: true for all threads.
  bool next(size_t node) const { return nodes_[node].count[1] < nodes_[node].count[0]; }
  // Adds a time in ns, measured with the choice that `next` returned. Sets (*parallel)[node] once the faster choice is
  // known.
  void add(size_t node, uint64_t ns, std::vector<bool>* parallel);

 private:
  struct Node {
    double single_thread_max_work;  // nodes with at most this work run faster on one thread
    double all_threads_min_work;
    double work = 0;
    bool needs_samples = false;
    std::array<uint32_t, 2> count{};                        // samples, by choice: [0] one thread, [1] all
    std::array<std::array<uint64_t, kSamples>, 2> times{};  // ns, by choice
  };
  std::vector<Node> nodes_;
  size_t unmeasured_ = 0;
};

}  // namespace torch_remote::worker::aten
