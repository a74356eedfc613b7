#include "frontend/record/recorder.h"

#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "frontend/device/device_state.h"
#include "frontend/device/restore.h"
#include "frontend/device/sync_debug.h"
#include "frontend/record/failure_observer.h"
#include "frontend/record/flush_log.h"
#include "frontend/record/wait_span.h"
#include "frontend/source/source.h"
#include "remote/client/event_log.h"

namespace torch_remote::frontend {
namespace {

using remote::Event;
using remote::EventLog;

// Torch's current flags. NoTF32Guard is a thread-local of torch around ops that must not use TF32.
ir::MathModes math_modes() {
  const at::Context& context = at::globalContext();
  const auto allows = [&](at::Float32Op op) {
    return context.float32Precision(at::Float32Backend::CUDA, op) == at::Float32Precision::TF32;
  };
  ir::MathModes modes = 0;
  if (!at::NoTF32Guard::should_disable_tf32()) {
    if (allows(at::Float32Op::MATMUL)) modes |= ir::kTf32Matmuls;
    if (allows(at::Float32Op::CONV)) modes |= ir::kTf32Convolutions;
  }
  if (context.deterministicCuDNN()) modes |= ir::kDeterministic;
  return modes;
}

// Whether torch's flags (TF32, deterministic algorithms) affect ops of this family. Recurrent layers are kComposite.
bool has_math_modes(ir::Family family) {
  using enum ir::Family;
  return family == kMatmul || family == kConv || family == kAttention || family == kNorm || family == kComposite;
}

// The current setting of torch.use_deterministic_algorithms.
ir::MathModes determinism() {
  static const at::Context& context = at::globalContext();
  if (!context.deterministicAlgorithms()) [[likely]]
    return 0;
  return ir::kDeterministic | (context.deterministicAlgorithmsWarnOnly() ? ir::kDeterministicWarnOnly : 0);
}

}  // namespace

// Never destroyed, because tensors may die during exit.
const std::array<Recorder*, kMaxDevices> Recorder::all_ = [] {
  std::array<Recorder*, kMaxDevices> all{};
  for (int i = 0; i < kMaxDevices; ++i) all[i] = new Recorder(static_cast<c10::DeviceIndex>(i));
  return all;
}();

void Recorder::record(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<at::Tensor> results,
                      c10::ArrayRef<uint32_t> list_lengths, std::optional<RandomState> random) {
  bool backward = false;
  const ir::SourceRef source = capture_source(&backward);
  Status status;
  bool flushed = false;
  {
    std::unique_lock<FastMutex> lock(traces().mutex());
    ThreadState& own = sender_.own(lock, &status);
    const Pass pass = backward ? Pass::kBackward : Pass::kForward;
    if (status.ok() && traces().others_record(own)) status = sender_.send_before(lock, own, op, args, &flushed);
    const bool joins =
        op.family == ir::Family::kCopy && !capture().is_on_locked() && own.encoder.concatenates_many_inputs(op, args);
    if (joins && !own.empty()) {
      const Status sent = sender_.send(lock, own, {"join"});
      if (status.ok()) status = sent;
      flushed = true;
    }
    if (pass != own.pass) {
      const Status entered = enter_pass(lock, own, pass, &flushed);
      if (status.ok()) status = entered;
    }
    if (const ir::MathModes now = determinism(); now != own.determinism) [[unlikely]] {
      const Status entered = enter_determinism(lock, own, now, &flushed);
      if (status.ok()) status = entered;
    }
    if (has_math_modes(op.family) && !runs_on_cpu(device())) {
      const Status entered = enter_math_modes(lock, own, math_modes(), &flushed);
      if (status.ok()) status = entered;
    }
    // If sending failed, raise that error, not the follow-up errors of tensors that were lost with it.
    if (status.ok()) {
      own.encoder.append(op, args, results, list_lengths, source, random, joins);
      records_.fetch_add(1, std::memory_order_relaxed);
      if (traces().has_several()) TraceSender::note_written(own, op, args);
      if (const ir::Cuts::CutKind place = own.cuts.after(op.opcode); place != ir::Cuts::CutKind::kNone || joins) {
        const bool planned = place == ir::Cuts::CutKind::kPlanned && !joins;
        status = sender_.send(lock, own, {joins ? "join" : "cut", false, planned});
        flushed = true;
      }
    }
  }
  if (flushed) {
    report_flushes();
    check(status);
    sender_.throttle();
  }
  check(status);
  if (sync_each_op()) synchronize();
}

// Cuts between forward and backward, and between backward and optimizer.
Status Recorder::enter_pass(std::unique_lock<FastMutex>& lock, ThreadState& own, Pass pass, bool* flushed) {
  Status status;
  if (pass != own.last_pass && own.cuts.is_long_enough_to_cut()) {
    status = sender_.send(lock, own, {"boundary"});
    *flushed = true;
  }
  if (own.empty() && EventLog::on()) {
    own.trace_began = remote::monotonic_ns();
    own.trace_thread = EventLog::this_thread();
  }
  own.pass = own.last_pass = pass;
  return status;
}

Status Recorder::enter_math_modes(std::unique_lock<FastMutex>& lock, ThreadState& own, ir::MathModes math_modes,
                                  bool* flushed) {
  Status status;
  if (own.math_modes_in_trace && math_modes != own.math_modes) {
    status = sender_.send(lock, own, {"math modes"});
    *flushed = true;
  }
  own.math_modes = math_modes;
  own.math_modes_in_trace = true;
  return status;
}

Status Recorder::enter_determinism(std::unique_lock<FastMutex>& lock, ThreadState& own, ir::MathModes determinism,
                                   bool* flushed) {
  Status status;
  if (!own.empty()) {
    status = sender_.send(lock, own, {"math modes"});
    *flushed = true;
  }
  own.determinism = determinism;
  return status;
}

std::vector<int64_t> Recorder::record_and_wait(const ir::OpDesc& op, const c10::IValue* args,
                                               c10::ArrayRef<c10::Storage> results, std::optional<RandomState> random) {
  before_wait("an op whose result's size depends on data");
  bool backward = false;
  const ir::SourceRef source = capture_source(&backward);
  uint64_t ticket = 0;
  std::shared_ptr<remote::Client> worker;  // that got the record
  Status status;
  {
    std::unique_lock<FastMutex> lock(traces().mutex());
    status = sender_.connect(lock);  // connect before recording: the record must be the trace's last one
    if (status.ok()) {
      ThreadState& own = sender_.own(lock, &status);
      bool flushed = false;
      if (status.ok() && traces().others_record(own)) status = sender_.send_before(lock, own, op, args, &flushed);
      if (const ir::MathModes now = determinism(); status.ok() && now != own.determinism) {
        status = enter_determinism(lock, own, now, &flushed);
      }
      if (status.ok()) {
        own.encoder.append_dynamic(op, args, results, source, random);
        (void)own.cuts.after(op.opcode);
        status = sender_.send(lock, own, {"dynamic", true}, &ticket);
      }
    }
    worker = running_client(device());
  }
  records_.fetch_add(1, std::memory_order_relaxed);
  report_flushes();
  check(status);
  std::vector<int64_t> result_words;
  remote::OpError error;
  const WaitSpan span("dynamic", source);
  status = worker->wait_results(ticket, &result_words, keep_waiting, &error);
  if (!error.status.ok()) raise_observed(device(), error);
  check(status);
  return result_words;
}

bool Recorder::run(RunnableGraph& graph, std::span<const int64_t> params, std::span<RemoteStorage* const> inputs,
                   std::span<RemoteStorage* const> results) {
  Status status;
  bool lost = false;
  {
    std::unique_lock<FastMutex> lock(traces().mutex());
    status = sender_.connect(lock);
    if (status.ok()) {
      ThreadState& own = sender_.own(lock, &status);
      bool flushed = false;
      if (status.ok()) status = sender_.send(lock, own, {"compiled graph"});
      for (const RemoteStorage* storage : inputs) {
        if (!status.ok() || !traces().others_record(own)) break;
        status = sender_.send_others_of(lock, &own, storage, /*writes=*/true, {"another thread"}, &flushed);
      }
      if (!runs_on_cpu(device())) own.math_modes = math_modes();
      own.determinism = determinism();  // the trace is empty here
      for (const RemoteStorage* storage : inputs) lost = lost || traces().is_lost(storage);
      if (status.ok() && !lost) status = sender_.run(own, graph, params, inputs, results);
    }
  }
  report_flushes();
  check(status);
  if (lost) return false;
  sender_.throttle();
  if (sync_each_op()) synchronize();
  return true;
}

Status Recorder::try_flush(const FlushReason& reason, const ir::SourceRef& line) {
  Status status;
  {
    std::unique_lock<FastMutex> lock(traces().mutex());
    status = sender_.send_all(lock, reason, line);
  }
  report_flushes();
  return status;
}

void Recorder::flush(const char* reason, bool waits) {
  check(try_flush({reason, waits}, wait_line()));
  sender_.throttle();
}

void Recorder::flush_own(const char* reason) {
  const ir::SourceRef line = wait_line();
  Status status;
  {
    std::unique_lock<FastMutex> lock(traces().mutex());
    if (ThreadState* own = traces().find_own()) status = sender_.send(lock, *own, {reason}, nullptr, line);
  }
  report_flushes();
  check(status);
  sender_.throttle();
}

void Recorder::synchronize() {
  flush("synchronize", /*waits=*/true);
  const std::shared_ptr<remote::Client> worker = running_client(device());
  if (worker == nullptr) return;
  remote::OpError error;
  const WaitSpan span("synchronize", wait_line());
  const Status status = worker->synchronize(keep_waiting, &error);
  if (!error.status.ok()) raise_observed(device(), error);
  check(status);
}

void Recorder::cancel() {
  const std::shared_ptr<remote::Client> worker = running_client(device());
  if (worker == nullptr) {
    const std::lock_guard<FastMutex> lock(traces().mutex());
    for (const auto& state : traces().all()) state->drop_trace();
    return;
  }
  if (failure_observer != nullptr) failure_observer->cancels(device());
  check(worker->cancel());  // frees space for the messages below
  Status status;
  {
    std::unique_lock<FastMutex> lock(traces().mutex());
    if (std::ranges::all_of(traces().all(), [](const auto& state) { return state->empty(); })) return;
    status = sender_.send_all(lock, {"cancel"});
  }
  report_flushes();
  check(status);
  check(worker->cancel());
}

void Recorder::print_unreported() noexcept try {
  const std::shared_ptr<remote::Client> worker = running_client(device());
  if (worker == nullptr || !worker->connection().health() || !try_flush({"exit"})) return;
  remote::OpError error;
  (void)worker->synchronize(keep_waiting, &error);
  if (error.status.ok()) return;
  const uint64_t count = 1 + error.more_errors.size() + error.omitted_errors;
  std::fprintf(stderr,
               "remote: %llu op%s failed on the worker, and nothing that was read has told of %s "
               "(torch.remote.synchronize() raises it):\n%s\n",
               static_cast<unsigned long long>(count), count == 1 ? "" : "s", count == 1 ? "it" : "them",
               describe(error).c_str());
} catch (...) {
  return;  // the process exits in any case
}

void Recorder::restart() {
  // What waits for threads that may need the GIL happens without the lock.
  end_checkpoints(device());
  begin_restart(device());
  std::shared_ptr<DeviceConnection> ended;
  {
    const std::lock_guard<FastMutex> lock(traces().mutex());
    traces().drop_session();
    ended = detach_worker(device());
  }
  end_worker(std::move(ended));
}

void shutdown(bool wait) {
  if (in_bad_fork()) return;
  for (int i = 0; i < device_count(); ++i) {
    Recorder& recorder = Recorder::get(static_cast<c10::DeviceIndex>(i));
    if (wait) recorder.print_unreported();
    recorder.restart();
  }
}

}  // namespace torch_remote::frontend
