#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_remote::frontend {

// Binds two functions. make_backend(group, rank, size) returns a c10d::Backend that forwards each op to a method of a
// Python object (torch_remote/distributed/group.py). These methods return make_work(results, on_wait). `on_wait` is
// None or a callable; the first wait calls it, and it returns the rank that a message came from, or -1.
void bind_distributed(py::module_& module);

}  // namespace torch_remote::frontend
