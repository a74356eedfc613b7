#include "tests/emulated_gpu/hand_written_kernels.h"

extern "C" {
extern const uint8_t torch_remote_written_bitcode[];
extern const uint8_t torch_remote_written_bitcode_end[];
}

namespace torch_remote::worker::cuda::emulated {

KernelArchive hand_written_kernels() { return {torch_remote_written_bitcode, torch_remote_written_bitcode_end}; }

}  // namespace torch_remote::worker::cuda::emulated
