#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/collectives/label.h"

// A TCP connection between each two workers of a group, and messages over them.
namespace torch_remote::worker {

struct Outgoing {
  int peer = 0;  // rank
  Label label;
  std::span<const std::byte> bytes;
};

struct Incoming {
  int peer = 0;
  Label label;
  std::span<std::byte> bytes;  // as many as must come
  bool done = false;           // set by exchange()
};

// How long an op may take, and who may end it earlier.
struct OpLimits {
  std::chrono::milliseconds time{1'800'000};
  std::function<bool()> interrupted = {};  // may be null; asked every 20 ms or so: the client is gone, or gave up
};

// One rank's end. One thread at a time. Once something failed, the mesh is broken: the other ranks are told why, and
// every later call returns that.
class Mesh {
 public:
  Mesh(int rank, int size);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // A connected socket that does not block, which the mesh takes over.
  void add(int rank, int socket);
  bool has(int rank) const { return rank == rank_ || peers_[rank] != nullptr; }

  // Sends and receives all of it, at once: what goes to one peer, and what comes from one, in the order given. What
  // comes meanwhile and is asked for later is kept, up to kMostKept bytes a peer; so ranks that send to each other do
  // not wait for each other. Errors name the other rank and the op: kOpFailed.
  Status exchange(std::span<const Outgoing> sends, std::span<Incoming> receives, const OpLimits& limits);

  // Which of the others has sent a message of this tag first; waits for one.
  Status wait_any(uint64_t tag, const OpLimits& limits, int* peer);

  // Breaks the mesh, as if an op had failed. Returns `why`.
  Status fail(const Status& why);
  const Status& status() const { return status_; }

  static constexpr size_t kMostKept = size_t{64} << 20;

 private:
  struct Peer;
  struct Exchange;

  void tell(Peer& peer, const std::string& text, std::chrono::steady_clock::time_point until) const;
  Status start(Exchange& exchange);
  Status advance(Exchange& exchange);
  Status write(int rank, Exchange& exchange);
  Status read(int rank, Exchange& exchange);
  Status take_label(int rank, Exchange& exchange);
  Status gone(int rank, const Exchange& exchange, int error) const;
  Status wait(Exchange& exchange);
  Status run(Exchange& exchange);

  int rank_ = 0;
  std::vector<std::unique_ptr<Peer>> peers_;  // null for this rank, and those that were not added
  Status status_;
};

}  // namespace torch_remote::worker
