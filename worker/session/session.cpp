#include "worker/session/session.h"

#include <algorithm>
#include <new>
#include <string>

#include "remote/wire/delta.h"
#include "remote/wire/environment.h"
#include "worker/device/no_memory.h"

namespace torch_remote::worker {
namespace {

// Applies the message to the params and bindings of the program's last run.
Status decode_bound(const RunRequest& request, LoadedProgram& program) {
  if (request.reset_delta) {
    std::ranges::fill(program.params, 0);
    std::ranges::fill(program.bindings.ids, 0);
    program.bindings.relative.assign(program.bindings.ids.size(), false);
    program.bindings.first_result_id = 0;
    program.evaluated = false;
  }
  bool changed = false;
  Status status = remote::decode_params(request.params, program.params, &changed);
  if (status.ok()) status = remote::decode_bindings(request.bindings, request.first_result_id, program.bindings);
  if (changed) program.evaluated = false;
  return status;
}

// The size of a view, packed. Returns false if it overflows, or if a size is negative.
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

// Whether the view's elements lie inside `nbytes`. Torch has no negative strides.
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
    expected *= request.sizes[i];  // Cannot overflow: packed_bytes() has checked it.
  }
  return true;
}

bool valid_item_size(uint32_t size) { return size == 1 || size == 2 || size == 4 || size == 8 || size == 16; }

}  // namespace

Session::Session(Device* device, const Runners* runners)
    : device_(device),
      runners_(runners),
      older_contents_(*device),
      failures_(device->memory(), older_contents_),
      buffers_(*device, failures_, older_contents_),
      background_ops_(buffers_, failures_, cancelled_),
      context_{*device, *runners, older_contents_, failures_, buffers_, background_ops_, in_flight_, cancelled_} {
  context_.waits_for_plans = remote::is_enabled("TORCH_REMOTE_WAIT_COMPILE");
  const auto found = std::ranges::find_if(*runners, [](const auto& r) { return r->works_in_background(); });
  if (found != runners->end()) context_.background_runner = static_cast<uint32_t>(found - runners->begin());
  for (const auto& runner : *runners) {
    if (!context_.notify_threads) context_.notify_threads = runner->thread_notifier();
  }
}

Session::~Session() {
  for (const auto& runner : *runners_) runner->end();
}

Status Session::within_limit() {
  buffers_.charge();
  if (!device_->memory().overcharged()) return {};
  return {ErrorCode::kOutOfMemory, "remote: the client has " + std::to_string(buffers_.size()) + " buffers and " +
                                       std::to_string(programs_.size()) +
                                       " programs, more than the session's memory limit allows"};
}

void Session::load_program(uint32_t number, std::span<const std::byte> bytes, bool tune) {
  if (context_.profile) context_.profile->forget(number);
  programs_.erase(number);  // Frees its memory first. If loading throws, there is no entry without a program.
  programs_[number] = worker::load_program(number, *runners_, &device_->memory(), bytes, tune);
}

void Session::unload_program(uint32_t number) {
  if (context_.profile) context_.profile->forget(number);
  programs_.erase(number);  // Work on a device or in the background still holds it.
}

const LoadedProgram* Session::find_program(uint32_t number) const {
  const auto found = programs_.find(number);
  return found != programs_.end() && found->second->decoded ? found->second.get() : nullptr;
}

// Finds the program, and decodes what the message changes.
Status Session::decode(const RunRequest& request, const std::shared_ptr<LoadedProgram>** program) {
  const auto found = programs_.find(request.program);
  if (found == programs_.end()) {
    return Status::invalid("remote: a run names program " + std::to_string(request.program) + ", which was not sent");
  }
  *program = &found->second;
  Status status = buffers_.set_freed(request.freed_ids);
  return status.ok() && found->second->decoded ? decode_bound(request, *found->second) : status;
}

Status Session::run(const RunRequest& request, std::vector<int64_t>* result_words, FailurePtr* failure) {
  result_words->clear();
  *failure = nullptr;
  const std::shared_ptr<LoadedProgram>* found = nullptr;
  if (Status status = decode(request, &found); !status.ok()) return status;
  const std::shared_ptr<LoadedProgram>& program = *found;
  if (!program->decoded) {
    *failure =
        failures_.add_undecoded({program->status, request.program, 0, request.sequence}, request.first_result_id);
    buffers_.erase_freed();
    return {};
  }
  buffers_.set_bound(&program->bindings.ids);
  try {
    update_groups(*program, *runners_);
    if (!background_ops_.empty()) background_ops_.await_inputs(*program);
    *failure = ProgramRun(context_, program, request).execute(result_words);
  } catch (const std::bad_alloc&) {  // Memory of this process itself ran out; all that the run took is free again.
    result_words->clear();
    const FailurePtr why = failures_.add({no_memory_for("the run of a program"), request.program, 0, request.sequence});
    *failure = ProgramRun(context_, program, request).drop(why);
  }
  buffers_.set_bound(nullptr);
  buffers_.erase_freed();
  return {};
}

Status Session::run_cancelled(const RunRequest& request, FailurePtr* failure) {
  *failure = nullptr;
  const std::shared_ptr<LoadedProgram>* program = nullptr;
  if (Status status = decode(request, &program); !status.ok()) return status;
  if ((*program)->decoded) {
    *failure = ProgramRun(context_, *program, request).drop(failures_.add_cancelled(request.sequence));
  }
  buffers_.erase_freed();
  return {};
}

FailurePtr Session::locate(const ReadRequest& request, uint64_t sequence, Located* located) {
  const auto refuse = [&](std::string message) {
    return std::make_shared<Failure>(Failure{Status::invalid(std::move(message)), 0, 0, sequence});
  };
  const Buffers::Entry* const entry = buffers_.find(request.buffer);
  if (!entry) return failures_.no_such_buffer(request.buffer, sequence);
  if (entry->memory->is_being_written()) background_ops_.await_writers(MemoryPtr(entry->memory));
  if (entry->poisoned()) return entry->failure;
  if (const FailurePtr failure = earlier(entry->failure, entry->check); is_unreported(failure)) return failure;
  if (!valid_item_size(request.item_size) || request.sizes.size() != request.strides.size() ||
      request.sizes.size() > ir::kMaxRank || !packed_bytes(request, &located->nbytes)) {
    return refuse("remote: a read has sizes that make no sense");
  }
  if (located->nbytes != 0 && !inside(request, entry->memory->nbytes())) {
    return refuse("remote: a read reaches beyond buffer " + std::to_string(request.buffer) + " of " +
                  std::to_string(entry->memory->nbytes()) + " bytes");
  }
  // After this read the older contents never come back. The client may never use the result of a speculative read, so a
  // speculative read is refused; the client asks again if it needs the value.
  if (older_contents_.contains(request.buffer)) {
    if (request.speculative) return refuse("remote: a speculative read of a buffer whose older contents may come back");
    older_contents_.drop(request.buffer);
  }
  located->data = static_cast<const std::byte*>(entry->memory->data());
  if (located->nbytes != 0) located->data += request.offset * request.item_size;
  located->packed = located->nbytes == 0 || is_packed(request);
  located->keep = entry->memory;
  return nullptr;
}

FailurePtr Session::locate_in_checkpoint(uint64_t buffer, uint64_t sequence, Located* located) const {
  const MemoryPtr memory = buffers_.find_in_checkpoint(buffer);
  if (!memory) return failures_.no_such_buffer(buffer, sequence);
  *located = {static_cast<const std::byte*>(memory->data()), memory->nbytes(), true, memory};
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

void Session::settle() {
  background_ops_.settle();
  if (in_flight_.empty()) return;
  // Read before the failures, so that the failures of all this work are there.
  const size_t done = in_flight_.count_done(*device_);
  for (const DeferredFailure& late : device_->take_failures()) {
    const InFlight::Run* run = in_flight_.find(late.run_id);
    if (!run) continue;
    const uint32_t index = std::min(late.node, static_cast<uint32_t>(run->program->graph.nodes.size()) - 1);
    const FailurePtr failure = failures_.add(*run->program, run->values, index, late.error, run->sequence);
    for (const uint64_t id : in_flight_.invalidate_from(late.run_id, index, failure)) buffers_.poison(id, failure);
  }
  in_flight_.forget(done, [this](const InFlight::Run& run) {
    if (run.failure && run.wants_result_words) failures_.defer(run.sequence, run.failure);
    if (!context_.profile) return;
    for (const InFlight::Call& call : run.calls) {
      if (call.times.empty()) continue;
      std::ranges::copy(call.times, context_.profile->times(call.last - call.first));
      context_.profile->ops(*run.program, run.profile_variant, run.sequence, call.first, call.last);
    }
  });
}

}  // namespace torch_remote::worker
