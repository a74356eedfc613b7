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
#include "worker/collectives/peer_copies.h"
#include "worker/collectives/peers.h"
#include "worker/device/device.h"
#include "worker/runner/runner.h"

// Copies between two sessions of one client: the bytes go over a connection between their workers.
//
// Such a *pair* has a number that the client gives it, and is a mesh of two: one end waits for the other one. Each copy
// has a number of its own, and comes to an end on both sides: one that is left out, as what it needs has failed, is
// told to the other end, which fails likewise and goes on. Bytes that nobody asks for yet stay where they are, in the
// sender's memory. What ends the connection ends all copies of the pair; the client then makes another pair.
//
// Where both devices read each other's memory, which they try out when they are connected, bytes go from device to
// device (worker/collectives/peer_copies.h), and only where they lie goes over the connection.
//
// For the session's thread.
namespace torch_remote::worker {

class DirectCopies {
 public:
  using Work = std::shared_ptr<BackgroundWork>;
  using Interrupted = std::function<bool()>;  // for any thread

  // `host`: where it waits for others, an address that they reach it by; empty: it neither waits nor connects.
  // `told`: as of Lane. `device`: the session's; null: one that is this process's memory.
  DirectCopies(std::string host, std::function<void()> told, Device* device = nullptr)
      : host_(std::move(host)), told_(std::move(told)), device_(device) {}

  // Begins a pair at the end that waits. Returns "+HOST:PORT" with its address, or "-" and why it does not.
  std::string listen(int64_t pair);
  // Waits there for the other end. `plan`, of both ends: lines of text, the secret in hexadecimal digits, the names of
  // the end that waits and of the other one, the former's address.
  Status accept(int64_t pair, std::string_view plan, Interrupted interrupted, Work* work);
  // Begins a pair at the other end. `answered` is called by any thread, with "+" and the way that bytes will go (in
  // words), or "-" and why there is no connection.
  Status connect(int64_t pair, std::string_view plan, Interrupted interrupted,
                 std::function<void(const std::string& answer)> answered, Work* work);

  // Whether the pair's copies go from device to device: send_from and receive_to instead of send and receive. Waits
  // until it is connected.
  bool is_between_devices(int64_t pair);

  // Waits for nobody. `bytes` stay until it is done: `keep` holds what else must. It never fails here: the other end
  // misses what does not come.
  Status send(int64_t pair, int64_t number, ir::DType dtype, std::span<const std::byte> bytes,
              std::shared_ptr<void> keep, Interrupted interrupted, Work* work);
  Status receive(int64_t pair, int64_t number, ir::DType dtype, std::span<std::byte> bytes, std::shared_ptr<void> keep,
                 Interrupted interrupted, Work* work);
  // Likewise, of the device's memory: queued there when they return.
  Status send_from(int64_t pair, int64_t number, ir::DType dtype, const void* data, uint64_t nbytes,
                   Interrupted interrupted);
  Status receive_to(int64_t pair, int64_t number, ir::DType dtype, void* data, uint64_t nbytes, Interrupted interrupted,
                    const std::function<void()>& look);
  // Instead of send: the other end's receive fails like this.
  void leave_out(int64_t pair, int64_t number, const Status& why);
  // Instead of receive: what comes is dropped. Also after a receive that failed, where nothing comes any more.
  void drop(int64_t pair, int64_t number, ir::DType dtype, uint64_t nbytes);

  // Ends a pair, when its copies are done or, `now`, as it is. `look`: as of BackgroundWork::wait.
  void leave(int64_t pair, bool now, const std::function<void()>& look);
  void end();

  static constexpr std::chrono::seconds kReach{5};  // for connecting

 private:
  struct Pair {
    std::unique_ptr<PeerListener> listener;
    std::shared_ptr<Lane> lane;  // once it was connected
    bool waits = false;          // this end waited: it is rank 0
    int64_t asked = 0;           // number of the last copy that this end asked for; they grow
    std::shared_ptr<std::atomic<bool>> ended = std::make_shared<std::atomic<bool>>(false);
    Work connected;  // when that is done, `between_devices` is known
    std::shared_ptr<bool> between_devices = std::make_shared<bool>(false);
    std::unique_ptr<PeerCopies> peers = {};  // made when they are needed

    int other() const { return waits ? 1 : 0; }  // rank
  };
  PeerMemory* peer_memory() const { return device_ != nullptr ? device_->peer_memory() : nullptr; }
  Pair* find(int64_t pair);
  static OpLimits limits_of(const Pair& pair, Interrupted interrupted);

  const std::string host_;
  const std::function<void()> told_;
  Device* const device_;
  std::map<int64_t, Pair> pairs_;
};

}  // namespace torch_remote::worker
