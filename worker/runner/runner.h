#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/device/strided_copy.h"
#include "worker/runner/plugin.h"

// Runners execute the nodes of programs on one device: compiled kernels, libraries, an ATen plugin. A device has one
// ordered list of runners. Each group, and each node outside of such groups, is executed by the first runner that
// accepts it and takes it with the values of the run.
//
// The memory of buffers is the device's: what a runner does with it is queued behind what was queued there before.
namespace torch_remote::worker {

// An op that goes on after the call that began it: it waits for others, not for this machine.
class BackgroundWork {
 public:
  virtual ~BackgroundWork() = default;
  virtual bool done() const = 0;  // for any thread
  // Returns when it is done. `look` is called now and then meanwhile; may be null.
  virtual void wait(const std::function<void()>& look) = 0;
  virtual const Status& status() const = 0;  // of what is done
};

// A program, as one runner has it.
class RunnerProgram {
 public:
  virtual ~RunnerProgram() = default;

  // The runner makes the memory of this graph buffer itself (an op without a real out variant): nobody must allocate it
  // beforehand.
  virtual bool creates_buffer(uint32_t buffer) const = 0;

  // Whether it executes nodes [first, last), a group that it accepted, in runs with these values of the symbols. Asked
  // when the values change, when the runner's generation does, and before the next run if `asks_again`. If it declines,
  // the nodes are executed one by one.
  virtual bool takes(uint32_t first, uint32_t last, std::span<const int64_t> values) { return true; }
  // The same for a node that it accepted, outside of groups that are taken. If it declines, the next runner is asked.
  // `wait`: nobody else takes the node, or results must not depend on time: it waits for a plan that is being built.
  virtual bool takes_node(uint32_t node, std::span<const int64_t> values, bool wait) { return true; }
  // Why it declined the node, or the group that begins at `first`, when it was asked last: "its strides overlap". For
  // errors and profiles. Empty: it took it, or has no reason to give.
  virtual std::string why_not(uint32_t node) const { return {}; }
  virtual std::string why_not_group(uint32_t first) const { return {}; }
  // It wants to be asked again before the next run, as an answer may change.
  virtual bool asks_again() const { return false; }

  // Of a program that is to be tuned (LoadRequest::tune): whether it is still timing several algorithms for its groups.
  virtual bool tunes() const { return false; }
  // While it does: the nodes of a group that `takes` declined took so long in the run, one by one.
  virtual void took(uint32_t first, uint64_t ns) {}

  // What it does of nodes [first, last), which it takes: points that loops on the host's threads go through, so that
  // threads are woken for many.
  virtual double work(uint32_t first, uint32_t last) const { return 0; }

  // Of a group that it does as one with the values that it was last asked about: whether what it makes in buffer `made`
  // may lie where buffer `source` does, which nobody else needs afterwards and which is at least as large.
  virtual bool may_share(uint32_t first, uint32_t made, uint32_t source) const { return false; }

  // Does nodes [run.first, run.last), all of them ones that it was loaded for. Returns when they are queued; what they
  // tell the host (`words`) is known by then. False with *error: nodes before error->node ran, that one did not, later
  // ones were not tried. What only data can tell on an asynchronous device comes as a LateFailure
  // (worker/device/device.h): that node's results are undefined then, later ones ran. So are `times` written later
  // there: the run keeps them until its ticket is done.
  virtual bool run(tr_run& run, tr_error* error) = 0;

  // Of a runner that works in the background: begins node run.first, instead of run(). *work is null if it is done.
  // `stays`: what it reads and writes is there, and nobody else touches it, until it is done; else it is used in this
  // call only. Its failure is that of *work, unless the node could not be begun.
  virtual bool begin(tr_run& run, bool stays, std::shared_ptr<BackgroundWork>* work, tr_error* error) {
    return this->run(run, error);
  }
};

struct LoadRequest {
  std::span<const uint8_t> bytes;  // ir/program.fbs, decoded and verified:
  const ir::Graph& graph;
  std::vector<uint8_t> nodes;  // one a node: whether runs will ask for it
  bool tune = false;           // the first runs may time several ways
};

// Used by one thread. Outlives its programs.
class Runner {
 public:
  virtual ~Runner() = default;

  // Short, in profiles and errors: "cuDNN attention".
  virtual std::string name() const = 0;
  // In the description of a worker: "ATen 2.13.0". Empty: not worth a word.
  virtual std::string description() const { return name(); }

  // Whether it may execute the node: with which values, its program's `takes` says.
  virtual bool accepts(const ir::Graph& graph, uint32_t node) = 0;
  // Whether its programs may decline nodes that it accepted (RunnerProgram::takes_node); else no other runner loads
  // them.
  virtual bool may_decline() const { return false; }
  // Of a runner that accepts nothing on this machine: why, and how to change that. Empty: it accepts some nodes.
  virtual std::string why_nothing() const { return {}; }
  // Whether it executes the group's nodes as one. A node of the group that must not run, as an operand of it failed, is
  // left out, and the others are executed one by one.
  virtual bool accepts_group(const ir::Graph& graph, const ir::Group& group) { return false; }
  // Grows when it accepts or takes more, or less, than before: loaded programs ask it again, between two runs.
  virtual uint64_t generation() const { return 0; }

  virtual Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) = 0;

  // Whether programs may have the op of this name ("aten::add.Tensor").
  virtual bool has_op(const char* name) = 0;

  // Whether its programs' nodes are begun, one at a time, and not run. One runner of a device at most.
  virtual bool works_in_background() const { return false; }
  // Of such a runner: a node of a program, maybe one that could not be loaded, is not done, as something that it needs
  // has failed. Others may wait for it. `values`: of the graph's symbols.
  virtual void leave_out(const ir::Graph& graph, uint32_t node, const int64_t* values, const Status& why) {}
  // The session ends: what goes on in the background ends now, in whatever state, before this returns.
  virtual void end() {}

  // Kernels compiled so far.
  virtual uint64_t kernels_compiled() const { return 0; }
  // Groups of its programs that it accepted and found no kernel for.
  virtual uint64_t groups_refused() const { return 0; }

  // The worker is about to wait, for nobody knows how long: threads that spin should sleep.
  virtual void rest() {}

  // Its threads, for the host's own work; null: it has none to offer.
  virtual ParallelFor threads() { return nullptr; }

  // To be told when a run begins in which others use its threads (tr_runner_api::begin); null: it need not be told.
  virtual std::function<void(bool much)> begins() { return nullptr; }

  // Its products, for others to use and to compare theirs with: true if it has done it. Null: it has none to offer.
  virtual std::function<bool(const tr_product& product)> products() { return nullptr; }
};

using Runners = std::vector<std::unique_ptr<Runner>>;

// "kernels, ATen 2.13.0"
inline std::string descriptions(const Runners& runners) {
  std::string all;
  for (const std::unique_ptr<Runner>& runner : runners) {
    const std::string description = runner->description();
    if (!description.empty()) all += (all.empty() ? "" : ", ") + description;
  }
  return all;
}

}  // namespace torch_remote::worker
