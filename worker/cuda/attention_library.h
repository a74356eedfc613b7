#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ir/status.h"
#include "worker/cuda/attention_graph.h"
#include "worker/cuda/choice_file.h"
#include "worker/cuda/cudnn.h"
#include "worker/cuda/cudnn_plans.h"
#include "worker/cuda/gpu.h"
#include "worker/device/memory.h"

namespace torch_remote::worker::cuda {

// What a problem's calls need. Its plans are compiled by a thread of their own, half a second each; whoever cannot wait
// does it in another way until then.
class PreparedAttention {
 public:
  ~PreparedAttention();
  PreparedAttention(const PreparedAttention&) = delete;
  PreparedAttention& operator=(const PreparedAttention&) = delete;

  size_t plans() const { return choice_.plans().size(); }
  size_t best() const { return choice_.best(); }

 private:
  friend class AttentionLibrary;
  explicit PreparedAttention(const dnn::Table& table) : table_(table) {}

  const dnn::Table& table_;
  AttentionProblem problem_;
  uint32_t uses_ = 0;      // that could not have a plan yet
  bool is_asked_ = false;  // of the thread
  bool is_made_ = false;   // the thread is done with it: `status_`, and what follows
  bool distrusts_file_ = false;
  Status status_;
  std::vector<dnn::Descriptor> made_;  // each after those that it refers to
  dnn::PlanChoice choice_;
};

// Of the tensors that a problem's pass has.
struct AttentionPointers {
  DevicePointer query = 0, key = 0, value = 0, out = 0, logsumexp = 0, bias = 0;
  DevicePointer grad = 0, grad_query = 0, grad_key = 0, grad_value = 0;
  float scale = 1;
};

// cuDNN's attention on one GPU's work stream. Used by one thread, with its context current. The table outlives it.
class AttentionLibrary {
 public:
  struct Options {
    const dnn::Table* table = nullptr;
    uint64_t workspace = uint64_t{1} << 30;  // bytes that a plan may want
    size_t timed = 3;                        // how many proposals are looked at
    std::string folder;                      // where choices are kept; empty: nowhere. Others cannot write there
  };
  // kUnsupported: the library is too old.
  static Status open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                     std::unique_ptr<AttentionLibrary>* library);
  ~AttentionLibrary();

  // What is known of a problem, which it is from then on.
  std::shared_ptr<PreparedAttention> find(const AttentionProblem& problem);
  enum class State : uint8_t { kWaiting, kReady, kRefused };
  State state(const PreparedAttention& prepared);
  // Why it is refused.
  Status status(const PreparedAttention& prepared);
  // It was wanted, and done in another way. The second time the plans are asked for: what comes only once is not worth
  // their time.
  void note_use(const std::shared_ptr<PreparedAttention>& prepared);
  // Asks for the plans, and returns when they are there, or refused.
  void wait(const std::shared_ptr<PreparedAttention>& prepared);
  // Queues what is ready: at once the first time, as only the call itself tells whether it can be done. kUnsupported:
  // it cannot, and is refused from now on.
  Status run(const std::shared_ptr<PreparedAttention>& prepared, const AttentionPointers& pointers);

  // How often proposals were asked for, and how often a file said which one to take.
  uint64_t asked();
  uint64_t found();

  static constexpr size_t kOldest = 91800;  // older ones have known faults
  static constexpr uint32_t kUses = 2;

 private:
  AttentionLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options);

  void ask(const std::shared_ptr<PreparedAttention>& prepared);
  void serve();  // the thread
  Status make(PreparedAttention& prepared, dnn::Handle handle);
  Status call(const PreparedAttention& prepared, const dnn::Plan& plan, const AttentionPointers& pointers,
              DevicePointer memory, Stream stream) const;

  const std::shared_ptr<Gpu> gpu_;
  CachingAllocator& memory_;
  const Options options_;
  const dnn::Table& table_;
  dnn::Handle handle_ = nullptr;
  std::map<AttentionProblem, std::shared_ptr<PreparedAttention>> known_;
  ChoiceFile file_;  // read by the thread, written by the other one

  std::mutex mutex_;  // of what follows, and of what the thread does to what it was asked for
  std::condition_variable wake_, made_;
  std::deque<std::shared_ptr<PreparedAttention>> asked_for_;
  bool closing_ = false;
  uint64_t asked_ = 0, found_ = 0;
  std::thread thread_;  // from the first question on
};

}  // namespace torch_remote::worker::cuda
