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
#include "worker/collectives/mesh.h"
#include "worker/collectives/op_queue.h"
#include "worker/collectives/peer_copies.h"
#include "worker/collectives/peers.h"
#include "worker/device/device.h"
#include "worker/runner/runner.h"

// Copies between two sessions of one client: the bytes go over a connection between their workers.
//
// The two workers are a *pair*: a mesh of two ranks with a number that the client assigns. One end waits for the other
// to connect. Each copy has a number of its own. Each end either performs the copy or drops it. If the sender leaves a
// copy out because its operand failed, the receive fails with the same error, and later copies still work. Bytes stay
// in the sender's memory until the other end asks for them. An error of the connection ends all copies of the pair; the
// client then makes another pair.
//
// The ends test whether each device can read the other's memory when they connect. If both can, bytes go from device to
// device (worker/collectives/peer_copies.h), and only their location goes over the connection.
//
// For the session's thread.
namespace torch_remote::worker {

class DirectCopies {
 public:
  using Work = std::shared_ptr<BackgroundWork>;
  using Interrupted = std::function<bool()>;  // Called on any thread.

  // `host`: the address at which other workers reach this one; empty: it neither waits nor connects. `on_done`: see
  // OpQueue. `device`: the session's; null: its memory is this process's memory.
  DirectCopies(std::string host, std::function<void()> on_done, Device* device = nullptr)
      : host_(std::move(host)), on_done_(std::move(on_done)), device_(device) {}

  // Begins a pair at the end that waits. Returns "+HOST:PORT" with its address, or "-" and the reason for an error.
  std::string listen(int64_t pair);
  // Waits at that address for the other end. Both ends get the same `plan`. Its lines are the secret in hexadecimal
  // digits, the names of the waiting end and of the other one, and the waiting end's address.
  Status accept(int64_t pair, std::string_view plan, Interrupted interrupted, Work* work);
  // Begins a pair at the other end. `answered` is called on any thread. Its argument is "+" and a description of the
  // bytes' path, or "-" and the reason why there is no connection.
  Status connect(int64_t pair, std::string_view plan, Interrupted interrupted,
                 std::function<void(const std::string& answer)> answered, Work* work);

  // Whether the pair's copies go from device to device: then use send_from() and receive_to() instead of send() and
  // receive(). Waits until the pair is connected.
  bool is_between_devices(int64_t pair);

  // Does not wait for the other end. `bytes` must stay valid until *work is done; `keep` owns other memory that the
  // copy needs. A send never fails at this end: the other end reports bytes that do not arrive.
  Status send(int64_t pair, int64_t number, ir::DType dtype, std::span<const std::byte> bytes,
              std::shared_ptr<void> keep, Interrupted interrupted, Work* work);
  Status receive(int64_t pair, int64_t number, ir::DType dtype, std::span<std::byte> bytes, std::shared_ptr<void> keep,
                 Interrupted interrupted, Work* work);
  // As send() and receive(), for the device's memory. The copies are queued there when the functions return. `look`:
  // see BackgroundWork::wait.
  Status send_from(int64_t pair, int64_t number, ir::DType dtype, const void* data, uint64_t nbytes,
                   Interrupted interrupted);
  Status receive_to(int64_t pair, int64_t number, ir::DType dtype, void* data, uint64_t nbytes, Interrupted interrupted,
                    const std::function<void()>& look);
  // Call it instead of send(): the other end's receive fails with this error.
  void send_failure(int64_t pair, int64_t number, const Status& why);
  // Call it instead of receive(): bytes that arrive are dropped. After a failed receive it has no effect.
  void drop(int64_t pair, int64_t number, ir::DType dtype, uint64_t nbytes);

  // Ends a pair: when its copies are done or, if `now`, at once. `look`: see BackgroundWork::wait.
  void close(int64_t pair, bool now, const std::function<void()>& look);
  void end();  // Ends all pairs at once.

  static constexpr std::chrono::seconds kConnectTimeout{5};  // Time limit for connecting.

 private:
  struct Pair {
    std::unique_ptr<PeerListener> listener;
    std::shared_ptr<OpQueue> queue;  // Set once the pair is connecting.
    bool waits = false;              // This end waits for the other one to connect: it is rank 0.
    int64_t asked = 0;               // Number of the last copy that this end requested; the numbers grow.
    std::shared_ptr<std::atomic<bool>> ended = std::make_shared<std::atomic<bool>>(false);
    Work connected;  // When it is done, `between_devices` is known.
    std::shared_ptr<bool> between_devices = std::make_shared<bool>(false);
    std::unique_ptr<PeerCopies> peers = {};  // Created when needed.

    int other() const { return waits ? 1 : 0; }  // The other end's rank.
  };
  PeerMemory* peer_memory() const { return device_ != nullptr ? device_->peer_memory() : nullptr; }
  Pair* find(int64_t pair);
  static OpLimits limits_of(const Pair& pair, Interrupted interrupted);

  const std::string host_;
  const std::function<void()> on_done_;
  Device* const device_;
  std::map<int64_t, Pair> pairs_;
};

}  // namespace torch_remote::worker
