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

// Executes the ops of one group in the background of the session.
//
// Collective ops execute one after the other, in the order in which they are added, which is the same on every rank.
// Messages between two ranks run concurrently with these ops and with each other. A send never waits for the receiver,
// so ranks that send to each other cannot deadlock, in any order and any groups. Ops and messages that are added after
// a connect begin when the connect is done.
//
// A thread, started with the first op, executes the ops. A caller that waits for an op also executes queued ops.
namespace torch_remote::worker {

class OpQueue {
 public:
  // `on_done` is called on any thread when an op is done. May be null.
  OpQueue(int rank, int size, std::function<void()> on_done, MeshOptions options = {});
  // Breaks the mesh if an op is not done.
  ~OpQueue();
  OpQueue(const OpQueue&) = delete;
  OpQueue& operator=(const OpQueue&) = delete;

  Mesh& mesh() { return mesh_; }

  using Perform = std::function<Status(Mesh& mesh)>;
  std::shared_ptr<BackgroundWork> connect(Perform perform);
  std::shared_ptr<BackgroundWork> add(Perform perform);

  // `message.bytes` must stay valid until the send is done; `keep` owns other memory that it needs.
  std::shared_ptr<BackgroundWork> send(const Outgoing& message, const OpLimits& limits, std::shared_ptr<void> keep);
  // `on_received` is called with the sender's rank; may be null.
  std::shared_ptr<BackgroundWork> receive(const Incoming& message, const OpLimits& limits,
                                          std::function<void(int from)> on_received);

  // Returns when all ops that were added are done.
  void wait_all(const std::function<void()>& look);

 private:
  class Op;
  using OpPtr = std::shared_ptr<Op>;
  using Lock = std::unique_lock<std::mutex>;

  std::shared_ptr<BackgroundWork> enqueue(OpPtr op);
  std::shared_ptr<BackgroundWork> exchange(std::vector<Outgoing> sends, std::vector<Incoming> receives,
                                           const OpLimits& limits, std::function<void(int from)> on_received,
                                           std::shared_ptr<void> keep);
  void begin(const OpPtr& op);
  void perform(Lock& lock);
  void step(Lock& lock, uint64_t wakes, bool for_message, const std::function<void()>& look);
  void wait(const Op& op, const std::function<void()>& look);
  void run();

  Mesh mesh_;
  const std::function<void()> on_done_;
  std::mutex mutex_;  // Guards the members below.
  std::condition_variable changed_;
  std::deque<OpPtr> queue_;     // Collective ops and connects that have not begun.
  std::deque<OpPtr> messages_;  // Messages that wait until all ranks are connected.
  size_t connecting_ = 0;       // Number of connects that are not done.
  bool performing_ = false;     // A thread is executing an op that was in the queue.
  bool ending_ = false;
  std::thread thread_;
  std::atomic<size_t> undone_{0};
};

}  // namespace torch_remote::worker
