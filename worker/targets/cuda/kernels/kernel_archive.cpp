#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "codegen/gpu/assemble.h"
#include "worker/targets/cuda/kernels/kernel_images.h"

// Makes an archive of kernels (worker/targets/cuda/kernels/kernel_images.h) from files in the order of KernelFile:
//   kernel_archive OUT LOG --assemble LIBNVJITLINK A.ptx B.ptx ...    machine code, and the PTX
//   kernel_archive OUT LOG --bitcode A.bc B.bc ...                    for the GPU emulator
// LOG receives the assembler's report on each kernel, after lines "sm_N".
namespace torch_remote::worker::cuda {
namespace {

struct Image {
  ImageEntry entry;
  std::vector<uint8_t> bytes;
};

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

int fail(const std::string& what) {
  std::fprintf(stderr, "kernel_archive: %s\n", what.c_str());
  return 1;
}

void add(uint32_t file, uint32_t sm, bool is_ptx, const void* bytes, size_t size, std::vector<Image>* images) {
  const auto* first = static_cast<const uint8_t*>(bytes);
  images->push_back({{.file = file, .sm = sm, .is_ptx = is_ptx ? 1u : 0u}, {first, first + size}});
}

// LLVM's bitcode wrapper, which the emulated driver expects.
std::string wrapped(const std::string& bitcode) {
  const uint32_t header[5] = {0x0B17C0DE, 0, sizeof(header), static_cast<uint32_t>(bitcode.size()), 0};
  return std::string(reinterpret_cast<const char*>(header), sizeof(header)) + bitcode;
}

int write(const char* path, std::vector<Image>& images) {
  uint64_t offset = sizeof(ArchiveHeader) + images.size() * sizeof(ImageEntry);
  std::ofstream out(path, std::ios::binary);
  const ArchiveHeader header{.images = images.size()};
  out.write(reinterpret_cast<const char*>(&header), sizeof(header));
  for (Image& image : images) {
    offset = (offset + 15) & ~uint64_t{15};
    image.entry.offset = offset;
    image.entry.size = image.bytes.size();
    offset += image.bytes.size();
    out.write(reinterpret_cast<const char*>(&image.entry), sizeof(image.entry));
  }
  for (const Image& image : images) {
    while (static_cast<uint64_t>(out.tellp()) < image.entry.offset) out.put('\0');
    out.write(reinterpret_cast<const char*>(image.bytes.data()), static_cast<std::streamsize>(image.bytes.size()));
  }
  out.close();
  return out.good() ? 0 : fail(std::string("cannot write ") + path);
}

int run(int argc, char** argv) {
  if (argc < 5) return fail("OUT LOG --assemble LIBNVJITLINK PTX... or OUT LOG --bitcode BC...");
  std::vector<Image> images;
  const bool assembles = std::string(argv[3]) == "--assemble";
  std::unique_ptr<codegen::gpu::Assembler> assembler;
  if (assembles) {
    if (const Status status = codegen::gpu::Assembler::open(argv[4], &assembler); !status.ok()) {
      return fail(status.message());
    }
  }
  std::ofstream log(argv[2]);
  uint32_t file = 0;
  for (int i = assembles ? 5 : 4; i < argc; ++i, ++file) {
    const std::string content = read_file(argv[i]);
    if (content.empty()) return fail(std::string("cannot read ") + argv[i]);
    if (!assembles) {
      const std::string image = wrapped(content);
      add(file, 0, false, image.data(), image.size(), &images);
      continue;
    }
    for (const uint32_t sm : {80u, 90u, 100u}) {
      codegen::gpu::GpuCode code;
      code.ptx = content;
      if (const Status status = assembler->assemble(sm, &code); !status.ok()) {
        return fail(std::string(argv[i]) + ": " + status.message());
      }
      log << "sm_" << sm << "\n" << code.log << "\n";
      add(file, sm, false, code.cubin.data(), code.cubin.size(), &images);
    }
    add(file, 80, true, content.c_str(), content.size() + 1, &images);
  }
  return write(argv[1], images);
}

}  // namespace
}  // namespace torch_remote::worker::cuda

int main(int argc, char** argv) { return torch_remote::worker::cuda::run(argc, argv); }
