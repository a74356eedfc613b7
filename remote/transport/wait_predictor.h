#pragma once

#include <array>
#include <chrono>
#include <cstdint>

// Predicts when the other end's next message comes, from the durations of earlier waits. If the message comes while
// this end still spins, it costs no wake-up: about 50 µs, and more if a core must wake as well.
namespace torch_remote::remote {

// Predictions for the waits of one thread. Not thread safe.
class WaitPredictor {
 public:
  using Duration = std::chrono::nanoseconds;

  // Limits of the spin time per wait: at the wait's beginning, and around its expected end.
  static constexpr Duration kMaxInitialSpin = std::chrono::microseconds(512);
  static constexpr Duration kMaxSpinAroundMean = std::chrono::microseconds(800);
  // We do not predict waits that take longer: the user is thinking, or there is no work.
  static constexpr Duration kLongestPredicted = std::chrono::milliseconds(50);

  // The plan for a wait; times count from its beginning. Spin until `first`, sleep until `from`, spin until `until`,
  // then sleep until the wait ends. If `from` and `until` are 0, there is no second spin.
  struct Plan {
    Duration first{0};
    Duration from{0};
    Duration until{0};
  };
  Plan plan() const { return suspended_ > 0 ? Plan() : plan_; }

  // Records a wait that ended with a message after this time.
  void record_wait(Duration after);
  // Call it when another thread needs the core: this end then sleeps in the next waits. If it spun, the two threads
  // would take the core from each other.
  void suspend_spinning();

 private:
  // Buckets of waits below 8 µs, 16 µs, ..., kMaxInitialSpin; the last one has all longer waits.
  static constexpr size_t kBuckets = 8;

  Duration best_first() const;

  Plan plan_;
  std::array<uint32_t, kBuckets> weights_{};  // weight of the recent waits per bucket; the sum is at most 2^16
  // Mean and mean absolute error, in ns, of the waits that took longer than `first`. We estimate them as TCP does its
  // round-trip time (V. Jacobson, "Congestion Avoidance and Control", 1988).
  int64_t mean_ = 0;
  int64_t mean_error_ = 0;
  uint32_t suspended_ = 0;  // number of coming waits in which we do not spin
  uint32_t suspend_next_ = 0;
};

}  // namespace torch_remote::remote
