#include "remote/client/event_log.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>

namespace torch_remote::remote {
namespace {

// Compares the source lines only; the call stack makes no difference to an event.
bool same(const ir::SourceRef& a, const ir::SourceRef& b) { return a.code == b.code && a.instruction == b.instruction; }

struct Log {
  std::mutex mutex;
  size_t limit = 0;
  std::deque<Event> events;  // a deque grows without moving its elements
  uint64_t dropped = 0;
  std::map<std::pair<uint64_t, uint32_t>, SourcesPtr> sources;  // of the latest run, by session and program
};

Log& log() {
  static auto* instance = new Log;  // threads may still run during exit
  return *instance;
}

}  // namespace

std::atomic<bool> EventLog::on_{false};

uint64_t monotonic_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

std::string_view name(Event::Kind kind) {
  constexpr std::string_view kNames[] = {"recording",     "flush", "run",    "send",  "acknowledged", "reply",
                                         "back-pressure", "wait",  "upload", "build", "pass",         "connect"};
  return kNames[static_cast<size_t>(kind)];
}

bool EventLog::start(size_t limit) {
  std::lock_guard lock(log().mutex);
  if (on()) return false;
  log().limit = limit;
  on_.store(true, std::memory_order_relaxed);
  return true;
}

EventLog::Recorded EventLog::stop() {
  std::lock_guard lock(log().mutex);
  on_.store(false, std::memory_order_relaxed);
  Recorded recorded{{std::make_move_iterator(log().events.begin()), std::make_move_iterator(log().events.end())},
                    log().dropped};
  log().events.clear();
  log().events.shrink_to_fit();
  log().dropped = 0;
  log().sources.clear();
  return recorded;
}

void EventLog::add(Event event) {
  if (event.thread == 0) event.thread = this_thread();
  std::lock_guard lock(log().mutex);
  if (!on()) return;
  if (log().events.size() < log().limit) {
    log().events.push_back(std::move(event));
  } else {
    ++log().dropped;
  }
}

SourcesPtr EventLog::share(uint64_t session, uint32_t program, const std::vector<ir::SourceRef>& sources) {
  std::lock_guard lock(log().mutex);
  SourcesPtr& latest = log().sources[{session, program}];
  if (!latest || !std::ranges::equal(*latest, sources, same)) {
    latest = std::make_shared<const std::vector<ir::SourceRef>>(sources);
  }
  return latest;
}

void EventSpan::begin(Event::Kind kind) {
  event_.emplace();
  event_->kind = kind;
  event_->begin = monotonic_ns();
}

void EventSpan::end() {
  event_->end = monotonic_ns();
  EventLog::add(*std::move(event_));
}

uint32_t EventLog::this_thread() {
  static thread_local const auto id = static_cast<uint32_t>(gettid());
  return id;
}

}  // namespace torch_remote::remote
