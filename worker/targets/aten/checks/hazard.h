#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

#include "ir/graph.h"

// Some in-place ops fail midway: an index is out of range, an integer division has a zero divisor. Their operands must
// then keep their old contents.
namespace torch_remote::worker::aten {

enum class Hazard : uint8_t {
  kNone,
  kDimIndices,       // (self, dim, index, ...): indices into dim `dim`
  kListIndices,      // (self, indices, ...): one index tensor per dim, or masks, or None
  kFlatIndices,      // (self, index, ...): indices into the flattened tensor
  kRowIndices,       // (self, index, ...): indices into dim 0
  kIntegerDivision,  // kAny if the operands are integers
  kAny,              // can only be found out by running the op
};

Hazard hazard_of(const ir::Node& node, const ir::Graph& graph);

// Whether the op may fail midway with these arguments. A false positive costs a copy.
bool may_fail(Hazard hazard, const c10::IValue* args);

}  // namespace torch_remote::worker::aten
