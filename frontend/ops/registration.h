#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ir/ops/op_table.h"

// The kernels that record: one registered per ATen op, found by walking the dispatcher.
namespace torch_remote::frontend {

// Registers a kernel that records for every op that needs one: all that the op table lists, and every other op that has
// a native kernel somewhere. Left out: CompositeImplicit ops (a backend kernel would suppress their decomposition and
// so their autograd), pure views (metadata), composites outside the table (they decompose into ops that are recorded),
// and the ops of kernels.cpp. Also a fallback for ops registered later (custom ops). Once per process.
void register_ops();

// For graphs, which name ops without calling them: the op's description, null if no record can hold its arguments.
const ir::OpDesc* graph_desc(const c10::OperatorHandle& handle);
// Whether a call of it is recorded as it is, rather than as what torch composes it of.
bool is_recorded(const c10::OperatorHandle& handle);
// Whether the worker has an op that is not torch's own; asks it once.
bool worker_has_op(const c10::OperatorHandle& handle);

// Ops whose shapes came from the dispatcher's Meta key (tier 3, not remembered), with how often.
std::vector<std::pair<std::string, uint64_t>> meta_key_calls();

}  // namespace torch_remote::frontend
