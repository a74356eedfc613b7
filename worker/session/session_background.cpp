#include <algorithm>
#include <cstdio>
#include <utility>

#include "worker/session/session_run.h"

// Background ops: the runner has begun them, and the session continues. A node that reads or writes what such an op
// writes waits for the op; so does a node that writes what the op reads. All of that memory is retained until the op is
// done. If the op fails, the consequences are those of a failure where it was op. Buffers that it would have created
// are poisoned, and those that it would have written lack the update.
namespace torch_remote::worker {

// Finds the memory of the node's operands. Returns whether all of it outlives the run.
bool Session::find_uses(Run& run, uint32_t node, std::vector<BackgroundOp::Use>* uses) {
  const LoadedProgram& program = run.program;
  const ir::Graph& graph = program.graph;
  if (run.one_by_one || run.aliased || profile_ != nullptr || !device_->is_host_memory()) return false;
  bool all = true;
  ir::for_each_access(graph.nodes[node], [&](uint32_t view, ir::Access access) {
    const uint32_t b = graph.views[view].buffer;
    const bool writes = access != ir::Access::kReads;
    all = all && graph.buffers[b].survives && run.buffers[b].data != nullptr;
    if (!all) return;
    if (const auto input = std::ranges::find(program.inputs, b); input != program.inputs.end()) {
      const uint64_t id = program.bindings.ids[static_cast<size_t>(input - program.inputs.begin())];
      const Entry* entry = buffers_.find(id);
      all = entry != nullptr && entry->memory->data() == run.buffers[b].data;
      if (all) uses->push_back({id, entry->memory, writes});
      return;
    }
    const auto survivor = std::ranges::find(program.survivors, b);
    all = survivor != program.survivors.end();
    if (!all) return;
    if (run.shared_survivors.empty()) run.shared_survivors.resize(run.buffers.size());
    if (!run.shared_survivors[b]) {
      const tr_buffer made = run.buffers[b];
      run.shared_survivors[b] = std::make_shared<Memory>(made);
      run.buffers[b] = borrowed(made.data, made.nbytes);
    }
    const bool creates = writes && program.lifetimes[b].first == node;
    uses->push_back({run.request.base + static_cast<uint64_t>(survivor - program.survivors.begin()),
                     run.shared_survivors[b], writes, creates});
  });
  return all;
}

// Allocates memory for new buffers that have none yet, because there was not enough for the whole program. Returns the
// bytes that could not be allocated; 0: the node has what it needs.
uint64_t Session::give_operands(Run& run, uint32_t node) {
  const ir::Graph& graph = run.program.graph;
  uint64_t lacks = 0;
  ir::for_each_access(graph.nodes[node], [&](uint32_t view, ir::Access) {
    const uint32_t b = graph.views[view].buffer;
    if (nbytes_[b] != 0 && !run.poison_of(b) && !give_memory(run, b)) lacks = nbytes_[b];
  });
  return lacks;
}

bool Session::begin(Run& run, uint32_t node, uint64_t* times) {
  LoadedProgram& program = run.program;
  if (!background_ops_.empty() && !await_operands(run, node, node + 1)) {
    error_.node = node;
    error_.repeat = 1;
    return false;
  }
  if (const uint64_t lacks = give_operands(run, node); lacks != 0) {
    const Status status = out_of_memory(lacks);
    error_.node = node;
    error_.repeat = 0;
    std::snprintf(error_.kind, sizeof(error_.kind), "%s", status.kind().c_str());
    std::snprintf(error_.message, sizeof(error_.message), "%s", status.message().c_str());
    return false;
  }
  BackgroundOp op;
  const bool stays = find_uses(run, node, &op.uses);
  if (!stays) op.uses.clear();
  op.program = programs_[program.number];
  op.values = program.values;
  op.node = node;
  op.sequence = run.request.sequence;
  background_ops_.reserve(background_ops_.size() + 1);  // After the op has begun, nothing may throw.
  tr_run call = describe(run, background_runner_, node, node + 1, times);
  LoadedProgram::Loaded& loaded = program.loaded[background_runner_];
  const bool good = loaded.program->begin(call, stays, &op.work, &error_);
  loaded.is_current = true;
  if (!good || !op.work) return good;
  for (const BackgroundOp::Use& use : op.uses) {
    if (use.writes) use.memory->begin_writing();
  }
  background_ops_.push_back(std::move(op));
  return true;
}

void Session::wait(BackgroundOp& op) {
  op.work->wait([&] {
    if (cancelled_) (void)cancelled_(op.sequence);  // Looks for new messages of the client.
  });
}

// Handles the end of an op that is done. Returns its failure, or null.
FailurePtr Session::finish_background(BackgroundOp& op) {
  for (const BackgroundOp::Use& use : op.uses) {
    if (use.writes) use.memory->end_writing();
  }
  const Status& status = op.work->status();
  if (status.ok()) return nullptr;
  const bool cancelled = cancelled_ && cancelled_(op.sequence);  // Then the client has asked for it.
  FailurePtr failure =
      cancelled ? cancellation(op.sequence) : note(failure_of(*op.program, op.values, op.node, status, op.sequence));
  for (const BackgroundOp::Use& use : op.uses) {
    Entry* const entry = use.writes ? buffers_.find(use.id) : nullptr;
    if (entry == nullptr || entry->memory != use.memory) continue;
    if (use.creates) {
      *entry = {std::make_shared<Memory>(use.memory->nbytes()), failure, nullptr};
      continue;
    }
    entry->failure = earlier(entry->failure, failure);
    ++failure->skipped;
  }
  return failure;
}

void Session::settle_background() {
  for (size_t i = 0; i < background_ops_.size();) {
    if (!background_ops_[i].work->done()) {
      ++i;
      continue;
    }
    (void)finish_background(background_ops_[i]);
    background_ops_.erase(background_ops_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Session::wait_for_background() {
  for (BackgroundOp& op : background_ops_) wait(op);
  settle_background();
}

void Session::await_writers(const MemoryPtr& memory) {
  while (memory->is_being_written()) {
    const auto found = std::ranges::find_if(background_ops_, [&](const BackgroundOp& op) {
      return std::ranges::any_of(op.uses, [&](const BackgroundOp::Use& u) { return u.writes && u.memory == memory; });
    });
    wait(*found);
    settle_background();
  }
}

// Waits for inputs that a run of the program writes, because they are unshared before the run. Other inputs are waited
// for where they are read.
void Session::await_inputs(const LoadedProgram& program) {
  settle_background();
  for (size_t i = 0; i < program.inputs.size() && !background_ops_.empty(); ++i) {
    if (!program.written[program.inputs[i]]) continue;
    const Entry* const entry = buffers_.find(program.bindings.ids[i]);
    if (entry == nullptr || !entry->memory->is_being_written()) continue;
    await_writers(MemoryPtr(entry->memory));
  }
}

// Waits, before nodes [first, last) execute, for the background ops that they depend on. Returns false if one failed;
// the run has recorded its consequences then.
bool Session::await_operands(Run& run, uint32_t first, uint32_t last) {
  const ir::Graph& graph = run.program.graph;
  bool good = true;
  for (size_t i = 0; i < background_ops_.size();) {
    bool touched = false;
    for (uint32_t n = first; n < last && !touched; ++n) {
      ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
        const void* const data = run.buffers[graph.views[view].buffer].data;
        for (const BackgroundOp::Use& use : background_ops_[i].uses) {
          touched = touched || (use.memory->data() == data && (use.writes || access != ir::Access::kReads));
        }
      });
    }
    if (!touched) {
      ++i;
      continue;
    }
    wait(background_ops_[i]);
    const FailurePtr failure = finish_background(background_ops_[i]);
    if (failure) {
      good = false;
      for (const BackgroundOp::Use& use : background_ops_[i].uses) {
        for (uint32_t b = 0; use.writes && b < run.buffers.size(); ++b) {
          if (run.buffers[b].data != use.memory->data()) continue;
          if (!use.creates) {
            run.add_missing_update(b, failure);
            continue;
          }
          run.set_poison(b, failure);
          run.buffers[b] = borrowed(nullptr, nbytes_[b]);  // The memory is released with the background op.
          if (!run.shared_survivors.empty()) run.shared_survivors[b] = nullptr;
          if (!run.attachments.empty()) run.attachments[b] = nullptr;
        }
      }
    }
    background_ops_.erase(background_ops_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return good;
}

}  // namespace torch_remote::worker
