#include "worker/session/in_flight.h"

#include <algorithm>

namespace torch_remote::worker {
namespace {

// Follows a failure through a run. On entry, `spoilt` has the ids of buffers that are invalid when the run begins; on
// return, those that are invalid when it ends. `from`: the node of this run that failed; kNoNode: none did.
void spread_through(InFlight::Run& run, uint32_t from, const FailurePtr& failure,
                    std::unordered_set<uint64_t>& spoilt) {
  const bool check = failure->check;
  const LoadedProgram& program = *run.program;
  const ir::Graph& graph = program.graph;
  std::vector<bool> bad(graph.buffers.size());
  for (size_t i = 0; i < program.inputs.size(); ++i) bad[program.inputs[i]] = spoilt.contains(run.inputs[i]);
  // Everything that is written after a failed check is doubtful, whatever it read.
  bool after_check = check && from == ir::kNoNode;
  for (uint32_t n = from == ir::kNoNode ? 0 : from; n < graph.nodes.size(); ++n) {
    bool reads_bad = n == from || after_check;
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      const bool reads = access == ir::Access::kReads || access == ir::Access::kUpdates;
      reads_bad = reads_bad || (reads && bad[graph.views[view].buffer]);
    });
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (access == ir::Access::kReads) return;
      if (reads_bad) {
        bad[b] = true;
      } else if (access == ir::Access::kCreates || overwrites_all(graph, run.values, run.nbytes[b], n, b)) {
        bad[b] = false;
      }
    });
    if (reads_bad && n + 1 == graph.nodes.size() && !run.failure) run.failure = failure;
    after_check = after_check || (check && n == from);
  }
  const auto note = [&](uint64_t id, uint32_t b) {
    if (id != 0 && bad[b]) {
      spoilt.insert(id);
    } else {
      spoilt.erase(id);
    }
  };
  for (size_t i = 0; i < program.inputs.size(); ++i) note(run.inputs[i], program.inputs[i]);
  for (size_t k = 0; k < program.survivors.size(); ++k) note(run.first_result_id + k, program.survivors[k]);
}

}  // namespace

void InFlight::add(Ticket ticket, std::shared_ptr<QueuedRead> read) {
  Run none;
  none.ticket = ticket;
  work_.push_back({std::move(none), std::move(read)});
}

const InFlight::Run* InFlight::find(uint64_t run_id) const {
  const auto found = std::ranges::find_if(work_, [&](const Work& work) { return work.run.run_id == run_id; });
  return found == work_.end() ? nullptr : &found->run;
}

std::unordered_set<uint64_t> InFlight::invalidate_from(uint64_t run_id, uint32_t node, const FailurePtr& failure) {
  std::unordered_set<uint64_t> spoilt;
  auto work = std::ranges::find_if(work_, [&](const Work& work) { return work.run.run_id == run_id; });
  for (uint32_t from = node; work != work_.end(); ++work, from = ir::kNoNode) {
    if (work->run.program) {
      spread_through(work->run, from, failure, spoilt);
    } else if (spoilt.contains(work->read->buffer) && !work->read->failure) {
      work->read->failure = failure;
    }
  }
  return spoilt;
}

size_t InFlight::count_done(Device& device) const {
  const auto first = std::ranges::find_if(work_, [&](const Work& work) { return !device.done(work.run.ticket); });
  return static_cast<size_t>(first - work_.begin());
}

void InFlight::forget(size_t count, const std::function<void(const Run&)>& finished) {
  for (; count > 0; --count) {
    if (work_.front().run.program) finished(work_.front().run);
    work_.pop_front();
  }
}

}  // namespace torch_remote::worker
