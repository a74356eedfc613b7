#include "worker/collectives/peer_copies.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>

namespace torch_remote::worker {
namespace {

constexpr size_t kContent = 64;  // Bytes that are read as a test.
constexpr size_t kText = 400;

// The first message of each end.
struct AccessOffer {
  std::array<char, kText> why{};  // The reason why it has no such memory; empty: it has.
  PeerMemory::Location place{};
  std::array<std::byte, kContent> content{};
};
// The second message of each end.
struct AccessResult {
  std::array<char, kText> why{};  // The reason why it cannot read the other end's memory; empty: it can.
};

void put_text(std::string_view text, std::array<char, kText>& to) {
  std::ranges::copy(text.substr(0, kText - 1), to.begin());
}
std::string text_of(const std::array<char, kText>& from) { return {from.begin(), std::ranges::find(from, '\0')}; }

template <typename T>
Status swap(Mesh& mesh, int peer, int step, const OpLimits& limits, const T& mine, T* theirs) {
  Label label;
  label.kind = Label::kPoint;
  label.op = static_cast<uint8_t>(CollectiveOp::kMeet);
  label.count = static_cast<uint64_t>(step);  // Copies have numbers from 1 on; these messages have number 0.
  const std::array<Outgoing, 1> sends{{{peer, label, std::as_bytes(std::span(&mine, 1))}}};
  std::array<Incoming, 1> receives{{{peer, label, std::as_writable_bytes(std::span(theirs, 1))}}};
  return mesh.exchange(sends, receives, limits);
}

Label label_as(const Label& label, CollectiveOp op) {
  Label result = label;
  result.op = static_cast<uint8_t>(op);
  return result;
}

Label taken(const Label& label) {
  Label result;
  result.kind = Label::kPoint;
  result.op = static_cast<uint8_t>(CollectiveOp::kReadDone);
  result.sequence = label.sequence;
  return result;
}

}  // namespace

struct PeerCopies::Reading {
  std::mutex mutex;
  std::condition_variable changed;
  size_t count = 0;

  void begin() {
    const std::lock_guard lock(mutex);
    ++count;
  }
  void end() {
    const std::lock_guard lock(mutex);
    --count;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return count == 0; });
  }
};

PeerCopies::PeerCopies(Device& device, std::shared_ptr<OpQueue> queue, int peer)
    : device_(device),
      queue_(std::move(queue)),
      peer_(peer),
      reading_(std::make_shared<Reading>()),
      reader_(device.peer_memory()->make_reader()) {}

PeerCopies::~PeerCopies() { finish_reading(); }

Status PeerCopies::test_access(Mesh& mesh, int peer, PeerMemory* mine, const OpLimits& limits, std::string* why) {
  AccessOffer here, there;
  PeerMemory::PiecePtr piece;
  if (mine == nullptr) {
    put_text("-", here.why);
  } else if (::getrandom(here.content.data(), kContent, 0) != static_cast<ssize_t>(kContent)) {
    put_text("the system has no random numbers", here.why);
  } else if (const Status status = mine->offer(here.content, &here.place, &piece); !status.ok()) {
    put_text(status.message(), here.why);
  }
  if (Status status = swap(mesh, peer, 0, limits, here, &there); !status.ok()) return status;
  const std::string none_here = text_of(here.why), none_there = text_of(there.why);
  const std::string name_here = mesh.name_of(mesh.rank()), name_there = mesh.name_of(peer);
  if (mine == nullptr || !none_here.empty() || !none_there.empty()) {
    if (piece) piece->was_read();  // Nothing reads it.
    const auto tell = [why](const std::string& name, const std::string& none) {
      if (none.empty()) return;
      *why += (why->empty() ? "" : "; ") + name + (none == "-" ? " is not a GPU" : ": " + none);
    };
    if (none_here == "-" && none_there == "-") {
      *why = "-";
      return {};
    }
    // Both ends use the same words.
    tell(mesh.rank() < peer ? name_here : name_there, mesh.rank() < peer ? none_here : none_there);
    tell(mesh.rank() < peer ? name_there : name_here, mesh.rank() < peer ? none_there : none_here);
    return {};
  }
  AccessResult mine_says, theirs;
  if (const Status status = mine->verify_readable(there.place, there.content); !status.ok()) {
    put_text(status.message().empty() ? "it does not" : status.message(), mine_says.why);
  }
  if (Status status = swap(mesh, peer, 1, limits, mine_says, &theirs); !status.ok()) return status;
  piece->was_read();
  const auto tell = [why](const std::string& reader, const std::string& owner, const std::string& text) {
    if (!text.empty()) *why = reader + " does not read memory of " + owner + ": " + text;
  };
  tell(name_there, name_here, text_of(theirs.why));
  if (why->empty() || mesh.rank() < peer) tell(name_here, name_there, text_of(mine_says.why));
  return {};
}

Status PeerCopies::send(const Label& label, const void* data, uint64_t nbytes, const OpLimits& limits) {
  struct Sent {
    PeerMemory::Location place{};
    PeerMemory::PiecePtr piece;
  };
  const auto sent = std::make_shared<Sent>();
  PeerMemory& memory = *device_.peer_memory();
  if (Status status = memory.put(data, nbytes, &sent->place, &sent->piece); !status.ok()) return status;
  // The piece lies in memory that stays: without a confirmation the other end may still be reading it.
  (void)queue_->receive({peer_, taken(label), {}}, limits, [sent](int) { sent->piece->was_read(); });
  device_.notify(device_.record(), [queue = std::weak_ptr(queue_), peer = peer_, label, limits, sent, &memory] {
    const std::shared_ptr<OpQueue> there = queue.lock();
    if (!there || !memory.status().ok()) return;  // The other end notices that this end is gone.
    (void)there->send({peer, label_as(label, CollectiveOp::kLocation), sent->place}, limits, sent);
  });
  return {};
}

Status PeerCopies::receive(const Label& label, void* data, uint64_t nbytes, const OpLimits& limits,
                           const std::function<void()>& look) {
  const auto place = std::make_shared<PeerMemory::Location>();
  const auto came = queue_->receive({peer_, label_as(label, CollectiveOp::kLocation), *place}, limits, [place](int) {});
  came->wait(look);
  if (!came->status().ok()) return came->status();
  std::function<void()> finish;
  Status status = reader_->read(*place, data, nbytes, &finish);
  reading_->begin();
  device_.notify(device_.record(),
                 [queue = std::weak_ptr(queue_), peer = peer_, label, limits, finish, reading = reading_] {
                   finish();
                   if (const std::shared_ptr<OpQueue> there = queue.lock())
                     (void)there->send({peer, taken(label), {}}, limits, nullptr);
                   reading->end();
                 });
  return status;
}

void PeerCopies::drop(const Label& label, const OpLimits& limits) {
  const auto place = std::make_shared<PeerMemory::Location>();
  (void)queue_->add([place, label, limits, peer = peer_](Mesh& mesh) {
    std::array<Incoming, 1> receives{{{peer, label_as(label, CollectiveOp::kLocation), *place}}};
    // A failure belongs to the other end, and no one waits for it here, or it is the connection's.
    if (!mesh.exchange({}, receives, limits).ok()) return Status();
    const std::array<Outgoing, 1> sends{{{peer, taken(label), {}}}};
    (void)mesh.exchange(sends, {}, limits);
    return Status();
  });
}

void PeerCopies::finish_reading() { reading_->wait(); }

}  // namespace torch_remote::worker
