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

// A TCP connection between each two workers of a group, and messages over them.
namespace torch_remote::worker {

struct Outgoing {
  int peer = 0;  // rank
  Label label;
  std::span<const std::byte> bytes;
};

struct Incoming {
  int peer = 0;  // kAnyPeer: whoever sends such a message first
  Label label;
  std::span<std::byte> bytes;  // as many as must come
  bool done = false;           // set when it is there; `peer` is who sent it then
  uint64_t dropped = 0;        // nobody wants it: as many bytes come, and `bytes` is empty
  uint64_t nbytes() const { return bytes.size() + dropped; }
};

inline constexpr int kAnyPeer = -1;

// What goes wrong in a collective op or a copy: `kind` is Python's exception.
inline Status collective_failed(std::string message, const char* kind = "RuntimeError") {
  return {ErrorCode::kOpFailed, std::move(message), kind};
}

// How long an op may take, and who may end it earlier.
struct OpLimits {
  std::chrono::milliseconds time{1'800'000};
  std::function<bool()> interrupted = {};  // may be null; asked every 20 ms or so, by any thread: the client is gone,
                                           // or gave up
};

struct MeshOptions {
  // In errors, one a rank: "remote:1"; empty: they are ranks of a process group.
  std::vector<std::string> names = {};
  // Bytes that are kept of a peer from which nobody waits for anything.
  size_t most_kept = size_t{64} << 20;
  // What is kept counts against the limit of this, which must outlive the mesh; null: there is none.
  CachingAllocator* memory = nullptr;
};

// One rank's end. For any number of threads: exchanges of several go on at the same time, and whoever waits for one
// does the work of all. Once something failed, the mesh is broken: the other ranks are told why, and every later call
// returns that.
class Mesh {
 public:
  Mesh(int rank, int size, MeshOptions options = {});
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  std::string name_of(int rank) const;  // "rank 1"

  // A connected socket that does not block, which the mesh takes over. `offers`: bits, what that rank says of itself.
  void add(int rank, int socket, uint32_t offers = 0);
  bool has(int rank) const;
  uint32_t offers_of(int rank) const;  // 0 of those that were not added

  // Sends and receives all of it, at once: what goes to one peer, and what comes from one, in the order given. What
  // comes meanwhile and is asked for later is kept: up to `most_kept` bytes of a peer from which nobody waits for
  // anything, else all of it; so ranks that send to each other do not wait for each other. A message for which the
  // session's memory limit leaves no room is not read until somebody asks for it; if somebody asks for a later one
  // instead, that fails. Errors name the other rank
  // and the op: kOpFailed. Instead of a message its sender may say why there is none (CollectiveOp::kLeftOut; its bytes
  // are the error's kind, a newline and the message): then the exchange that asks for it fails, and nothing else does.
  Status exchange(std::span<const Outgoing> sends, std::span<Incoming> receives, const OpLimits& limits);

  // Likewise, without waiting. Somebody has to call drive() until `finished` was called: by whoever did that, once, and
  // maybe by begin() itself. It must not call the mesh. `bytes` must stay until then.
  using Finished = std::function<void(const Status& status, std::span<const Incoming> receives)>;
  void begin(std::vector<Outgoing> sends, std::vector<Incoming> receives, const OpLimits& limits, Finished finished);
  // Does what can be done, and waits at most 20 ms for more: less if something was finished, or after a wake() that
  // wakes() did not count.
  void drive(uint64_t wakes);
  void wake();
  uint64_t wakes() const { return wakes_; }

  // Breaks the mesh, as if an op had failed. Returns `why`, or what broke it before.
  Status fail(const Status& why);
  Status status() const;

  static constexpr size_t kMostText = 2000;  // of a failure

 private:
  struct Peer;
  struct Exchange;
  using Lock = std::unique_lock<std::mutex>;

  // All with the lock.
  void start(const std::shared_ptr<Exchange>& exchange);
  void tell(Peer& peer, const std::string& text, std::chrono::steady_clock::time_point until) const;
  void fail_all(const Status& why);
  void finish(Exchange& exchange, const Status& status);
  void finish_done();
  Status queue(Exchange& exchange);
  void advance();
  Status move();
  Status write(int rank);
  Status read(int rank);
  Status take_label(int rank);
  bool take_kept(int rank, Exchange& exchange, Incoming& receive, Status* status);
  void take_left_out(int rank);
  bool is_awaited(int rank) const;
  bool reads(int rank) const;
  Status make_room(int rank);
  Status find_gone() const;
  Status gone(int rank, const Exchange& exchange, int error) const;
  Status over(const Exchange& exchange) const;
  void round(Lock& lock, uint64_t wakes);

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // something was finished, or nobody drives any more
  bool driving_ = false;
  int woken_ = -1;  // an eventfd, for who drives
  std::atomic<uint64_t> wakes_{0};
  int rank_ = 0;
  const MeshOptions options_;
  std::vector<std::byte> dropped_;                  // where bytes go that nobody wants
  std::vector<std::unique_ptr<Peer>> peers_;        // null for this rank, and those that were not added
  std::list<std::shared_ptr<Exchange>> exchanges_;  // not finished, in the order in which they began
  Status status_;
};

}  // namespace torch_remote::worker
