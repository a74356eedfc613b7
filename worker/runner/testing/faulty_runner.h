#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "worker/runner/runner.h"

namespace torch_remote::worker::testing {

// Is called after each node has run, also as part of a group, and may change what the node wrote. Buffers without
// memory have no data.
using Fault = std::function<void(const ir::Graph& graph, uint32_t node, std::span<const tr_buffer> buffers)>;

// Does what another runner does, except for the fault, on a device in this process's memory. `fault` must outlive the
// runner; it may be empty, and may change.
std::unique_ptr<Runner> make_faulty_runner(std::unique_ptr<Runner> inner, const Fault& fault);

// Adds `by` to the first element of each f32 tensor that an op of this name ("aten::tanh") writes.
Fault add_to_results_of(const char* op, float by);

}  // namespace torch_remote::worker::testing
