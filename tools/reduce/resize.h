#pragma once

#include <cstdint>
#include <vector>

#include "tools/runs/case.h"

// Smaller tensors.
namespace torch_remote::tools::reduce {

// The sizes that are parameters, largest first, each once.
std::vector<int64_t> sizes_of(const RunCase& run);

// The run with every size and every whole-number argument that is `from` made `to`. Strides and bytes follow: of dense
// views; of views that are a part of a dense one of the same buffer (slices, steps, transposed ones); and inputs that
// are seen in one way only become dense. Inputs keep the elements that are still there. False if it cannot be done;
// whether the result makes sense, only a test can tell.
bool with_size(const RunCase& run, int64_t from, int64_t to, RunCase* changed);

}  // namespace torch_remote::tools::reduce
