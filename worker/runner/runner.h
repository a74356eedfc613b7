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
// ordered list of runners. The first runner that accepts a group, and takes it with the values of the run, executes it.
// The same holds for each node outside of such groups.
//
// Buffers lie in the device's memory. A runner queues its work after all work that the device has queued already.
namespace torch_remote::worker {

// An op that continues after the call that began it, because it waits for other processes: a collective or a copy.
class BackgroundWork {
 public:
  virtual ~BackgroundWork() = default;
  virtual bool done() const = 0;  // Thread safe.
  // Returns when the op is done. `look` is called now and then meanwhile; it may be null.
  virtual void wait(const std::function<void()>& look) = 0;
  virtual const Status& status() const = 0;  // Valid when the op is done.
};

// One runner's form of a program.
class RunnerProgram {
 public:
  virtual ~RunnerProgram() = default;

  // Whether the runner allocates this graph buffer itself (an op without a real out variant). The session must not
  // allocate it beforehand.
  virtual bool allocates_buffer(uint32_t buffer) const = 0;

  // Whether the runner executes nodes [first, last), a group that it accepted, in runs with these symbol values. The
  // session calls it when the values or the runner's generation have changed, after a run that set
  // tr_error::retry_as_nodes, and before the next run if asks_again(). If the runner declines, the nodes execute one by
  // one.
  virtual bool takes(uint32_t first, uint32_t last, std::span<const int64_t> values) { return true; }
  // Whether the runner executes a node that it accepted, outside of groups that are taken. If the runner declines, the
  // session asks the next runner. `wait`: if a plan is being built, the runner waits for it, because no other runner
  // takes the node, or because results must not depend on timing.
  virtual bool takes_node(uint32_t node, std::span<const int64_t> values, bool wait) { return true; }
  // The reason why the runner declined the node, or the group that begins at `first`, at the last call of takes_node()
  // or takes(): "its strides overlap". For errors and profiles. Empty: the runner took the node or group, or has no
  // reason to give.
  virtual std::string why_not(uint32_t node) const { return {}; }
  virtual std::string why_not_group(uint32_t first) const { return {}; }
  // Whether the session must call takes() and takes_node() again before the next run, because an answer may change.
  virtual bool asks_again() const { return false; }

  // For a program that is to be tuned (LoadRequest::tune): whether several algorithms for its groups are still being
  // timed.
  virtual bool tunes() const { return false; }
  // Reports, while tunes(), how long the nodes of a group that `takes` declined took in the run, one by one.
  virtual void report_time(uint32_t first, uint64_t ns) {}

  // The amount of work in nodes [first, last), which the runner takes: the number of points of its loops on the host's
  // threads. From it the session decides whether to wake threads (tr_runner_api::notify_threads).
  virtual double work(uint32_t first, uint32_t last) const { return 0; }

  // Whether buffer `made` may share the memory of buffer `source`, in a group that the runner executes as one. The
  // values are those of the last call of takes(). No later node needs `source`, and `source` is at least as large as
  // `made`.
  virtual bool may_share(uint32_t first, uint32_t made, uint32_t source) const { return false; }

  // Executes nodes [run.first, run.last); LoadRequest::may_run was set for all of them. Returns when they are queued;
  // `result_words` are set by then. Returns false with *error if a node failed: nodes before error->node ran, that one
  // did not, later ones were not tried. On an asynchronous device, a failure that depends on data is reported later, as
  // a DeferredFailure (worker/device/device.h). The results of that node are undefined then, and later nodes ran. On an
  // asynchronous device, `times` are also written later: the session retains them until the run's ticket is done.
  virtual bool run(tr_run& run, tr_error* error) = 0;

  // Begins node run.first, instead of run(); for a runner that works in the background. *work is null if the op is done
  // already. `stays`: the op's operands outlive the op, and no other node touches them until it is done. Otherwise the
  // op may use them in this call only. The op reports its failure in *work, unless it could not be begun.
  virtual bool begin(tr_run& run, bool stays, std::shared_ptr<BackgroundWork>* work, tr_error* error) {
    return this->run(run, error);
  }
};

struct LoadRequest {
  std::span<const uint8_t> bytes;  // An encoded ir/program.fbs, which is decoded to `graph` and verified.
  const ir::Graph& graph;
  std::vector<uint8_t> may_run;  // One per node: whether runs will ask for it.
  bool tune = false;             // The first runs may time several algorithms.
};

// Used by one thread. Must outlive its programs.
class Runner {
 public:
  virtual ~Runner() = default;

  // A short name for profiles and errors: "cuDNN attention".
  virtual std::string name() const = 0;
  // The name in a worker's description: "ATen 2.13.0". Empty: it is left out.
  virtual std::string description() const { return name(); }

  // Whether the runner may execute the node. RunnerProgram::takes_node decides with which values.
  virtual bool accepts(const ir::Graph& graph, uint32_t node) = 0;
  // Whether the runner's programs may decline nodes that it accepted (RunnerProgram::takes_node). If not, the runners
  // after it are not asked for these nodes.
  virtual bool may_decline() const { return false; }
  // For a runner that accepts nothing on this machine: the reason, and how to change that. Empty: it accepts some
  // nodes.
  virtual std::string why_accepts_none() const { return {}; }
  // Whether the runner may execute the group's nodes as one. If a node of the group must not run, because an operand
  // failed, that node is skipped, and the others execute one by one.
  virtual bool accepts_group(const ir::Graph& graph, const ir::Group& group) { return false; }
  // Grows when the runner accepts or takes different nodes. Loaded programs then ask it again, between two runs.
  virtual uint64_t generation() const { return 0; }

  virtual Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) = 0;

  // Whether programs may use the op of this name ("aten::add.Tensor").
  virtual bool has_op(const char* name) {
    const ir::Opcode opcode = ir::find_op(name);
    return opcode != ir::kInvalidOpcode && has_opcode(opcode);
  }

  // Whether nodes are executed with begin(), one at a time, and not with run(). True for at most one runner of a
  // device.
  virtual bool works_in_background() const { return false; }
  // For a runner that works in the background: a node does not run, because an operand failed. The program may be one
  // that could not be loaded. The runner must notify other processes that wait for the node's op. `values`: values of
  // the graph's symbols.
  virtual void skip_node(const ir::Graph& graph, uint32_t node, const int64_t* values, const Status& why) {}
  // Ends the session: background ops end now, in whatever state, before this returns.
  virtual void end() {}

  // Number of kernels compiled so far.
  virtual uint64_t kernels_compiled() const { return 0; }
  // Number of groups that the runner accepted and found no kernel for.
  virtual uint64_t groups_without_kernel() const { return 0; }

  // The worker is about to wait for an unknown time: threads that spin should sleep.
  virtual void on_idle() {}

  // Runs work of the session on the runner's threads; null: the runner has none to offer.
  virtual ParallelFor threads() { return nullptr; }

  // Returns a function that the session calls before a run in which other runners use this runner's threads
  // (tr_runner_api::notify_threads); null: the call is not needed.
  virtual std::function<void(bool heavy_run)> thread_notifier() { return nullptr; }

  // Returns the runner's matmul, for other runners to use and to compare theirs with. The function returns whether it
  // computed the matmul. Null: the runner has none to offer.
  virtual std::function<bool(const tr_matmul& matmul)> matmul() { return nullptr; }

 private:
  // Whether programs may use the op. The default is right for runners of groups only.
  virtual bool has_opcode(ir::Opcode opcode) { return false; }
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
