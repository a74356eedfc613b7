#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/simulator/world.h"

// Sockets of a simulated run: TCP between its processes, with what can go wrong with that, and what processes of one
// machine have between them (pairs of sockets, event counters). Descriptors are numbers from kFirstDescriptor on.
namespace torch_remote::simulator {

inline constexpr int kFirstDescriptor = 1'000'000;

enum class Fault : uint8_t {
  kCut,       // both ends learn of it at once
  kReset,     // likewise, and what was on its way is lost
  kHalfOpen,  // nothing passes any more, and nobody is told
  kOneWay,    // likewise in one direction only
  kLateCut,   // one end learns of it long after the other: the next connection overtakes this one
  kStall,     // nothing passes for a while
  kCorrupt,   // a bit is another one
  kRefused,   // nobody listens, for this attempt
  kSilence,   // nobody answers it
  kLate,      // it takes long
  kReplay,    // a stranger connects and says what a client said
  kStranger,  // a stranger connects and says anything
  kPartial,   // reads and writes that do a part
  kSlow,      // a link of few bytes a second
  kDelay,     // a link of long delay, which varies
  kOutage,    // no machine reaches any other for a while
  kWorkerDies,
  kClientDies,
  kNoMemory,
  kCount,
};
const char* name(Fault fault);

// What goes wrong with connections of a run.
struct Weather {
  double bad = 0;             // of connections that break
  std::vector<Fault> breaks;  // how, one of these
  uint64_t within = 1;        // bytes after which, at most
  Nanoseconds latency = 50 * kMicrosecond, jitter = 0;
  double bytes_per_ns = 10;
  uint64_t window = 64 << 10;  // bytes that may be on their way
  double partial = 0;          // of reads and writes that do a part
  uint64_t faults = 0;         // how many may still come
  Nanoseconds longest_stall = 0;
};

class Network {
 public:
  explicit Network(World& world);

  Weather weather;
  std::array<uint64_t, static_cast<size_t>(Fault::kCount)> counts{};
  void count(Fault fault);
  // From now on nobody reaches anybody until then. `refuses`: who connects is told so, as by a tunnel that restarts.
  void outage(Nanoseconds until, bool refuses) {
    outage_until_ = until;
    outage_refuses_ = refuses;
  }
  // What a client said first over one of the connections so far; empty if none has.
  const std::string& overheard() const { return overheard_; }

  // The calls that are answered here. They return -1 and set errno as the real ones do.
  bool owns(int descriptor) const { return descriptor >= kFirstDescriptor; }
  int make_socket();
  int make_event(unsigned count);
  int make_pair(int ends[2]);
  int make_listener();
  int connect(int socket);
  int accept(int listener);
  int socket_error(int socket);
  int64_t send(int socket, const void* const* pieces, const size_t* sizes, size_t count, int passed);
  int64_t receive(int socket, void* const* pieces, const size_t* sizes, size_t count, int* passed, bool peek = false);
  int shut_down(int socket);
  int shut_down_writing(int socket);
  int close(int descriptor);
  // Another descriptor of the same thing, for that process.
  int give(int descriptor, uint32_t process);
  short readiness(int descriptor, short events);
  size_t open_descriptors(uint32_t process) const;

 private:
  struct Link;
  struct File;
  using FilePtr = std::shared_ptr<File>;
  struct Descriptor {
    FilePtr file;
    uint32_t process = 0;
  };

  int add(FilePtr file, uint32_t process);
  File* find(int descriptor);
  void establish(const FilePtr& client, bool harmless);
  int64_t send_stream(File& file, const std::string& bytes);
  void transmit(File& file, std::string bytes, bool end);
  void strike(File& file);
  void disturb(const std::shared_ptr<Link>& link, size_t side);
  void release(const FilePtr& file);
  void tell_end(Link& link, size_t side, bool reset, Nanoseconds after);
  void on_kill(uint32_t process);

  World& world_;
  std::map<int, Descriptor> descriptors_;
  int next_ = kFirstDescriptor;
  FilePtr listener_;
  uint64_t links_ = 0;
  Nanoseconds outage_until_ = 0;
  bool outage_refuses_ = false;
  std::string overheard_;
};

Network* network();
void set_network(Network* network);

}  // namespace torch_remote::simulator
