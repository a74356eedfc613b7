#include "worker/targets/aten/thread_tuner.h"

#include <algorithm>

#include "worker/targets/aten/threads.h"

namespace torch_remote::worker::aten {
namespace {

// Multiples of kMinParallelWork: a node with less or more work than these bounds is not measured.
constexpr double kSurelyOne = 1.0 / 64, kSurelyAll = 64;
// All threads must take at most this share of one thread's time, because they take cores from others.
constexpr double kGain = 0.75;

}  // namespace

void ThreadTuner::resize(std::span<const double> work, std::vector<bool>* parallel) {
  nodes_.resize(work.size(), {kSurelyOne * kMinParallelWork, kSurelyAll * kMinParallelWork});
  parallel->resize(work.size());
  unmeasured_ = 0;
  for (size_t n = 0; n < work.size(); ++n) {
    Node& node = nodes_[n];
    if (node.work != work[n]) node.count = {};
    node.work = work[n];
    node.needs_samples = work[n] > node.single_thread_max_work && work[n] < node.all_threads_min_work;
    unmeasured_ += node.needs_samples;
    (*parallel)[n] = node.needs_samples ? work[n] >= kMinParallelWork : work[n] >= node.all_threads_min_work;
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
  (wins ? node.all_threads_min_work : node.single_thread_max_work) = node.work;
  (*parallel)[index] = wins;
  node.needs_samples = false;
  --unmeasured_;
}

}  // namespace torch_remote::worker::aten
