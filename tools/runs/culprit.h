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
// Pairs nodes that come from the same record, in the order of `b`. If several nodes come from one record, the last one
// is paired.
std::vector<NodePair> pair_by_record(const ir::Graph& a, const ir::Graph& b);
// Pairs each node with itself.
std::vector<NodePair> pair_with_itself(const ir::Graph& graph);

struct Side {
  Device* device = nullptr;
  const ir::Graph* graph = nullptr;
  Inputs inputs;
};

struct Culprit {
  NodePair nodes;
  std::string op_a, op_b;  // the ops with their operands: shapes, strides, numbers
  std::string line;        // the user's source line, or ""
  uint32_t written = 0;    // index among the tensors that it writes
  ir::DType dtype = ir::DType::kUInt8;
  Difference difference;
  // If set, the index of an operand that already differed when the op began, although the op that computed it agrees:
  // its memory was overwritten in between.
  std::optional<uint32_t> operand;
};

// Runs both graphs, saves their intermediate results and compares them pair by pair. Saves at most `memory` bytes of
// results at a time, but at least those of one node. Skips pairs that write different dtypes or sizes. If all pairs
// agree, *culprit is empty: the difference comes from the memory plan or the order of ops.
Status find_culprit(const Side& a, const Side& b, const std::vector<NodePair>& pairs, std::span<const int64_t> params,
                    const Tolerance& tolerance, uint64_t memory, std::optional<Culprit>* culprit);

}  // namespace torch_remote::tools
