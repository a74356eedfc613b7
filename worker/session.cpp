#include "worker/session.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>

#include "remote/wire/delta.h"
#include "worker/runner/plugin_runner.h"

namespace torch_remote::worker {
namespace {

Status out_of_memory(uint64_t nbytes) {
  return {ErrorCode::kOutOfMemory,
          "remote: the worker has no memory left; tried to allocate " + std::to_string(nbytes) + " bytes",
          "OutOfMemoryError"};
}

tr_buffer borrowed(void* data, uint64_t nbytes) { return {data, nbytes, nullptr, nullptr}; }

void release(tr_buffer& buffer) {
  if (buffer.release) buffer.release(buffer.owner);
  buffer = {};
}

// Bytes of a view, packed; false if they are more than fit a number, or a size is negative.
bool packed_bytes(const ReadRequest& request, uint64_t* bytes) {
  uint64_t product = request.item_size;
  bool empty = false;
  for (const int64_t size : request.sizes) {
    if (size < 0) return false;
    empty |= size == 0;
    if (!empty && __builtin_mul_overflow(product, static_cast<uint64_t>(size), &product)) return false;
  }
  *bytes = empty ? 0 : product;
  return true;
}

// The view's elements lie inside `nbytes`. Torch has no negative strides.
bool inside(const ReadRequest& request, uint64_t nbytes) {
  if (std::ranges::any_of(request.strides, [](int64_t stride) { return stride < 0; })) return false;
  __int128 last = request.offset;
  for (size_t i = 0; i < request.sizes.size(); ++i) {
    if (request.sizes[i] == 0) return true;
    last += static_cast<__int128>(request.sizes[i] - 1) * request.strides[i];
  }
  return request.offset >= 0 && (last + 1) * request.item_size <= static_cast<__int128>(nbytes);
}

bool is_packed(const ReadRequest& request) {
  int64_t expected = 1;
  for (size_t i = request.sizes.size(); i-- > 0;) {
    if (request.sizes[i] == 1) continue;
    if (request.strides[i] != expected) return false;
    expected *= request.sizes[i];  // fits: packed_bytes has looked
  }
  return true;
}

bool valid_item_size(uint32_t size) { return size == 1 || size == 2 || size == 4 || size == 8 || size == 16; }

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

constexpr size_t kMaxUntold = 64;
constexpr uint64_t kLookEvery = 2'000'000;  // ns of a run
// Buffers are charged so many at a time, but for the first ones, each with what it takes beside its contents.
constexpr size_t kChargedAtOnce = 4096;
constexpr uint64_t kPerBuffer = 256;

bool untold(const FailurePtr& failure) { return failure && !failure->told; }

// Of two that the client does not know, the earlier.
FailurePtr earlier(const FailurePtr& a, const FailurePtr& b) {
  if (!untold(a)) return b;
  return untold(b) && b->number < a->number ? b : a;
}

// Of a node that failed.
Failure failure_of(const LoadedProgram& program, const std::vector<int64_t>& values, uint32_t index,
                   const Status& status, uint64_t sequence) {
  const ir::Node& node = program.graph.nodes[index];
  const std::string message = status.message() + " [" + describe_node(program.graph, node, values) + "]";
  bool check = true;
  ir::for_each_view(node, [&](uint32_t, bool writes) { check = check && !writes; });
  return {{status.code(), message, status.kind()}, program.number, node.source, sequence, check};
}

}  // namespace

Memory::Memory(void* data, uint64_t nbytes, std::shared_ptr<void> keep, CachingAllocator* counted)
    : data_(data), nbytes_(nbytes), keep_(std::move(keep)), counted_(counted) {
  counted_->add_external(nbytes_);
}

Memory::~Memory() {
  if (buffer_.release) buffer_.release(buffer_.owner);
  if (counted_) counted_->remove_external(nbytes_);
}

// One run, while it goes on.
struct Session::Run {
  // Whatever it still has, if it ends early.
  ~Run() {
    for (tr_buffer& buffer : buffers) release(buffer);
    release(arena);
  }

  LoadedProgram& program;
  const RunRequest& request;
  std::vector<int64_t>* words;
  size_t words_used = 0;
  std::vector<tr_buffer> buffers = {};  // of the graph. With an owner: to be kept or released by the run
  std::vector<FailurePtr> poison = {};  // of the graph's buffers; empty while there is none
  std::vector<FailurePtr> behind = {};  // likewise: which update they lack
  std::vector<FailurePtr> after = {};   // likewise: which failed check they come after
  std::vector<std::vector<Kept>> kept = {};
  FailurePtr check = nullptr;      // everything that is written now comes after this failed check
  FailurePtr cancelled = nullptr;  // the rest of it
  uint64_t since_look = 0;         // ns of work, without looking whether it is
  tr_buffer arena{};
  FailurePtr failure = nullptr;            // of the last node: it did not run, or its operands are behind
  uint32_t next = 0;                       // the node to go on with
  bool aliased = false;                    // one buffer is bound twice, which no client of ours does
  std::vector<InFlight::Call> calls = {};  // of a profile, while an asynchronous device does them

  void set_poison(uint32_t buffer, const FailurePtr& reason) {
    if (poison.empty()) poison.resize(buffers.size());
    if (!poison[buffer]) poison[buffer] = reason;
  }
  FailurePtr poison_of(uint32_t buffer) const { return poison.empty() ? nullptr : poison[buffer]; }
  void add_behind(uint32_t buffer, const FailurePtr& reason) {
    if (behind.empty()) behind.resize(buffers.size());
    behind[buffer] = earlier(behind[buffer], reason);
  }
  FailurePtr behind_of(uint32_t buffer) const { return behind.empty() ? nullptr : behind[buffer]; }
  void add_after(uint32_t buffer, const FailurePtr& check) {
    if (after.empty()) after.resize(buffers.size());
    after[buffer] = earlier(after[buffer], check);
  }
  FailurePtr after_of(uint32_t buffer) const { return after.empty() ? nullptr : after[buffer]; }
  std::vector<Kept>& kept_of(uint32_t buffer) {
    if (kept.empty()) kept.resize(buffers.size());
    return kept[buffer];
  }
};

Session::Session(Device* device, const Runners* runners)
    : device_(device), runners_(runners), memory_(&device->memory()) {}

Session::~Session() { memory_->discharge(counted_ * kPerBuffer); }

// Counted against the limit as long as somebody has it.
FailurePtr Session::make_failure(Failure failure) const {
  const uint64_t bytes = 2 * sizeof(Failure) + failure.status.message().size();
  auto shared = std::make_unique<Failure>(std::move(failure));
  memory_->charge_anyway(bytes);
  return {shared.release(), [memory = memory_, bytes](Failure* failure) {
            memory->discharge(bytes);
            delete failure;
          }};
}

Status Session::within_limit() {
  while (buffers_.size() > counted_ + kChargedAtOnce) {
    counted_ += kChargedAtOnce;
    memory_->charge_anyway(kChargedAtOnce * kPerBuffer);
  }
  if (!memory_->overcharged()) return {};
  return {ErrorCode::kOutOfMemory, "remote: the client has " + std::to_string(buffers_.size()) + " buffers and " +
                                       std::to_string(programs_.size()) +
                                       " programs, more than the session's limit has room for"};
}

FailurePtr Session::note(Failure failure) {
  FailurePtr shared = make_failure(std::move(failure));
  shared->number = ++failures_;
  if (untold_.size() < kMaxUntold) {
    untold_.push_back(shared);
  } else {
    ++forgotten_;
  }
  if (shared->check && !untold(check_)) check_ = shared;
  return shared;
}

FailurePtr Session::announce() {
  for (const FailurePtr& failure : untold_) {
    if (!std::exchange(failure->announced, true)) return failure;
  }
  return nullptr;
}

void Session::tell(const FailurePtr& failure) {
  failure->told = true;
  std::erase(untold_, failure);
  if (kept_.empty()) return;
  const auto first = std::ranges::find_if(untold_, [](const FailurePtr& f) { return !f->check; });
  const uint64_t number = first == untold_.end() ? std::numeric_limits<uint64_t>::max() : (*first)->number;
  for (auto& [id, kept] : kept_) std::erase_if(kept, [&](const Kept& k) { return k.failure < number; });
  std::erase_if(kept_, [](const auto& of_buffer) { return of_buffer.second.empty(); });
}

// The number of the last failure that the client does not know and that is no check's; 0: none.
uint64_t Session::last_untold() const {
  for (size_t i = untold_.size(); i-- > 0;) {
    if (!untold_[i]->check) return untold_[i]->number;
  }
  return 0;
}

std::vector<FailurePtr> Session::take_failures(uint64_t* more) {
  *more = std::exchange(forgotten_, 0);
  return std::exchange(untold_, {});
}

void Session::put(uint64_t id, Entry entry) {
  if (id != 0) buffers_[id] = std::move(entry);
}

void Session::erase_freed() {
  for (const uint64_t id : frees_) buffers_.erase(id);
  if (kept_.empty()) return;
  for (const uint64_t id : frees_) kept_.erase(id);
}

void Session::load_program(uint32_t number, std::span<const std::byte> bytes, bool tune) {
  if (profile_) profile_->forget(number);
  std::shared_ptr<LoadedProgram>& program = programs_[number];
  program = nullptr;  // its memory
  program = worker::load_program(number, *runners_, memory_, bytes, tune);
}

const LoadedProgram* Session::find_program(uint32_t number) const {
  const auto found = programs_.find(number);
  return found != programs_.end() && found->second->decoded ? found->second.get() : nullptr;
}

Status Session::upload(uint64_t id, std::span<std::byte> bytes, std::shared_ptr<void> keep) {
  if (id == 0) return Status::invalid("remote: an upload names no buffer");
  if (device_->adopts() && !bytes.empty()) {
    auto memory = std::make_shared<Memory>(bytes.data(), bytes.size(), std::move(keep), memory_);
    if (memory_->over_limit()) return upload_failed(id, bytes.size());
    put(id, {std::move(memory), nullptr, nullptr});
    return {};
  }
  tr_buffer copy{};
  if (!memory_->allocate(bytes.size(), &copy)) return upload_failed(id, bytes.size());
  device_->copy_in(copy.data, bytes, std::move(keep));
  put(id, {std::make_shared<Memory>(copy), nullptr, nullptr});
  return {};
}

Status Session::upload_failed(uint64_t id, uint64_t nbytes) {
  put(id, {std::make_shared<Memory>(nbytes),
           note({{ErrorCode::kOutOfMemory,
                  "remote: the worker has no memory left for an upload of " + std::to_string(nbytes) + " bytes",
                  "OutOfMemoryError"},
                 0,
                 0,
                 0}),
           nullptr});
  return {};
}

Status Session::free(std::span<const uint8_t> bytes) {
  frees_.clear();
  Status status = remote::decode_frees(bytes, &frees_);
  if (!status.ok()) return status;
  erase_freed();
  return {};
}

FailurePtr Session::no_such_buffer(uint64_t id, uint64_t sequence) const {
  if (undecoded_failure_ && id >= undecoded_base_) return undecoded_failure_;
  return make_failure({Status::invalid("remote: the worker has no buffer " + std::to_string(id)), 0, 0, sequence});
}

// -- running
// ------------------------------------------------------------------------------------------------------------

// Null without an error: the program could not be decoded.
Status Session::decode(const RunRequest& request, LoadedProgram** program) {
  *program = nullptr;
  const auto found = programs_.find(request.program);
  if (found == programs_.end()) {
    return Status::invalid("remote: a run names program " + std::to_string(request.program) + ", which was not sent");
  }
  LoadedProgram& loaded = *found->second;
  frees_.clear();
  Status status = remote::decode_frees(request.frees, &frees_);
  if (!status.ok() || !loaded.decoded) return status;
  bool changed = false;
  status = remote::decode_params(request.params, loaded.params, &changed);
  if (status.ok()) status = remote::decode_bindings(request.bindings, request.base, loaded.bindings);
  if (!status.ok()) return status;
  if (changed) loaded.evaluated = false;
  *program = &loaded;
  return {};
}

Status Session::run(const RunRequest& request, std::vector<int64_t>* words, FailurePtr* failure) {
  words->clear();
  *failure = nullptr;
  LoadedProgram* program = nullptr;
  Status status = decode(request, &program);
  if (!status.ok()) return status;
  if (program == nullptr) {
    *failure = note({programs_[request.program]->status, request.program, 0, request.sequence});
    undecoded_failure_ = *failure;
    undecoded_base_ = request.base;
    erase_freed();
    return {};
  }
  try {
    run_decoded(*program, request, words, failure);
  } catch (const std::bad_alloc&) {  // of what this process itself needs; all of that is free again
    words->clear();
    drop(*program, request,
         note({{ErrorCode::kOutOfMemory, "remote: the worker has no memory left to run a program", "OutOfMemoryError"},
               program->number,
               0,
               request.sequence}),
         failure);
  }
  erase_freed();
  return {};
}

void Session::run_decoded(LoadedProgram& program, const RunRequest& request, std::vector<int64_t>* words,
                          FailurePtr* failure) {
  update_steps(program, *runners_);
  Run run{program, request, words};
  run.buffers.resize(program.graph.buffers.size());
  run.check = pending_check();
  bind_inputs(run);
  if (!program.status.ok()) {
    fail_all(run, note({program.status, program.number, 0, request.sequence}));
  } else if (const Status status = prepare(run); !status.ok()) {
    fail_all(run, note({status, program.number, 0, request.sequence}));
  } else {
    words->resize(program.words);
    unshare_written(run);
    const bool careful = !run.poison.empty() || !run.behind.empty() || (last_untold() != 0 && program.updates);
    if (careful || !allocate_arena(run) || !execute(run)) execute_one_by_one(run);
    note_in_flight(run);
  }
  finish(run);
  words->resize(run.words_used);
  *failure = run.failure;
}

// A run of which nothing is done.
void Session::drop(LoadedProgram& program, const RunRequest& request, const FailurePtr& why, FailurePtr* failure) {
  Run run{program, request, nullptr};
  run.buffers.resize(program.graph.buffers.size());
  bind_inputs(run);
  fail_all(run, why);
  finish(run);
  *failure = run.failure;
}

Status Session::run_cancelled(const RunRequest& request, FailurePtr* failure) {
  *failure = nullptr;
  LoadedProgram* program = nullptr;
  Status status = decode(request, &program);
  if (!status.ok()) return status;
  if (program != nullptr) drop(*program, request, cancellation(request.sequence), failure);
  erase_freed();
  return {};
}

// Whoever asked for it knows it.
FailurePtr Session::cancellation(uint64_t sequence) {
  FailurePtr failure = make_failure(
      {{ErrorCode::kOpFailed, "remote: cancelled by torch.remote.cancel()", "RuntimeError"}, 0, 0, sequence});
  failure->number = ++failures_;
  failure->told = true;
  return failure;
}

// The first failed check that the client does not know.
FailurePtr Session::pending_check() {
  if (check_ && check_->told) {
    const auto next = std::ranges::find_if(untold_, [](const FailurePtr& f) { return f->check; });
    check_ = next != untold_.end() ? *next : nullptr;
  }
  return check_;
}

void Session::bind_inputs(Run& run) {
  const LoadedProgram& program = run.program;
  ++run_count_;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const uint32_t b = program.inputs[i];
    const uint64_t id = program.bindings.ids[i];
    const Entry* entry = buffers_.find(id);
    if (!entry) {
      run.buffers[b].nbytes = kUnknownSize;
      FailurePtr failure = no_such_buffer(id, run.request.sequence);
      run.set_poison(b, failure == undecoded_failure_ ? failure : note(*failure));
      continue;
    }
    run.buffers[b] = borrowed(entry->memory->data(), entry->memory->nbytes());
    run.aliased |= !entry->memory->bind(run_count_);
    if (entry->poisoned()) {
      run.set_poison(b, entry->failure);
      continue;
    }
    if (untold(entry->failure)) run.add_behind(b, entry->failure);
    if (untold(entry->check)) run.add_after(b, entry->check);
    if (kept_.empty()) continue;
    if (auto kept = kept_.extract(id)) run.kept_of(b) = std::move(kept.mapped());
  }
}

// Values of the symbols, sizes of the buffers, places in the arena: as far as they are not those of the last run.
Status Session::prepare(Run& run) {
  LoadedProgram& program = run.program;
  const ir::Graph& graph = program.graph;
  if (!program.evaluated) {
    Status status = ir::evaluate(graph, program.params.data(), &program.values);
    if (!status.ok()) return status;
    program.evaluated = true;
    program.placed = false;
    for (LoadedProgram::Loaded& loaded : program.loaded) loaded.is_current = false;
  }
  nbytes_.resize(graph.buffers.size());
  for (size_t b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].kind == ir::BufferKind::kInput) {
      nbytes_[b] = run.buffers[b].nbytes;
    } else {
      const int64_t size = graph.buffers[b].nbytes == ir::kNoSym ? 0 : program.values[graph.buffers[b].nbytes];
      if (size < 0) return Status::invalid("remote: the run gives a buffer " + std::to_string(size) + " bytes");
      nbytes_[b] = static_cast<uint64_t>(size);
    }
  }
  if (program.placed && nbytes_ == program.nbytes) return {};
  program.placed = false;
  Status status = ir::check_extents(graph, program.values, nbytes_);
  if (!status.ok()) return status;
  place(graph, program.lifetimes, program.in_arena, nbytes_, &program.layout);
  program.nbytes = nbytes_;
  find_stages(program);
  program.placed = true;
  return {};
}

// An input that the program writes while the client reads its memory gets memory of its own.
void Session::unshare_written(Run& run) {
  const LoadedProgram& program = run.program;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const uint32_t b = program.inputs[i];
    if (!program.written[b] || !run.buffers[b].data) continue;
    Entry& entry = *buffers_.find(program.bindings.ids[i]);
    if (entry.memory.use_count() == 1) continue;
    tr_buffer copy{};
    if (!memory_->allocate(entry.memory->nbytes(), &copy)) {
      run.set_poison(b, note({out_of_memory(entry.memory->nbytes()), program.number, 0, run.request.sequence}));
      continue;
    }
    device_->copy(copy.data, entry.memory->data(), entry.memory->nbytes());
    entry.memory = std::make_shared<Memory>(copy);
    run.buffers[b] = borrowed(copy.data, copy.nbytes);
  }
}

// Memory for the temporaries that the runner does not make itself. False if there is not enough.
bool Session::allocate_arena(Run& run) {
  const LoadedProgram& program = run.program;
  const Layout& layout = program.layout;
  if (layout.size == Layout::kNotThere || !memory_->allocate(layout.size, &run.arena, Reach::kOwn)) return false;
  for (size_t b = 0; b < run.buffers.size(); ++b) {
    if (layout.offsets[b] == Layout::kNotThere) continue;
    run.buffers[b] = borrowed(static_cast<std::byte*>(run.arena.data) + layout.offsets[b], program.nbytes[b]);
  }
  return true;
}

// The fast way: stage by stage. False if a node failed or memory ran out; run.next is then the node to go on with.
bool Session::execute(Run& run) {
  const LoadedProgram& program = run.program;
  for (const Stage& stage : program.stages) {
    for (const uint32_t b : stage.allocate) {
      if (!memory_->allocate(program.nbytes[b], &run.buffers[b])) return false;
    }
    if (stage.first != stage.last && !call_in_pieces(run, stage.first, stage.last)) return false;
    if (run.aliased || &stage == &program.stages.back()) continue;
    for (const uint32_t i : stage.release) {
      buffers_.erase(program.bindings.ids[i]);
      run.buffers[program.inputs[i]] = {};
    }
  }
  return true;
}

// As many nodes at once as take some milliseconds, so that a cancellation is seen in time. A program that takes less is
// run as a whole from its second run on.
bool Session::call_in_pieces(Run& run, uint32_t first, uint32_t last) {
  uint32_t& piece = run.program.piece;
  while (last - first > piece) {
    const uint64_t began = now_ns();
    const uint32_t end = next_cut(run.program, first + piece);
    if (!call(run, first, end)) return false;
    if (end == last) return true;
    first = end;
    const uint64_t took = now_ns() - began;
    run.since_look += took;
    if (took < kLookEvery / 2) piece *= 2;
    if (took > 2 * kLookEvery) piece = std::max(piece / 2, 1u);
    if (run.since_look < kLookEvery) continue;
    run.since_look = 0;
    if (look(run)) return false;
  }
  const uint64_t began = last - first > 8 ? now_ns() : 0;
  const bool good = call(run, first, last);
  if (began != 0 && now_ns() - began > 4 * kLookEvery) piece = std::max(piece / 2, 8u);
  return good;
}

// Whether the rest of the run is to be dropped.
bool Session::look(Run& run) {
  if (cancelled_ && cancelled_(run.request.sequence)) run.cancelled = cancellation(run.request.sequence);
  return run.cancelled != nullptr;
}

// Runs nodes [first, last). False if one failed: run.next is then the one after it.
bool Session::call(Run& run, uint32_t first, uint32_t last) {
  const LoadedProgram& program = run.program;
  uint64_t* const times = profile_ ? times_of(run, first, last) : nullptr;
  error_.struct_size = sizeof(error_);
  error_.node = first;
  bool good = true;
  if (last - first == 1) {
    good = call_runner(run, program.alone[first], first, last, times);
  } else {
    auto step = std::ranges::upper_bound(program.steps, first, {}, &Step::first) - 1;
    for (uint32_t n = first; good && n < last; ++step) {
      const uint32_t end = std::min(step->last, last);
      good = call_runner(run, step->runner, n, end, times ? times + (n - first) : nullptr);
      if (good) n = end;
    }
  }
  if (profile_ && !device_->asynchronous()) profile_->ops(program, program.values, run.request.sequence, first, last);
  const uint32_t end = good ? last : std::clamp(error_.node, first, last - 1);
  if (!run.after.empty() || run.check) pass_on(run, first, end);
  run.next = last;
  if (good) return true;
  run.next = end + 1;
  const FailurePtr failure = note(failure_of(program, program.values, end, runner_error(error_), run.request.sequence));
  skip(run, end, failure);
  if (failure->check && !run.check) run.check = failure;
  if (failure->check) doubt_made_with(run, end, failure);
  return false;
}

// Has one runner do nodes [first, last), all of them its own.
bool Session::call_runner(Run& run, uint32_t runner, uint32_t first, uint32_t last, uint64_t* times) {
  LoadedProgram::Loaded& loaded = run.program.loaded[runner];
  tr_run call{};
  call.struct_size = sizeof(call);
  call.symbols = run.program.values.data();
  call.symbols_changed = !loaded.is_current;
  call.first = first;
  call.last = last;
  call.buffers = run.buffers.data();
  call.buffer_count = static_cast<uint32_t>(run.buffers.size());
  call.words = run.words->data() + run.words_used;
  call.word_capacity = static_cast<uint32_t>(run.words->size() - run.words_used);
  call.times = times;
  call.number = run_count_;
  const bool good = loaded.program->run(call, &error_);
  loaded.is_current = true;
  run.words_used += call.word_count;
  return good;
}

// -- work that is queued
// ------------------------------------------------------------------------------------------------------------

// Where a runner puts the times of nodes [first, last).
uint64_t* Session::times_of(Run& run, uint32_t first, uint32_t last) {
  if (!device_->asynchronous()) return profile_->times(last - first);
  run.calls.push_back({first, last, std::vector<uint64_t>(last - first + 1)});
  return run.calls.back().times.data();
}

// What the run has queued may still fail.
void Session::note_in_flight(Run& run) {
  if (!device_->asynchronous()) return;
  const LoadedProgram& program = run.program;
  in_flight_.add({device_->record(), run_count_, run.request.sequence, programs_[program.number], program.values,
                  nbytes_, program.bindings.ids, run.request.base, std::move(run.calls), run.request.answered,
                  nullptr});
}

FailurePtr Session::take_late_failure(uint64_t sequence) {
  const auto found = late_failures_.extract(sequence);
  return found ? found.mapped() : nullptr;
}

void Session::settle() {
  if (in_flight_.empty()) return;
  const size_t done = in_flight_.count_done(*device_);  // before their failures are taken, so that all are there
  for (const LateFailure& late : device_->take_failures()) {
    const InFlight::Run* run = in_flight_.find(late.run);
    if (!run) continue;
    const uint32_t index = std::min(late.node, static_cast<uint32_t>(run->program->graph.nodes.size()) - 1);
    const FailurePtr failure = note(failure_of(*run->program, run->values, index, late.error, run->sequence));
    for (const uint64_t id : in_flight_.spread(late.run, index, failure)) {
      Entry* entry = buffers_.find(id);
      if (!entry || entry->poisoned()) continue;
      kept_.erase(id);
      *entry = {std::make_shared<Memory>(entry->memory->nbytes()), failure, nullptr};
    }
  }
  in_flight_.forget(done, [this](const InFlight::Run& run) {
    if (run.failure && run.answered) late_failures_[run.sequence] = run.failure;
    if (!profile_) return;
    for (const InFlight::Call& call : run.calls) {
      if (call.times.empty()) continue;
      std::ranges::copy(call.times, profile_->times(call.last - call.first));
      profile_->ops(*run.program, run.values, run.sequence, call.first, call.last);
    }
  });
}

// The check at node `index` failed. What it looked at may have been made together with something else (a factorization
// and the number that tells whether it is one): that, and what was made of it since, comes after the check, too.
void Session::doubt_made_with(Run& run, uint32_t index, const FailurePtr& failure) {
  const ir::Graph& graph = run.program.graph;
  std::vector<bool> looked_at(graph.buffers.size()), doubtful(graph.buffers.size());
  ir::for_each_access(graph.nodes[index],
                      [&](uint32_t view, ir::Access) { looked_at[graph.views[view].buffer] = true; });
  for (uint32_t n = 0; n < index; ++n) {
    bool doubt = false;
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      doubt = doubt || doubtful[b] || (access == ir::Access::kCreates && looked_at[b]);
    });
    if (!doubt) continue;
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (access == ir::Access::kReads || looked_at[b]) return;
      doubtful[b] = true;
      run.add_after(b, failure);
    });
  }
}

// The slow way: node by node, past those that read what is not there. Temporaries are freed as soon as they are dead,
// and what has no memory yet gets it when it is needed, so that a program that does not fit at once may still run.
void Session::execute_one_by_one(Run& run) {
  const LoadedProgram& program = run.program;
  const ir::Graph& graph = program.graph;
  uint64_t looked = now_ns();
  for (uint32_t n = run.next; n < graph.nodes.size(); ++n) {
    if (!run.cancelled && now_ns() - looked > kLookEvery) {
      look(run);
      looked = now_ns();
    }
    if (const FailurePtr failure = run.cancelled ? run.cancelled : blocked(run, n)) {
      skip(run, n, failure);
    } else {
      call_and_repair(run, n);
    }
    for (const uint32_t b : program.dead_after[n]) release(run.buffers[b]);
  }
}

// -- what a failure leaves
// ------------------------------------------------------------------------------------------------------------

// The earliest failure of what the node needs and is not there; null: it can run.
FailurePtr Session::blocked(const Run& run, uint32_t index) const {
  if (run.poison.empty() && run.behind.empty()) return nullptr;
  const ir::Graph& graph = run.program.graph;
  FailurePtr first;
  ir::for_each_access(graph.nodes[index], [&](uint32_t view, ir::Access) {
    const uint32_t b = graph.views[view].buffer;
    FailurePtr failure = run.poison_of(b);
    if (!failure && untold(run.behind_of(b))) failure = run.behind[b];
    if (!failure || (first && first->number <= failure->number) || covers(run, index, b)) return;
    first = failure;
  });
  return first;
}

// The node overwrites all of the buffer and reads nothing of it.
bool Session::covers(const Run& run, uint32_t index, uint32_t buffer) const {
  return overwrites_all(run.program.graph, run.program.values, nbytes_[buffer], index, buffer);
}

// False if there is none; that is noted.
bool Session::give_memory(Run& run, uint32_t buffer) {
  tr_buffer& memory = run.buffers[buffer];
  if (memory.data) return true;
  uint64_t nbytes = nbytes_[buffer];
  if (nbytes == kUnknownSize) nbytes = reach(run.program.graph, run.program.values, buffer);
  if (memory_->allocate(nbytes, &memory)) return true;
  memory = {nullptr, nbytes_[buffer], nullptr, nullptr};
  return false;
}

// Runs a node. What it overwrites is good if it succeeds.
void Session::call_and_repair(Run& run, uint32_t index) {
  const ir::Graph& graph = run.program.graph;
  const ir::Node& node = graph.nodes[index];
  bool memory = true;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    const uint32_t b = graph.views[view].buffer;
    if (!memory || !run.poison_of(b) || give_memory(run, b)) return;
    memory = false;
    skip(run, index, note({out_of_memory(nbytes_[b]), run.program.number, node.source, run.request.sequence}));
  });
  if (!memory) return;
  if (const uint64_t failure = last_untold()) keep(run, index, failure);
  if (!call(run, index, index + 1)) return;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    const uint32_t b = graph.views[view].buffer;
    if (!run.poison.empty()) run.poison[b] = nullptr;
    if (!run.behind.empty()) run.behind[b] = nullptr;
  });
}

// The node is about to write, after this failure: copies of what that takes the place of, for put_back().
void Session::keep(Run& run, uint32_t index, uint64_t failure) {
  const LoadedProgram& program = run.program;
  const ir::Graph& graph = program.graph;
  const ir::Node& node = graph.nodes[index];
  const auto keep_one = [&](uint32_t older, uint32_t newer) {
    std::vector<Kept>& kept = run.kept_of(newer);
    if (kept.empty() || kept.back().failure < failure) kept.push_back(copy_of(run, older, failure));
  };
  if (node.in_place) {
    const uint32_t from = graph.views[node.args[0].a].buffer, to = graph.views[node.results[0].a].buffer;
    if (!program.outlives[to]) return;
    run.kept_of(to) = std::move(run.kept_of(from));
    return keep_one(from, to);
  }
  ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
    const uint32_t b = graph.views[view].buffer;
    const bool writes = access == ir::Access::kUpdates || access == ir::Access::kOverwrites;
    const bool makes = graph.buffers[b].kind == ir::BufferKind::kFresh && program.lifetimes[b].first == index;
    if (writes && !makes && program.outlives[b]) keep_one(b, b);
  });
}

// Without memory if that leaves the program not as much again.
Session::Kept Session::copy_of(const Run& run, uint32_t buffer, uint64_t failure) {
  Kept kept{failure, nullptr, run.behind_of(buffer)};
  const uint64_t nbytes = nbytes_[buffer], used = memory_->stats().allocated.current, limit = memory_->limit();
  tr_buffer copy{};
  if (run.poison_of(buffer) || !run.buffers[buffer].data || used > limit || nbytes > (limit - used) / 2 ||
      !memory_->allocate(nbytes, &copy, Reach::kOwn)) {
    return kept;
  }
  device_->copy(copy.data, run.buffers[buffer].data, nbytes);
  kept.memory = std::make_shared<Memory>(copy);
  return kept;
}

// An update is skipped for this failure: the buffer is again what it was when that happened.
void Session::put_back(Run& run, uint32_t buffer, const FailurePtr& failure) {
  if (run.kept.empty() || !untold(failure)) return;
  std::vector<Kept>& kept = run.kept[buffer];
  const auto first = std::ranges::find_if(kept, [&](const Kept& k) { return k.failure >= failure->number; });
  if (first == kept.end()) return;
  if (first->memory) {
    device_->copy(run.buffers[buffer].data, first->memory->data(), first->memory->nbytes());
    run.add_behind(buffer, first->behind);
  }
  kept.erase(first, kept.end());
}

// The node does not run. What it would have made is poisoned; what it would have written keeps what it had.
void Session::skip(Run& run, uint32_t index, const FailurePtr& failure) {
  const LoadedProgram& program = run.program;
  const ir::Node& node = program.graph.nodes[index];
  if (index + 1 == program.graph.nodes.size()) run.failure = failure;
  if (node.in_place) return keep_older_value(run, index, failure);
  ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
    const uint32_t b = program.graph.views[view].buffer;
    if (access == ir::Access::kReads || run.poison_of(b)) return;
    if (program.graph.buffers[b].kind == ir::BufferKind::kFresh && program.lifetimes[b].first == index) {
      run.set_poison(b, failure);
    } else {
      put_back(run, b, failure);
      run.add_behind(b, failure);
      ++failure->skipped;
    }
  });
}

// The older value's bytes become those of the buffer that holds the newer one.
void Session::keep_older_value(Run& run, uint32_t index, const FailurePtr& failure) {
  const ir::Graph& graph = run.program.graph;
  const ir::Node& node = graph.nodes[index];
  const uint32_t from = graph.views[node.args[0].a].buffer, to = graph.views[node.results[0].a].buffer;
  if (const FailurePtr poison = run.poison_of(from)) return run.set_poison(to, poison);
  if (!give_memory(run, to)) {
    return run.set_poison(to,
                          note({out_of_memory(nbytes_[to]), run.program.number, node.source, run.request.sequence}));
  }
  if (run.buffers[to].data != run.buffers[from].data) {
    device_->copy(run.buffers[to].data, run.buffers[from].data, std::min(nbytes_[to], nbytes_[from]));
  }
  run.add_after(to, run.after_of(from));
  run.add_behind(to, run.behind_of(from));
  if (!run.kept.empty()) run.kept[to] = std::move(run.kept[from]);
  put_back(run, to, failure);
  run.add_behind(to, failure);
  ++failure->skipped;
}

// Nodes [first, last) ran: what they wrote comes after the checks that their operands came after.
void Session::pass_on(Run& run, uint32_t first, uint32_t last) const {
  const ir::Graph& graph = run.program.graph;
  if (run.after.empty()) run.after.resize(run.buffers.size());
  for (uint32_t n = first; n < last; ++n) {
    FailurePtr check = run.check;
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      if (access == ir::Access::kReads || access == ir::Access::kUpdates) {
        check = earlier(check, run.after[graph.views[view].buffer]);
      }
    });
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (access == ir::Access::kReads) return;
      if (access == ir::Access::kCreates || covers(run, n, b)) {
        run.after[b] = check;
      } else {
        run.after[b] = earlier(run.after[b], check);
      }
    });
    if (n + 1 == graph.nodes.size() && untold(check)) run.failure = check;
  }
}

// Nothing ran.
void Session::fail_all(Run& run, const FailurePtr& failure) {
  LoadedProgram& program = run.program;
  const ir::Graph& graph = program.graph;
  const bool sized = program.evaluated || ir::evaluate(graph, program.params.data(), &program.values).ok();
  nbytes_.assign(graph.buffers.size(), kUnknownSize);
  for (uint32_t b = 0; sized && b < graph.buffers.size(); ++b) {
    const int64_t size = graph.buffers[b].nbytes == ir::kNoSym ? -1 : program.values[graph.buffers[b].nbytes];
    if (size >= 0) nbytes_[b] = static_cast<uint64_t>(size);
  }
  program.nbytes = nbytes_;
  program.placed = false;
  for (const uint32_t b : program.survivors) run.set_poison(b, failure);
  for (const ir::Node& node : graph.nodes) {
    ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (access == ir::Access::kReads || graph.buffers[b].kind != ir::BufferKind::kInput || run.poison_of(b)) return;
      run.add_behind(b, failure);
      ++failure->skipped;
    });
  }
  run.failure = failure;
}

void Session::finish(Run& run) {
  const LoadedProgram& program = run.program;
  const auto keep_on = [&](uint64_t id, uint32_t b) {
    if (!run.kept.empty() && !run.kept[b].empty()) kept_[id] = std::move(run.kept[b]);
  };
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const uint32_t b = program.inputs[i];
    const uint64_t id = program.bindings.ids[i];
    if (!program.graph.buffers[b].survives) {
      buffers_.erase(id);
      continue;
    }
    Entry* entry = buffers_.find(id);
    if (run.buffers[b].owner && !run.poison_of(b)) {  // repaired
      put(id, {std::make_shared<Memory>(run.buffers[b]), run.behind_of(b), run.after_of(b)});
      run.buffers[b] = {};
    } else if (entry && !entry->poisoned()) {
      // (Poisoned in this run only if it could not be written to.)
      if (run.poison_of(b)) {
        entry->failure = run.poison_of(b);
      } else if (!run.behind.empty()) {
        entry->failure = run.behind[b];
      }
      if (!run.after.empty()) entry->check = run.after[b];
    }
    keep_on(id, b);
  }
  for (size_t k = 0; k < program.survivors.size(); ++k) {
    const uint32_t b = program.survivors[k];
    FailurePtr failure = run.poison_of(b);
    if (!failure && !run.buffers[b].data && !memory_->allocate(program.nbytes[b], &run.buffers[b])) {
      failure = note({out_of_memory(program.nbytes[b]), program.number, 0, run.request.sequence});
    }
    if (failure) {
      release(run.buffers[b]);
      put(run.request.base + k, {std::make_shared<Memory>(program.nbytes[b]), std::move(failure), nullptr});
    } else {
      put(run.request.base + k, {std::make_shared<Memory>(run.buffers[b]), run.behind_of(b), run.after_of(b)});
      run.buffers[b] = {};
      keep_on(run.request.base + k, b);
    }
  }
  for (tr_buffer& buffer : run.buffers) release(buffer);
  release(run.arena);
}

// -- reading
// ------------------------------------------------------------------------------------------------------------

FailurePtr Session::locate(const ReadRequest& request, uint64_t sequence, Located* located) {
  const auto refuse = [&](std::string message) {
    return std::make_shared<Failure>(Failure{Status::invalid(std::move(message)), 0, 0, sequence});
  };
  const Entry* entry = buffers_.find(request.buffer);
  if (!entry) return no_such_buffer(request.buffer, sequence);
  if (entry->poisoned()) return entry->failure;
  if (const FailurePtr failure = earlier(entry->failure, entry->check); untold(failure)) return failure;
  if (!valid_item_size(request.item_size) || request.sizes.size() != request.strides.size() ||
      request.sizes.size() > ir::kMaxRank || !packed_bytes(request, &located->nbytes)) {
    return refuse("remote: a read has sizes that make no sense");
  }
  if (located->nbytes != 0 && !inside(request, entry->memory->nbytes())) {
    return refuse("remote: a read reaches beyond buffer " + std::to_string(request.buffer) + " of " +
                  std::to_string(entry->memory->nbytes()) + " bytes");
  }
  if (!kept_.empty()) kept_.erase(request.buffer);
  located->data = static_cast<const std::byte*>(entry->memory->data());
  if (located->nbytes != 0) located->data += request.offset * request.item_size;
  located->packed = located->nbytes == 0 || is_packed(request);
  located->keep = entry->memory;
  return nullptr;
}

std::shared_ptr<QueuedRead> Session::copy_out(const ReadRequest& request, const Located& located,
                                              std::span<std::byte> destination, std::shared_ptr<void> keep) {
  if (located.nbytes != 0) {
    device_->copy_out({located.data, request.item_size, request.sizes, request.strides}, destination.data(),
                      std::move(keep));
  }
  if (!device_->asynchronous()) return nullptr;
  auto read = std::make_shared<QueuedRead>(QueuedRead{request.buffer, nullptr});
  in_flight_.add(device_->record(), read);
  return read;
}

}  // namespace torch_remote::worker
