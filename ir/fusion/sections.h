#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"

// Ops that join tensors (cat, stack, gradients of slices) compute nothing: each element of the result is an element of
// an operand, or zero. A group with joins is cut into sections at the ends of the joined operands. In each section a
// join is a copy, and the other nodes are unchanged, but have fewer positions. So one loop nest (ir::IterationDomain)
// can compute a section, though it could not compute the whole group.
namespace torch_remote::ir {

// A section of a group: a separate graph, for the numbers of one run.
struct Section {
  Graph graph;                    // the section's nodes, without joins; views have only the section's positions
  std::vector<int64_t> values;    // values of the section's symbols
  std::vector<uint32_t> nodes;    // for each node of the section: the node of the group's graph
  std::vector<uint32_t> buffers;  // for each buffer of the section: the buffer of the group's graph
  // for each symbol of the section: the symbol of the group's graph, or kNoSym if there is none
  std::vector<Sym> symbols;
  std::vector<Sym> depends;  // symbols of the group's graph, arguments of joins, that determine the cuts
};

// Whether the op joins tensors.
bool is_join(Opcode opcode);

// Finds the sections of these nodes, some of which join tensors, in order. `values` holds the values of the graph's
// symbols. Executing all sections, in any order, executes the nodes. Returns false if the nodes cannot be cut, or only
// into too many sections.
bool find_sections(const Graph& graph, std::span<const int64_t> values, std::span<const uint32_t> nodes,
                   std::vector<Section>* sections);

}  // namespace torch_remote::ir
