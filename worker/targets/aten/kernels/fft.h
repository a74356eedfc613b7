#pragma once

namespace torch_remote::worker::aten {

// Makes CPU's FFTs of complex numbers transform one dim after the other, for the whole process. MKL's transforms of
// several dims write past the end of a buffer of their own for some sizes (backward, a dim of 1500; //tests/guards
// found it), so a program could overwrite the worker's memory. Safe to call more than once.
void transform_dims_apart();

}  // namespace torch_remote::worker::aten
