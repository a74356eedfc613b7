#include "worker/collectives/op_queue.h"

#include <chrono>
#include <new>
#include <tuple>
#include <utility>

#include "worker/device/no_memory.h"

namespace torch_remote::worker {
namespace {

constexpr std::chrono::milliseconds kLook{20};  // Between two looks of a waiting thread.

}  // namespace

class OpQueue::Op final : public BackgroundWork {
 public:
  Op(OpQueue& queue, Perform perform, bool connects)
      : queue_(queue), perform_(std::move(perform)), connects_(connects) {}

  bool done() const override { return done_.load(std::memory_order_acquire); }
  void wait(const std::function<void()>& look) override {
    if (!done()) queue_.wait(*this, look);
  }
  const Status& status() const override { return status_; }

 private:
  friend class OpQueue;
  void finish(Status status) {
    status_ = std::move(status);
    on_received_ = nullptr;
    keep_ = nullptr;
    done_.store(true, std::memory_order_release);
    if (queue_.on_done_) queue_.on_done_();
    --queue_.undone_;
  }

  OpQueue& queue_;         // Outlives ops that are not done.
  const Perform perform_;  // Null: a message.
  const bool connects_;
  std::vector<Outgoing> sends_;
  std::vector<Incoming> receives_;
  OpLimits limits_;
  std::function<void(int from)> on_received_;
  std::shared_ptr<void> keep_;
  Status status_;
  std::atomic<bool> done_{false};
};

OpQueue::OpQueue(int rank, int size, std::function<void()> on_done, MeshOptions options)
    : mesh_(rank, size, std::move(options)), on_done_(std::move(on_done)) {}

OpQueue::~OpQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  if (undone_ != 0) {
    std::ignore =
        mesh_.fail({ErrorCode::kOpFailed, "remote: " + mesh_.name_of(mesh_.rank()) + " ended before its ops were done",
                    "RuntimeError"});
  }
  mesh_.wake();
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const auto* left : {&queue_, &messages_}) {
    for (const OpPtr& op : *left) op->finish(mesh_.status());
  }
}

std::shared_ptr<BackgroundWork> OpQueue::connect(Perform perform) {
  return enqueue(std::make_shared<Op>(*this, std::move(perform), true));
}

std::shared_ptr<BackgroundWork> OpQueue::add(Perform perform) {
  return enqueue(std::make_shared<Op>(*this, std::move(perform), false));
}

std::shared_ptr<BackgroundWork> OpQueue::send(const Outgoing& message, const OpLimits& limits,
                                              std::shared_ptr<void> keep) {
  return exchange({message}, {}, limits, nullptr, std::move(keep));
}

std::shared_ptr<BackgroundWork> OpQueue::receive(const Incoming& message, const OpLimits& limits,
                                                 std::function<void(int from)> on_received) {
  return exchange({}, {message}, limits, std::move(on_received), nullptr);
}

std::shared_ptr<BackgroundWork> OpQueue::exchange(std::vector<Outgoing> sends, std::vector<Incoming> receives,
                                                  const OpLimits& limits, std::function<void(int from)> on_received,
                                                  std::shared_ptr<void> keep) {
  auto op = std::make_shared<Op>(*this, nullptr, false);
  op->sends_ = std::move(sends);
  op->receives_ = std::move(receives);
  op->limits_ = limits;
  op->on_received_ = std::move(on_received);
  op->keep_ = std::move(keep);
  return enqueue(std::move(op));
}

std::shared_ptr<BackgroundWork> OpQueue::enqueue(OpPtr op) {
  ++undone_;
  Lock lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  if (op->perform_ != nullptr) {
    connecting_ += op->connects_ ? 1 : 0;
    queue_.push_back(op);
  } else if (connecting_ != 0) {
    messages_.push_back(op);
  } else {
    begin(op);  // With the lock, so that messages begin in order.
  }
  if (op->done()) return op;
  lock.unlock();
  changed_.notify_one();
  mesh_.wake();
  return op;
}

void OpQueue::begin(const OpPtr& op) {
  mesh_.begin(std::move(op->sends_), std::move(op->receives_), op->limits_,
              [op](const Status& status, std::span<const Incoming> receives) {
                if (status.ok() && op->on_received_) op->on_received_(receives[0].peer);
                op->finish(status);
              });
}

// Executes the first op of the queue.
void OpQueue::perform(Lock& lock) {
  const OpPtr op = std::move(queue_.front());
  queue_.pop_front();
  performing_ = true;
  lock.unlock();
  Status status;
  try {
    status = op->perform_(mesh_);
  } catch (const std::bad_alloc&) {
    status = mesh_.fail(no_memory_for("a collective op"));
  }
  lock.lock();
  performing_ = false;
  if (op->connects_ && --connecting_ == 0) {
    for (const OpPtr& message : std::exchange(messages_, {})) begin(message);
  }
  op->finish(std::move(status));
  lock.unlock();
  changed_.notify_all();
  mesh_.wake();  // A thread that waits for this op is driving meanwhile.
  lock.lock();
}

// One step of a waiting thread. `wakes`: the value of Mesh::wakes() before the caller checked what it waits for.
void OpQueue::step(Lock& lock, uint64_t wakes, bool for_message, const std::function<void()>& look) {
  // Not for a wait for a message: the other ranks may reach the op only after they get what this rank sends later.
  if (!performing_ && !queue_.empty() && !for_message) return perform(lock);
  // The performing thread drives; a waiting thread must not be woken by each of its rounds.
  if (performing_ && !for_message) {
    changed_.wait_for(lock, kLook);
    lock.unlock();
  } else {
    lock.unlock();
    mesh_.drive(wakes);
  }
  if (look) look();
  lock.lock();
}

void OpQueue::wait(const Op& op, const std::function<void()>& look) {
  Lock lock(mutex_);
  for (;;) {
    const uint64_t wakes = mesh_.wakes();
    if (op.done()) return;
    step(lock, wakes, op.perform_ == nullptr, look);
  }
}

void OpQueue::wait_all(const std::function<void()>& look) {
  Lock lock(mutex_);
  for (;;) {
    const uint64_t wakes = mesh_.wakes();
    if (undone_ == 0) return;
    step(lock, wakes, false, look);
  }
}

void OpQueue::run() {
  Lock lock(mutex_);
  for (;;) {
    const uint64_t wakes = mesh_.wakes();
    if (ending_) return;
    if (performing_ || undone_ == 0) {
      changed_.wait(lock);
    } else if (!queue_.empty()) {
      perform(lock);
    } else {
      step(lock, wakes, true, nullptr);
    }
  }
}

}  // namespace torch_remote::worker
