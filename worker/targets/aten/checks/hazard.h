#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

#include "ir/graph.h"

// Ops in place that find out in the middle of their work that they cannot do it: an index out of range, an integer
// division by zero. What they write must stay as it was then.
namespace torch_remote::worker::aten {

enum class Hazard : uint8_t {
  kNone,
  kDimIndices,   // (self, dim, index, ...): indices into that dim
  kListIndices,  // (self, indices, ...): one tensor a dim, masks, or none
  kFlatIndices,  // (self, index, ...): into all elements
  kRowIndices,   // (self, index, ...): into dim 0
  kAny,          // known only by doing it
};

Hazard hazard_of(const ir::Node& node, const ir::Graph& graph);

// Whether the op may fail in the middle with these arguments. False positives cost a copy.
bool may_fail(Hazard hazard, const c10::IValue* args);

}  // namespace torch_remote::worker::aten
