#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

// Runs a graph with functions that mean nothing in place of the ops: an element is a hash of the op and of what the op
// read. Two graphs that give the same bytes do the same reads and writes in an order that makes no difference, which is
// what passes must keep.
namespace torch_remote::passes::testing {

struct Bytes {
  std::vector<uint8_t> data;
  std::vector<bool> defined;  // a byte that came from uninitialised memory is not
};

// Runs with the inputs in the order of their buffers, each with these bytes. Follows the memory plan if there is one:
// memory is taken over where it says so, and undefined after a buffer's last node. The result: the surviving inputs,
// then the surviving fresh buffers, in order.
Status interpret(const ir::Graph& graph, const std::vector<int64_t>& params,
                 const std::vector<std::vector<uint8_t>>& inputs, std::vector<Bytes>* survivors);

}  // namespace torch_remote::passes::testing
