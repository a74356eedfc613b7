#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "worker/device/device.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::reference {

// How one node is executed with the values of a run, in host memory.
class NodePlan {
 public:
  virtual ~NodePlan() = default;
  // kUnsupported: it cannot execute the node with these values. `values` are those of the graph's symbols.
  virtual Status bind(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values) = 0;
  // Executes the node that it is bound to. Its results have memory.
  virtual Status run(std::span<const tr_buffer> buffers, std::span<const int64_t> values) = 0;
};

// A program of a runner that executes nodes one by one.
class NodeProgram final : public RunnerProgram {
 public:
  // `plans`: of each node of the graph; null: not this runner's. `graph` and `device` outlive the program.
  NodeProgram(Device& device, const ir::Graph& graph, std::vector<std::unique_ptr<NodePlan>> plans);

  bool creates_buffer(uint32_t) const override { return false; }
  bool takes_node(uint32_t node, std::span<const int64_t> values, bool wait) override;
  std::string why_not(uint32_t node) const override;
  bool run(tr_run& run, tr_error* error) override;

 private:
  struct Node {
    std::unique_ptr<NodePlan> plan;
    std::vector<int64_t> values;  // The values for which the plan is bound.
    std::optional<Status> bound;  // Not set: never bound.
  };
  const Status& bind(uint32_t node, std::span<const int64_t> values);
  Status allocate(tr_run& run, uint32_t node);

  Device& device_;
  const ir::Graph& graph_;
  ir::Graph apart_;  // As if there were no groups.
  std::vector<Node> nodes_;
};

}  // namespace torch_remote::worker::reference
