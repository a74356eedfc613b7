#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/status.h"
#include "remote/net/tcp.h"
#include "worker/collectives/mesh.h"

// How the workers of a group connect: each worker listens, and connects to the workers of lower rank.
//
// Both ends of a connection prove that they know the group's secret before any other data is read. The proof is an
// HMAC-SHA256 over a nonce of each end, the role of the prover, both ranks and the group's size. Data is not encrypted.
namespace torch_remote::worker {

class PeerListener {
 public:
  // Listens on port 0 of `host`.
  static Status open(const std::string& host, std::unique_ptr<PeerListener>* listener);
  ~PeerListener();
  PeerListener(const PeerListener&) = delete;
  PeerListener& operator=(const PeerListener&) = delete;

  const remote::Address& address() const { return address_; }
  int socket() const { return socket_; }

 private:
  PeerListener(remote::Address address, int socket) : address_(std::move(address)), socket_(socket) {}
  remote::Address address_;
  int socket_ = -1;
};

struct GroupPlan {
  int rank = 0;
  std::vector<remote::Address> addresses;  // One per rank; port 0: do not connect to this rank.
  std::vector<uint8_t> secret;             // At least remote::kMinTokenBytes bytes.
  uint32_t capabilities = 0;               // What this rank supports, as bits (kHasDeviceCollectives, device_group.h).
  std::vector<std::string> names = {};     // For errors, one per rank: "remote:1"; empty: "rank 1".

  std::string name_of(int of) const { return names.empty() ? "rank " + std::to_string(of) : names[of]; }
};

// The client sends a plan as text; these two functions parse it.
//
// Removes and returns the first line of `text`; empty at the end.
std::string_view take_line(std::string_view& text);
// Reads a secret in hexadecimal digits. Returns false for other characters.
bool read_secret(std::string_view digits, std::vector<uint8_t>* secret);

// Connects to all ranks that have an address in the plan, or waits for them to connect, and adds them to the mesh.
// These ranks must call join() with this one in their plans. Other ranks of the group may connect meanwhile. A
// connection without a valid proof is closed.
Status join(const PeerListener& listener, const GroupPlan& plan, const OpLimits& limits, Mesh& mesh);

// Connects to rank `to`, which must be lower than plan.rank, and adds it to the mesh.
Status join_rank(const GroupPlan& plan, int to, const OpLimits& limits, Mesh& mesh);

}  // namespace torch_remote::worker
