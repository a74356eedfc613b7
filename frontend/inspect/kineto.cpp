#include "frontend/inspect/kineto.h"

#include <torch/csrc/python_headers.h>
// Python's headers come first; kineto's headers need the macros below. The wheel has no libfmt to link to.
#define FMT_HEADER_ONLY 1
#define KINETO_NAMESPACE libkineto
#include <kineto/libkineto.h>
#include <kineto/output_base.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "frontend/device/current_device.h"
#include "frontend/device/device_state.h"
#include "frontend/device/without_gil.h"
#include "frontend/inspect/profile.h"
#include "frontend/record/recorder.h"
#include "frontend/record/requests.h"
#include "frontend/source/source.h"

namespace torch_remote::frontend {
namespace {

using libkineto::ActivityType;
using remote::Event;

constexpr uint64_t kMaxEvents = 4'000'000;  // limit on the events of this process, and on those of each worker

// How far kineto's clock (CLOCK_REALTIME) is ahead of CLOCK_MONOTONIC, in ns.
int64_t realtime_offset_ns() {
  const uint64_t before = remote::monotonic_ns();
  const auto now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch());
  const uint64_t after = remote::monotonic_ns();
  return now.count() - static_cast<int64_t>(before + (after - before) / 2);
}

// Converts a worker's time to ours, as torch_remote/profiling/recording.py does. If 0 lies within the bounds, the
// clocks count as equal. Else their difference is interpolated between the samples.
class WorkerClock {
 public:
  explicit WorkerClock(const std::vector<ClockSample>& samples) {
    if (samples.empty()) return;
    const auto ahead = [](const ClockSample& s) {
      return s.min_offset <= 0 && 0 <= s.max_offset ? int64_t{0} : s.min_offset + (s.max_offset - s.min_offset) / 2;
    };
    const ClockSample &first = samples.front(), &last = samples.back();
    at_ = static_cast<int64_t>(first.at);
    ahead_ = ahead(first);
    if (last.at > first.at) {
      drift_ = static_cast<double>(ahead(last) - ahead_) / static_cast<double>(last.at - first.at);
    }
  }
  int64_t ours(uint64_t theirs) const {
    const int64_t time = static_cast<int64_t>(theirs) - ahead_;
    return time - static_cast<int64_t>(static_cast<double>(time - at_) * drift_);
  }

 private:
  int64_t at_ = 0, ahead_ = 0;
  double drift_ = 0;
};

std::string json_escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return escaped;
}

// Maps records to the torch op that was running when they were made. Torch gives each op a number before it runs. Ops
// nest; a record belongs to the innermost op.
class Correlations {
 public:
  void push(uint64_t id) {
    while (!open_.empty() && open_.back().owner != this) open_.pop_back();  // left by a recording that has ended
    OpenOp& open = open_.emplace_back();
    open.owner = this;
    open.id = id;
    for (int i = 0; i < device_count(); ++i) {
      open.records[i] = Recorder::get(static_cast<c10::DeviceIndex>(i)).traces().numbers().next;
    }
  }
  void pop() {
    if (open_.empty() || open_.back().owner != this) return;  // pushed before the recording began
    const OpenOp open = open_.back();
    open_.pop_back();
    for (int i = 0; i < device_count(); ++i) {
      const auto [first, now] = Recorder::get(static_cast<c10::DeviceIndex>(i)).traces().numbers();
      if (now == open.records[i]) continue;
      std::lock_guard lock(mutex_);
      ids_[i].push_back({open.records[i] == ThreadTraces::kNoRecords ? first : open.records[i], now, open.id});
    }
  }
  // The number of the op that made this record of the device; 0 if there is none.
  int32_t id_of(c10::DeviceIndex device, uint64_t record) {
    if (!sorted_) sort();
    const auto& ids = by_record_[device];
    const auto found = ids.find(record);
    return found != ids.end() ? static_cast<int32_t>(found->second) : 0;
  }

 private:
  struct OpenOp {
    const Correlations* owner = nullptr;
    uint64_t id = 0;
    std::array<uint64_t, kMaxDevices> records{};
  };
  struct Span {
    uint64_t begin, end, id;
  };

  // Spans are in the order of their ends, so inner spans come before outer ones, and try_emplace keeps the inner id.
  void sort() {
    for (int i = 0; i < kMaxDevices; ++i) {
      for (const Span& span : ids_[i]) {
        for (uint64_t record = span.begin; record < span.end; ++record) by_record_[i].try_emplace(record, span.id);
      }
    }
    sorted_ = true;
  }

  static thread_local std::vector<OpenOp> open_;

  std::mutex mutex_;
  std::array<std::vector<Span>, kMaxDevices> ids_;
  std::array<std::unordered_map<uint64_t, uint64_t>, kMaxDevices> by_record_;
  bool sorted_ = false;
};
thread_local std::vector<Correlations::OpenOp> Correlations::open_;

class KinetoSession final : public libkineto::IActivityProfilerSession {
 public:
  ~KinetoSession() override {
    try {
      stop();
    } catch (...) {  // the destructor must not throw, and this recording is not used
      return;
    }
  }
  void start() override {
    if (in_bad_fork()) return;
    const WithoutGil released;
    try {
      on_ = start_recording(kMaxEvents);
      if (!on_) fail("remote: torch.remote.profile is active, so torch.profiler records nothing of the workers");
    } catch (const c10::Error& error) {
      fail(error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail(error.what());
    }
    status_ = on_ ? libkineto::TraceStatus::RECORDING : libkineto::TraceStatus::ERROR;
  }

  void stop() override {
    if (!std::exchange(on_, false)) return;
    {
      const WithoutGil released;
      recording_ = stop_recording();
      realtime_offset_ns_ = realtime_offset_ns();
    }
    if (recording_->interrupted) PyErr_SetInterrupt();
    for (const WorkerRecording& worker : recording_->workers) {
      if (!worker.status.ok()) errors_.push_back(worker.status.message());
    }
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override { processTrace(logger, nullptr, 0, 0); }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t,
                    int64_t) override {
    if (!recording_) return;
    trace_ = std::make_unique<libkineto::CpuTraceBuffer>();
    trace_->span = libkineto::TraceSpan(ours(recording_->begin), ours(recording_->end), "remote");
    trace_->gpuOpCount = 0;
    for (const WorkerRecording& worker : recording_->workers) write(worker, linked);
    for (const auto& activity : trace_->activities) activity->log(logger);
    for (int i = 0; i < device_count(); ++i) {
      const std::string name = "remote:" + std::to_string(i);
      logger.handleDeviceInfo({i, libkineto::kExceedMaxPid + i, name, description_of(i)}, trace_->span.startTime);
      logger.handleResourceInfo({0, 0, i, "ops of the worker"}, trace_->span.startTime);
    }
    recording_.reset();
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }  // processTrace writes it
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(trace_); }

  void pushCorrelationId(uint64_t id) override {
    if (on_) correlations_.push(id);
  }
  void popCorrelationId() override {
    if (on_) correlations_.pop();
  }

 private:
  void fail(const std::string& why) {
    errors_.push_back(why);
    TORCH_WARN(why);
  }

  int64_t ours(uint64_t monotonic) const { return static_cast<int64_t>(monotonic) + realtime_offset_ns_; }

  std::string description_of(int device) const {
    for (const WorkerRecording& worker : recording_->workers) {
      if (worker.device == device) return worker.description;
    }
    return "";
  }

  // Writes a worker's ops, each with the torch op that recorded it, and an arrow from the flush that sent it.
  void write(const WorkerRecording& worker, const libkineto::getLinkedActivityCallback& linked) {
    std::map<uint64_t, const Event*> flushes, runs;  // by sequence number of the run
    for (const Event& event : recording_->client.events) {
      if (event.session != worker.session) continue;
      if (event.kind == Event::Kind::kFlush) flushes.emplace(event.sequence, &event);
      if (event.kind == Event::Kind::kRun) runs.emplace(event.sequence, &event);
    }
    const WorkerClock clock(worker.clock);
    uint64_t last = 0;
    for (const wire::ProfileEvent& event : worker.recorded.events) {
      if (event.program == wire::ProfileEvent::kMessage) continue;
      const remote::WorkerProfile::ProfiledProgram& program = worker.recorded.programs[event.program];
      const std::string& label = program.labels[event.node];
      const uint32_t record = program.record_indices[event.node];
      // Torch names ops without the overload.
      libkineto::GenericTraceActivity& op =
          add(ActivityType::CONCURRENT_KERNEL, label.substr(0, label.find_first_of(".(")));
      op.startTime = ours(clock.ours(event.begin));
      op.endTime = std::max(op.startTime + 1, ours(clock.ours(event.end)));
      op.device = static_cast<uint8_t>(worker.device);
      op.addMetadataQuoted("op", json_escaped(label));
      op.addMetadata("program", program.program);
      const auto flush = flushes.find(event.sequence);
      if (const auto run = runs.find(event.sequence); run != runs.end() && run->second->sources) {
        const std::vector<ir::SourceRef>& sources = *run->second->sources;
        if (record < sources.size()) op.addMetadataQuoted("line", json_escaped(line(sources[record])));
      }
      if (flush == flushes.end()) continue;
      if (flush->second->first_record != ThreadTraces::kNoRecords && linked) {
        op.id = correlations_.id_of(worker.device, flush->second->first_record + record);
        if (op.id != 0) op.linked = linked(op.id);
      }
      if (event.sequence != last) {
        ++flows_;
        write_flush(*flush->second);
        set_flow(op, false);
        last = event.sequence;
      }
    }
  }

  void write_flush(const Event& event) {
    libkineto::GenericTraceActivity& flush =
        add(ActivityType::PRIVATEUSE1_RUNTIME, "remote::flush (" + std::string(event.name) + ")");
    flush.startTime = ours(event.begin);
    flush.endTime = std::max(flush.startTime + 1, ours(event.end));
    flush.device = static_cast<int32_t>(getpid());
    flush.resource = static_cast<int32_t>(event.thread);
    flush.threadId = flush.resource;
    flush.addMetadata("ops", event.ops);
    flush.addMetadata("program", event.program);
    set_flow(flush, true);
  }

  libkineto::GenericTraceActivity& add(ActivityType type, const std::string& name) {
    trace_->emplace_activity(trace_->span, type, name);
    return libkineto::CpuTraceBuffer::toRef(trace_->activities.back());
  }

  void set_flow(libkineto::GenericTraceActivity& activity, bool start) const {
    activity.flow.id = flows_;
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    activity.flow.start = start;
  }

  const std::string& line(const ir::SourceRef& source) {
    const auto [found, is_new] = lines_.try_emplace({source.code, source.instruction, is_backward(source)});
    if (is_new) found->second = describe_source(source);
    return found->second;
  }

  bool on_ = false;
  std::optional<Recording> recording_;
  int64_t realtime_offset_ns_ = 0;
  Correlations correlations_;
  std::unique_ptr<libkineto::CpuTraceBuffer> trace_;
  std::map<std::tuple<uint64_t, int32_t, bool>, std::string> lines_;
  uint32_t flows_ = 0;
  std::vector<std::string> errors_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string name = "remote";
    return name;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> types{ActivityType::CONCURRENT_KERNEL, ActivityType::PRIVATEUSE1_RUNTIME};
    return types;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    if (types.contains(ActivityType::CONCURRENT_KERNEL)) return std::make_unique<KinetoSession>();
    for (int i = 0; i < device_count(); ++i) {
      if (existing_client(static_cast<c10::DeviceIndex>(i)) == nullptr) continue;
      TORCH_WARN_ONCE(
          "remote: torch.profiler measures how long it takes to record ops on the device 'remote', not how long they "
          "run; add torch.profiler.ProfilerActivity.PrivateUse1 to its activities");
    }
    return nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }
};

// -- the autograd profiler without kineto: torch.autograd.profiler.profile(use_device="remote")
// ---------------------------------------------------------------------------------------------------------------------

// The autograd profiler records a marker before and after each op and asks for the time between them. A recorded op has
// not reached the worker yet, so a marker waits for it. An op's device time is therefore that of its own run, plus the
// round trip.
struct Markers final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, torch::profiler::impl::ProfilerVoidEventStub* event,
              int64_t* cpu_ns) const override {
    TORCH_WARN_ONCE(
        "remote: torch.autograd.profiler.profile(use_device=\"remote\") waits for each op; torch.profiler.profile and "
        "torch.remote.profile measure without these waits");
    const c10::DeviceIndex current = current_device();
    if (device != nullptr) *device = current;
    if (existing_client(current) != nullptr) {
      const WithoutGil released;
      try {
        (void)request_memory(current, {});
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
        // request_memory does not raise failures of ops, and the next call raises the loss of a worker.
      }
    }
    const uint64_t now = remote::monotonic_ns();
    *event = std::shared_ptr<void>(new uint64_t(now), [](void* time) { delete static_cast<uint64_t*>(time); });
    if (cpu_ns != nullptr) *cpu_ns = static_cast<int64_t>(now) + realtime_offset_ns();
  }
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub* first,
                const torch::profiler::impl::ProfilerVoidEventStub* last) const override {
    const auto time = [](const std::shared_ptr<void>& event) { return *static_cast<const uint64_t*>(event.get()); };
    return static_cast<float>(time(*last) - time(*first)) * 1e-3f;  // microseconds
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override {
    for (int i = 0; i < device_count(); ++i) op(i);
  }
  void synchronize() const override {}
};

}  // namespace

void register_profilers() {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
  static Markers markers;
  torch::profiler::impl::registerPrivateUse1Methods(&markers);
}

}  // namespace torch_remote::frontend
