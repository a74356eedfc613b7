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

// An archive of kernels: an ArchiveHeader, `images` entries, then the images. An image is what cuModuleLoadDataEx takes
// for one file: machine code, PTX with its terminating NUL, or LLVM bitcode for the GPU emulator. kernel_archive.cpp
// writes the archive, which is linked into the worker.
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
  uint64_t offset = 0, size = 0;  // Bytes; the offset is from the start of the archive.
};
using KernelArchive = std::span<const uint8_t>;

// The image for compute capability `sm`, as a part of `archive`: machine code or bitcode, or else PTX; empty if there
// is none. If several images fit, it is the last one. The archive is trusted: its entries are not checked.
KernelArchive find_image(KernelArchive archive, KernelFile file, uint32_t sm);

// The archive in the worker, which lives as long as the process.
KernelArchive hand_written_kernels();

}  // namespace torch_remote::worker::cuda
