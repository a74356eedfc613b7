// Python's headers come first.
#include "frontend/inspect/profile.h"

#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "frontend/device/device_state.h"
#include "frontend/record/recorder.h"
#include "frontend/record/wait_span.h"
#include "frontend/source/source.h"

namespace torch_remote::frontend {
namespace {

using remote::Event;
using remote::EventLog;
using remote::ProfileCommand;

constexpr int kClockSamples = 8;
constexpr std::chrono::seconds kStopTimeout{1};  // time limit for the events of a worker that is being ended

// The mutex is never held while waiting for a worker or for the GIL.
struct State {
  std::mutex mutex;
  uint64_t limit = 0;
  uint64_t begin = 0;
  std::vector<WorkerRecording> sessions;
};

State& state() {
  static auto* instance = new State;
  return *instance;
}

// Intersects the bounds of several round trips.
Status sample_clock(remote::Client& worker, const remote::KeepWaiting& keep_waiting, ClockSample* sample) {
  *sample = {0, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  for (int i = 0; i < kClockSamples; ++i) {
    remote::WorkerProfile reply;
    if (Status status = worker.profile(ProfileCommand::kReadClock, 0, keep_waiting, &reply); !status) return status;
    sample->at = reply.end;
    sample->min_offset = std::max(sample->min_offset, reply.clock_least);
    sample->max_offset = std::min(sample->max_offset, reply.clock_most);
  }
  return {};
}

void start_session(c10::DeviceIndex device, remote::Client& worker, uint64_t limit,
                   const remote::KeepWaiting& keep_waiting) {
  WorkerRecording session{device, worker.connection().session(), worker.connection().description(), {}, {}, {}, false};
  ClockSample sample;
  session.status = worker.profile(ProfileCommand::kStart, limit, keep_waiting, &session.recorded);
  if (session.status.ok()) session.status = sample_clock(worker, keep_waiting, &sample);
  if (session.status.ok()) session.clock.push_back(sample);
  std::lock_guard lock(state().mutex);
  state().sessions.push_back(std::move(session));
}

void stop_session(remote::Client& worker, const remote::KeepWaiting& keep_waiting) {
  ClockSample sample;
  remote::WorkerProfile recorded;
  Status status = sample_clock(worker, keep_waiting, &sample);
  const bool sampled = status.ok();
  // The client of a lost worker still has the events that the worker sent earlier.
  if (sampled || status.code() == ErrorCode::kLost) {
    status = worker.profile(ProfileCommand::kStop, 0, keep_waiting, &recorded);
  }
  std::lock_guard lock(state().mutex);
  for (WorkerRecording& session : state().sessions) {
    if (session.session != worker.connection().session() || session.stopped) continue;
    if (sampled) session.clock.push_back(sample);
    if (!status.ok()) recorded.process = session.recorded.process;
    session.recorded = std::move(recorded);
    session.status = status;
    session.stopped = true;
  }
}

template <class F>
void for_each_device(F&& f) {
  for (int i = 0; i < device_count(); ++i) f(static_cast<c10::DeviceIndex>(i));
}

// Adds workers that are connected or ended while a profile is recorded.
class Observer final : public ConnectionObserver {
 public:
  void connected(c10::DeviceIndex device, remote::Client& worker) noexcept override {
    if (!EventLog::on()) return;
    uint64_t limit;
    {
      std::lock_guard lock(state().mutex);
      limit = state().limit;
    }
    start_session(device, worker, limit, {});
  }
  void ending(remote::Client& worker) noexcept override {
    if (!EventLog::on()) return;
    const auto deadline = std::chrono::steady_clock::now() + kStopTimeout;
    stop_session(worker, [deadline] { return std::chrono::steady_clock::now() < deadline; });
  }
};

// -- conversion to Python
// -----------------------------------------------------------------------------------------------------------

// Source lines as text, without duplicates.
class Lines {
 public:
  int number(const ir::SourceRef& source) {
    if (source.code == 0) return -1;
    const auto [found, is_new] =
        numbers_.try_emplace({source.code, source.instruction, is_backward(source)}, static_cast<int>(texts_.size()));
    if (is_new) texts_.append(describe_source(source));
    return found->second;
  }
  const py::list& texts() const { return texts_; }

 private:
  std::map<std::tuple<uint64_t, int32_t, bool>, int> numbers_;
  py::list texts_;
};

py::dict to_python(const WorkerRecording& session) {
  py::dict all;
  all["session"] = session.session;
  all["description"] = session.description;
  all["process"] = session.recorded.process;
  all["error"] = session.status.ok() ? py::object(py::none()) : py::cast(session.status.message());
  py::list clock;
  for (const ClockSample& sample : session.clock) {
    clock.append(py::make_tuple(sample.at, sample.min_offset, sample.max_offset));
  }
  all["clock"] = clock;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(session.recorded.events));
  all["events"] = py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  all["dropped"] = session.recorded.dropped;
  all["lost"] = session.recorded.lost;
  py::list programs;
  for (const remote::WorkerProfile::ProfiledProgram& program : session.recorded.programs) {
    programs.append(
        py::make_tuple(program.program, program.labels, program.record_indices, program.runners, program.declined));
  }
  all["programs"] = programs;
  return all;
}

// Describes `first_difference` in the words of the flush log.
py::object why_missed(const Event& event) {
  if (event.hit) return py::none();
  if (event.first_difference == SIZE_MAX) return py::cast("no program known");
  if (event.first_difference >= event.ops) return py::cast("other tensors outlive it");
  return py::cast("op " + std::to_string(event.first_difference) + " differs");
}

py::dict to_python(const EventLog::Recorded& recorded, const std::vector<WorkerRecording>& sessions) {
  Lines lines;
  std::map<remote::SourcesPtr, size_t> numbers;
  py::list events, sources;
  for (const Event& event : recorded.events) {
    py::dict e;
    e["kind"] = py::str(std::string(remote::name(event.kind)));
    e["thread"] = event.thread;
    e["begin"] = event.begin;
    e["end"] = event.end;
    e["name"] = py::str(std::string(event.name));
    e["session"] = event.session;
    e["sequence"] = event.sequence;
    e["program"] = event.program;
    e["ops"] = event.ops;
    e["bytes"] = event.bytes;
    e["attachment"] = event.attachment;
    e["line"] = lines.number(event.source);
    if (event.kind == Event::Kind::kRun) {
      e["miss"] = why_missed(event);
      const auto [found, is_new] = numbers.try_emplace(event.sources, numbers.size());
      if (is_new) {
        py::list list;
        for (const ir::SourceRef& source : *event.sources) list.append(lines.number(source));
        sources.append(list);
      }
      e["sources"] = found->second;
    }
    events.append(e);
  }
  py::dict message_types;
  for (int type = 1; type <= static_cast<int>(wire::Type::kMemoryReply); ++type) {
    message_types[py::int_(type)] = wire::name(static_cast<wire::Type>(type));
  }
  py::dict all;
  all["events"] = events;
  all["dropped"] = recorded.dropped;
  all["sources"] = sources;
  all["lines"] = lines.texts();
  all["message_types"] = message_types;
  py::list workers;
  for (const WorkerRecording& session : sessions) workers.append(to_python(session));
  all["workers"] = workers;
  return all;
}

void start(uint64_t limit) {
  check_not_forked();
  py::gil_scoped_release release;
  TORCH_CHECK(
      start_recording(limit),
      "remote: torch.remote.profile or torch.profiler records a profile already; end it before you begin the next one");
}

py::dict stop() {
  check_not_forked();
  Recording recording;
  {
    py::gil_scoped_release release;
    recording = stop_recording();
  }
  py::dict all = to_python(recording.client, recording.workers);
  all["begin"] = recording.begin;
  all["end"] = recording.end;
  all["interrupted"] = recording.interrupted;
  return all;
}

}  // namespace

bool start_recording(uint64_t limit) {
  for_each_device([](c10::DeviceIndex device) { Recorder::get(device).flush("profile"); });
  if (!EventLog::start(limit)) return false;
  {
    std::lock_guard lock(state().mutex);
    state().limit = limit;
    state().sessions.clear();
  }
  for_each_device([&](c10::DeviceIndex device) {
    if (const auto worker = running_client(device)) start_session(device, *worker, limit, keep_waiting);
    Recorder::get(device).traces().profile_starts();
  });
  std::lock_guard lock(state().mutex);
  state().begin = remote::monotonic_ns();
  return true;
}

Recording stop_recording() {
  Recording recording;
  const ir::SourceRef line = user_line();
  for_each_device([&](c10::DeviceIndex device) {
    (void)Recorder::get(device).try_flush({"profile ends"}, line);
    const std::shared_ptr<remote::Client> worker = running_client(device);
    if (worker == nullptr) return;
    {
      const WaitSpan span("profile ends", line);
      remote::WorkerProfile reply;
      (void)worker->profile(ProfileCommand::kReadClock, 0, keep_waiting, &reply);
    }
  });
  recording.end = remote::monotonic_ns();
  recording.client = EventLog::stop();
  for_each_device([&](c10::DeviceIndex device) {
    if (const auto worker = running_client(device)) stop_session(*worker, keep_waiting);
  });
  std::lock_guard lock(state().mutex);
  recording.begin = state().begin;
  recording.workers = std::exchange(state().sessions, {});
  for (const WorkerRecording& worker : recording.workers) {
    recording.interrupted |= worker.status.code() == ErrorCode::kInterrupted;
  }
  return recording;
}

void bind_profile(py::module& module) {
  static Observer observer;
  observe_connections(&observer);
  module.def("profile_start", torch::wrap_pybind_function(start));
  module.def("profile_stop", torch::wrap_pybind_function(stop));
}

}  // namespace torch_remote::frontend
