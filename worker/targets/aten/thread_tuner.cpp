#include "worker/targets/aten/thread_tuner.h"

#include <algorithm>

#include "worker/targets/aten/threads.h"

namespace torch_remote::worker::aten {
namespace {

// Multiples of kWorthThreads: a node with less or more work than these bounds is not measured.
constexpr double kSurelyOne = 1.0 / 64, kSurelyAll = 64;
// All threads must take at most this share of one thread's time, because they take cores from others.
constexpr double kGain = 0.75;

}  // namespace

void ThreadTuner::resize(std::span<const double> work, std::vector<bool>* parallel) {
  nodes_.resize(work.size(), {kSurelyOne * kWorthThreads, kSurelyAll * kWorthThreads});
  parallel->resize(work.size());
  open_ = 0;
  for (size_t n = 0; n < work.size(); ++n) {
    Node& node = nodes_[n];
    if (node.work != work[n]) node.count = {};
    node.work = work[n];
    node.open = work[n] > node.one_up_to && work[n] < node.all_from;
    open_ += node.open;
    (*parallel)[n] = node.open ? work[n] >= kWorthThreads : work[n] >= node.all_from;
  }
}

void ThreadTuner::add(size_t index, uint64_t ns, std::vector<bool>* parallel) {
  Node& node = nodes_[index];
  const bool all = next(index);
  node.times[all][node.count[all]++] = ns;
  if (node.count[0] < kSamples || node.count[1] < kSamples) return;
  for (auto& times : node.times) std::ranges::nth_element(times, times.begin() + kSamples / 2);
  const auto median = [&](size_t way) { return static_cast<double>(node.times[way][kSamples / 2]); };
  const bool wins = median(1) < kGain * median(0);
  (wins ? node.all_from : node.one_up_to) = node.work;
  (*parallel)[index] = wins;
  node.open = false;
  --open_;
}

}  // namespace torch_remote::worker::aten
