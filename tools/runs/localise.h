#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/runs/execute.h"

// Finds the op that makes two runs differ.
namespace torch_remote::tools {

// A node of one graph, and one of the other that should write the same.
struct NodePair {
  uint32_t a = 0, b = 0;
};
// Pairs of nodes that come from the same record; where several nodes come from one, its last node stands for it. In the
// order of `b`.
std::vector<NodePair> pair_by_record(const ir::Graph& a, const ir::Graph& b);
// Each node with itself.
std::vector<NodePair> pair_with_itself(const ir::Graph& graph);

struct Side {
  Device* device = nullptr;
  const ir::Graph* graph = nullptr;
  Inputs inputs;
};

struct Culprit {
  NodePair nodes;
  std::string op_a, op_b;  // with operands: shapes, strides, numbers
  std::string line;        // the user's, or ""
  uint32_t written = 0;    // which of the things that it writes
  ir::DType dtype = ir::DType::kUInt8;
  Difference difference;
  // Set: this tensor that it reads, counted from 0, was another one already when the op began, though what made it
  // agrees: its memory was overwritten.
  std::optional<uint32_t> operand;
};

// Runs both graphs with their intermediate results kept, at most `memory` bytes of them at a time (or those of one
// node), and compares pair by pair. Pairs that write other types or sizes are passed over. Nothing: all pairs agree, so
// what differs is how the ops are put together (memory plan, order).
Status find_culprit(const Side& a, const Side& b, const std::vector<NodePair>& pairs, std::span<const int64_t> params,
                    const Tolerance& tolerance, uint64_t memory, std::optional<Culprit>* culprit);

}  // namespace torch_remote::tools
