#include "frontend/record/recorder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "frontend/device/sync_debug.h"
#include "frontend/record/flush_log.h"
#include "frontend/record/wait_span.h"
#include "frontend/source/source.h"
#include "remote/client/event_log.h"

namespace torch_remote::frontend {
namespace {

using remote::Event;
using remote::EventLog;

// At exit, while another thread still records.
Status worker_ended() { return {ErrorCode::kLost, "remote: the worker has been ended"}; }

std::span<const int64_t> span_of(c10::IntArrayRef values) { return {values.data(), values.size()}; }

}  // namespace

// Never destroyed: tensors may die during exit.
const std::array<Recorder*, kMaxDevices> Recorder::all_ = [] {
  std::array<Recorder*, kMaxDevices> all{};
  for (int i = 0; i < kMaxDevices; ++i) all[i] = new Recorder(static_cast<c10::DeviceIndex>(i));
  frontend::storage_died = [](RemoteStorage* storage) noexcept {
    get(storage->device().index()).storage_died(storage);
  };
  return all;
}();

uint32_t Recorder::enter_buffer(RemoteStorage* storage) {
  const uint32_t ordinal = static_cast<uint32_t>(trace_.buffers.size());
  storage->buffer = {epoch_, ordinal};
  return ordinal;
}

bool Recorder::is_lost_locked(const RemoteStorage* storage) const {
  return storage->id != 0 && (storage->id == RemoteStorage::kLost || storage->session != session_);
}

bool Recorder::is_lost(const RemoteStorage* storage) {
  std::lock_guard<FastMutex> lock(mutex_);
  return is_lost_locked(storage);
}

void Recorder::check_not_lost(const RemoteStorage* storage) {
  met_lost_ = is_lost_locked(storage);
  if (met_lost_) raise_lost();
}

void Recorder::raise_lost() {
  TORCH_CHECK(false,
              "remote: this tensor's contents were lost with the worker that held them; after torch.remote.restart() "
              "overwrite it (copy_, zero_, load_state_dict) or make it again");
}

std::vector<RemoteStorage*> Recorder::forget_overwritten(const ir::OpDesc& op, const c10::IValue* args) const {
  std::vector<RemoteStorage*> overwritten, read;
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (op.args[i].role != ir::ArgRole::kOperand) continue;
    const auto visit = [&](const c10::IValue& value) {
      if (!value.isTensor() || !value.toTensor().defined() || !is_remote(value.toTensor())) return;
      const at::Tensor& tensor = value.toTensor();
      RemoteStorage* storage = storage_of(tensor);
      const bool whole = op.args[i].overwrites && is_lost_locked(storage) && tensor.storage_offset() == 0 &&
                         tensor.is_non_overlapping_and_dense() && tensor.nbytes() == storage->nbytes();
      (whole ? overwritten : read).push_back(storage);
    };
    if (args[i].isList()) {
      for (const c10::IValue& item : args[i].toListRef()) visit(item);
    } else {
      visit(args[i]);
    }
  }
  std::erase_if(overwritten, [&](RemoteStorage* storage) { return std::ranges::find(read, storage) != read.end(); });
  for (RemoteStorage* storage : overwritten) storage->id = 0;
  return overwritten;
}

// The trace will never run: what it would have made is lost.
void Recorder::forget_trace() {
  for (const ir::TraceBuffer& buffer : trace_.buffers) {
    if (buffer.fresh && buffer.owner != nullptr) static_cast<RemoteStorage*>(buffer.owner)->id = RemoteStorage::kLost;
  }
  sent_ += trace_.records.size();
  cuts_.trace_ends(trace_, /*ends=*/true, /*waits=*/false);
  trace_.clear();
  next_epoch();
}

void Recorder::encode_view(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  RemoteStorage* storage = storage_of(tensor);
  const auto dtype = static_cast<ir::DType>(c10::typeMetaToScalarType(impl->dtype()));
  const auto sizes = span_of(impl->sizes());
  const auto strides = span_of(impl->strides());
  const int64_t offset = impl->storage_offset();
  TraceSlot& slot = view_slot(impl, storage);
  const bool known = storage->buffer.epoch == epoch_ && !joining_;
  if (known && slot.epoch == epoch_ && trace_.views[slot.number].buffer == storage->buffer.number &&
      trace_.view_matches(slot.number, dtype, sizes, strides, offset)) {
    trace_.use_view(slot.number);
    return;
  }
  if (known) {
    slot = {epoch_, trace_.new_view(storage->buffer.number, dtype, sizes, strides, offset)};
  } else {
    check_not_lost(storage);
    enter_buffer(storage);
    slot = {epoch_, trace_.new_buffer_view(storage->id, storage, storage->nbytes(), dtype, sizes, strides, offset)};
  }
}

void Recorder::encode_operand(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    trace_.word(ir::kAbsent);
    return;
  }
  if (is_remote(tensor)) {
    encode_view(tensor);
    return;
  }
  // A 0-dim CPU tensor: its value is a parameter. (The caller has refused all other tensors.)
  const c10::ScalarType dtype = tensor.scalar_type();
  const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  trace_.word(ir::kScalarOperand | static_cast<uint32_t>(dtype) << 8 | wrapped);
  if (dtype == c10::ScalarType::Double) {
    trace_.param(*static_cast<const double*>(tensor.const_data_ptr()));
  } else if (dtype == c10::ScalarType::Long) {
    trace_.param(*static_cast<const int64_t*>(tensor.const_data_ptr()));
  } else {
    encode_scalar(tensor.item());
  }
}

void Recorder::encode_scalar(const c10::Scalar& scalar) {
  if (scalar.isComplex()) {
    trace_.param(scalar.toComplexDouble().real());
    trace_.param(scalar.toComplexDouble().imag());
  } else if (scalar.isFloatingPoint()) {
    trace_.param(scalar.toDouble());
  } else {
    trace_.param(scalar.to<int64_t>());
  }
}

namespace {

ir::ScalarTag scalar_tag(const c10::IValue& value) {
  if (value.isNone()) return ir::ScalarTag::kAbsent;
  if (value.isDouble()) return ir::ScalarTag::kFloat;
  if (value.isBool()) return ir::ScalarTag::kBool;
  if (value.isInt()) return ir::ScalarTag::kInt;
  const c10::Scalar scalar = value.toScalar();
  if (scalar.isComplex()) return ir::ScalarTag::kComplex;
  if (scalar.isFloatingPoint()) return ir::ScalarTag::kFloat;
  if (scalar.isBoolean()) return ir::ScalarTag::kBool;
  return ir::ScalarTag::kInt;
}

int64_t to_int(const c10::IValue& value) {
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool();
  return value.toSymInt().guard_int(__FILE__, __LINE__);
}

double to_double(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  return value.toSymFloat().guard_float(__FILE__, __LINE__);
}

}  // namespace

void Recorder::encode_value(const ir::ArgDesc& arg, const c10::IValue& value) {
  using enum ir::ArgKind;
  switch (arg.kind) {
    case kOptionalInt:
    case kOptionalBool:
      trace_.word(!value.isNone());
      if (value.isNone()) return;
      [[fallthrough]];
    case kInt:
    case kBool:
      trace_.param(to_int(value));
      return;
    case kOptionalFloat:
      trace_.word(!value.isNone());
      if (value.isNone()) return;
      [[fallthrough]];
    case kFloat:
      trace_.param(to_double(value));
      return;
    case kScalar:
    case kOptionalScalar:
      if (value.isInt()) {
        trace_.word(static_cast<uint32_t>(ir::ScalarTag::kInt));
        trace_.param(value.toInt());
      } else if (value.isDouble()) {
        trace_.word(static_cast<uint32_t>(ir::ScalarTag::kFloat));
        trace_.param(value.toDouble());
      } else {
        trace_.word(static_cast<uint32_t>(scalar_tag(value)));
        if (!value.isNone()) encode_scalar(value.toScalar());
      }
      return;
    case kIntList:
    case kOptionalIntList:
    case kBoolList:
    case kFloatList:
    case kOptionalFloatList:
    case kScalarList: {
      if (value.isNone()) {
        trace_.word(ir::kAbsent);
        return;
      }
      const auto items = value.toListRef();
      trace_.word(static_cast<uint32_t>(items.size()));
      for (const c10::IValue& item : items) {
        if (arg.kind == kScalarList) {
          trace_.word(static_cast<uint32_t>(scalar_tag(item)));
          encode_scalar(item.toScalar());
        } else if (arg.kind == kFloatList || arg.kind == kOptionalFloatList) {
          trace_.param(to_double(item));
        } else {
          trace_.param(to_int(item));
        }
      }
      return;
    }
    default:
      encode_structural(arg, value);
  }
}

void Recorder::encode_structural(const ir::ArgDesc& arg, const c10::IValue& value) {
  using enum ir::ArgKind;
  if (value.isNone() && arg.kind != kScalar && arg.kind != kOptionalScalar) {
    trace_.word(ir::kAbsent);
    return;
  }
  switch (arg.kind) {
    case kInt:
    case kOptionalInt:
    case kBool:
    case kOptionalBool:
      trace_.structural_int(to_int(value));
      return;
    case kFloat:
    case kOptionalFloat:
      trace_.structural_float(to_double(value));
      return;
    case kIntList:
    case kOptionalIntList:
    case kBoolList: {
      const auto items = value.toListRef();
      trace_.word(static_cast<uint32_t>(items.size()));
      for (const c10::IValue& item : items) trace_.structural_int(to_int(item));
      return;
    }
    case kFloatList:
    case kOptionalFloatList: {
      const auto items = value.toListRef();
      trace_.word(static_cast<uint32_t>(items.size()));
      for (const c10::IValue& item : items) trace_.structural_float(to_double(item));
      return;
    }
    case kScalar:
    case kOptionalScalar: {
      const ir::ScalarTag tag = scalar_tag(value);
      trace_.word(static_cast<uint32_t>(tag));
      if (tag == ir::ScalarTag::kAbsent) return;
      const c10::Scalar scalar = value.toScalar();
      if (tag == ir::ScalarTag::kComplex) {
        trace_.structural_float(scalar.toComplexDouble().real());
        trace_.structural_float(scalar.toComplexDouble().imag());
      } else if (tag == ir::ScalarTag::kFloat) {
        trace_.structural_float(scalar.toDouble());
      } else {
        const uint64_t bits = static_cast<uint64_t>(scalar.to<int64_t>());
        trace_.word(static_cast<uint32_t>(bits));
        trace_.word(static_cast<uint32_t>(bits >> 32));
      }
      return;
    }
    case kString:
    case kOptionalString:
      trace_.word(ir::intern_string(value.toStringRef()));
      return;
    case kDType:
    case kMemoryFormat:
      trace_.word(static_cast<uint32_t>(value.toInt()));
      return;
    default:
      TORCH_INTERNAL_ASSERT(false, "remote: argument '", arg.name, "' cannot be recorded");
  }
}

void Recorder::encode(const ir::OpDesc& op, const c10::IValue* args, std::optional<RandomState> random) {
  for (const ir::ArgDesc& arg : op.args) {
    switch (arg.role) {
      case ir::ArgRole::kIgnored:
        break;
      case ir::ArgRole::kRandom:
        TORCH_INTERNAL_ASSERT(random.has_value());
        trace_.param(static_cast<int64_t>(random->seed));
        trace_.param(static_cast<int64_t>(random->offset));
        break;
      case ir::ArgRole::kOperand:
        if (arg.kind == ir::ArgKind::kTensor || arg.kind == ir::ArgKind::kOptionalTensor) {
          if (args->isNone()) {
            trace_.word(ir::kAbsent);
          } else {
            encode_operand(args->toTensor());
          }
        } else if (args->isNone()) {
          trace_.word(ir::kAbsent);
        } else {
          const auto items = args->toListRef();
          trace_.word(static_cast<uint32_t>(items.size()));
          for (const c10::IValue& item : items) {
            if (item.isNone()) {
              trace_.word(ir::kAbsent);
            } else {
              encode_operand(item.toTensor());
            }
          }
        }
        break;
      case ir::ArgRole::kStructural:
        encode_structural(arg, *args);
        break;
      case ir::ArgRole::kValue:
        encode_value(arg, *args);
        break;
    }
    ++args;
  }
}

void Recorder::begin_record(const ir::OpDesc& op, const c10::IValue* args, const ir::SourceRef& source,
                            std::optional<RandomState> random) {
  const size_t buffers = trace_.buffers.size();
  const size_t views = trace_.views.size();
  trace_.begin_record(op.opcode, source);
  try {
    encode(op, args, random);
  } catch (...) {
    joining_ = false;
    // The record goes, and with it what it said about tensors: in another epoch only what is left counts.
    trace_.rollback_record(buffers, views);
    next_epoch();
    for (size_t i = 0; i < trace_.buffers.size(); ++i) {
      if (trace_.buffers[i].owner == nullptr) continue;
      static_cast<RemoteStorage*>(trace_.buffers[i].owner)->buffer = {epoch_, static_cast<uint32_t>(i)};
    }
    if (!std::exchange(met_lost_, false)) throw;
    const std::vector<RemoteStorage*> overwritten = forget_overwritten(op, args);
    if (overwritten.empty()) throw;
    try {
      begin_record(op, args, source, random);
    } catch (...) {  // something else is wrong, too
      for (RemoteStorage* storage : overwritten) storage->id = RemoteStorage::kLost;
      throw;
    }
  }
}

// Whether the op joins many tensors, none of them made by this trace.
bool Recorder::joins_inputs(const ir::OpDesc& op, const c10::IValue* args) const {
  constexpr size_t kMany = 4;
  if (op.family != ir::Family::kCopy || op.args[0].kind != ir::ArgKind::kTensorList || !(op.flags & ir::kOpPure) ||
      tracing_) {
    return false;
  }
  const auto items = args[0].toListRef();
  return items.size() >= kMany && std::all_of(items.begin(), items.end(), [&](const c10::IValue& item) {
           if (!item.toTensor().defined() || !is_remote(item.toTensor())) return false;
           const RemoteStorage* storage = storage_of(item.toTensor());
           return storage->id != 0 &&
                  (storage->buffer.epoch != epoch_ || !trace_.buffers[storage->buffer.number].fresh);
         });
}

void Recorder::record(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<at::Tensor> results,
                      c10::ArrayRef<uint32_t> list_lengths, std::optional<RandomState> random) {
  bool backward = false;
  const ir::SourceRef source = capture_source(&backward);
  Status status;
  bool flushed = false;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    const Pass pass = backward ? Pass::kBackward : Pass::kForward;
    const bool joins = joins_inputs(op, args);
    if (joins && !trace_.empty()) {
      status = flush_locked(lock, {"join"});
      flushed = true;
    }
    if (pass != pass_) {
      const Status entered = enter_pass(lock, pass, &flushed);
      if (status.ok()) status = entered;
    }
    // What could not be sent is told by its own error, not by those of tensors that went with it.
    if (status.ok()) {
      joining_ = joins;
      begin_record(op, args, source, random);
      joining_ = false;
      const at::Tensor* result = results.data();
      const uint32_t* length = list_lengths.data();
      for (const ir::ResultDesc& desc : op.results) {
        if (desc.alias >= 0) continue;
        uint32_t count = 1;
        if (desc.kind == ir::ResultKind::kTensorList) trace_.word(count = *length++);
        for (; count > 0; --count, ++result) {
          if (!result->defined()) {
            trace_.word(ir::kAbsent);
          } else {
            encode_view(*result);
          }
        }
      }
      trace_.end_record();
      records_.fetch_add(1, std::memory_order_relaxed);
      if (const ir::Cuts::Place place = cuts_.after(op.opcode); place != ir::Cuts::Place::kNone || joins) {
        const bool planned = place == ir::Cuts::Place::kPlanned && !joins;
        status = flush_locked(lock, {joins ? "join" : "cut", false, planned});
        flushed = true;
      }
    }
  }
  if (flushed) {
    report_flushes();
    check(status);
    throttle();
  }
  if (sync_each_op()) synchronize();
}

// Between forward and backward, and between backward and optimizer.
Status Recorder::enter_pass(std::unique_lock<FastMutex>& lock, Pass pass, bool* flushed) {
  Status status;
  if (pass != last_pass_ && cuts_.at_boundary()) {
    status = flush_locked(lock, {"boundary"});
    *flushed = true;
  }
  if (trace_.empty() && EventLog::on()) {
    trace_began_ = remote::monotonic_ns();
    trace_thread_ = EventLog::this_thread();
  }
  pass_ = last_pass_ = pass;
  return status;
}

std::vector<int64_t> Recorder::record_and_wait(const ir::OpDesc& op, const c10::IValue* args,
                                               c10::ArrayRef<c10::Storage> results, std::optional<RandomState> random) {
  before_wait("an op whose result's size depends on data");
  bool backward = false;
  const ir::SourceRef source = capture_source(&backward);
  uint64_t ticket = 0;
  Status status;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    status = connect_locked(lock);  // before the record, which must be the trace's last one
    if (status.ok()) {
      begin_record(op, args, source, random);
      for (const c10::Storage& storage : results) {
        auto* remote = static_cast<RemoteStorage*>(storage.unsafeGetStorageImpl());
        enter_buffer(remote);
        trace_.new_dynamic_result(remote);
      }
      trace_.end_record();
      (void)cuts_.after(op.opcode);
      status = flush_locked(lock, {"dynamic", true}, &ticket);
    }
  }
  records_.fetch_add(1, std::memory_order_relaxed);
  report_flushes();
  check(status);
  std::vector<int64_t> words;
  remote::OpError error;
  const WaitSpan span("dynamic", source);
  status = client(device_).wait_results(ticket, &words, keep_waiting, &error);
  if (!error.status.ok()) raise(error);
  check(status);
  return words;
}

Status Recorder::connect_locked(std::unique_lock<FastMutex>& lock) const {
  while (existing_client(device_) == nullptr) {
    lock.unlock();
    Status status;
    const bool connected = connect(device_, &status) != nullptr;
    lock.lock();
    if (!connected && !status.ok()) return status;
  }
  return {};
}

Status Recorder::flush_locked(std::unique_lock<FastMutex>& lock, const Cause& cause, uint64_t* ticket,
                              const ir::SourceRef& line) {
  Status status;
  if (!trace_.empty()) status = connect_locked(lock);
  cuts_.trace_ends(trace_, !cause.planned, cause.waits);
  if (trace_.empty()) return {};
  survivors_.clear();
  for (const ir::TraceBuffer& buffer : trace_.buffers) {
    if (buffer.fresh && buffer.owner != nullptr) survivors_.push_back(static_cast<RemoteStorage*>(buffer.owner));
  }
  const ir::SourceRef last = trace_.sources.back();
  const uint64_t first_record = std::exchange(sent_, sent_ + trace_.records.size());
  std::vector<ir::SourceRef> sources;
  std::vector<ir::Opcode> ops;
  const bool watch = expect_no_compile_ && !unexpected_compile_;
  if (watch) {
    sources = trace_.sources;
    for (const ir::TraceRecord& record : trace_.records) ops.push_back(trace_.code[record.code]);
  }
  if (tracing_) traced_.push_back({trace_, trace_.survivors(), nullptr});
  remote::FlushInfo info;
  uint64_t base = 0;
  const uint64_t started = remote::monotonic_ns();
  if (status.ok()) {
    remote::Client* worker = existing_client(device_);
    status = worker != nullptr ? worker->flush(trace_, &base, &info, ticket) : worker_ended();
  }
  trace_.clear();
  next_epoch();
  give_ids(survivors_, status.ok(), base);
  if (!status.ok()) return status;
  note_flush({info, cause.name, last, remote::monotonic_ns() - started});
  if (EventLog::on()) log_flush(cause.name, info, line.code != 0 ? line : last, started, first_record);
  if (watch && !info.hit) {
    const bool differs = info.first_difference < ops.size();
    unexpected_compile_ = {differs ? std::string(ir::op_desc(ops[info.first_difference]).name) : std::string(),
                           differs ? sources[info.first_difference] : last, info.first_difference, ops.size()};
  }
  return {};
}

void Recorder::give_ids(std::span<RemoteStorage* const> made, bool sent, uint64_t base) const {
  for (size_t i = 0; i < made.size(); ++i) {
    made[i]->id = sent ? base + i : RemoteStorage::kLost;
    made[i]->session = session_;
  }
}

bool Recorder::run(RunnableGraph& graph, std::span<const int64_t> params, std::span<RemoteStorage* const> inputs,
                   std::span<RemoteStorage* const> results) {
  Status status;
  bool lost = false;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    status = connect_locked(lock);
    if (status.ok()) status = flush_locked(lock, {"compiled graph"});
    for (const RemoteStorage* storage : inputs) lost = lost || is_lost_locked(storage);
    if (status.ok() && !lost) status = run_locked(graph, params, inputs, results);
  }
  report_flushes();
  check(status);
  if (lost) return false;
  throttle();
  if (sync_each_op()) synchronize();
  return true;
}

Status Recorder::run_locked(RunnableGraph& graph, std::span<const int64_t> params,
                            std::span<RemoteStorage* const> inputs, std::span<RemoteStorage* const> results) {
  Status status;
  remote::Client* worker = existing_client(device_);
  if (worker == nullptr) return worker_ended();
  const uint64_t started = remote::monotonic_ns();
  if (!graph.program || graph.session != session_) {
    if (status = worker->load(graph.graph, graph.sources, graph.options, &graph.program); !status) return status;
    graph.session = session_;
  }
  if (tracing_) {
    TracedRun& run = traced_.emplace_back();
    run.graph = graph.graph;
    run.trace.params.assign(params.begin(), params.end());
    run.trace.sources = graph.sources;
  }
  graph.inputs.clear();
  for (const RemoteStorage* storage : inputs) graph.inputs.push_back(storage->id);
  remote::FlushInfo info;
  uint64_t base = 0;
  status = worker->run(graph.program, {params, graph.inputs, results.size()}, &base, &info);
  give_ids(results, status.ok(), base);
  if (!status) return status;
  const ir::SourceRef last = graph.sources.empty() ? ir::SourceRef() : graph.sources.back();
  note_flush({info, "compiled graph", last, remote::monotonic_ns() - started});
  if (EventLog::on()) log_flush("compiled graph", info, last, started, kNoRecords);
  if (expect_no_compile_ && !unexpected_compile_ && !info.hit) {
    unexpected_compile_ = {"", last, info.ops, info.ops};
    unexpected_compile_->compiled_graph = true;
  }
  return {};
}

void Recorder::log_flush(const char* reason, const remote::FlushInfo& info, const ir::SourceRef& line, uint64_t started,
                         uint64_t first_record) {
  Event flush;
  flush.first_record = first_record;
  flush.kind = Event::Kind::kFlush;
  flush.name = reason;
  flush.begin = started;
  flush.end = remote::monotonic_ns();
  flush.sequence = info.sequence;
  flush.program = info.program;
  flush.ops = static_cast<uint32_t>(info.ops);
  flush.source = line;
  if (const remote::Client* worker = existing_client(device_)) flush.session = worker->session();
  if (trace_began_ != 0) {
    Event recording = flush;
    recording.kind = Event::Kind::kRecording;
    recording.thread = trace_thread_;
    recording.begin = trace_began_;
    recording.end = started;
    EventLog::add(std::move(recording));
  }
  EventLog::add(std::move(flush));
  trace_began_ = 0;
  pass_ = Pass::kUnknown;
}

void Recorder::profile_starts() {
  std::lock_guard<FastMutex> lock(mutex_);
  trace_began_ = 0;
  pass_ = Pass::kUnknown;
}

void Recorder::profile_ends(const ir::SourceRef& line) {
  {
    std::unique_lock<FastMutex> lock(mutex_);
    (void)flush_locked(lock, {"profile ends"}, nullptr, line);
  }
  report_flushes();
}

void Recorder::set_limits(const ir::CutLimits& limits) {
  std::lock_guard<FastMutex> lock(mutex_);
  cuts_.set_limits(limits);
}

void Recorder::start_tracing() {
  flush("trace");
  std::lock_guard<FastMutex> lock(mutex_);
  TORCH_CHECK(!tracing_, "remote: torch.remote.trace() is on already");
  tracing_ = true;
  limits_before_ = cuts_.limits();
  cuts_.set_limits({1u << 30, 1u << 30, false});
}

std::vector<TracedRun> Recorder::stop_tracing() {
  flush("trace");
  std::lock_guard<FastMutex> lock(mutex_);
  tracing_ = false;
  cuts_.set_limits(limits_before_);
  return std::exchange(traced_, {});
}

void Recorder::expect_no_compile(bool expect) {
  std::lock_guard<FastMutex> lock(mutex_);
  expect_no_compile_ = expect;
  if (expect) unexpected_compile_.reset();
}

std::string Recorder::take_unexpected_compile() {
  std::optional<UnexpectedCompile> miss;
  {
    std::lock_guard<FastMutex> lock(mutex_);
    miss = std::exchange(unexpected_compile_, std::nullopt);
  }
  if (!miss) return {};
  const std::string line = describe_source(miss->source);
  const std::string where = line.empty() ? std::string() : " at " + line;
  if (miss->compiled_graph) {
    return c10::str("a program was built: torch.compile made another graph of ", miss->records, " ops, which ends",
                    where);
  }
  if (miss->record > miss->records) {
    return c10::str("a program was built: no program was known before; its last op is", where);
  }
  if (miss->op.empty()) {
    return c10::str("a program was built: its ", miss->records,
                    " ops are those of a known program, but other tensors outlive it; it ends", where);
  }
  return c10::str("a program was built: op ", miss->record, " of ", miss->records, ", '", miss->op, "'", where,
                  ", is the first that differs from the known programs");
}

void Recorder::throttle() {
  if (remote::Client* worker = existing_client(device_)) check(worker->throttle(keep_waiting));
}

void Recorder::flush(const char* reason, bool waits) {
  const ir::SourceRef line = wait_line();
  Status status;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    status = flush_locked(lock, {reason, waits}, nullptr, line);
  }
  report_flushes();
  check(status);
  throttle();
}

remote::MemoryRoom Recorder::memory(const remote::MemoryRequest& request) {
  flush("memory", /*waits=*/true);
  remote::MemoryRoom room;
  const WaitSpan span("memory", wait_line());
  check(client(device_).memory(request, keep_waiting, &room));
  return room;
}

void Recorder::synchronize() {
  flush("synchronize", /*waits=*/true);
  remote::Client* worker = existing_client(device_);
  if (worker == nullptr) return;
  remote::OpError error;
  const WaitSpan span("synchronize", wait_line());
  const Status status = worker->synchronize(keep_waiting, &error);
  if (!error.status.ok()) raise(error);
  check(status);
}

void Recorder::cancel() {
  remote::Client* worker = existing_client(device_);
  if (worker == nullptr) return;
  check(worker->cancel());  // makes room for what is sent next
  Status status;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    if (trace_.empty()) return;
    status = flush_locked(lock, {"cancel"});
  }
  report_flushes();
  check(status);
  check(worker->cancel());
}

void Recorder::report_unseen() noexcept try {
  remote::Client* worker = existing_client(device_);
  if (worker == nullptr || !worker->health()) return;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    if (!flush_locked(lock, {"exit"})) return;
  }
  report_flushes();
  remote::OpError error;
  (void)worker->synchronize(keep_waiting, &error);
  if (error.status.ok()) return;
  const uint64_t count = 1 + error.more.size() + error.not_listed;
  std::fprintf(stderr,
               "remote: %llu op%s failed on the worker, and nothing that was read has told of %s "
               "(torch.remote.synchronize() raises it):\n%s\n",
               static_cast<unsigned long long>(count), count == 1 ? "" : "s", count == 1 ? "it" : "them",
               describe(error).c_str());
} catch (...) {  // the process ends, whatever it is
}

void Recorder::read(const at::Tensor& tensor, void* destination, const char* reason) {
  const size_t nbytes = tensor.numel() * tensor.element_size();
  if (nbytes == 0) return;
  before_wait(reason);
  RemoteStorage* storage = storage_of(tensor);
  const ir::SourceRef line = wait_line();
  uint64_t id;
  Status status;
  {
    std::unique_lock<FastMutex> lock(mutex_);
    status = flush_locked(lock, {reason, true}, nullptr, line);
    id = storage->id;
    if (status.ok()) check_not_lost(storage);
  }
  report_flushes();
  check(status);
  if (id == 0) {  // never written: as undefined as torch.empty's memory, but not somebody else's
    std::memset(destination, 0, nbytes);
    return;
  }
  const auto take = [&](std::span<const std::byte> bytes) {
    TORCH_CHECK(bytes.size() == nbytes, "remote: the worker sent ", bytes.size(), " bytes for a tensor of ", nbytes);
    std::memcpy(destination, bytes.data(), nbytes);
  };
  remote::OpError error;
  const WaitSpan span(reason, line);
  status = client(device_).read(id, static_cast<uint32_t>(tensor.element_size()), span_of(tensor.sizes()),
                                span_of(tensor.strides()), tensor.storage_offset(), take, keep_waiting, &error);
  if (!error.status.ok()) raise(error);
  check(status);
}

void Recorder::upload(RemoteStorage* storage, size_t nbytes, const std::function<void(std::byte*)>& fill) {
  uint64_t id = 0;
  remote::Client& worker = client(device_);
  {
    remote::EventSpan span(Event::Kind::kUpload);
    if (Event* event = span.event()) {
      event->attachment = nbytes;
      event->source = user_line();
    }
    check(worker.upload(nbytes, fill, &id));
  }
  {
    std::lock_guard<FastMutex> lock(mutex_);
    storage->id = id;
    storage->session = session_;
  }
  throttle();
}

void Recorder::move_buffer(RemoteStorage* from, RemoteStorage* to) {
  std::lock_guard<FastMutex> lock(mutex_);
  std::swap(from->id, to->id);
  std::swap(from->session, to->session);
  std::swap(from->buffer, to->buffer);
  for (RemoteStorage* storage : {from, to}) {
    storage->stock_impl = nullptr;
    if (storage->buffer.epoch == epoch_) trace_.buffers[storage->buffer.number].owner = storage;
  }
}

bool Recorder::has_buffer(const RemoteStorage* storage) {
  std::lock_guard<FastMutex> lock(mutex_);
  return storage->id != 0 || storage->buffer.epoch == epoch_;
}

void Recorder::storage_died(RemoteStorage* storage) noexcept {
  if (in_bad_fork()) return;
  std::lock_guard<FastMutex> lock(mutex_);
  if (storage->buffer.epoch == epoch_) {
    ir::TraceBuffer& buffer = trace_.buffers[storage->buffer.number];
    buffer.owner = nullptr;
    buffer.died = static_cast<uint32_t>(trace_.records.size());
  } else if (storage->id != 0 && storage->id != RemoteStorage::kLost && storage->session == session_) {
    if (remote::Client* worker = existing_client(device_)) worker->free(storage->id);
  }
  storage->id = 0;
  storage->buffer = {};
}

void Recorder::restart() {
  std::lock_guard<FastMutex> lock(mutex_);
  forget_trace();
  ++session_;
  frontend::restart(device_);
}

void shutdown(bool wait) {
  if (in_bad_fork()) return;
  for (int i = 0; i < device_count(); ++i) {
    const auto device = static_cast<c10::DeviceIndex>(i);
    if (wait) Recorder::get(device).report_unseen();
    restart(device);
  }
}

}  // namespace torch_remote::frontend
