#pragma once

namespace torch_remote::worker::aten {

// Makes CPU's FFTs of complex numbers transform large dims one after the other, in the whole process. MKL's transforms
// of several dims write past the end of a buffer of their own for some sizes, so a program could overwrite the worker's
// memory. fft_memory_test finds such sizes. Results then differ from CPU's in the last bits. May be called more than
// once.
void transform_dims_apart();

}  // namespace torch_remote::worker::aten
