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
  // Binds the plan to the values of the graph's symbols. kUnsupported: it cannot execute the node with these values.
  virtual Status bind(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values) = 0;
  // Executes the node with the bound values. The caller has allocated the node's results.
  virtual Status run(std::span<const tr_buffer> buffers, std::span<const int64_t> values) = 0;
};

// A program of a runner that executes nodes one by one.
class NodeProgram final : public RunnerProgram {
 public:
  // `plans`: one per node of the graph; null: this runner does not execute the node. `graph` and `device` outlive the
  // program.
  NodeProgram(Device& device, const ir::Graph& graph, std::vector<std::unique_ptr<NodePlan>> plans);

  bool allocates_buffer(uint32_t) const override { return false; }
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
  ir::Graph ungrouped_graph_;  // The graph as if it had no groups.
  std::vector<Node> nodes_;
};

}  // namespace torch_remote::worker::reference
