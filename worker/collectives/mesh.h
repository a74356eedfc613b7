#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/status.h"
#include "worker/collectives/label.h"
#include "worker/device/memory.h"

// A TCP connection between each pair of workers of a group, and messages over these connections.
namespace torch_remote::worker {

struct Outgoing {
  int peer = 0;  // Rank of the receiver.
  Label label;
  std::span<const std::byte> bytes;
};

struct Incoming {
  int peer = 0;  // Rank of the sender; kAnyPeer: any rank that sends such a message first.
  Label label;
  std::span<std::byte> bytes;  // The message must have exactly this size.
  bool done = false;           // Set when the message has arrived; `peer` is the sender then.
  // If not 0: the caller does not want the message, which has this many bytes. They are read and dropped, and `bytes`
  // must be empty.
  uint64_t dropped = 0;
  uint64_t nbytes() const { return bytes.size() + dropped; }
};

inline constexpr int kAnyPeer = -1;

// An error in a collective op or a copy; `exception_type` is the Python exception class.
inline Status collective_failed(std::string message, const char* exception_type = "RuntimeError") {
  return {ErrorCode::kOpFailed, std::move(message), exception_type};
}

// The time limit of an op, and a function that may end it earlier.
struct OpLimits {
  std::chrono::milliseconds time{1'800'000};
  // Returns true if the op must end, because the client is gone or was interrupted. May be null. The thread that drives
  // the mesh calls it about every 20 ms, with the mesh locked, so it must not call the mesh.
  std::function<bool()> interrupted = {};
};

struct MeshOptions {
  // Names for error messages, one per rank: "remote:1"; empty: they are ranks of a process group.
  std::vector<std::string> names = {};
  // While no receive waits for a peer, nothing more is read from it once this many bytes from it are stored. The last
  // stored message may exceed this.
  size_t max_stored_bytes = size_t{64} << 20;
  // Stored bytes count against the limit of this allocator, which must outlive the mesh; null: there is no limit.
  CachingAllocator* memory = nullptr;
};

// One rank's end of the connections. Thread safe: exchanges of several threads run concurrently. A thread that waits
// for one exchange does the sending and receiving of all of them. After an error the mesh is broken: the other ranks
// receive the reason, and every later call returns it.
class Mesh {
 public:
  Mesh(int rank, int size, MeshOptions options = {});
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  std::string name_of(int rank) const;  // "rank 1"

  // Adds a connected, non-blocking socket, which the mesh owns from now on. `capabilities`: bits that this rank
  // reported (kHasDeviceCollectives).
  void add(int rank, int socket, uint32_t capabilities = 0);
  bool has(int rank) const;
  uint32_t capabilities_of(int rank) const;  // 0 for ranks that were not added.

  // Sends and receives all messages concurrently, and waits until that is done. Messages to one peer, and those from
  // one peer, keep the given order. A message that arrives before a receive asks for it is stored. While a receive
  // waits for a peer, MeshOptions::max_stored_bytes does not apply to that peer. So ranks that send to each other do
  // not wait for each other.
  //
  // If MeshOptions::memory leaves no space for a message, the message is not read until a receive asks for it. A
  // receive that asks for a later message then fails.
  //
  // Errors are kOpFailed, and name the other rank and the op, or kOutOfMemory. They break the mesh. There is one
  // exception: a sender may send an error instead of a message (CollectiveOp::kSkipped). The bytes of such a message
  // are the error's exception type, a newline and the error's text. Then only the exchange that asks for this message
  // fails, once its other messages are done.
  Status exchange(std::span<const Outgoing> sends, std::span<Incoming> receives, const OpLimits& limits);

  // Begins an exchange without waiting. The caller must make sure that some thread calls drive() until `finished` was
  // called. `finished` is called once, with the mesh locked, so it must not call the mesh. The thread that completes
  // the exchange calls it; this may be begin() itself. The bytes of all messages must stay valid until then.
  using Finished = std::function<void(const Status& status, std::span<const Incoming> receives)>;
  void begin(std::vector<Outgoing> sends, std::vector<Incoming> receives, const OpLimits& limits, Finished finished);
  // Sends and receives what is possible without waiting, then waits for at most 20 ms until more is possible. If
  // another thread does so already, this thread only waits. The wait ends early if an exchange finishes or wake() is
  // called. `wakes`: what wakes() returned before the caller looked for other work. If wake() was called since then,
  // there is no wait.
  void drive(uint64_t wakes);
  void wake();
  // How often wake() was called.
  uint64_t wakes() const { return wakes_; }

  // Breaks the mesh, as if an op had failed. Returns `why`, or the reason that broke it earlier.
  Status fail(const Status& why);
  Status status() const;

  static constexpr size_t kMostText = 2000;  // Maximum length of an error's text.

 private:
  struct Peer;
  struct Exchange;
  using Lock = std::unique_lock<std::mutex>;

  // The functions below need the lock.
  void start(const std::shared_ptr<Exchange>& exchange);
  void send_failure(Peer& peer, const std::string& text, std::chrono::steady_clock::time_point until) const;
  void fail_all(const Status& why);
  void finish(Exchange& exchange, const Status& status);
  void finish_done();
  Status queue(Exchange& exchange);
  void advance();
  Status move();
  Status write(int rank);
  Status read(int rank);
  Status take_label(int rank);
  bool take_stored(int rank, Exchange& exchange, Incoming& receive, Status* status);
  void take_skipped(int rank);
  std::pair<Exchange*, Incoming*> find_receive(int rank, const Label& label) const;
  bool is_awaited(int rank) const;
  bool reads(int rank) const;
  Status reserve_message(int rank);
  Status find_lost_peer() const;
  Status lost_peer_error(int rank, const Exchange& exchange, int error) const;
  Status check_limits(const Exchange& exchange) const;
  void round(Lock& lock, uint64_t wakes);

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // Signaled when an exchange finishes, or when a thread stops driving.
  bool driving_ = false;
  int woken_ = -1;  // An eventfd that wakes the driving thread.
  std::atomic<uint64_t> wakes_{0};
  int rank_ = 0;
  const MeshOptions options_;
  std::vector<std::byte> dropped_;            // Receives bytes that are dropped.
  std::vector<std::unique_ptr<Peer>> peers_;  // Null for this rank, and for ranks that were not added.
  // Exchanges that are not finished, in the order in which they began.
  std::list<std::shared_ptr<Exchange>> exchanges_;
  Status status_;
};

}  // namespace torch_remote::worker
