#include "worker/collectives/mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <new>
#include <string_view>
#include <utility>

#include "worker/collectives/label.h"
#include "worker/device/charge.h"
#include "worker/device/no_memory.h"

namespace torch_remote::worker {
// Precedes a message's bytes. Little endian, as both ends are.
struct MessageHeader {
  uint32_t magic = 0;
  uint8_t kind = 0, op = 0, dtype = 0, reduction = 0;
  int32_t root = 0;
  uint32_t reserved = 0;
  uint64_t sequence = 0, count = 0, nbytes = 0;
};
static_assert(sizeof(MessageHeader) == 40);

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMagic = 0x4D435254;                     // "TRCM"
constexpr size_t kDropped = size_t{1} << 16;                // Bytes that are read and dropped at a time.
constexpr std::chrono::milliseconds kFailureSendTime{500};  // Time to send the other ranks the reason for a failure.
constexpr std::chrono::milliseconds kLook{20};              // Between two checks whether an op must end.

MessageHeader encode(const Label& label, size_t nbytes) {
  return {kMagic,     label.kind, label.op,       label.dtype, label.reduction,
          label.root, 0,          label.sequence, label.count, nbytes};
}

Label decode(const MessageHeader& header) {
  return {header.kind, header.op, header.dtype, header.reduction, header.root, header.sequence, header.count};
}

// Whether a message that arrives belongs to a receive, according to its position in the order.
bool belongs(const Label& come, const Label& asked) {
  if (come.kind != asked.kind) return false;
  return come.kind == Label::kCollective || come.sequence == asked.sequence;
}

Status compare(const std::string& peer, const Label& come, size_t nbytes, const Incoming& asked) {
  if (come != asked.label) {
    return collective_failed(
        "remote: " + peer + " is in " + describe(come) + ", and this rank in " + describe(asked.label) +
        "; all ranks of a group must call the same collectives in the same order, with tensors of the same "
        "size and dtype");
  }
  if (nbytes != asked.nbytes()) {
    return collective_failed("remote: in " + describe(come) + " " + peer + " sends " + std::to_string(nbytes) +
                             " bytes where this rank expects " + std::to_string(asked.nbytes()) +
                             "; sizes, dtypes and splits must agree on both ranks");
  }
  return {};
}

bool is_skipped(const Label& label) {
  return label.kind == Label::kPoint && label.op == static_cast<uint8_t>(CollectiveOp::kSkipped);
}

// The error that `Mesh::exchange` returns for such a message.
Status skipped_error(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t line = std::min(text.find('\n'), text.size());
  return {ErrorCode::kOpFailed, std::string(text.substr(std::min(line + 1, text.size()))),
          std::string(text.substr(0, line))};
}

}  // namespace

struct Mesh::Exchange {
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  OpLimits limits;
  Finished finished;
  Clock::time_point deadline;
  size_t left = 0;  // Messages in both directions.
  bool done = false;
  Status skipped_error;  // The error of a message that was left out.
};

struct Mesh::Peer {
  explicit Peer(int connected, uint32_t offered) : capabilities(offered), socket(connected) {}
  ~Peer() { close_socket(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  void close_socket() {
    if (socket >= 0) ::close(socket);
    socket = -1;
  }

  const uint32_t capabilities;
  struct StoredMessage {
    Label label;
    std::vector<std::byte> bytes;
    Charge charge;
  };
  struct Sent {
    Exchange* exchange = nullptr;
    const Outgoing* message = nullptr;
  };

  int socket = -1;
  int error = 0;  // The errno with which it was closed; 0: the other end closed it.
  // Receiving: a header, then bytes for `target` (null: for `stored`).
  MessageHeader header;
  size_t header_read = 0, bytes_read = 0;
  Incoming* target = nullptr;
  Exchange* target_of = nullptr;
  std::vector<std::byte> bytes;
  Charge charge;      // The charge for `bytes`.
  bool held = false;  // The header is there, but there is no memory for the bytes.
  std::deque<StoredMessage> stored;
  size_t stored_bytes = 0;
  // Sending.
  std::deque<Sent> queue;
  MessageHeader sent_header;
  size_t header_sent = 0, bytes_sent = 0;
};

Mesh::Mesh(int rank, int size, MeshOptions options)
    : woken_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      rank_(rank),
      options_(std::move(options)),
      peers_(static_cast<size_t>(size)) {}

Mesh::~Mesh() {
  if (woken_ >= 0) ::close(woken_);
}

void Mesh::add(int rank, int socket, uint32_t capabilities) {
  const std::lock_guard lock(mutex_);
  peers_[rank] = std::make_unique<Peer>(socket, capabilities);
  if (driving_) (void)::eventfd_write(woken_, 1);  // So that it polls the new socket, too.
}

std::string Mesh::name_of(int rank) const {
  if (static_cast<size_t>(rank) < options_.names.size()) return options_.names[rank];
  return "rank " + std::to_string(rank);
}

bool Mesh::has(int rank) const {
  const std::lock_guard lock(mutex_);
  return rank == rank_ || peers_[rank] != nullptr;
}

uint32_t Mesh::capabilities_of(int rank) const {
  const std::lock_guard lock(mutex_);
  return peers_[rank] != nullptr ? peers_[rank]->capabilities : 0;
}

Status Mesh::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void Mesh::wake() {
  const std::lock_guard lock(mutex_);
  ++wakes_;
  if (driving_) (void)::eventfd_write(woken_, 1);
  changed_.notify_all();
}

// --- failures --------------------------------------------------------------------------------------------------------

// Completes the message that is being sent, as far as that is possible soon, and sends the reason for the failure.
void Mesh::send_failure(Peer& peer, const std::string& text, Clock::time_point until) const {
  Label label;
  label.kind = Label::kFailure;
  const MessageHeader header = encode(label, text.size());
  std::string rest;
  const auto add = [&rest](const void* bytes, size_t size) { rest.append(static_cast<const char*>(bytes), size); };
  if (peer.header_sent != 0) {
    const std::span<const std::byte> sending = peer.queue.front().message->bytes;
    add(reinterpret_cast<const std::byte*>(&peer.sent_header) + peer.header_sent,
        sizeof(MessageHeader) - peer.header_sent);
    add(sending.data() + peer.bytes_sent, sending.size() - peer.bytes_sent);
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
  const std::lock_guard lock(mutex_);
  fail_all(why);
  finish_done();
  if (driving_) (void)::eventfd_write(woken_, 1);
  changed_.notify_all();
  return status_;
}

void Mesh::fail_all(const Status& why) {
  if (!status_.ok()) return;
  status_ = why;
  // The other ranks should not have to wait until their timeout.
  const std::string text = why.message().substr(0, kMostText);
  const auto until = Clock::now() + kFailureSendTime;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    if (peer->socket >= 0) {
      send_failure(*peer, text, until);
      // The socket is not closed: with unread data, close() would make the kernel drop sent data.
      ::shutdown(peer->socket, SHUT_WR);
    }
    peer->queue.clear();
    peer->target = nullptr;
  }
  for (const auto& exchange : exchanges_) {
    if (!exchange->done) finish(*exchange, status_);
  }
}

Status Mesh::lost_peer_error(int rank, const Exchange& exchange, int error) const {
  std::string in;
  for (const Outgoing& send : exchange.sends) in = in.empty() && send.peer == rank ? describe(send.label) : in;
  for (const Incoming& receive : exchange.receives) {
    if (in.empty() && receive.peer == rank && !receive.done) in = describe(receive.label);
  }
  return collective_failed("remote: the worker of " + name_of(rank) + " is gone" +
                           (error != 0 ? " (" + std::string(std::strerror(error)) + ")" : "") +
                           (in.empty() ? "" : ", in " + in) +
                           (options_.names.empty() ? "; look at the output of that process, and start all ranks again"
                                                   : "; what it had not sent is lost"));
}

// Returns an error if a peer that is needed is gone.
Status Mesh::find_lost_peer() const {
  const auto is_gone = [this](int rank) { return peers_[rank] && peers_[rank]->socket < 0; };
  const auto is_left = [](const auto& peer) { return peer && peer->socket >= 0; };
  for (const auto& exchange : exchanges_) {
    if (exchange->done) continue;
    for (const Incoming& receive : exchange->receives) {
      if (receive.done) continue;
      if (receive.peer == kAnyPeer && size() > 1 && std::ranges::none_of(peers_, is_left)) {
        return collective_failed("remote: the workers of all other ranks are gone, in recv");
      }
      if (receive.peer != kAnyPeer && is_gone(receive.peer)) {
        return lost_peer_error(receive.peer, *exchange, peers_[receive.peer]->error);
      }
    }
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (!is_gone(rank) || peers_[rank]->queue.empty()) continue;
    return lost_peer_error(rank, *peers_[rank]->queue.front().exchange, peers_[rank]->error);
  }
  return {};
}

// Returns an error if the exchange must end.
Status Mesh::check_limits(const Exchange& exchange) const {
  const auto label = [&]() -> std::string {
    for (const Incoming& receive : exchange.receives) {
      if (receive.done) continue;
      if (receive.peer == kAnyPeer) return "recv, for any rank";
      return describe(receive.label) + ", for " + name_of(receive.peer);
    }
    for (int rank = 0; rank < size(); ++rank) {
      if (!peers_[rank]) continue;
      for (const Peer::Sent& sent : peers_[rank]->queue) {
        if (sent.exchange != &exchange) continue;
        return describe(sent.message->label) + ", for " + name_of(rank) + " to take what it is sent";
      }
    }
    return "an op";
  };
  if (exchange.limits.interrupted && exchange.limits.interrupted()) {
    return collective_failed("remote: " + name_of(rank_) + " gave up waiting in " + label() +
                             ": its process was interrupted or ended");
  }
  if (Clock::now() >= exchange.deadline) {
    return collective_failed("remote: " + name_of(rank_) + " waited " +
                             std::to_string(std::chrono::duration<double>(exchange.limits.time).count()).substr(0, 6) +
                             " s in " + label() +
                             "; check that this rank calls the same collectives and is not much slower, or give "
                             "init_process_group a longer timeout=");
  }
  return {};
}

// --- messages --------------------------------------------------------------------------------------------------------

void Mesh::finish(Exchange& exchange, const Status& status) {
  exchange.done = true;
  if (exchange.finished) exchange.finished(status, exchange.receives);
}

void Mesh::finish_done() {
  for (const auto& exchange : exchanges_) {
    if (!exchange->done && exchange->left == 0) finish(*exchange, exchange->skipped_error);
  }
  std::erase_if(exchanges_, [](const auto& exchange) { return exchange->done; });
}

// Whether a receive waits for this rank.
bool Mesh::is_awaited(int rank) const {
  return std::ranges::any_of(exchanges_, [rank](const auto& exchange) {
    return std::ranges::any_of(exchange->receives, [rank](const Incoming& receive) {
      return !receive.done && (receive.peer == rank || receive.peer == kAnyPeer);
    });
  });
}

// Whether data from this rank is read now.
bool Mesh::reads(int rank) const {
  const Peer& peer = *peers_[rank];
  if (peer.held) return is_awaited(rank);
  return peer.header_read != 0 || peer.stored_bytes < options_.max_stored_bytes || is_awaited(rank);
}

// Allocates memory for a message that no receive has asked for yet, or for an error that is sent instead of a message.
Status Mesh::reserve_message(int rank) {
  Peer& peer = *peers_[rank];
  const Label label = decode(peer.header);
  Status room;
  // An error that a receive waits for is not stored, so it needs no space within the limit.
  if (!is_skipped(label) || find_receive(rank, label).second == nullptr) {
    room = peer.charge.take(options_.memory, peer.header.nbytes, "what " + name_of(rank) + " sends");
  }
  peer.held = !room.ok();
  if (peer.held) return is_awaited(rank) ? room : Status();
  peer.bytes.resize(peer.header.nbytes);
  return {};
}

// The first receive that waits for a message of this rank with this label, and its exchange; null: there is none.
std::pair<Mesh::Exchange*, Incoming*> Mesh::find_receive(int rank, const Label& label) const {
  for (const auto& exchange : exchanges_) {
    for (Incoming& receive : exchange->receives) {
      const bool from_it = receive.peer == rank || receive.peer == kAnyPeer;
      if (from_it && !receive.done && belongs(label, receive.label)) return {exchange.get(), &receive};
    }
  }
  return {};
}

// A header has arrived: finds out where its bytes go.
Status Mesh::take_label(int rank) {
  Peer& peer = *peers_[rank];
  const MessageHeader& header = peer.header;
  if (header.magic != kMagic || header.kind < Label::kCollective || header.kind > Label::kFailure ||
      header.op > static_cast<uint8_t>(CollectiveOp::kLast)) {
    return collective_failed("remote: " + name_of(rank) +
                             " sent data that is not a message of a group; its worker has another version");
  }
  peer.target = nullptr;
  peer.bytes_read = 0;
  const Label label = decode(header);
  if (label.kind == Label::kFailure) {
    if (header.nbytes > kMostText) return collective_failed("remote: " + name_of(rank) + " failed");
    peer.bytes.resize(header.nbytes);
    return {};
  }
  if (is_skipped(label)) {
    if (header.nbytes > 2 * kMostText) return collective_failed("remote: " + name_of(rank) + " sent a damaged message");
    return reserve_message(rank);
  }
  const auto [exchange, receive] = find_receive(rank, label);
  if (receive != nullptr) {
    if (Status status = compare(name_of(rank), label, header.nbytes, *receive); !status.ok()) return status;
    receive->peer = rank;
    peer.target = receive;
    peer.target_of = exchange;
    return {};
  }
  if (header.nbytes > uint64_t{1} << 40)
    return collective_failed("remote: " + name_of(rank) + " sent a damaged message");
  return reserve_message(rank);
}

// A left-out message has arrived: fails the receive that asks for it, or stores it.
void Mesh::take_skipped(int rank) {
  Peer& peer = *peers_[rank];
  const Label label = decode(peer.header);
  if (const auto [exchange, receive] = find_receive(rank, label); receive != nullptr) {
    receive->peer = rank;
    receive->done = true;
    exchange->skipped_error = skipped_error(peer.bytes);
    --exchange->left;
    peer.charge.drop();
    return;
  }
  peer.stored_bytes += peer.bytes.size() + sizeof(Peer::StoredMessage);
  peer.stored.push_back({label, std::move(peer.bytes), std::move(peer.charge)});
  peer.bytes = {};
}

Status Mesh::read(int rank) {
  Peer& peer = *peers_[rank];
  while (peer.socket >= 0 && reads(rank)) {
    if (peer.held) {
      if (Status status = reserve_message(rank); !status.ok()) return status;
    }
    const bool in_header = peer.header_read < sizeof(MessageHeader);
    std::byte* to = nullptr;
    size_t left = 0;
    if (in_header) {
      to = reinterpret_cast<std::byte*>(&peer.header) + peer.header_read;
      left = sizeof(MessageHeader) - peer.header_read;
    } else if (peer.target != nullptr && peer.target->dropped != 0) {
      dropped_.resize(kDropped);
      to = dropped_.data();
      left = std::min<uint64_t>(peer.header.nbytes - peer.bytes_read, kDropped);
    } else {
      to = (peer.target ? peer.target->bytes.data() : peer.bytes.data()) + peer.bytes_read;
      left = peer.header.nbytes - peer.bytes_read;
    }
    if (left != 0) {
      // NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): the socket does not block
      const ssize_t got = ::recv(peer.socket, to, left, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
      if (got <= 0) {
        peer.error = got < 0 ? errno : 0;
        peer.close_socket();
        break;
      }
      (in_header ? peer.header_read : peer.bytes_read) += static_cast<size_t>(got);
    }
    if (peer.header_read == sizeof(MessageHeader) && in_header) {
      if (Status status = take_label(rank); !status.ok()) return status;
      if (peer.held) continue;
    }
    if (peer.header_read < sizeof(MessageHeader) || peer.bytes_read < peer.header.nbytes) continue;
    peer.header_read = 0;
    if (peer.header.kind == Label::kFailure) {
      const std::string why(reinterpret_cast<const char*>(peer.bytes.data()), peer.bytes.size());
      return collective_failed(
          "remote: " + name_of(rank) +
          (options_.names.empty() ? " failed, and with it the group: " : " ended direct copies: ") + why);
    }
    if (is_skipped(decode(peer.header))) {
      take_skipped(rank);
    } else if (peer.target != nullptr) {
      peer.target->done = true;
      --peer.target_of->left;
      peer.target = nullptr;
    } else {
      peer.stored_bytes += peer.bytes.size() + sizeof(Peer::StoredMessage);
      peer.stored.push_back({decode(peer.header), std::move(peer.bytes), std::move(peer.charge)});
      peer.bytes = {};
    }
  }
  return {};
}

Status Mesh::write(int rank) {
  Peer& peer = *peers_[rank];
  while (peer.socket >= 0 && !peer.queue.empty()) {
    const Outgoing& send = *peer.queue.front().message;
    if (peer.header_sent == 0) peer.sent_header = encode(send.label, send.bytes.size());
    std::array<iovec, 2> parts{};
    size_t count = 0;
    if (peer.header_sent < sizeof(MessageHeader)) {
      parts[count++] = {reinterpret_cast<std::byte*>(&peer.sent_header) + peer.header_sent,
                        sizeof(MessageHeader) - peer.header_sent};
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
      // The peer's last message, with the reason for its failure, may still be readable.
      peer.error = errno;
      if (Status status = read(rank); !status.ok()) return status;
      peer.close_socket();
      return {};
    }
    const size_t of_header = std::min(static_cast<size_t>(sent), sizeof(MessageHeader) - peer.header_sent);
    peer.header_sent += of_header;
    peer.bytes_sent += static_cast<size_t>(sent) - of_header;
    if (peer.header_sent < sizeof(MessageHeader) || peer.bytes_sent < send.bytes.size()) continue;
    peer.header_sent = peer.bytes_sent = 0;
    --peer.queue.front().exchange->left;
    peer.queue.pop_front();
  }
  return {};
}

// Looks for a stored message from this rank that matches the receive. Returns whether one was found.
bool Mesh::take_stored(int rank, Exchange& exchange, Incoming& receive, Status* status) {
  Peer& peer = *peers_[rank];
  const auto found = std::ranges::find_if(
      peer.stored, [&](const Peer::StoredMessage& stored) { return belongs(stored.label, receive.label); });
  if (found != peer.stored.end()) {
    if (is_skipped(found->label)) {
      exchange.skipped_error = skipped_error(found->bytes);
    } else {
      if (*status = compare(name_of(rank), found->label, found->bytes.size(), receive); !status->ok()) return true;
      if (receive.dropped == 0) std::ranges::copy(found->bytes, receive.bytes.begin());
    }
    peer.stored_bytes -= found->bytes.size() + sizeof(Peer::StoredMessage);
    peer.stored.erase(found);
    receive.peer = rank;
    receive.done = true;
    --exchange.left;
    return true;
  }
  // A message that is being read: the rest of it goes directly to the receive's memory.
  if (peer.header_read != sizeof(MessageHeader) || peer.target != nullptr || is_skipped(decode(peer.header)) ||
      !belongs(decode(peer.header), receive.label)) {
    return false;
  }
  if (*status = compare(name_of(rank), decode(peer.header), peer.header.nbytes, receive); !status->ok()) return true;
  if (receive.dropped == 0) std::copy_n(peer.bytes.data(), peer.bytes_read, receive.bytes.data());
  peer.target = &receive;
  peer.target_of = &exchange;
  peer.bytes = {};
  peer.charge.drop();
  peer.held = false;
  receive.peer = rank;
  return true;
}

// Queues the sends, and looks for messages that arrived earlier.
Status Mesh::queue(Exchange& exchange) {
  const auto missing = [this](int rank) { return rank < 0 || rank >= size() || !peers_[rank]; };
  const auto misses = [&](const Incoming& receive) { return receive.peer != kAnyPeer && missing(receive.peer); };
  if (std::ranges::any_of(exchange.sends, missing, &Outgoing::peer) || std::ranges::any_of(exchange.receives, misses)) {
    return collective_failed("remote: " + name_of(rank_) + " is not connected to all ranks that this op needs");
  }
  exchange.left = exchange.sends.size() + exchange.receives.size();
  for (const Outgoing& send : exchange.sends) peers_[send.peer]->queue.push_back({&exchange, &send});
  for (Incoming& receive : exchange.receives) {
    receive.done = false;
    Status status;
    if (receive.peer != kAnyPeer) {
      (void)take_stored(receive.peer, exchange, receive, &status);
    } else {
      for (int rank = 0; rank < size(); ++rank) {
        if (peers_[rank] && take_stored(rank, exchange, receive, &status)) break;
      }
    }
    if (!status.ok()) return status;
  }
  return {};
}

Status Mesh::move() {
  for (int rank = 0; rank < size(); ++rank) {
    if (!peers_[rank]) continue;
    if (Status status = write(rank); !status.ok()) return status;
    if (Status status = read(rank); !status.ok()) return status;
  }
  finish_done();
  return find_lost_peer();
}

// Does everything that is possible without waiting.
void Mesh::advance() {
  if (!status_.ok()) return;
  Status status;
  try {
    status = move();
  } catch (const std::bad_alloc&) {
    status = no_memory_for("what other ranks send");
  }
  if (!status.ok()) fail_all(status);
  finish_done();
}

void Mesh::start(const std::shared_ptr<Exchange>& exchange) {
  exchange->deadline = Clock::now() + exchange->limits.time;
  if (!status_.ok()) return finish(*exchange, status_);
  exchanges_.push_back(exchange);
  if (const Status status = queue(*exchange); !status.ok()) {
    fail_all(status);
    finish_done();
    return;
  }
  advance();
  if (!exchange->done && driving_) (void)::eventfd_write(woken_, 1);  // So that it polls for sending, too.
}

void Mesh::begin(std::vector<Outgoing> sends, std::vector<Incoming> receives, const OpLimits& limits,
                 Finished finished) {
  const std::lock_guard lock(mutex_);
  start(std::make_shared<Exchange>(
      Exchange{std::move(sends), std::move(receives), limits, std::move(finished), {}, 0, false, {}}));
}

// One round of the driving thread.
void Mesh::round(Lock& lock, uint64_t wakes) {
  driving_ = true;
  const size_t before = exchanges_.size();
  advance();
  for (auto exchange = exchanges_.begin(); exchange != exchanges_.end() && status_.ok(); ++exchange) {
    if (const Status status = check_limits(**exchange); !status.ok()) fail_all(status);
  }
  finish_done();
  if (exchanges_.size() == before && status_.ok() && wakes_ == wakes) {
    std::vector<pollfd> polled{{woken_, POLLIN, 0}};
    auto until = Clock::now() + kLook;
    for (const auto& exchange : exchanges_) until = std::min(until, exchange->deadline);
    for (int rank = 0; rank < size(); ++rank) {
      const Peer* peer = peers_[rank].get();
      if (peer == nullptr || peer->socket < 0) continue;
      short events = 0;
      if (reads(rank)) events |= POLLIN;
      if (!peer->queue.empty()) events |= POLLOUT;
      polled.push_back({peer->socket, events, 0});
    }
    const auto step =
        std::max(std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()), std::chrono::milliseconds(0));
    lock.unlock();
    (void)::poll(polled.data(), polled.size(), static_cast<int>(step.count()));
    lock.lock();
    eventfd_t none = 0;
    if (polled[0].revents != 0) (void)::eventfd_read(woken_, &none);
    advance();
  }
  driving_ = false;
  changed_.notify_all();
}

void Mesh::drive(uint64_t wakes) {
  Lock lock(mutex_);
  if (!driving_) {
    round(lock, wakes);
  } else if (wakes_ == wakes) {
    changed_.wait_for(lock, kLook);
  }
}

Status Mesh::exchange(std::span<const Outgoing> sends, std::span<Incoming> receives, const OpLimits& limits) {
  const auto exchange = std::make_shared<Exchange>();
  exchange->sends.assign(sends.begin(), sends.end());
  exchange->receives.assign(receives.begin(), receives.end());
  exchange->limits = limits;
  Status result;
  exchange->finished = [&](const Status& status, std::span<const Incoming> done) {
    result = status;
    std::ranges::copy(done, receives.begin());
  };
  Lock lock(mutex_);
  start(exchange);
  while (!exchange->done) {
    if (driving_) {
      changed_.wait_for(lock, kLook);
    } else {
      round(lock, wakes_);
    }
  }
  return result;
}

}  // namespace torch_remote::worker
