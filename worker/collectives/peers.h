#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/status.h"
#include "remote/net/tcp.h"
#include "worker/collectives/mesh.h"

// How the workers of a group find each other: each listens, and connects to those of lower rank.
//
// Both ends of a connection prove that they know the group's secret, by HMAC-SHA256 over a nonce of each, who proves,
// both ranks and the group's size, before anything else is read. What follows is not encrypted.
namespace torch_remote::worker {

class PeerListener {
 public:
  // Port 0 of `host`.
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
  std::vector<remote::Address> addresses;  // one a rank; of those that are to be connected now, the others have port 0
  std::vector<uint8_t> secret;             // at least remote::kLeastToken bytes
  uint32_t offers = 0;                     // bits, what this rank says of itself (Mesh::offers_of)
  std::vector<std::string> names = {};     // for errors, one a rank: "remote:1"; empty: "rank 1"

  std::string name_of(int of) const { return names.empty() ? "rank " + std::to_string(of) : names[of]; }
};

// What clients write plans in. The text's first line, which is taken from it; empty at its end.
std::string_view take_line(std::string_view& text);
// A secret in hexadecimal digits. False: they are none.
bool read_secret(std::string_view digits, std::vector<uint8_t>* secret);

// Waits until all that the plan names are in the mesh; they do the same with this one. Others of the group may come
// meanwhile. Whoever connects and does not prove that it belongs here is sent away.
Status join(const PeerListener& listener, const GroupPlan& plan, const OpLimits& limits, Mesh& mesh);

// Only connects to that one, which is of lower rank.
Status join_rank(const GroupPlan& plan, int to, const OpLimits& limits, Mesh& mesh);

}  // namespace torch_remote::worker
