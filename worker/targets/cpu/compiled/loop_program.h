#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "worker/runner/number_checks.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::kernels {

// Bound on a call's scratch memory, in bytes. It must be small, because it does not count towards the memory limit. The
// subclasses' bind() and the compiled kernels' runner refuse what needs more.
constexpr size_t kMaxScratch = 64 << 20;

// A program of a runner that executes groups of one node each with hand-written loops. The loops are prepared ("bound")
// for the values of a run, and used until a size, a stride, an offset or a number changes.
class LoopProgram : public RunnerProgram {
 public:
  // The program consists of the graph's groups of this kind that have one node. The graph must outlive it.
  LoopProgram(const ir::Graph& graph, ir::GroupKind kind);

  bool allocates_buffer(uint32_t) const override { return false; }
  bool takes(uint32_t first, uint32_t last, std::span<const int64_t> values) override;
  std::string why_not_group(uint32_t first) const override;
  double work(uint32_t first, uint32_t last) const override;
  bool run(tr_run& run, tr_error* error) override;

 protected:
  const ir::Graph& graph() const { return graph_; }
  // The number of groups; the functions below identify a group by its index.
  size_t count() const { return groups_.size(); }
  // Records that the loops do not support the group with the current values after all, although `bind` accepted them.
  void reject(size_t index) { groups_[index].fits = false; }

 private:
  struct Bound {
    Bound(const ir::Graph& graph, const ir::Group& made)
        : group(made), numbers(graph, made, ScalarChecks::HalfPolicy::kAny) {}
    ir::Group group;
    ScalarChecks numbers;
    std::vector<ir::Sym> symbols;  // the symbols that the loops depend on
    std::vector<int64_t> values;   // the symbols' values
    bool is_bound = false, fits = false, taken = false;
  };

  // Prepares the loops of a group for these values. Returns false if the loops do not support them.
  virtual bool bind(size_t index, const ir::Node& node, std::span<const int64_t> values) = 0;
  // Whether the next run should use the loops. Called only if they support the values.
  virtual bool wants(size_t) { return true; }
  // Runs the loops as they were bound last. `buffers`: all buffers of the graph. Returns false if it fails, after
  // setting all of *error but the node.
  virtual bool execute(size_t index, std::span<const tr_buffer> buffers, tr_error* error) = 0;
  // Why the group was declined: `bind` or `wants` returned false, reject() was called, or the group's dtype cannot hold
  // one of its numbers.
  virtual std::string reason(size_t index) const = 0;
  // The estimated work, in points of compiled kernels (Launches::points).
  virtual double points(size_t index) const = 0;

  size_t index_of(uint32_t first) const;

  const ir::Graph& graph_;
  std::vector<Bound> groups_;
};

}  // namespace torch_remote::worker::kernels
