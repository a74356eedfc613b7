#pragma once

#include <cstdint>
#include <span>

namespace torch_remote::worker::cuda {

// The files of hand-written kernels (worker/targets/cuda/kernels). Each is compiled to a module of its own.
enum class KernelFile : uint8_t {
  kRandom,
  kScan,
  kSort,
  kIndex,
  kSelect,
  kFill,
  kAttention,
  kImage,
  kRnn,
  kPointwise,
  kSearch,
  kPair,
  kBag,
  kGrid,
  kComplex,
  kCtc,
  kMargin,
  kInterpret
};
inline constexpr size_t kKernelFiles = 18;

// An archive of kernels: a header, entries, images. An image is the machine code or the PTX of one file.
// kernel_archive.cpp writes the archive, which is linked into the worker.
struct ArchiveHeader {
  uint64_t images = 0;
  uint64_t unused = 0;
};
struct ImageEntry {
  uint32_t file = 0;
  // Compute capability (90: 9.0). Machine code runs on GPUs of this major version with at least this minor version; PTX
  // runs on GPUs with at least this compute capability. 0: runs on all (LLVM bitcode for the GPU emulator).
  uint32_t sm = 0;
  uint32_t is_ptx = 0;
  uint32_t unused = 0;
  uint64_t offset = 0, size = 0;  // Bytes.
};
using KernelArchive = std::span<const uint8_t>;

// The image for compute capability `sm`: machine code, or else PTX; empty if there is neither.
KernelArchive find_image(KernelArchive archive, KernelFile file, uint32_t sm);

// The archive in the worker.
KernelArchive hand_written_kernels();

}  // namespace torch_remote::worker::cuda
