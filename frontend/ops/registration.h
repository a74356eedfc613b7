#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ir/ops/op_table.h"

// Registers the kernels that record calls, one per ATen op. The ops are found by walking the dispatcher.
namespace torch_remote::frontend {

// Registers a recording kernel for all ops of the op table, and for all other ops that have a native kernel for some
// device. These are left out:
//   CompositeImplicit ops: a backend kernel would suppress their decomposition, and so their autograd
//   pure views, which only change metadata
//   composites outside of the table, which decompose into recorded ops
//   the ops of kernels.cpp
// Also registers a fallback for ops that are registered later (custom ops). Called once per process.
void register_ops();

// The op's description, for graphs, which name ops without calling them. Null if a record cannot hold its arguments.
const ir::OpDesc* graph_desc(const c10::OperatorHandle& handle);
// Whether a call of the op is recorded as one record of this op, and not as the ops that torch composes it of.
bool is_recorded(const c10::OperatorHandle& handle);
// Whether the device's worker has an op that is not torch's own. Asks each worker once, as worker_has (cpu_fallback.h).
bool worker_has_op(const c10::OperatorHandle& handle, c10::DeviceIndex device);

// The ops whose shapes came from the dispatcher's Meta key (tier 3), and the number of such calls. Cache hits do not
// count.
std::vector<std::pair<std::string, uint64_t>> meta_key_calls();

}  // namespace torch_remote::frontend
