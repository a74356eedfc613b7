#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_remote::frontend {

// make_backend(group, rank, size): a c10d::Backend whose ops are methods of a Python object
// (torch_remote/distributed/group.py). make_work(results, on_wait): what these return; `on_wait` is None, or called at
// the first wait, and returns the rank that a message came from, or -1.
void bind_distributed(py::module_& module);

}  // namespace torch_remote::frontend
