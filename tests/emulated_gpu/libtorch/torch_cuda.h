#pragma once

// The functions that the emulated libtorch_cuda.so (torch_cuda.cpp) gets. They are plain C, because it is opened at run
// time.

#include <cstddef>
#include <cstdint>

extern "C" {

struct TorchCudaDriver {
  int devices;
  // Copy between host memory and memory of the current GPU, on a stream. They return when the copy is complete, and
  // throw on errors.
  void (*read)(void* to, const void* from, size_t nbytes, void* stream);
  void (*write)(void* to, const void* from, size_t nbytes, void* stream);
};

// Type of the symbol "torch_remote_set_driver".
using TorchCudaSetDriver = void (*)(const TorchCudaDriver* driver);
}
