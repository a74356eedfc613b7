#pragma once

namespace torch_remote::worker::aten {

// Makes CPU's FFTs of complex numbers transform large dims one after the other, in the whole process. MKL's transforms
// of several dims write past the end of a buffer of their own for some sizes: backward, with a dim of 1500, as
// //tests/guards found. A program could overwrite the worker's memory so. Results then differ in the last bits from
// CPU's. May be called more than once.
void transform_dims_apart();

}  // namespace torch_remote::worker::aten
