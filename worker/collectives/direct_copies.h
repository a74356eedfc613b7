#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ir/dtype.h"
#include "ir/status.h"
#include "worker/collectives/lane.h"
#include "worker/collectives/mesh.h"
#include "worker/collectives/peers.h"
#include "worker/runner/runner.h"

// Copies between two sessions of one client: the bytes go over a connection between their workers.
//
// Such a *pair* has a number that the client gives it, and is a mesh of two: one end waits for the other one. Each copy
// has a number of its own, and comes to an end on both sides: one that is left out, as what it needs has failed, is
// told to the other end, which fails likewise and goes on. Bytes that nobody asks for yet stay where they are, in the
// sender's memory. What ends the connection ends all copies of the pair; the client then makes another pair.
//
// For the session's thread.
namespace torch_remote::worker {

class DirectCopies {
 public:
  using Work = std::shared_ptr<BackgroundWork>;
  using Interrupted = std::function<bool()>;  // for any thread

  // `host`: where it waits for others, an address that they reach it by; empty: it neither waits nor connects.
  // `told`: as of Lane.
  DirectCopies(std::string host, std::function<void()> told) : host_(std::move(host)), told_(std::move(told)) {}

  // Begins a pair at the end that waits. Returns "+HOST:PORT" with its address, or "-" and why it does not.
  std::string listen(int64_t pair);
  // Waits there for the other end. `plan`, of both ends: lines of text, the secret in hexadecimal digits, the names of
  // the end that waits and of the other one, the former's address.
  Status accept(int64_t pair, std::string_view plan, Interrupted interrupted, Work* work);
  // Begins a pair at the other end. `answered` is called by any thread, with "+", or "-" and why there is no
  // connection.
  Status connect(int64_t pair, std::string_view plan, Interrupted interrupted,
                 std::function<void(const std::string& answer)> answered, Work* work);

  // Waits for nobody. `bytes` stay until it is done: `keep` holds what else must. It never fails here: the other end
  // misses what does not come.
  Status send(int64_t pair, int64_t number, ir::DType dtype, std::span<const std::byte> bytes,
              std::shared_ptr<void> keep, Interrupted interrupted, Work* work);
  Status receive(int64_t pair, int64_t number, ir::DType dtype, std::span<std::byte> bytes, std::shared_ptr<void> keep,
                 Interrupted interrupted, Work* work);
  // Instead of send: the other end's receive fails like this.
  void leave_out(int64_t pair, int64_t number, const Status& why);
  // Instead of receive: what comes is dropped.
  void drop(int64_t pair, int64_t number, ir::DType dtype, uint64_t nbytes);

  // Ends a pair, when its copies are done or, `now`, as it is. `look`: as of BackgroundWork::wait.
  void leave(int64_t pair, bool now, const std::function<void()>& look);
  void end();

  static constexpr std::chrono::seconds kReach{5};  // for connecting

 private:
  struct Pair {
    std::unique_ptr<PeerListener> listener;
    std::unique_ptr<Lane> lane;  // once it was connected
    bool waits = false;          // this end waited: it is rank 0
    std::shared_ptr<std::atomic<bool>> ended = std::make_shared<std::atomic<bool>>(false);
  };
  Pair* find(int64_t pair);
  static OpLimits limits_of(const Pair& pair, Interrupted interrupted);

  const std::string host_;
  const std::function<void()> told_;
  std::map<int64_t, Pair> pairs_;
};

}  // namespace torch_remote::worker
