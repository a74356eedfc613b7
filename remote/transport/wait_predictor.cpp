#include "remote/transport/wait_predictor.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace torch_remote::remote {
namespace {

constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kFirstBucket = 8 * kMicrosecond;
// Cost of one wake-up, and the factor by which spinning for a time is cheaper than waiting for it: the core is mostly
// idle anyway.
constexpr int64_t kWakeUp = 100 * kMicrosecond;
constexpr int64_t kCheapness = 8;
// A sleep overruns by about this much. It must end before the expected message comes.
constexpr int64_t kMargin = 80 * kMicrosecond;
constexpr uint32_t kLeastSuspended = 32, kMostSuspended = 1024;  // in waits

size_t bucket_of(int64_t ns, size_t buckets) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(ns, 0) / kFirstBucket);
  return std::min<size_t>(std::bit_width(n), buckets - 1);
}

}  // namespace

// The initial spin time with the lowest expected cost, if the next wait resembles the recent ones.
WaitPredictor::Duration WaitPredictor::best_first() const {
  int64_t all = 0;
  for (const uint32_t weight : weights_) all += weight;
  int64_t best = all * kWakeUp, best_time = 0;
  int64_t looked = 0, came = 0;  // over the waits that end within `time`
  for (size_t i = 0; i + 1 < kBuckets; ++i) {
    const int64_t time = kFirstBucket << i;
    looked += weights_[i] * time;
    came += weights_[i];
    const int64_t cost = looked / kCheapness + (all - came) * (kWakeUp + time / kCheapness);
    if (cost < best) best = cost, best_time = time;
  }
  return Duration(best_time);
}

void WaitPredictor::record_wait(Duration after) {
  const int64_t ns = after.count();
  if (suspended_ > 0) {
    --suspended_;
  } else {
    suspend_next_ -= suspend_next_ / 64;
  }
  for (uint32_t& weight : weights_) weight -= weight / 16;
  weights_[bucket_of(ns, kBuckets)] += 1u << 12;
  if (after > plan_.first && after <= kLongestPredicted) {
    const int64_t error = ns - mean_;
    // At the start, or when the rhythm changed, the estimate restarts from this wait.
    if (std::abs(error) > 8 * mean_error_ + mean_ / 2) {
      mean_ = ns;
      mean_error_ = ns / 4;
    } else {
      mean_ += error / 8;
      mean_error_ += (std::abs(error) - mean_error_) / 8;
    }
  }
  plan_ = {};
  plan_.first = best_first();
  if (mean_ == 0) return;
  const int64_t around = 2 * mean_error_ + kMargin / 2;
  const int64_t from = mean_ - around - kMargin, until = mean_ + around;
  if (until - from > std::min<int64_t>(kMaxSpinAroundMean.count(), mean_ / 2) || from <= plan_.first.count()) return;
  plan_.from = Duration(from);
  plan_.until = Duration(until);
}

void WaitPredictor::suspend_spinning() {
  suspend_next_ = std::clamp(2 * suspend_next_, kLeastSuspended, kMostSuspended);
  suspended_ = suspend_next_;
}

}  // namespace torch_remote::remote
