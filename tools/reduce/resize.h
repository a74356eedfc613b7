#pragma once

#include <cstdint>
#include <vector>

#include "tools/runs/case.h"

// Makes tensors smaller.
namespace torch_remote::tools::reduce {

// The distinct sizes that are parameters, largest first.
std::vector<int64_t> sizes_of(const RunCase& run);

// Replaces every size and every integer argument that equals `from` by `to`. Strides and bytes are adapted for dense
// views, and for views that are parts of a dense view of the same buffer (slices, steps, transposed views). Inputs with
// a single view become dense. Inputs keep their remaining elements. Returns false if the change is not possible. The
// result may not make sense; the reduction's Test decides whether it is used.
bool with_size(const RunCase& run, int64_t from, int64_t to, RunCase* changed);

}  // namespace torch_remote::tools::reduce
