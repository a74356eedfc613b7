#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"

// Ops that join tensors (cat, stack, gradients of slices) compute nothing: each element of the result is one of an
// operand's, or zero. Where the points of a group are cut at the ends of what is joined, such an op is a copy in each
// section, and the group's other nodes are what they were, of fewer places. So one loop nest can do a section
// (ir::Domain), which could not do all of it.
namespace torch_remote::ir {

// A section of a group: a graph of its own, for the numbers of one run.
struct Section {
  Graph graph;                    // nodes that are done in it, without joins; views have only its places
  std::vector<int64_t> values;    // of its symbols
  std::vector<uint32_t> nodes;    // of each of its nodes: the group's node
  std::vector<uint32_t> buffers;  // of each of its buffers: the group's graph's
  std::vector<Sym> symbols;       // of each of its symbols: the group's graph's, or kNoSym for one of the section's own
  std::vector<Sym> depends;       // symbols of the group's graph, arguments of joins, that decide where it is cut
};

// Whether it joins tensors.
bool is_join(Opcode opcode);

// The sections of so many nodes of a graph, some of which join tensors, in order; `values` are those of its symbols.
// Who does all sections, in any order, has done the nodes. False: they cannot be cut so, or into too many.
bool find_sections(const Graph& graph, std::span<const int64_t> values, std::span<const uint32_t> nodes,
                   std::vector<Section>* sections);

}  // namespace torch_remote::ir
