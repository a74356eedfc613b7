#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/trace.h"

// The log of what this process does for its devices, and when. torch.remote.profile turns it on. There is one log per
// process. While it is off, it costs one load and one branch per flush and message, and nothing per op.
namespace torch_remote::remote {

// CLOCK_MONOTONIC in ns.
uint64_t monotonic_ns();

// The source of each record of a run.
using SourcesPtr = std::shared_ptr<const std::vector<ir::SourceRef>>;

struct Event {
  enum class Kind : uint8_t {
    kRecording,     // from the first record of a trace to its flush
    kFlush,         // a trace is sent; name: the reason; sequence: of its run
    kRun,           // a run got its number; sets program, ops, hit, first_difference, bytes, sources; an instant
    kSend,          // a frame is given to the transport; name: its type; sets bytes, attachment
    kAcknowledged,  // the worker reported that everything up to `sequence` is done; an instant
    kReply,         // a wait for the reply to `sequence`
    kBackPressure,  // a wait because too many messages are in flight
    kWait,          // a wait of the user's code; name: "item", "synchronize", ...; source: its line
    kUpload,        // bytes are copied into an attachment; sets attachment
    kBuild,         // a program is built
    kPass,          // a part of a build; name: "import", the pass, or "encode"
    kConnect,       // a worker is started
  };
  Kind kind{};
  bool hit = false;     // the worker had a program of an equal trace
  uint32_t thread = 0;  // thread id (gettid); if it is 0, add() sets it
  uint32_t program = 0;
  uint32_t ops = 0;
  uint64_t begin = 0;  // ns; also the time of an instant
  uint64_t end = 0;
  uint64_t session = 0;
  uint64_t sequence = 0;
  uint64_t bytes = 0;           // control bytes
  uint64_t attachment = 0;      // attachment bytes
  size_t first_difference = 0;  // FlushInfo::first_difference
  uint64_t first_record = 0;    // of a flush: index of its first record among all that the device recorded
  std::string_view name = {};   // must live as long as the process
  ir::SourceRef source = {};
  SourcesPtr sources = nullptr;
};
std::string_view name(Event::Kind kind);  // "recording", "flush", ...

// Thread safe, but only one thread at a time may start and stop it.
class EventLog {
 public:
  static bool on() { return on_.load(std::memory_order_relaxed); }

  // Starts to record at most `limit` events. Returns false if the log is already on.
  static bool start(size_t limit);
  struct Recorded {
    std::vector<Event> events;
    uint64_t dropped = 0;
  };
  // Ends the recording. Returns its events, and the number of those that exceeded the limit.
  static Recorded stop();

  // Adds an event if the log is on.
  static void add(Event event);
  // Returns a copy for Event::sources. Runs of the same program with equal sources share one copy.
  static SourcesPtr share(uint64_t session, uint32_t program, const std::vector<ir::SourceRef>& sources);
  static uint32_t this_thread();

 private:
  static std::atomic<bool> on_;
};

// An event that lasts as long as this object, if the log was on at its construction.
class EventSpan {
 public:
  explicit EventSpan(Event::Kind kind) {
    if (EventLog::on()) begin(kind);
  }
  ~EventSpan() {
    if (event_) end();
  }
  EventSpan(const EventSpan&) = delete;
  EventSpan& operator=(const EventSpan&) = delete;

  // The event, to set further fields; null if the log was off.
  Event* event() { return event_ ? &*event_ : nullptr; }

 private:
  void begin(Event::Kind kind);
  void end();

  std::optional<Event> event_;
};

}  // namespace torch_remote::remote
