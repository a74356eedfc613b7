#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// The boxed kernels: one registered per ATen op, found by walking the dispatcher.
namespace torch_remote::frontend {

// Registers a kernel that records for every op that needs one: all that the op table lists, and every other op that has
// a native kernel somewhere. Left out: CompositeImplicit ops (a backend kernel would suppress their decomposition and
// so their autograd), pure views (metadata), composites outside the table (they decompose into ops that are recorded),
// and the ops of kernels.cpp. Also a fallback for ops registered later (custom ops). Once per process.
void register_ops();

// Ops whose shapes came from the dispatcher's Meta key (tier 3, not remembered), with how often.
std::vector<std::pair<std::string, uint64_t>> meta_key_calls();

}  // namespace torch_remote::frontend
