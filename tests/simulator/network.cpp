#include "tests/simulator/network.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace torch_remote::simulator {
namespace {

constexpr const char* kNames[] = {"cut",     "reset",   "half-open",   "one way",     "late cut", "stall",   "corrupt",
                                  "refused", "silence", "late",        "replay",      "stranger", "partial", "slow",
                                  "delay",   "outage",  "worker dies", "client dies", "no memory"};
static_assert(std::size(kNames) == static_cast<size_t>(Fault::kCount));

constexpr size_t kOverheard = 600;  // bytes: a client hello, and most of what follows
Network* g_network = nullptr;

int failed(int error) {
  errno = error;
  return -1;
}

}  // namespace

const char* name(Fault fault) { return kNames[static_cast<size_t>(fault)]; }
Network* network() { return g_network; }
void set_network(Network* network) { g_network = network; }

// One TCP connection. Side 0 is the one that connected.
struct Network::Link {
  uint64_t number = 0;
  std::array<std::weak_ptr<File>, 2> ends;
  std::array<uint64_t, 2> sent{};     // bytes sent, by side
  std::array<Nanoseconds, 2> last{};  // arrival time of the last byte
  std::array<Nanoseconds, 2> free{};  // when the link can take more bytes
  std::array<bool, 2> silent{};       // data from this side is lost
  Nanoseconds stalled_until = 0;
  Fault fault = Fault::kCount;  // the fault that is still to come
  size_t fault_side = 0;
  uint64_t fault_at = 0;  // index of the byte, among those that this side sends
  Nanoseconds latency = 0, jitter = 0;
  double bytes_per_ns = 1;
  bool dead = false;
};

struct Network::File {
  enum class Kind : uint8_t { kStream, kEvent, kPair, kListener };
  Kind kind = Kind::kStream;
  size_t references = 0;  // by descriptors, and by messages in flight
  // -- streams
  std::shared_ptr<Link> link;
  size_t side = 0;
  std::string in;
  size_t on_way = 0;  // bytes sent that the other end has not read
  bool connecting = false, eof = false, reset = false, shut = false, writing_shut = false;
  int error = 0;
  // -- events
  uint64_t count = 0;
  // -- socket pairs: whole messages
  struct Message {
    std::string bytes;
    FilePtr passed;
  };
  std::deque<Message> messages;
  std::weak_ptr<File> peer;
  // -- listeners
  std::deque<FilePtr> waiting;
};

Network::Network(World& world) : world_(world) {
  world_.readiness = [this](int descriptor, short events) { return readiness(descriptor, events); };
  world_.on_kill = [this](uint32_t process) { on_kill(process); };
}

void Network::count(Fault fault) {
  ++counts[static_cast<size_t>(fault)];
  world_.note(name(fault));
}

// --- descriptors -----------------------------------------------------------------------------------------------------

int Network::add(FilePtr file, uint32_t process) {
  ++file->references;
  descriptors_[next_] = {std::move(file), process};
  return next_++;
}

Network::File* Network::find(int descriptor) {
  const auto found = descriptors_.find(descriptor);
  return found == descriptors_.end() ? nullptr : found->second.file.get();
}

size_t Network::open_descriptors(uint32_t process) const {
  return static_cast<size_t>(
      std::ranges::count_if(descriptors_, [&](const auto& entry) { return entry.second.process == process; }));
}

int Network::make_socket() { return add(std::make_shared<File>(), self()->process); }

int Network::make_event(unsigned count) {
  auto file = std::make_shared<File>();
  file->kind = File::Kind::kEvent;
  file->count = count;
  return add(std::move(file), self()->process);
}

int Network::make_pair(int ends[2]) {
  const auto a = std::make_shared<File>(), b = std::make_shared<File>();
  a->kind = b->kind = File::Kind::kPair;
  a->peer = b;
  b->peer = a;
  ends[0] = add(a, self()->process);
  ends[1] = add(b, self()->process);
  return 0;
}

int Network::make_listener() {
  listener_ = std::make_shared<File>();
  listener_->kind = File::Kind::kListener;
  return add(listener_, self()->process);
}

int Network::duplicate(int descriptor, uint32_t process) { return add(descriptors_.at(descriptor).file, process); }

int Network::close(int descriptor) {
  const auto found = descriptors_.find(descriptor);
  if (found == descriptors_.end()) return failed(EBADF);
  const FilePtr file = std::move(found->second.file);
  descriptors_.erase(found);
  release(file);
  return 0;
}

void Network::release(const FilePtr& file) {
  if (--file->references > 0) return;
  if (file->kind == File::Kind::kStream && file->link && !file->reset) {
    if (file->in.empty()) {
      if (!file->writing_shut) transmit(*file, {}, true);
    } else {
      notify_end(*file->link, 1 - file->side, true, file->link->latency);  // TCP sends a reset if data was left unread
    }
    file->shut = file->writing_shut = true;
  }
  for (const File::Message& message : file->messages) {
    if (message.passed) release(message.passed);
  }
  world_.readiness_changed();
}

void Network::on_kill(uint32_t process) {
  std::vector<int> its;
  for (const auto& [number, descriptor] : descriptors_) {
    if (descriptor.process == process) its.push_back(number);
  }
  for (const int number : its) close(number);
}

// --- connections -----------------------------------------------------------------------------------------------------

int Network::connect(int socket) {
  File* const file = find(socket);
  if (file == nullptr) return failed(EBADF);
  file->connecting = true;
  Random& random = world_.random();
  const FilePtr client = descriptors_[socket].file;
  Nanoseconds after = 2 * fault_model.latency + kMicrosecond;
  bool faulty = false;
  if (fault_model.faults > 0 && random.chance(fault_model.break_probability)) {
    --fault_model.faults;
    switch (random.below(12)) {
      case 0:
        count(Fault::kRefused);
        world_.at(world_.now() + after, [this, client] {
          client->connecting = false;
          client->error = ECONNREFUSED;
          world_.readiness_changed();
        });
        return failed(EINPROGRESS);
      case 1:
        count(Fault::kSilence);
        return failed(EINPROGRESS);
      case 2:
        count(Fault::kLate);
        after += random.below(5 * kSecond);
        break;
      default:
        faulty = true;
        break;
    }
  }
  world_.at(world_.now() + after, [this, client, faulty] { establish(client, faulty); });
  return failed(EINPROGRESS);
}

void Network::establish(const FilePtr& client, bool faulty) {
  if (client->references == 0) return;  // the connecting side has given up
  if (world_.now() < outage_until_ && outage_refuses_) {
    count(Fault::kRefused);
    client->connecting = false;
    client->error = ECONNREFUSED;
    return world_.readiness_changed();
  }
  if (world_.now() < outage_until_) {  // retried, as TCP does
    world_.at(outage_until_ + fault_model.latency, [this, client, faulty] { establish(client, faulty); });
    return;
  }
  client->connecting = false;
  if (listener_ == nullptr || listener_->references == 0) {
    client->error = ECONNREFUSED;
    return world_.readiness_changed();
  }
  Random& random = world_.random();
  const auto link = std::make_shared<Link>();
  const auto server = std::make_shared<File>();
  link->number = ++links_;
  link->ends = {client, server};
  link->latency = fault_model.latency;
  link->jitter = fault_model.jitter;
  link->bytes_per_ns = fault_model.bytes_per_ns;
  client->link = server->link = link;
  server->side = 1;
  if (faulty && !fault_model.break_kinds.empty()) {
    link->fault = fault_model.break_kinds[random.below(fault_model.break_kinds.size())];
    link->fault_side = random.below(2);
    // Often during the handshake, otherwise anywhere.
    link->fault_at = random.below(random.chance(0.3) ? std::min<uint64_t>(fault_model.break_within_bytes, 200)
                                                     : fault_model.break_within_bytes);
  }
  world_.note("connected", link->number);
  ++server->references;
  listener_->waiting.push_back(server);
  world_.readiness_changed();
}

int Network::accept(int listener) {
  File* const file = find(listener);
  if (file == nullptr) return failed(EBADF);
  if (file->waiting.empty()) return failed(EAGAIN);
  const FilePtr made = std::move(file->waiting.front());
  file->waiting.pop_front();
  --made->references;
  return add(made, self()->process);
}

int Network::socket_error(int socket) {
  File* const file = find(socket);
  return file != nullptr ? std::exchange(file->error, 0) : EBADF;
}

// --- bytes -----------------------------------------------------------------------------------------------------------

int64_t Network::send(int socket, const void* const* pieces, const size_t* sizes, size_t count, int passed) {
  File* const file = find(socket);
  if (file == nullptr) return failed(EBADF);
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    const size_t room = file->kind == File::Kind::kStream
                            ? fault_model.window - std::min<size_t>(bytes.size(), fault_model.window)
                            : sizes[i];
    bytes.append(static_cast<const char*>(pieces[i]), std::min(sizes[i], room));
  }
  if (file->kind == File::Kind::kEvent) {
    uint64_t value = 0;
    std::memcpy(&value, bytes.data(), std::min(sizeof(value), bytes.size()));
    file->count += value;
    world_.readiness_changed();
    return static_cast<int64_t>(bytes.size());
  }
  if (file->kind == File::Kind::kPair) {
    const FilePtr peer = file->peer.lock();
    if (!peer || peer->references == 0) return failed(EPIPE);
    FilePtr with;
    if (passed >= 0 && find(passed) != nullptr) {
      with = descriptors_[passed].file;
      ++with->references;
    }
    const auto size = static_cast<int64_t>(bytes.size());
    peer->messages.push_back({std::move(bytes), std::move(with)});
    world_.readiness_changed();
    return size;
  }
  return send_stream(*file, bytes);
}

int64_t Network::send_stream(File& file, const std::string& bytes) {
  if (file.reset) return failed(ECONNRESET);
  if (!file.link || file.writing_shut) return failed(EPIPE);
  if (bytes.empty()) return 0;
  const size_t room = fault_model.window - std::min<size_t>(file.on_way, fault_model.window);
  if (room == 0) return failed(EAGAIN);
  size_t size = std::min(bytes.size(), room);
  // The socket buffer is empty when the worker sends first, so its first bytes are never split.
  const bool first = file.link->sent[file.side] < 64 && file.side == 1;
  if (size > 1 && !first && world_.random().chance(fault_model.partial)) {
    size = 1 + world_.random().below(size - 1);
    ++counts[static_cast<size_t>(Fault::kPartial)];
  }
  transmit(file, bytes.substr(0, size), false);
  return static_cast<int64_t>(size);
}

// Delivers in order, at the link's rate. Bytes after the point of the fault are lost.
void Network::transmit(File& file, std::string bytes, bool end) {
  Link& link = *file.link;
  const size_t side = file.side;
  if (end) file.writing_shut = true;
  if (link.dead || link.silent[side]) {
    file.on_way += bytes.size();
    return;
  }
  const bool reaches_fault = link.fault != Fault::kCount && link.fault_side == side && !bytes.empty() &&
                             link.sent[side] + bytes.size() > link.fault_at;
  if (reaches_fault && link.fault == Fault::kCorrupt) {
    // TCP's checksum is weak; the authentication code of each TLS record covers everything.
    char& byte = bytes[link.fault_at - link.sent[side]];
    byte = static_cast<char>(byte ^ (1 << world_.random().below(8)));
    count(Fault::kCorrupt);
    link.fault = Fault::kCount;
  } else if (reaches_fault && link.fault == Fault::kStall) {
    inject_fault(file);
  } else if (reaches_fault) {
    file.on_way += bytes.size() - (link.fault_at - link.sent[side]);
    bytes.resize(link.fault_at - link.sent[side]);
  }
  if (side == 0 && overheard_.size() < kOverheard && links_ == link.number) overheard_ += bytes;
  const auto wire = static_cast<Nanoseconds>(static_cast<double>(bytes.size()) / link.bytes_per_ns);
  link.free[side] = std::max(link.free[side], world_.now()) + wire;
  Nanoseconds arrives = link.free[side] + link.latency + (link.jitter ? world_.random().below(link.jitter) : 0);
  arrives = std::max({arrives, link.last[side], link.stalled_until, outage_until_});
  link.last[side] = arrives;
  link.sent[side] += bytes.size();
  file.on_way += bytes.size();
  world_.note(end ? "fin" : "bytes", link.number << 1 | side, bytes.size());
  if (!bytes.empty() || end) {
    world_.at(arrives, [this, shared = file.link, side, end, came = std::move(bytes)] {
      const FilePtr to = shared->ends[1 - side].lock();
      if (!to || to->reset || to->references == 0) {
        // A closed end answers with a reset.
        if (!came.empty() && !shared->dead && (!to || to->references == 0))
          notify_end(*shared, side, true, shared->latency);
        return;
      }
      to->in += came;
      if (end) to->eof = true;
      world_.readiness_changed();
    });
  }
  if (reaches_fault && link.fault != Fault::kCorrupt && link.fault != Fault::kCount) inject_fault(file);
}

void Network::notify_end(Link& link, size_t side, bool reset, Nanoseconds after) {
  world_.at(world_.now() + after, [this, weak = link.ends[side], reset] {
    const FilePtr file = weak.lock();
    if (!file) return;
    if (reset) {
      file->reset = true;
      file->in.clear();
    } else {
      file->eof = true;
    }
    world_.readiness_changed();
  });
}

void Network::inject_fault(File& file) {
  Link& link = *file.link;
  const Fault fault = std::exchange(link.fault, Fault::kCount);
  count(fault);
  const size_t side = file.side;
  switch (fault) {
    case Fault::kCut:
      for (const size_t end : {size_t{0}, size_t{1}}) {
        // After the data in flight.
        notify_end(link, end, false, std::max(link.last[1 - end], world_.now()) - world_.now() + link.latency);
      }
      link.dead = true;
      break;
    case Fault::kReset:
      for (const size_t end : {size_t{0}, size_t{1}}) notify_end(link, end, true, link.latency);
      link.dead = true;
      break;
    case Fault::kHalfOpen:
      link.silent = {true, true};
      break;
    case Fault::kOneWay:
      link.silent[side] = true;
      break;
    case Fault::kLateCut:
      notify_end(link, side, true, link.latency);
      notify_end(link, 1 - side, world_.random().chance(0.5), world_.random().below(30 * kSecond));
      link.dead = true;
      break;
    case Fault::kStall:
      link.stalled_until = world_.now() + world_.random().below(fault_model.longest_stall + 1);
      break;
    default:
      break;
  }
}

int64_t Network::receive(int socket, void* const* pieces, const size_t* sizes, size_t count, int* passed) {
  File* const file = find(socket);
  if (file == nullptr) return failed(EBADF);
  const auto scatter = [&](const std::string& bytes, size_t most) {
    size_t done = 0;
    for (size_t i = 0; i < count && done < std::min(most, bytes.size()); ++i) {
      const size_t n = std::min(sizes[i], std::min(most, bytes.size()) - done);
      std::memcpy(pieces[i], bytes.data() + done, n);
      done += n;
    }
    return done;
  };
  switch (file->kind) {
    case File::Kind::kEvent: {
      if (file->count == 0) return failed(EAGAIN);
      const uint64_t value = std::exchange(file->count, 0);
      std::memcpy(pieces[0], &value, sizeof(value));
      return sizeof(value);
    }
    case File::Kind::kPair: {
      if (file->messages.empty()) {
        const FilePtr peer = file->peer.lock();
        if (!peer || peer->references == 0) return 0;
        return failed(EAGAIN);
      }
      const File::Message message = std::move(file->messages.front());
      file->messages.pop_front();
      if (message.passed) {
        *passed = add(message.passed, self()->process);
        --message.passed->references;
      }
      return static_cast<int64_t>(scatter(message.bytes, SIZE_MAX));
    }
    default:
      break;
  }
  if (file->reset) return failed(ECONNRESET);
  if (file->shut) return 0;
  if (file->in.empty()) return file->eof ? 0 : failed(EAGAIN);
  size_t most = SIZE_MAX;
  if (file->in.size() > 1 && world_.random().chance(fault_model.partial)) {
    most = 1 + world_.random().below(file->in.size() - 1);
    ++counts[static_cast<size_t>(Fault::kPartial)];
  }
  const size_t done = scatter(file->in, most);
  file->in.erase(0, done);
  if (const FilePtr sender = file->link->ends[1 - file->side].lock()) {
    sender->on_way -= std::min(sender->on_way, done);
    world_.readiness_changed();
  }
  return static_cast<int64_t>(done);
}

int Network::shut_down(int socket) {
  File* const file = find(socket);
  if (file == nullptr) return failed(EBADF);
  if (!file->link) return failed(ENOTCONN);
  if (!file->writing_shut) transmit(*file, {}, true);
  file->shut = true;
  world_.readiness_changed();
  return 0;
}

int Network::shut_down_writing(int socket) {
  File* const file = find(socket);
  if (file == nullptr) return failed(EBADF);
  if (file->link && !file->writing_shut) transmit(*file, {}, true);
  return 0;
}

short Network::readiness(int descriptor, short events) {
  File* const file = find(descriptor);
  if (file == nullptr) return POLLNVAL;
  short ready = 0;
  switch (file->kind) {
    case File::Kind::kEvent:
      ready = static_cast<short>(POLLOUT | (file->count > 0 ? POLLIN : 0));
      break;
    case File::Kind::kPair: {
      const FilePtr peer = file->peer.lock();
      const bool gone = !peer || peer->references == 0;
      if (!file->messages.empty() || gone) ready |= POLLIN;
      ready |= POLLOUT;
      if (gone) return static_cast<short>((ready & events) | POLLHUP);
      break;
    }
    case File::Kind::kListener:
      if (!file->waiting.empty()) ready |= POLLIN;
      break;
    case File::Kind::kStream:
      if (file->connecting) return 0;
      if (file->reset || file->error != 0 || !file->link) {
        return static_cast<short>((events & (POLLIN | POLLOUT)) | POLLERR | POLLHUP);
      }
      if (!file->in.empty() || file->eof || file->shut) ready |= POLLIN;
      if (file->on_way < fault_model.window || file->writing_shut) ready |= POLLOUT;
      if (file->shut) return static_cast<short>((ready & events) | POLLHUP);
      break;
  }
  return static_cast<short>(ready & events);
}

}  // namespace torch_remote::simulator
