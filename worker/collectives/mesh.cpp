#include "worker/collectives/mesh.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "worker/collectives/label.h"

namespace torch_remote::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMagic = 0x4D435254;             // "TRCM"
constexpr size_t kMostText = 2000;                  // of a failure
constexpr std::chrono::milliseconds kTelling{500};  // the others why this rank failed
constexpr std::chrono::milliseconds kLook{20};      // between two looks whether the op is to end

// What goes before a message's bytes; little endian, as both ends are.
struct Header {
  uint32_t magic = kMagic;
  uint8_t kind = 0, op = 0, dtype = 0, reduction = 0;
  int32_t root = 0;
  uint32_t reserved = 0;
  uint64_t sequence = 0, count = 0, nbytes = 0;
};
static_assert(sizeof(Header) == 40);

Header encode(const Label& label, size_t nbytes) {
  return {kMagic,     label.kind, label.op,       label.dtype, label.reduction,
          label.root, 0,          label.sequence, label.count, nbytes};
}

Label decode(const Header& header) {
  return {header.kind, header.op, header.dtype, header.reduction, header.root, header.sequence, header.count};
}

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

Status failed(std::string message) { return {ErrorCode::kOpFailed, std::move(message), "RuntimeError"}; }

// Of a message: does it belong to what is asked for, as far as its place in the order says?
bool belongs(const Label& come, const Label& asked) {
  if (come.kind != asked.kind) return false;
  return come.kind == Label::kCollective || come.sequence == asked.sequence;
}

Status compare(int peer, const Label& come, size_t nbytes, const Incoming& asked) {
  if (come != asked.label) {
    return failed("remote: " + rank_name(peer) + " is in " + describe(come) + ", and this rank in " +
                  describe(asked.label) +
                  "; all ranks of a group must call the same collectives in the same order, with tensors of the same "
                  "size and dtype");
  }
  if (nbytes != asked.bytes.size()) {
    return failed("remote: in " + describe(come) + " " + rank_name(peer) + " sends " + std::to_string(nbytes) +
                  " bytes where this rank expects " + std::to_string(asked.bytes.size()) +
                  "; sizes, dtypes and splits must agree on both ranks");
  }
  return {};
}

}  // namespace

struct Mesh::Peer {
  explicit Peer(int connected) : socket(connected) {}
  ~Peer() { close_socket(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  void close_socket() {
    if (socket >= 0) ::close(socket);
    socket = -1;
  }

  struct Kept {
    Label label;
    std::vector<std::byte> bytes;
  };

  int socket = -1;
  int error = 0;  // why it is closed: an errno; 0: the other end closed it
  // What comes: a header, then bytes for `target` (null: for `kept`).
  Header header;
  size_t header_read = 0, bytes_read = 0;
  Incoming* target = nullptr;
  std::vector<std::byte> bytes;
  std::deque<Kept> kept;
  size_t kept_bytes = 0;
  // What goes, of the current exchange: places in its sends.
  std::deque<size_t> queue;
  Header sent_header;
  std::span<const std::byte> sending;  // behind that header
  size_t header_sent = 0, bytes_sent = 0;
};

struct Mesh::Exchange {
  std::span<const Outgoing> sends;
  std::span<Incoming> receives;
  const OpLimits& limits;
  Clock::time_point deadline;
  size_t left = 0;  // messages in both directions
  // Instead of a known message: the first one with this tag.
  const uint64_t* any_tag = nullptr;
  int found = -1;
};

Mesh::Mesh(int rank, int size) : rank_(rank), peers_(static_cast<size_t>(size)) {}

Mesh::~Mesh() = default;

void Mesh::add(int rank, int socket) { peers_[rank] = std::make_unique<Peer>(socket); }

// Ends the message that is on its way, as far as that goes soon, and says why there is no other one.
void Mesh::tell(Peer& peer, const std::string& text, Clock::time_point until) const {
  Label label;
  label.kind = Label::kFailure;
  const Header header = encode(label, text.size());
  std::string rest;
  const auto add = [&rest](const void* bytes, size_t size) { rest.append(static_cast<const char*>(bytes), size); };
  if (peer.header_sent != 0) {
    add(reinterpret_cast<const std::byte*>(&peer.sent_header) + peer.header_sent, sizeof(Header) - peer.header_sent);
    add(peer.sending.data() + peer.bytes_sent, peer.sending.size() - peer.bytes_sent);
  }
  add(&header, sizeof(header));
  rest += text;
  for (size_t done = 0; done < rest.size();) {
    const ssize_t sent = ::send(peer.socket, rest.data() + done, rest.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) done += static_cast<size_t>(sent);
    if (sent >= 0 || errno == EINTR) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    pollfd polled{peer.socket, POLLOUT, 0};
    if ((errno != EAGAIN && errno != EWOULDBLOCK) || left.count() <= 0) return;
    ::poll(&polled, 1, static_cast<int>(left.count()));
  }
}

Status Mesh::fail(const Status& why) {
  if (!status_.ok()) return status_;
  status_ = why;
  // The others should not have to wait until their time is over.
  const std::string text = why.message().substr(0, kMostText);
  const auto until = Clock::now() + kTelling;
  for (const auto& peer : peers_) {
    if (!peer || peer->socket < 0) continue;
    tell(*peer, text, until);
    // Not closed: what was not read here would have the kernel drop what was sent.
    ::shutdown(peer->socket, SHUT_WR);
  }
  return why;
}

Status Mesh::gone(int rank, const Exchange& exchange, int error) const {
  std::string in;
  for (const Outgoing& send : exchange.sends) in = in.empty() && send.peer == rank ? describe(send.label) : in;
  for (const Incoming& receive : exchange.receives) {
    if (in.empty() && receive.peer == rank && !receive.done) in = describe(receive.label);
  }
  return failed("remote: the worker of " + rank_name(rank) + " is gone" +
                (error != 0 ? " (" + std::string(std::strerror(error)) + ")" : "") + (in.empty() ? "" : ", in " + in) +
                "; look at what that process says, and start all ranks again");
}

// A header is there: finds out where its bytes belong.
Status Mesh::take_label(int rank, Exchange& exchange) {
  Peer& peer = *peers_[rank];
  const Header& header = peer.header;
  if (header.magic != kMagic || header.kind < Label::kCollective || header.kind > Label::kFailure ||
      header.op > static_cast<uint8_t>(CollectiveOp::kLast)) {
    return failed("remote: " + rank_name(rank) +
                  " sent what is no message of a group; its worker is of another version");
  }
  peer.target = nullptr;
  peer.bytes_read = 0;
  const Label label = decode(header);
  if (label.kind == Label::kFailure) {
    if (header.nbytes > kMostText) return failed("remote: " + rank_name(rank) + " failed");
    peer.bytes.resize(header.nbytes);
    return {};
  }
  for (Incoming& receive : exchange.receives) {
    if (receive.peer != rank || receive.done || !belongs(label, receive.label)) continue;
    if (Status status = compare(rank, label, header.nbytes, receive); !status.ok()) return status;
    peer.target = &receive;
    return {};
  }
  if (header.nbytes > uint64_t{1} << 40) return failed("remote: " + rank_name(rank) + " sent a damaged message");
  peer.bytes.resize(header.nbytes);
  return {};
}

Status Mesh::read(int rank, Exchange& exchange) {
  Peer& peer = *peers_[rank];
  while (peer.socket >= 0 && (peer.header_read != 0 || peer.kept_bytes < kMostKept)) {
    const bool in_header = peer.header_read < sizeof(Header);
    std::byte* to = nullptr;
    size_t left = 0;
    if (in_header) {
      to = reinterpret_cast<std::byte*>(&peer.header) + peer.header_read;
      left = sizeof(Header) - peer.header_read;
    } else {
      to = (peer.target ? peer.target->bytes.data() : peer.bytes.data()) + peer.bytes_read;
      left = peer.header.nbytes - peer.bytes_read;
    }
    if (left != 0) {
      const ssize_t got = ::recv(peer.socket, to, left, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
      if (got <= 0) {
        peer.error = got < 0 ? errno : 0;
        peer.close_socket();
        break;
      }
      (in_header ? peer.header_read : peer.bytes_read) += static_cast<size_t>(got);
    }
    if (peer.header_read == sizeof(Header) && in_header) {
      if (Status status = take_label(rank, exchange); !status.ok()) return status;
    }
    if (peer.header_read < sizeof(Header) || peer.bytes_read < peer.header.nbytes) continue;
    peer.header_read = 0;
    if (peer.header.kind == Label::kFailure) {
      const std::string why(reinterpret_cast<const char*>(peer.bytes.data()), peer.bytes.size());
      return failed("remote: " + rank_name(rank) + " failed, and with it the group: " + why);
    }
    if (peer.target != nullptr) {
      peer.target->done = true;
      --exchange.left;
      peer.target = nullptr;
    } else {
      peer.kept_bytes += peer.bytes.size() + sizeof(Peer::Kept);
      peer.kept.push_back({decode(peer.header), std::move(peer.bytes)});
      peer.bytes = {};
    }
  }
  return {};
}

Status Mesh::write(int rank, Exchange& exchange) {
  Peer& peer = *peers_[rank];
  while (peer.socket >= 0 && !peer.queue.empty()) {
    const Outgoing& send = exchange.sends[peer.queue.front()];
    if (peer.header_sent == 0 && peer.bytes_sent == 0) {
      peer.sent_header = encode(send.label, send.bytes.size());
      peer.sending = send.bytes;
    }
    std::array<iovec, 2> parts{};
    size_t count = 0;
    if (peer.header_sent < sizeof(Header)) {
      parts[count++] = {reinterpret_cast<std::byte*>(&peer.sent_header) + peer.header_sent,
                        sizeof(Header) - peer.header_sent};
    }
    if (peer.bytes_sent < send.bytes.size()) {
      parts[count++] = {const_cast<std::byte*>(send.bytes.data()) + peer.bytes_sent,
                        send.bytes.size() - peer.bytes_sent};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(peer.socket, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (sent < 0) {
      // What it said before it went may still be read: why it failed.
      peer.error = errno;
      if (Status status = read(rank, exchange); !status.ok()) return status;
      peer.close_socket();
      return {};
    }
    const size_t of_header = std::min(static_cast<size_t>(sent), sizeof(Header) - peer.header_sent);
    peer.header_sent += of_header;
    peer.bytes_sent += static_cast<size_t>(sent) - of_header;
    if (peer.header_sent < sizeof(Header) || peer.bytes_sent < send.bytes.size()) continue;
    peer.header_sent = peer.bytes_sent = 0;
    peer.queue.pop_front();
    --exchange.left;
  }
  return {};
}

// Queues what goes, and looks for what came before.
Status Mesh::start(Exchange& exchange) {
  const auto missing = [this](int rank) { return rank < 0 || rank >= size() || !peers_[rank]; };
  if (std::ranges::any_of(exchange.sends, missing, &Outgoing::peer) ||
      std::ranges::any_of(exchange.receives, missing, &Incoming::peer)) {
    return failed("remote: " + rank_name(rank_) + " is not connected to all ranks that this op needs");
  }
  for (size_t i = 0; i < exchange.sends.size(); ++i) peers_[exchange.sends[i].peer]->queue.push_back(i);
  exchange.left = exchange.sends.size() + exchange.receives.size();
  for (Incoming& receive : exchange.receives) {
    receive.done = false;
    Peer& peer = *peers_[receive.peer];
    const auto found =
        std::ranges::find_if(peer.kept, [&](const Peer::Kept& kept) { return belongs(kept.label, receive.label); });
    if (found == peer.kept.end()) {
      // One that is being read: it goes on into its own memory.
      if (peer.header_read == sizeof(Header) && peer.target == nullptr && belongs(decode(peer.header), receive.label)) {
        if (Status status = compare(receive.peer, decode(peer.header), peer.header.nbytes, receive); !status.ok()) {
          return status;
        }
        std::copy_n(peer.bytes.data(), peer.bytes_read, receive.bytes.data());
        peer.target = &receive;
        peer.bytes = {};
      }
      continue;
    }
    if (Status status = compare(receive.peer, found->label, found->bytes.size(), receive); !status.ok()) return status;
    std::ranges::copy(found->bytes, receive.bytes.begin());
    peer.kept_bytes -= found->bytes.size() + sizeof(Peer::Kept);
    peer.kept.erase(found);
    receive.done = true;
    --exchange.left;
  }
  return {};
}

// Everything that can be done without waiting.
Status Mesh::advance(Exchange& exchange) {
  for (int rank = 0; rank < size(); ++rank) {
    if (!peers_[rank]) continue;
    if (Status status = write(rank, exchange); !status.ok()) return status;
    if (Status status = read(rank, exchange); !status.ok()) return status;
  }
  for (int rank = 0; rank < size(); ++rank) {
    const Peer* peer = peers_[rank].get();
    if (peer == nullptr || peer->socket >= 0) continue;
    const bool wanted = !peer->queue.empty() || std::ranges::any_of(exchange.receives, [&](const Incoming& receive) {
      return receive.peer == rank && !receive.done;
    });
    if (wanted) return gone(rank, exchange, peer->error);
  }
  if (exchange.any_tag != nullptr) {
    bool any_left = size() == 1;
    for (int rank = 0; rank < size() && exchange.found < 0; ++rank) {
      if (!peers_[rank]) continue;
      any_left |= peers_[rank]->socket >= 0;
      for (const Peer::Kept& kept : peers_[rank]->kept) {
        if (kept.label.kind == Label::kPoint && kept.label.sequence == *exchange.any_tag) exchange.found = rank;
      }
    }
    if (exchange.found < 0 && !any_left) return failed("remote: the workers of all other ranks are gone, in recv");
  }
  return {};
}

Status Mesh::wait(Exchange& exchange) {
  const auto label = [&]() -> std::string {
    for (const Incoming& receive : exchange.receives) {
      if (!receive.done) return describe(receive.label) + ", for " + rank_name(receive.peer);
    }
    for (int rank = 0; rank < size(); ++rank) {
      if (peers_[rank] && !peers_[rank]->queue.empty()) {
        return describe(exchange.sends[peers_[rank]->queue.front()].label) + ", for " + rank_name(rank) +
               " to take what it is sent";
      }
    }
    return "recv, for any rank";
  };
  if (exchange.limits.interrupted && exchange.limits.interrupted()) {
    return failed("remote: " + rank_name(rank_) + " gave up waiting in " + label() +
                  ": its process was interrupted or ended");
  }
  const auto now = Clock::now();
  if (now >= exchange.deadline) {
    return failed("remote: " + rank_name(rank_) + " waited " +
                  std::to_string(std::chrono::duration<double>(exchange.limits.time).count()).substr(0, 6) + " s in " +
                  label() +
                  "; see that this rank calls the same collectives and is not much slower, or give "
                  "init_process_group a longer timeout=");
  }
  std::vector<pollfd> polled;
  for (const auto& peer : peers_) {
    if (!peer || peer->socket < 0) continue;
    short events = 0;
    if (peer->header_read != 0 || peer->kept_bytes < kMostKept) events |= POLLIN;
    if (!peer->queue.empty()) events |= POLLOUT;
    polled.push_back({peer->socket, events, 0});
  }
  const auto step = std::min(kLook, std::chrono::ceil<std::chrono::milliseconds>(exchange.deadline - now));
  if (::poll(polled.data(), polled.size(), static_cast<int>(step.count())) < 0 && errno != EINTR) {
    return failed(std::string("remote: poll failed: ") + std::strerror(errno));
  }
  return {};
}

Status Mesh::run(Exchange& exchange) {
  if (Status status = start(exchange); !status.ok()) return status;
  for (;;) {
    if (Status status = advance(exchange); !status.ok()) return status;
    if (exchange.any_tag != nullptr ? exchange.found >= 0 : exchange.left == 0) return {};
    if (Status status = wait(exchange); !status.ok()) return status;
  }
}

Status Mesh::exchange(std::span<const Outgoing> sends, std::span<Incoming> receives, const OpLimits& limits) {
  if (!status_.ok()) return status_;
  Exchange exchange{sends, receives, limits, Clock::now() + limits.time};
  const Status status = run(exchange);
  return status.ok() ? status : fail(status);
}

Status Mesh::wait_any(uint64_t tag, const OpLimits& limits, int* peer) {
  if (!status_.ok()) return status_;
  Exchange exchange{{}, {}, limits, Clock::now() + limits.time};
  exchange.any_tag = &tag;
  const Status status = run(exchange);
  *peer = exchange.found;
  return status.ok() ? status : fail(status);
}

}  // namespace torch_remote::worker
