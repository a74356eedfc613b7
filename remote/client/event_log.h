#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/trace.h"

// What this process does for its devices and when, while torch.remote.profile records: one log a process. Off, which it
// is otherwise, it costs one load and branch for each flush and message, and nothing for an op.
namespace torch_remote::remote {

// CLOCK_MONOTONIC.
uint64_t monotonic_ns();

// Where each record of a run comes from.
using SourcesPtr = std::shared_ptr<const std::vector<ir::SourceRef>>;

struct Event {
  enum class Kind : uint8_t {
    kRecording,     // from a trace's first record to its flush
    kFlush,         // a trace is sent. name: why. sequence: of its run
    kRun,           // a run has got its number. program, ops, hit, first_difference, bytes, sources. An instant
    kSend,          // a frame is given to the transport. name: its type. bytes, attachment
    kAcknowledged,  // the worker has said that everything up to `sequence` is done. An instant
    kReply,         // waiting for the reply to `sequence`
    kBackPressure,  // waiting because too much is on its way
    kWait,          // what the user's code waits for. name: "item", "synchronize", ...; `source` is its line
    kUpload,        // bytes are copied to where the worker gets them. attachment
    kBuild,         // a program is built
    kPass,          // a part of that. name: "import", a pass's, "encode"
    kConnect,       // a worker is started
  };
  Kind kind{};
  bool hit = false;
  uint32_t thread = 0;  // Linux's number of it; `add` sets it if it is 0
  uint32_t program = 0;
  uint32_t ops = 0;
  uint64_t begin = 0;  // ns; an instant's
  uint64_t end = 0;
  uint64_t session = 0;
  uint64_t sequence = 0;
  uint64_t bytes = 0;       // control
  uint64_t attachment = 0;  // bytes
  size_t first_difference = 0;
  uint64_t first_record = 0;   // of a flush: number of its first record, among all that the device recorded
  std::string_view name = {};  // lives as long as the process
  ir::SourceRef source = {};
  SourcesPtr sources = nullptr;
};
std::string_view name(Event::Kind kind);  // "recording", "flush", ...

// Thread safe. Of one start and stop at a time.
class EventLog {
 public:
  static bool on() { return on_.load(std::memory_order_relaxed); }

  // Keeps at most `limit` events. False if it is on already.
  static bool start(size_t limit);
  struct Recorded {
    std::vector<Event> events;
    uint64_t dropped = 0;
  };
  static Recorded stop();

  // Nothing is added while it is off.
  static void add(Event event);
  // A copy for Event::sources; equal ones of a session's program are one.
  static SourcesPtr share(uint64_t session, uint32_t program, const std::vector<ir::SourceRef>& sources);
  static uint32_t this_thread();

 private:
  static std::atomic<bool> on_;
};

// An event that lasts as long as this object, if the log was on when it was made.
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

  // To say more about it; null if the log was off.
  Event* event() { return event_ ? &*event_ : nullptr; }

 private:
  void begin(Event::Kind kind);
  void end();

  std::optional<Event> event_;
};

}  // namespace torch_remote::remote
