#include "worker/targets/cuda/kernels/kernel_images.h"

extern "C" {
extern const uint8_t torch_remote_written[];
extern const uint8_t torch_remote_written_end[];
}

namespace torch_remote::worker::cuda {

KernelArchive hand_written_kernels() { return {torch_remote_written, torch_remote_written_end}; }

}  // namespace torch_remote::worker::cuda
