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
  // runs on GPUs with at least this compute capability. 0: runs on all (LLVM bitcode for the GPU emulator). The entries
  // of a file have increasing compute capabilities.
  uint32_t sm = 0;
  uint32_t is_ptx = 0;
  uint32_t unused = 0;
  uint64_t offset = 0, size = 0;  // Bytes; the offset is from the start of the archive.
};
using KernelArchive = std::span<const uint8_t>;

// The images of a file for one GPU, as parts of the archive. An image that does not exist is empty.
struct KernelImages {
  KernelArchive code;  // Machine code, or bitcode for the GPU emulator.
  KernelArchive ptx;   // With its terminating NUL.
};

// The images for compute capability `sm`: of those that fit, the ones for the latest compute capability. The archive is
// trusted: its entries are not checked.
KernelImages find_images(KernelArchive archive, KernelFile file, uint32_t sm);

// The archive in the worker, which lives as long as the process.
KernelArchive hand_written_kernels();

}  // namespace torch_remote::worker::cuda
