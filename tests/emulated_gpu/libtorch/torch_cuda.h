#pragma once

// What the libtorch_cuda.so in software (torch_cuda.cpp) is given: plain C, as it is opened at run time.

#include <cstddef>
#include <cstdint>

extern "C" {

struct TorchCudaDriver {
  int devices;
  // Between this process's memory and the current GPU's, on a stream; done when they return. Throw what is wrong.
  void (*read)(void* to, const void* from, size_t nbytes, void* stream);
  void (*write)(void* to, const void* from, size_t nbytes, void* stream);
};

// "torch_remote_set_driver"
using TorchCudaSetDriver = void (*)(const TorchCudaDriver* driver);
}
