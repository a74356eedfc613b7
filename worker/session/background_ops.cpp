#include "worker/session/background_ops.h"

#include <algorithm>

namespace torch_remote::worker {

void BackgroundOps::add(Op op) {
  for (const Use& use : op.uses) {
    if (use.writes) use.memory->begin_writing();
  }
  ops_.push_back(std::move(op));
}

void BackgroundOps::wait(Op& op) {
  op.work->wait([&] {
    if (cancelled_) (void)cancelled_(op.sequence);
  });
}

// Handles the end of an op that is done. Returns its failure, or null.
FailurePtr BackgroundOps::finish(Op& op) {
  for (const Use& use : op.uses) {
    if (use.writes) use.memory->end_writing();
  }
  const Status& status = op.work->status();
  if (status.ok()) return nullptr;
  const bool cancelled = cancelled_ && cancelled_(op.sequence);
  FailurePtr failure = cancelled ? failures_.add_cancelled(op.sequence)
                                 : failures_.add(*op.program, op.values, op.node, status, op.sequence);
  for (const Use& use : op.uses) {
    Buffers::Entry* const entry = use.writes ? buffers_.find(use.id) : nullptr;
    if (entry == nullptr || entry->memory != use.memory) continue;
    if (use.creates) {
      buffers_.poison(use.id, failure);
      continue;
    }
    entry->failure = earlier(entry->failure, failure);
    ++failure->skipped_updates;
  }
  return failure;
}

void BackgroundOps::settle() {
  for (auto op = ops_.begin(); op != ops_.end();) {
    if (!op->work->done()) {
      ++op;
      continue;
    }
    (void)finish(*op);
    op = ops_.erase(op);
  }
}

void BackgroundOps::wait_for_all() {
  for (Op& op : ops_) wait(op);
  settle();
}

void BackgroundOps::await_writers(const MemoryPtr& memory) {
  while (memory->is_being_written()) {
    const auto found = std::ranges::find_if(ops_, [&](const Op& op) {
      return std::ranges::any_of(op.uses, [&](const Use& use) { return use.writes && use.memory == memory; });
    });
    wait(*found);
    settle();
  }
}

void BackgroundOps::await_inputs(const LoadedProgram& program) {
  settle();
  for (size_t i = 0; i < program.inputs.size() && !ops_.empty(); ++i) {
    if (!program.written[program.inputs[i]]) continue;
    const Buffers::Entry* const entry = buffers_.find(program.bindings.ids[i]);
    if (entry == nullptr || !entry->memory->is_being_written()) continue;
    await_writers(MemoryPtr(entry->memory));
  }
}

void BackgroundOps::await(const std::function<bool(const Op&)>& concerns,
                          const std::function<void(const Op&, const FailurePtr&)>& failed) {
  for (auto op = ops_.begin(); op != ops_.end();) {
    if (!concerns(*op)) {
      ++op;
      continue;
    }
    wait(*op);
    if (const FailurePtr failure = finish(*op)) failed(*op, failure);
    op = ops_.erase(op);
  }
}

}  // namespace torch_remote::worker
