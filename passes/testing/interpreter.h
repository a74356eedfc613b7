#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

// Runs a graph with meaningless functions in place of the ops: an element is a hash of the op and of what the op read.
// If two graphs give the same bytes, they do the same reads and writes, in orders that make no difference. A pass must
// not change the bytes.
namespace torch_remote::passes::testing {

struct Bytes {
  std::vector<uint8_t> data;
  std::vector<bool> defined;  // false for a byte that came from uninitialized memory
};

// Runs the graph. `inputs` has the bytes of the input buffers, in order. Follows the memory plan if there is one:
// memory is taken over as planned, and is undefined after a buffer's last node. `survivors` gets the surviving inputs,
// and then the surviving fresh buffers, in order.
Status interpret(const ir::Graph& graph, const std::vector<int64_t>& params,
                 const std::vector<std::vector<uint8_t>>& inputs, std::vector<Bytes>* survivors);

}  // namespace torch_remote::passes::testing
