#include "worker/session.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "remote/delta.h"

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

// The view's elements lie inside `nbytes`.
bool inside(const ReadRequest& request, uint64_t nbytes) {
  __int128 low = request.offset, high = request.offset;
  for (size_t i = 0; i < request.sizes.size(); ++i) {
    if (request.sizes[i] == 0) return true;
    const __int128 span = static_cast<__int128>(request.sizes[i] - 1) * request.strides[i];
    (span < 0 ? low : high) += span;
  }
  return low >= 0 && (high + 1) * request.item_size <= static_cast<__int128>(nbytes);
}

bool is_packed(const ReadRequest& request) {
  int64_t expected = 1;
  for (size_t i = request.sizes.size(); i-- > 0;) {
    if (request.sizes[i] == 1) continue;
    if (request.strides[i] != expected) return false;
    expected *= request.sizes[i];
  }
  return true;
}

bool valid_item_size(uint32_t size) { return size == 1 || size == 2 || size == 4 || size == 8 || size == 16; }

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
  LoadedProgram& program;
  const RunRequest& request;
  std::vector<int64_t>* words;
  size_t words_used = 0;
  std::vector<tr_buffer> buffers;  // of the graph. With an owner: to be kept or released by the run
  std::vector<FailurePtr> poison;  // of the graph's buffers; empty while there is none
  tr_buffer arena{};
  FailurePtr failure;    // the first that this run met, its own or an older one
  uint32_t next = 0;     // the node to go on with
  bool aliased = false;  // one buffer is bound twice, which no client of ours does

  void set_poison(uint32_t buffer, const FailurePtr& reason) {
    if (poison.empty()) poison.resize(buffers.size());
    if (!poison[buffer]) poison[buffer] = reason;
    if (!failure) failure = reason;
  }
};

Session::Session(const tr_executor_api* api, tr_executor* executor, CachingAllocator* memory)
    : api_(api), executor_(executor), memory_(memory) {}

Session::~Session() = default;

FailurePtr Session::note(Failure failure) {
  auto shared = std::make_shared<const Failure>(std::move(failure));
  if (!unreported_ || (shared->check && !unreported_->check)) unreported_ = shared;
  return shared;
}

void Session::put(uint64_t id, Entry entry) {
  if (id != 0) buffers_[id] = std::move(entry);
}

void Session::load_program(uint32_t number, std::span<const uint8_t> bytes, bool tune) {
  if (profile_) profile_->forget(number);
  programs_[number] = worker::load_program(number, api_, executor_, bytes.data(), bytes.size(), tune);
}

const LoadedProgram* Session::find_program(uint32_t number) const {
  const auto found = programs_.find(number);
  return found != programs_.end() && found->second->decoded ? found->second.get() : nullptr;
}

Status Session::upload(uint64_t id, MemoryPtr memory) {
  if (id == 0) return Status::invalid("remote: an upload names no buffer");
  if (memory_->stats().reserved.current > memory_->limit()) {
    put(id,
        {nullptr,
         note({{ErrorCode::kOutOfMemory,
                "remote: the worker has no memory left for an upload of " + std::to_string(memory->nbytes()) + " bytes",
                "OutOfMemoryError"},
               0,
               0,
               0})});
    return {};
  }
  put(id, {std::move(memory), nullptr});
  return {};
}

Status Session::free(std::span<const uint8_t> bytes) {
  frees_.clear();
  Status status = remote::decode_frees(bytes, &frees_);
  if (!status.ok()) return status;
  for (const uint64_t id : frees_) buffers_.erase(id);
  return {};
}

FailurePtr Session::no_such_buffer(uint64_t id, uint64_t sequence) const {
  if (undecoded_failure_ && id >= undecoded_base_) return undecoded_failure_;
  return std::make_shared<const Failure>(
      Failure{Status::invalid("remote: the worker has no buffer " + std::to_string(id)), 0, 0, sequence});
}

// -- running
// ------------------------------------------------------------------------------------------------------------

Status Session::run(const RunRequest& request, std::vector<int64_t>* words, FailurePtr* failure) {
  words->clear();
  *failure = nullptr;
  const auto found = programs_.find(request.program);
  if (found == programs_.end()) {
    return Status::invalid("remote: a run names program " + std::to_string(request.program) + ", which was not sent");
  }
  LoadedProgram& program = *found->second;
  frees_.clear();
  Status status = remote::decode_frees(request.frees, &frees_);
  if (!status.ok()) return status;
  if (!program.decoded) {
    *failure = note({program.status, request.program, 0, request.sequence});
    undecoded_failure_ = *failure;
    undecoded_base_ = request.base;
    for (const uint64_t id : frees_) buffers_.erase(id);
    return {};
  }
  bool changed = false;
  status = remote::decode_params(request.params, program.params, &changed);
  if (status.ok()) status = remote::decode_bindings(request.bindings, request.base, program.bindings);
  if (!status.ok()) return status;
  if (changed) program.evaluated = false;
  Run run{program, request, words, 0, std::vector<tr_buffer>(program.graph.buffers.size()), {}, {}, nullptr, 0, false};
  bind_inputs(run);
  if (!program.status.ok()) {
    fail_all(run, note({program.status, program.number, 0, request.sequence}));
  } else if (status = prepare(run); !status.ok()) {
    fail_all(run, note({status, program.number, 0, request.sequence}));
  } else {
    words->resize(program.words);
    unshare_written(run);
    if (!run.poison.empty() || !allocate_arena(run) || !execute(run)) execute_one_by_one(run);
  }
  finish(run);
  words->resize(run.words_used);
  *failure = run.failure;
  for (const uint64_t id : frees_) buffers_.erase(id);
  return {};
}

void Session::bind_inputs(Run& run) {
  const LoadedProgram& program = run.program;
  ++run_count_;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const uint32_t b = program.inputs[i];
    const uint64_t id = program.bindings.ids[i];
    const Entry* entry = buffers_.find(id);
    if (!entry) {
      run.set_poison(b, note(Failure(*no_such_buffer(id, run.request.sequence))));
    } else if (entry->failure) {
      run.set_poison(b, entry->failure);
    } else {
      run.buffers[b] = borrowed(entry->memory->data(), entry->memory->nbytes());
      run.aliased |= !entry->memory->bind(run_count_);
    }
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
    program.placed = program.executor_is_current = false;
  }
  nbytes_.resize(graph.buffers.size());
  for (size_t b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].kind == ir::BufferKind::kInput) {
      // A poisoned one's size does not matter: nothing will touch it.
      nbytes_[b] = run.buffers[b].data ? run.buffers[b].nbytes : std::numeric_limits<int64_t>::max();
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
    std::memcpy(copy.data, entry.memory->data(), entry.memory->nbytes());
    entry.memory = std::make_shared<Memory>(copy);
    run.buffers[b] = borrowed(copy.data, copy.nbytes);
  }
}

// Memory for the temporaries that the executor does not make itself. False if there is not enough.
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
    if (stage.first != stage.last && !call(run, stage.first, stage.last)) return false;
    if (run.aliased || &stage == &program.stages.back()) continue;
    for (const uint32_t i : stage.release) {
      buffers_.erase(program.bindings.ids[i]);
      run.buffers[program.inputs[i]] = {};
    }
  }
  return true;
}

// Runs nodes [first, last). False if one failed: its results and what it writes are then poisoned, and run.next is the
// one after it.
bool Session::call(Run& run, uint32_t first, uint32_t last) {
  LoadedProgram& program = run.program;
  tr_run call{};
  call.struct_size = sizeof(call);
  call.symbols = program.values.data();
  call.symbols_changed = !program.executor_is_current;
  call.first = first;
  call.last = last;
  call.buffers = run.buffers.data();
  call.buffer_count = static_cast<uint32_t>(run.buffers.size());
  call.words = run.words->data() + run.words_used;
  call.word_capacity = static_cast<uint32_t>(run.words->size() - run.words_used);
  if (profile_) call.times = profile_->times(last - first);
  error_.struct_size = sizeof(error_);
  error_.node = first;
  const bool good = api_->run(executor_, program.handle, &call, &error_) == 0;
  if (profile_) profile_->ops(program, run.request.sequence, first, last);
  program.executor_is_current = true;
  run.words_used += call.word_count;
  run.next = last;
  if (good) return true;
  const uint32_t node = std::clamp(error_.node, first, last - 1);
  run.next = node + 1;
  const FailurePtr failure = note(failure_of(run, node));
  if (!run.failure) run.failure = failure;
  poison_node(run, node, failure);
  return false;
}

Failure Session::failure_of(const Run& run, uint32_t index) const {
  const LoadedProgram& program = run.program;
  const ir::Node& node = program.graph.nodes[index];
  const std::string message =
      std::string(error_.message) + " [" + describe_node(program.graph, node, program.values) + "]";
  const bool memory = std::string_view(error_.kind) == "OutOfMemoryError";
  bool check = true;
  ir::for_each_view(node, [&](uint32_t, bool writes) { check = check && !writes; });
  return {{memory ? ErrorCode::kOutOfMemory : ErrorCode::kOpFailed, message, error_.kind},
          program.number,
          node.source,
          run.request.sequence,
          check};
}

void Session::poison_node(Run& run, uint32_t index, const FailurePtr& failure) {
  const ir::Graph& graph = run.program.graph;
  ir::for_each_view(graph.nodes[index], [&](uint32_t view, bool writes) {
    if (writes) run.set_poison(graph.views[view].buffer, failure);
  });
}

// The slow way: node by node, past those that touch something poisoned. Temporaries are freed as soon as they are dead,
// and what has no memory yet gets it when it is needed, so that a program that does not fit at once may still run.
void Session::execute_one_by_one(Run& run) {
  const LoadedProgram& program = run.program;
  const ir::Graph& graph = program.graph;
  for (uint32_t n = run.next; n < graph.nodes.size(); ++n) {
    FailurePtr poisoned;
    if (!run.poison.empty()) {
      ir::for_each_view(graph.nodes[n], [&](uint32_t view, bool) {
        if (!poisoned) poisoned = run.poison[graph.views[view].buffer];
      });
    }
    if (poisoned) {
      poison_node(run, n, poisoned);
    } else {
      call(run, n, n + 1);
    }
    for (const uint32_t b : program.dead_after[n]) release(run.buffers[b]);
  }
}

// Nothing ran: everything that would have been made or written is not there.
void Session::fail_all(Run& run, const FailurePtr& failure) {
  for (const uint32_t b : run.program.survivors) run.set_poison(b, failure);
  for (const uint32_t b : run.program.inputs) {
    if (run.program.written[b]) run.set_poison(b, failure);
  }
  if (!run.failure) run.failure = failure;
}

void Session::finish(Run& run) {
  const LoadedProgram& program = run.program;
  const auto poison = [&](uint32_t b) { return run.poison.empty() ? nullptr : run.poison[b]; };
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const uint32_t b = program.inputs[i];
    const uint64_t id = program.bindings.ids[i];
    if (!program.graph.buffers[b].survives) {
      buffers_.erase(id);
    } else if (FailurePtr failure = poison(b)) {
      if (Entry* entry = buffers_.find(id)) *entry = {nullptr, std::move(failure)};
    }
  }
  for (size_t k = 0; k < program.survivors.size(); ++k) {
    const uint32_t b = program.survivors[k];
    FailurePtr failure = poison(b);
    if (!failure && !run.buffers[b].data && !memory_->allocate(program.nbytes[b], &run.buffers[b])) {
      failure = note({out_of_memory(program.nbytes[b]), program.number, 0, run.request.sequence});
    }
    if (failure) {
      release(run.buffers[b]);
      put(run.request.base + k, {nullptr, std::move(failure)});
    } else {
      put(run.request.base + k, {std::make_shared<Memory>(run.buffers[b]), nullptr});
      run.buffers[b] = {};
    }
  }
  for (tr_buffer& buffer : run.buffers) release(buffer);
  release(run.arena);
}

// -- reading
// ------------------------------------------------------------------------------------------------------------

FailurePtr Session::locate(const ReadRequest& request, uint64_t sequence, Located* located) {
  const auto refuse = [&](std::string message) {
    return std::make_shared<const Failure>(Failure{Status::invalid(std::move(message)), 0, 0, sequence});
  };
  const Entry* entry = buffers_.find(request.buffer);
  if (!entry) return no_such_buffer(request.buffer, sequence);
  if (entry->failure) return entry->failure;
  if (!valid_item_size(request.item_size) || request.sizes.size() != request.strides.size() ||
      request.sizes.size() > ir::kMaxRank || !packed_bytes(request, &located->nbytes)) {
    return refuse("remote: a read has sizes that make no sense");
  }
  if (located->nbytes != 0 && !inside(request, entry->memory->nbytes())) {
    return refuse("remote: a read reaches beyond buffer " + std::to_string(request.buffer) + " of " +
                  std::to_string(entry->memory->nbytes()) + " bytes");
  }
  located->data = static_cast<const std::byte*>(entry->memory->data());
  if (located->nbytes != 0) located->data += request.offset * request.item_size;
  located->packed = is_packed(request);
  located->keep = entry->memory;
  return nullptr;
}

void Session::pack(const ReadRequest& request, const Located& located, void* destination) const {
  if (located.nbytes == 0) return;
  if (located.packed) {
    std::memcpy(destination, located.data, located.nbytes);
  } else {
    api_->pack(executor_, located.data, destination, request.item_size, static_cast<uint32_t>(request.sizes.size()),
               request.sizes.data(), request.strides.data());
  }
}

}  // namespace torch_remote::worker
