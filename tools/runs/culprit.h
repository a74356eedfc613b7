#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/runs/execute.h"

// Finds the op at which two runs begin to differ.
namespace torch_remote::tools {

// Nodes of two graphs that should write the same.
struct NodePair {
  uint32_t a = 0, b = 0;
};
// Pairs nodes that come from the same record, in the order of `b`. If several nodes of a graph come from one record,
// only the last one is paired.
std::vector<NodePair> pair_by_record(const ir::Graph& a, const ir::Graph& b);
// Pairs each node with itself.
std::vector<NodePair> pair_with_itself(const ir::Graph& graph);

// One of the two runs. The caller owns the device, the graph and the buffers of `inputs`, which are not written.
struct Side {
  Device* device = nullptr;
  const ir::Graph* graph = nullptr;
  Inputs inputs;
};

struct Culprit {
  NodePair nodes;
  std::string op_a, op_b;  // the ops with their operands: shapes, strides, numbers
  std::string line;        // the user's source line, or ""
  uint32_t written = 0;    // the tensor that differs: an index in written_views() (snapshots.h)
  ir::DType dtype = ir::DType::kUInt8;
  ir::Difference difference;
  // If set, an operand that already differed when the op began: an index in read_views() (snapshots.h). No earlier pair
  // differs. So the operand's memory was overwritten after it was computed, unless the pair that computed it was
  // skipped.
  std::optional<uint32_t> operand;
};

// Runs both graphs, saves their intermediate results and compares them pair by pair, in the order of `pairs`. The runs
// have no memory plan and no groups (fused kernels). A run saves at most `memory` bytes of results on each device, but
// at least those of one node. If the results need more, both graphs run several times. Pairs that write no tensors, or
// tensors of different numbers, dtypes or sizes, are skipped. If all other pairs agree, *culprit is empty: the
// difference comes from the memory plan, the groups, the order of ops, or a skipped pair. Returns an error if a run
// fails.
Status find_culprit(const Side& a, const Side& b, const std::vector<NodePair>& pairs, std::span<const int64_t> params,
                    const ir::Tolerance& tolerance, uint64_t memory, std::optional<Culprit>* culprit);

}  // namespace torch_remote::tools
