#include "remote/client/client.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <random>

#include "ir/op_table.h"
#include "remote/client/event_log.h"
#include "remote/client/outbox.h"
#include "remote/client/program_cache.h"
#include "remote/client/read_ahead.h"
#include "remote/client/replies.h"
#include "remote/wire/delta.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

// A worker that loads libtorch on a busy machine takes seconds.
constexpr std::chrono::seconds kHelloTimeout{120};
constexpr uint64_t kHelloSequence = 1;

// A view of a buffer: sizes and strides in elements.
struct ReadView {
  uint64_t buffer;
  uint32_t item_size;
  std::span<const int64_t> sizes, strides;
  int64_t offset;
};

// Bytes of the elements, packed, and of the buffer as far as the last of them. False if they are none that a tensor
// has.
bool extent(const ReadView& view, uint64_t* packed, uint64_t* end) {
  *packed = view.item_size;
  __int128 last = view.offset;
  bool first_is_inside = view.offset >= 0;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] < 0 || __builtin_mul_overflow(*packed, static_cast<uint64_t>(view.sizes[i]), packed))
      return false;
    first_is_inside = first_is_inside && view.strides[i] >= 0;
    last += static_cast<__int128>(view.sizes[i] - 1) * view.strides[i];
  }
  // Larger than anything that is read ahead where it is not a plain number.
  const __int128 bytes = (last + 1) * view.item_size;
  *end = first_is_inside && bytes >= 0 && bytes < INT64_MAX ? static_cast<uint64_t>(bytes) : UINT64_MAX;
  return true;
}

// The view's elements, packed, from dim `dim` on. Returns the end of what was written.
std::byte* gather(const ReadView& view, const std::byte* from, size_t dim, std::byte* to) {
  if (dim == view.sizes.size()) {
    std::memcpy(to, from, view.item_size);
    return to + view.item_size;
  }
  for (int64_t i = 0; i < view.sizes[dim]; ++i) {
    to = gather(view, from + i * view.strides[dim] * view.item_size, dim + 1, to);
  }
  return to;
}

// The elements are one piece of memory, in row-major order.
bool is_contiguous(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

struct AtomicCounters {
  std::atomic<uint64_t> flushes{0}, programs_built{0}, program_hits{0}, round_trips{0}, connections{0}, bytes_sent{0},
      bytes_uploaded{0}, bytes_downloaded{0};
};

// Locks: order_ decides the order of messages and is held while one is encoded and sent; frees_mutex_ is for the list
// that destructors add to. Replies, Outbox and ProgramCache have their own, taken after these, each for a moment.
class ClientImpl : public Client {
 public:
  ClientImpl(std::unique_ptr<Transport> transport, BuildFunction build)
      : transport_(std::move(transport)),
        replies_(*transport_, programs_),
        outbox_(*transport_, replies_, std::move(build), capabilities_, counters_.bytes_sent,
                counters_.programs_built) {}

  ~ClientImpl() override {
    const uint64_t last = std::max(outbox_.end(), kHelloSequence);
    if (replies_.health().ok()) (void)transport_->send(header(wire::Type::kGoodbye, last + 1, 0), {}, nullptr);
  }

  Status hello(const KeepWaiting& keep_waiting);

  Status flush(ir::Trace& trace, uint64_t* base, FlushInfo* info, uint64_t* ticket) override;
  Status load(std::shared_ptr<const ir::Graph> graph, std::vector<ir::SourceRef> sources, const ProgramOptions& options,
              ProgramPtr* program) override;
  Status run(const ProgramPtr& program, const RunArguments& arguments, uint64_t* base, FlushInfo* info,
             uint64_t* ticket) override;
  Status wait_results(uint64_t ticket, Words* words, const KeepWaiting& keep_waiting, OpError* error) override;
  Status upload(size_t size, const std::function<void(std::byte*)>& fill, uint64_t* id) override;
  Status read(uint64_t buffer, uint32_t item_size, std::span<const int64_t> sizes, std::span<const int64_t> strides,
              int64_t offset, const std::function<void(std::span<const std::byte>)>& take,
              const KeepWaiting& keep_waiting, OpError* error) override;
  void free(uint64_t id) override;
  Status synchronize(const KeepWaiting& keep_waiting, OpError* error) override;
  Status memory(const MemoryRequest& request, const KeepWaiting& keep_waiting, MemoryRoom* room) override;
  Status cancel() override;
  Status throttle(const KeepWaiting& keep_waiting) override {
    return abandoned_ ? forked() : replies_.throttle(keep_waiting);
  }
  Status has_op(std::string_view name, const KeepWaiting& keep_waiting, bool* known, OpError* error) override;

  Status profile(ProfileCommand command, uint64_t limit, const KeepWaiting& keep_waiting,
                 WorkerProfile* profile) override;

  Counters counters() const override;
  void reset_counters() override;
  MemoryUse memory_use() const override { return abandoned_ ? MemoryUse() : replies_.totals().memory; }
  MachineInfo machine() const override { return machine_; }
  Status health() const override { return abandoned_ ? forked() : replies_.health(); }
  std::string description() const override { return description_; }
  uint64_t session() const override { return session_; }
  uint64_t last_acknowledged() const override { return replies_.acknowledged(); }

  void abandon() override {
    abandoned_ = true;
    transport_->abandon();
  }

 private:
  static Status forked() {
    return {ErrorCode::kLost,
            "remote: this process was forked from the one that the worker belongs to; use the 'spawn' start method"};
  }

  wire::Header header(wire::Type type, uint64_t sequence, uint16_t flags) const {
    wire::Header h;
    h.type = static_cast<uint8_t>(type);
    h.flags = flags;
    h.session = session_;
    h.sequence = sequence;
    return h;
  }

  // With order_ held.
  // What came, health, and credits for `messages` and for the list of frees that may precede them.
  Status begin(size_t messages, size_t bytes);
  // Of inputs_ and what is to be freed.
  std::span<const uint8_t> encode_run(CachedProgram& program, std::span<const int64_t> now, uint64_t base);
  void count_flush(const CachedProgram& program, bool hit, std::span<const uint8_t> control, FlushInfo* info);
  // The header of the next message, a run, which will be waited for if there is a ticket.
  wire::Header run_header(uint64_t* ticket, FlushInfo* info);
  void log_run(const FlushInfo& info, const std::vector<ir::SourceRef>& sources) const;
  Status send_frees();
  // Sends what builder_ holds. `wants_reply`: it will be waited for.
  Status send(wire::Type type, bool wants_reply, AttachmentPtr attachment, uint64_t* sequence);
  // Sends a Read.
  Status ask(const ReadView& view, bool ahead, uint64_t* sequence);
  // Of the first bytes, for a snapshot, which is kept.
  Status ask_whole(uint64_t buffer, uint64_t nbytes, bool ahead, SnapshotPtr* snapshot);
  // What is likely to be read next. The second one alone, behind another message.
  Status ask_guesses(const std::vector<ReadAhead::Guess>& guesses);
  Status ask_ahead(const std::vector<ReadAhead::Guess>& guesses);
  // Asks for a view, which lies in the first `end` bytes, unless it is there or on its way, and for what is likely to
  // be read next. *snapshot: the view is a part of it; null: the message has the view only.
  Status ask_for(const ReadView& view, uint64_t end, uint64_t* sequence, SnapshotPtr* snapshot);
  // Of the trace that runs next: copies_.
  void find_copies(const CachedProgram& program, const ir::Trace& trace);
  // Without order_.
  Status take_whole(const ReadView& view, Snapshot& snapshot, const KeepWaiting& keep_waiting, OpError* error);
  static Status check_size(const Frame& frame, uint64_t expected);
  Status why_not_read(uint64_t buffer, Status status, OpError* error) const;
  Status ask_profile(ProfileCommand command, uint64_t limit, const KeepWaiting& keep_waiting, Frame* reply);
  void take_frees();

  Status wait(uint64_t sequence, const KeepWaiting& keep_waiting, Frame* reply, OpError* error);

  const std::unique_ptr<Transport> transport_;
  ProgramCache programs_;
  Replies replies_;
  AtomicCounters counters_;
  ir::Capabilities capabilities_;
  Outbox outbox_;
  std::atomic<bool> abandoned_ = false;
  uint64_t session_ = 0;
  std::string description_;
  MachineInfo machine_;

  std::mutex order_;
  uint64_t sequence_ = 0;
  uint64_t next_id_ = 1;
  // Kept for their capacity.
  flatbuffers::FlatBufferBuilder builder_{16 << 10};
  ReadAhead read_ahead_;
  std::vector<uint64_t> survivors_, inputs_, made_, frees_now_;
  std::vector<ReadAhead::Copy> copies_;
  std::vector<uint8_t> params_, bindings_, frees_bytes_;

  std::mutex frees_mutex_;
  std::vector<uint64_t> frees_;

  mutable std::mutex base_mutex_;
  Replies::Totals base_;  // of the totals that count, at the last reset
};

ir::Capabilities decode(const wire::Capabilities& told) {
  constexpr uint32_t kMostTargets = 64;
  ir::Capabilities all;
  for (uint32_t i = 0; told.targets() != nullptr && i < std::min(told.targets()->size(), kMostTargets); ++i) {
    all.targets.push_back(told.targets()->Get(i)->str());
  }
  all.group_kinds = told.group_kinds();
  all.dtypes = told.dtypes();
  all.memory = told.memory();
  all.threads = told.threads();
  if (told.versions() != nullptr) all.versions = told.versions()->str();
  return all;
}

// --- hello -----------------------------------------------------------------------------------------------------------

Status ClientImpl::hello(const KeepWaiting& keep_waiting) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateHello(builder, ir::op_table_fingerprint(), builder.CreateString(ir::op_table_version()),
                                   static_cast<uint32_t>(getpid())));
  // Proposed; the worker's answer has the one that counts.
  session_ = std::random_device()() | uint64_t{std::random_device()()} << 32;
  sequence_ = kHelloSequence;
  replies_.sending(sequence_, 0);
  if (Status status = transport_->send(header(wire::Type::kHello, sequence_, wire::kWantsReply),
                                       {builder.GetBufferPointer(), builder.GetSize()}, nullptr);
      status.code() != ErrorCode::kOk && status.code() != ErrorCode::kLost) {
    return status;
  }  // if it is gone already, receive knows why
  const auto deadline = std::chrono::steady_clock::now() + kHelloTimeout;
  Frame frame;
  Status status;
  counters_.connections.fetch_add(1, std::memory_order_relaxed);
  do {
    if (keep_waiting && !keep_waiting()) return {ErrorCode::kInterrupted, "remote: connecting was interrupted"};
    status = transport_->receive(&frame, kWaitStep);
  } while (status.code() == ErrorCode::kTimeout && std::chrono::steady_clock::now() < deadline);
  if (status.code() == ErrorCode::kTimeout) {
    return {ErrorCode::kTimeout, "remote: the worker (" + transport_->description() + ") did not answer within " +
                                     std::to_string(kHelloTimeout.count()) + " s"};
  }
  if (!status) return status;
  const auto* reply = wire::verify<wire::HelloReply>(frame.control);
  if (frame.header.type != static_cast<uint8_t>(wire::Type::kHelloReply) || !reply) {
    return Status::invalid("remote: the worker answered with a message of type " + std::to_string(frame.header.type) +
                           " that is no greeting; install the same torch-remote on both ends");
  }
  if (reply->error()) return wire::to_status(*reply->error());
  session_ = frame.header.session;
  description_ = (reply->runners() ? reply->runners()->str() : "worker") + ", pid " + std::to_string(reply->process()) +
                 ", over " + transport_->description();
  if (const wire::Capabilities* told = reply->capabilities()) capabilities_ = decode(*told);
  machine_ = {reply->processor() ? reply->processor()->str() : "", reply->cores(), reply->memory()};
  return {};
}

// --- sending ---------------------------------------------------------------------------------------------------------

Status ClientImpl::begin(size_t messages, size_t bytes) {
  replies_.drain();
  return replies_.reserve(messages + 1, bytes);
}

void ClientImpl::take_frees() {
  frees_now_.clear();
  frees_bytes_.clear();
  {
    std::lock_guard lock(frees_mutex_);
    frees_now_.swap(frees_);
  }
  encode_frees(frees_now_, frees_bytes_);
  read_ahead_.freed(frees_now_);
  for (const uint64_t sequence : read_ahead_.unwanted()) replies_.forget(sequence);
  read_ahead_.unwanted().clear();
}

void ClientImpl::find_copies(const CachedProgram& program, const ir::Trace& trace) {
  copies_.clear();
  if (!program.facts_known.load(std::memory_order_acquire)) return;
  for (const ProgramFacts::Copy& copy : program.facts.copies) {
    const ir::TraceView &from = trace.views[copy.from], &to = trace.views[copy.to];
    const int64_t *source = trace.params.data() + from.params, *target = trace.params.data() + to.params;
    // All of a buffer of the same size, in the same order.
    const size_t rank = from.rank;
    uint64_t nbytes = ir::item_size(from.dtype);
    for (size_t i = 0; i < rank; ++i) nbytes *= static_cast<uint64_t>(source[i]);
    if (rank == to.rank && std::equal(source, source + rank, target) &&
        is_contiguous({source, rank}, {source + rank, rank}) && is_contiguous({target, rank}, {target + rank, rank}) &&
        source[2 * rank] == 0 && target[2 * rank] == 0 && trace.buffers[from.buffer].nbytes == nbytes &&
        trace.buffers[to.buffer].nbytes == nbytes) {
      copies_.push_back({copy.made, inputs_[copy.input]});
    }
  }
}

Status ClientImpl::send(wire::Type type, bool wants_reply, AttachmentPtr attachment, uint64_t* sequence) {
  const uint64_t number = ++sequence_;
  replies_.sending(number, attachment ? attachment->bytes().size() : 0);
  if (wants_reply) replies_.expect(number);
  if (sequence) *sequence = number;
  return outbox_.send(header(type, number, wants_reply ? wire::kWantsReply : 0),
                      {builder_.GetBufferPointer(), builder_.GetSize()}, std::move(attachment));
}

Status ClientImpl::send_frees() {
  take_frees();
  if (frees_bytes_.empty()) return {};
  builder_.Clear();
  builder_.Finish(wire::CreateFree(builder_, builder_.CreateVector(frees_bytes_)));
  return send(wire::Type::kFree, false, nullptr, nullptr);
}

std::span<const uint8_t> ClientImpl::encode_run(CachedProgram& program, std::span<const int64_t> now, uint64_t base) {
  params_.clear();
  bindings_.clear();
  encode_params(now, program.last.params, params_);
  encode_bindings(inputs_, base, program.last.bindings, bindings_);
  take_frees();
  builder_.Clear();
  const auto frees = builder_.CreateVector(frees_bytes_);
  const auto bindings = builder_.CreateVector(bindings_);
  const auto params = builder_.CreateVector(params_);
  builder_.Finish(wire::CreateRun(builder_, program.number, base, params, bindings, frees));
  return {builder_.GetBufferPointer(), builder_.GetSize()};
}

Status ClientImpl::flush(ir::Trace& trace, uint64_t* base, FlushInfo* info, uint64_t* ticket) {
  if (abandoned_) return forked();
  std::lock_guard order(order_);
  *info = FlushInfo();
  *base = next_id_;
  if (trace.empty()) return replies_.health();
  if (Status status = begin(2, 0); !status) return status;

  made_.clear();
  inputs_.clear();
  for (const ir::TraceBuffer& buffer : trace.buffers) {
    if (!buffer.fresh) {
      inputs_.push_back(buffer.id);
    } else if (buffer.owner) {
      made_.push_back(buffer.nbytes);
    }
  }
  const uint64_t made = made_.size();
  next_id_ += made;

  const ir::Hash128 key = trace.key();
  trace.survivors(survivors_);
  ProgramPtr program = programs_.find(key, trace, survivors_);
  if (program && program->failed) {
    programs_.remove(program);
    program = nullptr;
  }
  const bool hit = program != nullptr;
  if (!hit) {
    info->first_difference = programs_.first_difference(trace);
    program = programs_.add(key, trace, survivors_);
  }
  find_copies(*program, trace);
  read_ahead_.runs(*program, inputs_, *base, made_, copies_);
  const std::span<const uint8_t> control = encode_run(*program, trace.params, *base);
  count_flush(*program, hit, control, info);

  const RunInfo run{program, *base, made};
  std::unique_ptr<BuildJob> job;
  if (!hit) {
    job = outbox_.job_for(trace);
    job->survivors = survivors_;
    job->load_sequence = ++sequence_;
    replies_.sending(job->load_sequence, 0);
  }
  const wire::Header header = run_header(ticket, info);
  if (EventLog::on()) log_run(*info, hit ? trace.sources : program->sources);
  if (!hit) {
    outbox_.build_and_send(std::move(job), header, control, run);
    return {};
  }
  programs_.set_sources(*program, info->sequence, trace.sources);
  trace.clear();
  return outbox_.send(header, control, nullptr, &run);
}

Status ClientImpl::load(std::shared_ptr<const ir::Graph> graph, std::vector<ir::SourceRef> sources,
                        const ProgramOptions& options, ProgramPtr* program) {
  if (abandoned_) return forked();
  std::lock_guard order(order_);
  if (Status status = begin(1, 0); !status) return status;
  *program = programs_.add(*graph, std::move(sources), options);
  if (options.low_latency) transport_->busy_wait(kBusyWait);
  auto job = std::make_unique<BuildJob>();
  job->graph = std::move(graph);
  job->load_sequence = ++sequence_;
  replies_.sending(job->load_sequence, 0);
  outbox_.build(std::move(job), header(wire::Type::kLoadProgram, sequence_, 0), *program);
  return {};
}

Status ClientImpl::run(const ProgramPtr& program, const RunArguments& arguments, uint64_t* base, FlushInfo* info,
                       uint64_t* ticket) {
  if (abandoned_) return forked();
  std::lock_guard order(order_);
  *info = FlushInfo();
  *base = next_id_;
  if (program->failed) return program->failure;
  if (Status status = begin(1, 0); !status) return status;
  next_id_ += arguments.made;
  inputs_.assign(arguments.inputs.begin(), arguments.inputs.end());
  made_.assign(arguments.made, 0);  // their sizes are not known here
  read_ahead_.runs(*program, inputs_, *base, made_, {});
  const std::span<const uint8_t> control = encode_run(*program, arguments.params, *base);
  count_flush(*program, std::exchange(program->ran, true), control, info);
  const RunInfo run{program, *base, arguments.made};
  const wire::Header header = run_header(ticket, info);
  if (EventLog::on()) log_run(*info, program->sources);
  return outbox_.send(header, control, nullptr, &run);
}

void ClientImpl::count_flush(const CachedProgram& program, bool hit, std::span<const uint8_t> control,
                             FlushInfo* info) {
  info->ops = program.ops.size();
  info->hit = hit;
  info->program = program.number;
  info->bytes = sizeof(wire::Header) + control.size();
  counters_.flushes.fetch_add(1, std::memory_order_relaxed);
  if (hit) counters_.program_hits.fetch_add(1, std::memory_order_relaxed);
}

wire::Header ClientImpl::run_header(uint64_t* ticket, FlushInfo* info) {
  const uint64_t sequence = ++sequence_;
  info->sequence = sequence;
  replies_.sending(sequence, 0);
  if (ticket) {
    replies_.expect(sequence);
    *ticket = sequence;
  }
  return header(wire::Type::kRun, sequence, ticket ? wire::kWantsReply : 0);
}

void ClientImpl::log_run(const FlushInfo& info, const std::vector<ir::SourceRef>& sources) const {
  Event event;
  event.kind = Event::Kind::kRun;
  event.hit = info.hit;
  event.program = info.program;
  event.ops = static_cast<uint32_t>(info.ops);
  event.begin = event.end = monotonic_ns();
  event.session = session_;
  event.sequence = info.sequence;
  event.bytes = info.bytes;
  event.first_difference = info.first_difference;
  event.sources = EventLog::share(session_, info.program, sources);
  EventLog::add(std::move(event));
}

Status ClientImpl::upload(size_t size, const std::function<void(std::byte*)>& fill, uint64_t* id) {
  if (Status status = health(); !status) return status;
  AttachmentPtr attachment = transport_->allocate(size);
  if (!attachment)
    return {ErrorCode::kOutOfMemory, "remote: no memory for an upload of " + std::to_string(size) + " bytes"};
  fill(attachment->bytes().data());
  std::lock_guard order(order_);
  if (Status status = begin(1, size); !status) return status;
  if (Status status = send_frees(); !status) return status;
  *id = next_id_++;
  builder_.Clear();
  builder_.Finish(wire::CreateUpload(builder_, *id));
  counters_.bytes_uploaded.fetch_add(size, std::memory_order_relaxed);
  return send(wire::Type::kUpload, false, std::move(attachment), nullptr);
}

void ClientImpl::free(uint64_t id) {
  if (abandoned_) return;
  std::lock_guard lock(frees_mutex_);
  try {
    frees_.push_back(id);
  } catch (const std::bad_alloc&) {
    return;  // the worker keeps the buffer until the session ends: better than an exception in a destructor
  }
}

// --- waiting ---------------------------------------------------------------------------------------------------------

Status ClientImpl::wait(uint64_t sequence, const KeepWaiting& keep_waiting, Frame* reply, OpError* error) {
  counters_.round_trips.fetch_add(1, std::memory_order_relaxed);
  EventSpan span(Event::Kind::kReply);
  if (Event* event = span.event()) {
    event->session = session_;
    event->sequence = sequence;
  }
  return replies_.wait(sequence, keep_waiting, reply, error);
}

Status ClientImpl::wait_results(uint64_t ticket, Words* words, const KeepWaiting& keep_waiting, OpError* error) {
  if (abandoned_) return forked();
  Frame frame;
  if (Status status = wait(ticket, keep_waiting, &frame, error); !status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::RunReply>(frame.control.data());  // verified when it came
  words->clear();
  if (reply->words()) words->assign(reply->words()->begin(), reply->words()->end());
  return {};
}

Status ClientImpl::ask(const ReadView& view, bool ahead, uint64_t* sequence) {
  builder_.Clear();
  const auto s = builder_.CreateVector(view.sizes.data(), view.sizes.size());
  const auto t = builder_.CreateVector(view.strides.data(), view.strides.size());
  builder_.Finish(wire::CreateRead(builder_, view.buffer, view.item_size, s, t, view.offset, ahead));
  return send(wire::Type::kRead, true, nullptr, sequence);
}

Status ClientImpl::ask_whole(uint64_t buffer, uint64_t nbytes, bool ahead, SnapshotPtr* snapshot) {
  const int64_t sizes[] = {static_cast<int64_t>(nbytes)}, strides[] = {1};
  uint64_t sequence;
  if (Status status = ask({buffer, 1, sizes, strides, 0}, ahead, &sequence); !status) return status;
  *snapshot = std::make_shared<Snapshot>();
  (*snapshot)->state = ahead ? Snapshot::State::kAsked : Snapshot::State::kWaitedFor;
  (*snapshot)->ahead = ahead;
  (*snapshot)->bytes.resize(nbytes);
  read_ahead_.keep(buffer, *snapshot, sequence);
  return {};
}

Status ClientImpl::ask_for(const ReadView& view, uint64_t end, uint64_t* sequence, SnapshotPtr* snapshot) {
  if (*snapshot = read_ahead_.find(view.buffer); *snapshot) {
    Snapshot& known = **snapshot;
    const bool usable = known.state == Snapshot::State::kAsked || known.state == Snapshot::State::kThere;
    if (usable && end <= known.bytes.size()) {
      read_ahead_.used(view.buffer);
      if (known.state == Snapshot::State::kAsked) known.state = Snapshot::State::kWaitedFor;
      *sequence = known.sequence;
      // What was sent for this read is a round, too: it may not have to wait itself, but what is read next would.
      if (read_ahead_.round_is_open()) {
        if (Status status = ask_ahead(read_ahead_.waits_for(view.buffer, end)); !status) return status;
      }
      return replies_.health();
    }
    // Another thread waits for it, or there is more to read than it has.
    *snapshot = nullptr;
    if (usable) read_ahead_.drop(view.buffer);
    if (Status status = begin(1, 0); !status) return status;
    if (Status status = send_frees(); !status) return status;
    return ask(view, false, sequence);
  }
  const std::vector<ReadAhead::Guess>& guesses = read_ahead_.waits_for(view.buffer, end);
  if (Status status = begin(1 + guesses.size(), 0); !status) return status;
  if (Status status = send_frees(); !status) return status;
  if (const uint64_t nbytes = read_ahead_.size_of(view.buffer, end); nbytes <= kMostReadAhead) {
    if (Status status = ask_whole(view.buffer, nbytes, false, snapshot); !status) return status;
    *sequence = (*snapshot)->sequence;
  } else if (Status status = ask(view, false, sequence); !status) {
    return status;
  }
  return ask_guesses(guesses);
}

Status ClientImpl::ask_ahead(const std::vector<ReadAhead::Guess>& guesses) {
  if (guesses.empty()) return {};
  if (Status status = begin(guesses.size(), 0); !status) return status;
  if (Status status = send_frees(); !status) return status;
  return ask_guesses(guesses);
}

Status ClientImpl::ask_guesses(const std::vector<ReadAhead::Guess>& guesses) {
  for (const ReadAhead::Guess& guess : guesses) {
    SnapshotPtr kept;
    if (std::ranges::find(frees_now_, guess.buffer) != frees_now_.end()) continue;
    if (Status status = ask_whole(guess.buffer, guess.nbytes, true, &kept); !status) return status;
  }
  return {};
}

Status ClientImpl::take_whole(const ReadView& view, Snapshot& snapshot, const KeepWaiting& keep_waiting,
                              OpError* error) {
  Frame frame;
  // What was asked for ahead came with another round trip.
  Status status = snapshot.ahead ? replies_.wait(snapshot.sequence, keep_waiting, &frame, error)
                                 : wait(snapshot.sequence, keep_waiting, &frame, error);
  if (status.ok()) status = check_size(frame, snapshot.bytes.size());
  std::lock_guard order(order_);
  if (status.ok()) {
    std::ranges::copy(frame.attachment->bytes(), snapshot.bytes.begin());
    counters_.bytes_downloaded.fetch_add(snapshot.bytes.size(), std::memory_order_relaxed);
    snapshot.state = Snapshot::State::kThere;
  } else {
    snapshot.state = Snapshot::State::kFailed;
    if (const SnapshotPtr kept = read_ahead_.find(view.buffer); kept.get() == &snapshot) read_ahead_.drop(view.buffer);
  }
  return status;
}

Status ClientImpl::check_size(const Frame& frame, uint64_t expected) {
  const size_t came = frame.attachment ? frame.attachment->bytes().size() : 0;
  if (came == expected) return {};
  return Status::internal("remote: the worker sent " + std::to_string(came) + " bytes of a tensor of " +
                          std::to_string(expected));
}

Status ClientImpl::why_not_read(uint64_t buffer, Status status, OpError* error) const {
  // A program that could not be built did not make this buffer; the worker only knows that it is not there.
  if (status.code() == ErrorCode::kInterrupted) return status;
  std::optional<OpError> missing = replies_.missing(buffer);
  if (!missing) return status;
  *error = *std::move(missing);
  return error->status;
}

Status ClientImpl::read(uint64_t buffer, uint32_t item_size, std::span<const int64_t> sizes,
                        std::span<const int64_t> strides, int64_t offset,
                        const std::function<void(std::span<const std::byte>)>& take, const KeepWaiting& keep_waiting,
                        OpError* error) {
  if (abandoned_) return forked();
  const ReadView view{buffer, item_size, sizes, strides, offset};
  uint64_t packed, end;
  if (!extent(view, &packed, &end)) return Status::invalid("remote: a read of a tensor with impossible sizes");
  if (packed > kMostReadAhead) end = UINT64_MAX;  // in the plain way
  uint64_t sequence = 0;
  SnapshotPtr snapshot;
  bool there = false;
  {
    std::lock_guard order(order_);
    if (Status status = ask_for(view, end, &sequence, &snapshot); !status) return status;
    there = snapshot && snapshot->state == Snapshot::State::kThere;
  }
  if (snapshot && !there) {
    Status status = take_whole(view, *snapshot, keep_waiting, error);
    there = status.ok();
    const bool in_vain =
        snapshot->ahead && status.code() != ErrorCode::kInterrupted && status.code() != ErrorCode::kLost;
    if (!there && !in_vain) return why_not_read(buffer, std::move(status), error);
  }
  if (there) {
    const std::byte* first = snapshot->bytes.data() + static_cast<size_t>(offset) * item_size;
    if (is_contiguous(sizes, strides)) {
      take({first, packed});
    } else {
      std::vector<std::byte> elements(packed);
      gather(view, first, 0, elements.data());
      take(elements);
    }
    return {};
  }
  if (snapshot) {  // it could not be had ahead: in the plain way, which tells why
    *error = {};
    std::lock_guard order(order_);
    if (Status status = begin(1, 0); !status) return status;
    if (Status status = send_frees(); !status) return status;
    if (Status status = ask(view, false, &sequence); !status) return status;
  }
  Frame frame;
  if (Status status = wait(sequence, keep_waiting, &frame, error); !status) {
    return why_not_read(buffer, std::move(status), error);
  }
  if (Status status = check_size(frame, packed); !status) return status;
  counters_.bytes_downloaded.fetch_add(packed, std::memory_order_relaxed);
  take(frame.attachment ? frame.attachment->bytes() : std::span<std::byte>());
  return {};
}

Status ClientImpl::synchronize(const KeepWaiting& keep_waiting, OpError* error) {
  if (abandoned_) return forked();
  uint64_t sequence;
  {
    std::lock_guard order(order_);
    if (Status status = begin(1, 0); !status) return status;
    if (Status status = send_frees(); !status) return status;
    builder_.Clear();
    builder_.Finish(wire::CreateSynchronize(builder_));
    if (Status status = send(wire::Type::kSynchronize, true, nullptr, &sequence); !status) return status;
  }
  Frame frame;
  OpError failures;
  Status status = wait(sequence, keep_waiting, &frame, &failures);
  if (!status && failures.status.ok()) return status;
  replies_.take_deferred(&failures);
  if (!failures.status) *error = failures;
  return failures.status;
}

Status ClientImpl::cancel() {
  if (abandoned_) return forked();
  if (Status status = health(); !status) return status;
  uint64_t through;
  {
    // Whoever holds it may wait for credits, which come soon: what is sent then is not to be dropped for sure.
    std::unique_lock order(order_, std::try_to_lock);
    through = order.owns_lock() ? sequence_ : replies_.last_sent();
  }
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateCancel(builder, through));
  return transport_->send(header(wire::Type::kCancel, 0, 0), {builder.GetBufferPointer(), builder.GetSize()}, nullptr);
}

Status ClientImpl::memory(const MemoryRequest& request, const KeepWaiting& keep_waiting, MemoryRoom* room) {
  if (abandoned_) return forked();
  uint64_t sequence;
  {
    std::lock_guard order(order_);
    if (Status status = begin(1, 0); !status) return status;
    if (Status status = send_frees(); !status) return status;
    builder_.Clear();
    wire::MemoryBuilder message(builder_);
    message.add_trim(request.trim);
    if (request.limit) message.add_limit(*request.limit);
    message.add_reset_peak(request.reset_peak);
    message.add_reset_totals(request.reset_totals);
    builder_.Finish(message.Finish());
    if (Status status = send(wire::Type::kMemory, true, nullptr, &sequence); !status) return status;
  }
  Frame frame;
  OpError none;  // such a reply has no error
  if (Status status = wait(sequence, keep_waiting, &frame, &none); !status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::MemoryReply>(frame.control.data());  // verified when it came
  *room = {reply->limit(), reply->free()};
  return {};
}

Status ClientImpl::has_op(std::string_view name, const KeepWaiting& keep_waiting, bool* known, OpError* error) {
  if (abandoned_) return forked();
  uint64_t sequence;
  {
    std::lock_guard order(order_);
    if (Status status = begin(1, 0); !status) return status;
    builder_.Clear();
    const auto text = builder_.CreateString(name.data(), name.size());
    builder_.Finish(wire::CreateHasOp(builder_, text));
    if (Status status = send(wire::Type::kHasOp, true, nullptr, &sequence); !status) return status;
  }
  Frame frame;
  if (Status status = wait(sequence, keep_waiting, &frame, error); !status) return status;
  const auto* reply = wire::verify<wire::HasOpReply>(frame.control);
  *known = reply->known();
  return {};
}

Status ClientImpl::profile(ProfileCommand command, uint64_t limit, const KeepWaiting& keep_waiting,
                           WorkerProfile* profile) {
  if (abandoned_) return forked();
  const uint64_t sent = monotonic_ns();
  Frame reply;
  const Status status = ask_profile(command, limit, keep_waiting, &reply);
  *profile = command == ProfileCommand::kStop ? replies_.take_profile() : WorkerProfile();
  if (!status) return status;
  decode_worker_clock(reply, sent, monotonic_ns(), profile);
  return append_worker_profile(reply, profile);
}

Status ClientImpl::ask_profile(ProfileCommand command, uint64_t limit, const KeepWaiting& keep_waiting, Frame* reply) {
  uint64_t sequence;
  {
    std::lock_guard order(order_);
    if (Status status = begin(1, 0); !status) return status;
    builder_.Clear();
    builder_.Finish(wire::CreateProfile(builder_, static_cast<wire::ProfileCommand>(command), limit));
    if (Status status = send(wire::Type::kProfile, true, nullptr, &sequence); !status) return status;
    if (command == ProfileCommand::kStart) replies_.start_profile(limit, sequence);
  }
  OpError none;  // such a reply has no error
  return wait(sequence, keep_waiting, reply, &none);
}

// --- counters --------------------------------------------------------------------------------------------------------

Counters ClientImpl::counters() const {
  Counters c;
  if (abandoned_) return c;
  const Replies::Totals totals = replies_.totals();
  std::lock_guard lock(base_mutex_);
  c.flushes = counters_.flushes;
  c.programs_built = counters_.programs_built;
  c.program_hits = counters_.program_hits;
  c.kernels_compiled = totals.kernels_compiled - base_.kernels_compiled;
  c.round_trips = counters_.round_trips;
  c.connections = counters_.connections;
  c.back_pressure_waits = totals.back_pressure_waits - base_.back_pressure_waits;
  c.bytes_sent = counters_.bytes_sent;
  c.bytes_received = totals.bytes_received - base_.bytes_received;
  c.bytes_uploaded = counters_.bytes_uploaded;
  c.bytes_downloaded = counters_.bytes_downloaded;
  c.worker_bytes = totals.memory.allocated.current;
  c.worker_peak_bytes = totals.memory.allocated.peak;
  return c;
}

void ClientImpl::reset_counters() {
  if (abandoned_) return;
  const Replies::Totals totals = replies_.totals();
  std::lock_guard lock(base_mutex_);
  base_ = totals;
  for (std::atomic<uint64_t>* counter :
       {&counters_.flushes, &counters_.programs_built, &counters_.program_hits, &counters_.round_trips,
        &counters_.connections, &counters_.bytes_sent, &counters_.bytes_uploaded, &counters_.bytes_downloaded}) {
    *counter = 0;
  }
}

}  // namespace

void Counters::add(const Counters& other) {
  flushes += other.flushes;
  programs_built += other.programs_built;
  program_hits += other.program_hits;
  kernels_compiled += other.kernels_compiled;
  round_trips += other.round_trips;
  connections += other.connections;
  back_pressure_waits += other.back_pressure_waits;
  bytes_sent += other.bytes_sent;
  bytes_received += other.bytes_received;
  bytes_uploaded += other.bytes_uploaded;
  bytes_downloaded += other.bytes_downloaded;
  worker_bytes += other.worker_bytes;
  worker_peak_bytes += other.worker_peak_bytes;
}

Status Client::connect(std::unique_ptr<Transport> transport, BuildFunction build, const KeepWaiting& keep_waiting,
                       std::unique_ptr<Client>* client) {
  auto made = std::make_unique<ClientImpl>(std::move(transport), std::move(build));
  if (Status status = made->hello(keep_waiting); !status) return status;
  *client = std::move(made);
  return {};
}

}  // namespace torch_remote::remote
