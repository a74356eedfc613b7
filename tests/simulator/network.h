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

// Sockets of a simulated run: TCP between its processes, with faults, and what processes of one machine communicate by
// (socket pairs, eventfd). Descriptors are numbers from kFirstDescriptor on.
namespace torch_remote::simulator {

inline constexpr int kFirstDescriptor = 1'000'000;

enum class Fault : uint8_t {
  kCut,       // both ends notice at once
  kReset,     // both ends notice at once, and data in flight is lost
  kHalfOpen,  // nothing passes any more, and neither end gets an error
  kOneWay,    // as kHalfOpen, in one direction only
  kLateCut,   // one end notices long after the other, so the next connection overtakes this one
  kStall,     // nothing passes for a while
  kCorrupt,   // one bit flips
  kRefused,   // this connection attempt is refused
  kSilence,   // this connection attempt gets no answer
  kLate,      // this connection attempt takes long
  kReplay,    // a stranger connects and repeats what a client sent
  kStranger,  // a stranger connects and sends arbitrary bytes
  kPartial,   // reads and writes transfer only a part
  kSlow,      // a link with few bytes per second
  kDelay,     // a link with a long delay, which varies
  kOutage,    // no machine reaches any other for a while
  kWorkerDies,
  kClientDies,
  kNoMemory,
  kCount,
};
const char* name(Fault fault);

// Faults and link properties of the connections of a run.
struct FaultModel {
  double break_probability = 0;     // share of connections that break
  std::vector<Fault> break_kinds;   // the possible kinds of break
  uint64_t break_within_bytes = 1;  // a break happens within this many bytes
  Nanoseconds latency = 50 * kMicrosecond, jitter = 0;
  double bytes_per_ns = 10;
  uint64_t window = 64 << 10;  // maximum number of bytes in flight
  double partial = 0;          // share of reads and writes that transfer only a part
  uint64_t faults = 0;         // how many faults may still happen
  Nanoseconds longest_stall = 0;
};

class Network {
 public:
  explicit Network(World& world);

  FaultModel fault_model;
  std::array<uint64_t, static_cast<size_t>(Fault::kCount)> counts{};
  void count(Fault fault);
  // Starts an outage that ends at `until`. `refuses`: connection attempts get an error, as from a tunnel that restarts.
  void outage(Nanoseconds until, bool refuses) {
    outage_until_ = until;
    outage_refuses_ = refuses;
  }
  // The first bytes that a client sent over one of the connections so far; empty if there was none.
  const std::string& overheard() const { return overheard_; }

  // The calls that the simulator replaces. They return -1 and set errno as the real ones do.
  bool owns(int descriptor) const { return descriptor >= kFirstDescriptor; }
  int make_socket();
  int make_event(unsigned count);
  int make_pair(int ends[2]);
  int make_listener();
  int connect(int socket);
  int accept(int listener);
  int socket_error(int socket);
  // `passed`: a descriptor that is sent with the bytes (SCM_RIGHTS), or -1.
  int64_t send(int socket, const void* const* pieces, const size_t* sizes, size_t count, int passed);
  int64_t receive(int socket, void* const* pieces, const size_t* sizes, size_t count, int* passed);
  int shut_down(int socket);
  int shut_down_writing(int socket);
  int close(int descriptor);
  // Duplicates the descriptor for another process.
  int duplicate(int descriptor, uint32_t process);
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
  // Completes a connection attempt. `faulty`: the connection gets one of FaultModel::break_kinds.
  void establish(const FilePtr& client, bool faulty);
  int64_t send_stream(File& file, const std::string& bytes);
  void transmit(File& file, std::string bytes, bool end);
  // Executes the fault of the file's link now.
  void inject_fault(File& file);
  void release(const FilePtr& file);
  void notify_end(Link& link, size_t side, bool reset, Nanoseconds after);
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
