#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ir/status.h"
#include "worker/collectives/mesh.h"
#include "worker/runner/runner.h"

// The ops of one group, done beside what else the worker does.
//
// Ops of all ranks are done one after the other, in the order in which they are added, as on every rank. Messages
// between two ranks go on beside them and beside each other: who sends waits for nobody, so ranks that send to each
// other, in whatever order and in whatever groups, do not stop each other. Connecting comes before all that is added
// behind it.
//
// A thread that begins with the first op does them; whoever waits for one does what it finds undone.
namespace torch_remote::worker {

class Lane {
 public:
  // `told` is called by any thread when something is done. May be null.
  Lane(int rank, int size, std::function<void()> told, MeshOptions options = {});
  // Breaks the mesh if something is not done.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  Mesh& mesh() { return mesh_; }

  using Perform = std::function<Status(Mesh& mesh)>;
  std::shared_ptr<BackgroundWork> connect(Perform perform);
  std::shared_ptr<BackgroundWork> add(Perform perform);

  // `bytes` must stay until it is done: `keep` holds what else must.
  std::shared_ptr<BackgroundWork> send(const Outgoing& message, const OpLimits& limits, std::shared_ptr<void> keep);
  // `came` is told who sent it; may be null.
  std::shared_ptr<BackgroundWork> receive(const Incoming& message, const OpLimits& limits,
                                          std::function<void(int from)> came);

  // Returns when all that was added is done.
  void wait_all(const std::function<void()>& look);

 private:
  class Op;
  using OpPtr = std::shared_ptr<Op>;
  using Lock = std::unique_lock<std::mutex>;

  std::shared_ptr<BackgroundWork> put(OpPtr op);
  std::shared_ptr<BackgroundWork> exchange(std::vector<Outgoing> sends, std::vector<Incoming> receives,
                                           const OpLimits& limits, std::function<void(int from)> came,
                                           std::shared_ptr<void> keep);
  void begin(const OpPtr& op);
  void perform(Lock& lock);
  void step(Lock& lock, uint64_t wakes, bool for_message, const std::function<void()>& look);
  void wait(const Op& op, const std::function<void()>& look);
  void run();

  Mesh mesh_;
  const std::function<void()> told_;
  std::mutex mutex_;  // for what follows
  std::condition_variable changed_;
  std::deque<OpPtr> queue_;     // not begun, but for messages
  std::deque<OpPtr> messages_;  // that wait until all is connected
  size_t connecting_ = 0;       // ops that connect and are not done
  bool performing_ = false;     // somebody does one that was in the queue
  bool ending_ = false;
  std::thread thread_;
  std::atomic<size_t> undone_{0};
};

}  // namespace torch_remote::worker
