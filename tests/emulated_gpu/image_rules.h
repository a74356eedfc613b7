#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker/targets/cuda/device/driver.h"

// Which images NVIDIA's driver of a given version loads on a given GPU. A driver version is that of CUDA: 12040 is
// CUDA 12.4, which driver 550 has.
namespace torch_remote::worker::cuda::emulated {

// The newest PTX ISA that the driver assembles, as 10 * major + minor: 80 for PTX 8.0.
int newest_ptx(int driver);

// Describes an image, so that the bytes of an ELF file or the text of a PTX file need not be compared.
struct ImageFacts {
  enum class Kind : uint8_t { kElf, kPtx, kOther } kind = Kind::kOther;
  uint32_t sm = 0;      // Compute capability: 90.
  int elf_abi = 0;      // ELF: 7 in CUDA 12, 8 in CUDA 13, and in CUDA 12 for sm_100 and later.
  int ptx_version = 0;  // PTX: 80 for PTX 8.0.
  size_t body = 0;      // Offset of the bytes after the ELF header, or after the PTX directives.
};

// `image` is as for cuModuleLoadDataEx: an ELF file has at least 64 bytes, and PTX ends with a NUL.
ImageFacts read_image(const void* image);

// kSuccess, or the error that the driver returns. `log` is the driver's error log.
Result check_image(const ImageFacts& image, int driver, uint32_t sm, std::string* log);

// Images that the emulated driver executes: an ELF header and bitcode or LLVM IR text; PTX directives and LLVM IR text.
std::vector<uint8_t> make_elf(uint32_t sm, int abi, const void* body, size_t bytes);
std::string make_ptx(uint32_t sm, int version, std::string_view ir);

}  // namespace torch_remote::worker::cuda::emulated
