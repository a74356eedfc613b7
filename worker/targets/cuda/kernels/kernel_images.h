#pragma once

#include <cstdint>
#include <span>

namespace torch_remote::worker::cuda {

// The files of hand-written kernels (worker/targets/cuda/kernels); each is a module.
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

// An archive of kernels: a header, entries, images. kernel_archive.cpp writes it; it is linked into the worker.
struct ArchiveHeader {
  uint64_t images = 0;
  uint64_t unused = 0;
};
struct ImageEntry {
  uint32_t file = 0;
  uint32_t sm = 0;  // Machine code: runs on sm and later ones of its generation. PTX: runs on all later ones. 0: any.
  uint32_t is_ptx = 0;
  uint32_t unused = 0;
  uint64_t offset = 0, size = 0;  // Bytes.
};
using KernelArchive = std::span<const uint8_t>;

// The image for compute capability `sm` (90: 9.0): machine code, or else PTX. Empty: there is none.
KernelArchive find_image(KernelArchive archive, KernelFile file, uint32_t sm);

// The archive in the worker.
KernelArchive hand_written_kernels();

}  // namespace torch_remote::worker::cuda
