#include <algorithm>
#include <cstdio>
#include <utility>

#include "worker/session/session_run.h"

// Background ops: the runner has begun them, and the session continues. A node that reads or writes what such an op
// writes waits for the op; so does a node that writes what the op reads. All of that memory is retained until the op is
// done. If the op fails, the consequences are those of a failure where it was begun. Buffers that it would have created
// are poisoned, and those that it would have written lack the update.
namespace torch_remote::worker {

// Finds the memory of the node's operands. Returns whether all of it outlives the run.
bool Session::find_uses(Run& run, uint32_t node, std::vector<Begun::Use>* uses) {
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
    if (run.made.empty()) run.made.resize(run.buffers.size());
    if (!run.made[b]) {
      const tr_buffer made = run.buffers[b];
      run.made[b] = std::make_shared<Memory>(made);
      run.buffers[b] = borrowed(made.data, made.nbytes);
    }
    const bool makes = writes && program.lifetimes[b].first == node;
    uses->push_back(
        {run.request.base + static_cast<uint64_t>(survivor - program.survivors.begin()), run.made[b], writes, makes});
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
  if (!begun_.empty() && !await_operands(run, node, node + 1)) {
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
  Begun begun;
  const bool stays = find_uses(run, node, &begun.uses);
  if (!stays) begun.uses.clear();
  begun.program = programs_[program.number];
  begun.values = program.values;
  begun.node = node;
  begun.sequence = run.request.sequence;
  begun_.reserve(begun_.size() + 1);  // After the op has begun, nothing may throw.
  tr_run call = describe(run, background_runner_, node, node + 1, times);
  LoadedProgram::Loaded& loaded = program.loaded[background_runner_];
  const bool good = loaded.program->begin(call, stays, &begun.work, &error_);
  loaded.is_current = true;
  if (!good || !begun.work) return good;
  for (const Begun::Use& use : begun.uses) {
    if (use.writes) use.memory->begin_writing();
  }
  begun_.push_back(std::move(begun));
  return true;
}

void Session::wait(Begun& begun) {
  begun.work->wait([&] {
    if (cancelled_) (void)cancelled_(begun.sequence);  // Looks for new messages of the client.
  });
}

// Handles the end of an op that is done. Returns its failure, or null.
FailurePtr Session::take_end(Begun& begun) {
  for (const Begun::Use& use : begun.uses) {
    if (use.writes) use.memory->end_writing();
  }
  const Status& status = begun.work->status();
  if (status.ok()) return nullptr;
  const bool cancelled = cancelled_ && cancelled_(begun.sequence);  // Then the client has asked for it.
  FailurePtr failure = cancelled ? cancellation(begun.sequence)
                                 : note(failure_of(*begun.program, begun.values, begun.node, status, begun.sequence));
  for (const Begun::Use& use : begun.uses) {
    Entry* const entry = use.writes ? buffers_.find(use.id) : nullptr;
    if (entry == nullptr || entry->memory != use.memory) continue;
    if (use.makes) {
      *entry = {std::make_shared<Memory>(use.memory->nbytes()), failure, nullptr};
      continue;
    }
    entry->failure = earlier(entry->failure, failure);
    ++failure->skipped;
  }
  return failure;
}

void Session::settle_begun() {
  for (size_t i = 0; i < begun_.size();) {
    if (!begun_[i].work->done()) {
      ++i;
      continue;
    }
    (void)take_end(begun_[i]);
    begun_.erase(begun_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Session::wait_for_background() {
  for (Begun& begun : begun_) wait(begun);
  settle_begun();
}

void Session::await_writers(const MemoryPtr& memory) {
  while (memory->is_being_written()) {
    const auto found = std::ranges::find_if(begun_, [&](const Begun& begun) {
      return std::ranges::any_of(begun.uses, [&](const Begun::Use& u) { return u.writes && u.memory == memory; });
    });
    wait(*found);
    settle_begun();
  }
}

// Waits for inputs that a run of the program writes, because they are unshared before the run. Other inputs are waited
// for where they are read.
void Session::await_inputs(const LoadedProgram& program) {
  settle_begun();
  for (size_t i = 0; i < program.inputs.size() && !begun_.empty(); ++i) {
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
  for (size_t i = 0; i < begun_.size();) {
    bool touched = false;
    for (uint32_t n = first; n < last && !touched; ++n) {
      ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
        const void* const data = run.buffers[graph.views[view].buffer].data;
        for (const Begun::Use& use : begun_[i].uses) {
          touched = touched || (use.memory->data() == data && (use.writes || access != ir::Access::kReads));
        }
      });
    }
    if (!touched) {
      ++i;
      continue;
    }
    wait(begun_[i]);
    const FailurePtr failure = take_end(begun_[i]);
    if (failure) {
      good = false;
      for (const Begun::Use& use : begun_[i].uses) {
        for (uint32_t b = 0; use.writes && b < run.buffers.size(); ++b) {
          if (run.buffers[b].data != use.memory->data()) continue;
          if (!use.makes) {
            run.add_behind(b, failure);
            continue;
          }
          run.set_poison(b, failure);
          run.buffers[b] = borrowed(nullptr, nbytes_[b]);  // The memory is released with the background op.
          if (!run.made.empty()) run.made[b] = nullptr;
          if (!run.attachments.empty()) run.attachments[b] = nullptr;
        }
      }
    }
    begun_.erase(begun_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return good;
}

}  // namespace torch_remote::worker
