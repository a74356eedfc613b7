#pragma once

#include <cstdint>
#include <span>

namespace torch_remote::worker::cuda {

// Files of kernels that are written by hand (worker/targets/cuda/kernels); each is a module.
enum class KernelFile : uint8_t {
  kRandom,
  kScan,
  kSort,
  kIndex,
  kSelect,
  kFill,
  kAttention,
  kImage,
  kNorm,
  kRnn,
  kReduce,
  kPointwise,
  kSearch,
  kPair,
  kBag,
  kGrid,
  kComplex,
  kCtc,
  kMargin
};
inline constexpr size_t kKernelFiles = 19;

// An archive of them: a header, entries, images. As kernel_archive.cpp writes it into the worker.
struct ArchiveHeader {
  uint64_t images = 0;
  uint64_t unused = 0;
};
struct ImageEntry {
  uint32_t file = 0;
  uint32_t sm = 0;  // machine code for that one and later ones of its generation; PTX: for all later ones; 0: for any
  uint32_t is_ptx = 0;
  uint32_t unused = 0;
  uint64_t offset = 0, size = 0;  // bytes
};
using KernelArchive = std::span<const uint8_t>;

// The image for a GPU of that number (90): machine code, else PTX. Empty: there is none.
KernelArchive find_image(KernelArchive archive, KernelFile file, uint32_t sm);

// What is in the worker.
KernelArchive written_kernels();

}  // namespace torch_remote::worker::cuda
