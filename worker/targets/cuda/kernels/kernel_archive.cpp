#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "codegen/gpu/assemble.h"
#include "worker/targets/cuda/kernels/kernel_images.h"

// Makes an archive of kernels (worker/targets/cuda/kernels/kernel_images.h) from files in the order of KernelFile:
//   kernel_archive OUT LOG --assemble LIBNVJITLINK --ptx 75 A.ptx B.ptx ... --ptx 80 A.ptx B.ptx ...
//     machine code, and the PTX, by compute capability
//   kernel_archive OUT LOG --bitcode A.bc B.bc ...
//     bitcode for the GPU emulator
// LOG receives the assembler's report on each kernel, after lines "sm_N".
namespace torch_remote::worker::cuda {
namespace {

struct Image {
  ImageEntry entry;
  std::vector<uint8_t> bytes;
};

std::string read_file(const std::string& path) {
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

// The compute capabilities of the machine code that is made of PTX for `sm`. Later minor versions run the same code.
std::vector<uint32_t> processors_of(uint32_t sm) {
  return sm == 75 ? std::vector<uint32_t>{75} : std::vector<uint32_t>{80, 90, 100, 120};
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

int bitcode_archive(const std::vector<std::string>& paths, const char* out) {
  std::vector<Image> images;
  for (uint32_t file = 0; file < paths.size(); ++file) {
    const std::string content = read_file(paths[file]);
    if (content.empty()) return fail("cannot read " + paths[file]);
    const std::string image = wrapped(content);
    add(file, 0, false, image.data(), image.size(), &images);
  }
  return write(out, images);
}

// Adds a file's PTX for `sm`, and machine code made of it.
int add_ptx(const codegen::gpu::Assembler& assembler, uint32_t file, uint32_t sm, const std::string& path,
            std::ostream& log, std::vector<Image>* images) {
  const std::string content = read_file(path);
  if (content.empty()) return fail("cannot read " + path);
  for (const uint32_t processor : processors_of(sm)) {
    codegen::gpu::GpuCode code;
    code.ptx = content;
    if (const Status status = assembler.assemble(processor, &code); !status.ok()) {
      return fail(path + ": " + status.message());
    }
    log << "sm_" << processor << "\n" << code.log << "\n";
    add(file, processor, false, code.cubin.data(), code.cubin.size(), images);
  }
  add(file, sm, true, content.c_str(), content.size() + 1, images);
  return 0;
}

int machine_code_archive(const char* library, const std::vector<std::string>& arguments, const char* out,
                         const char* log_path) {
  std::unique_ptr<codegen::gpu::Assembler> assembler;
  if (const Status status = codegen::gpu::Assembler::open(library, &assembler); !status.ok()) {
    return fail(status.message());
  }
  std::vector<Image> images;
  std::ofstream log(log_path);
  uint32_t file = 0, sm = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--ptx" && i + 1 < arguments.size()) {
      sm = static_cast<uint32_t>(std::strtoul(arguments[++i].c_str(), nullptr, 10));
      file = 0;
    } else if (sm == 0) {
      return fail("--ptx SM before " + arguments[i]);
    } else if (const int status = add_ptx(*assembler, file++, sm, arguments[i], log, &images); status != 0) {
      return status;
    }
  }
  return write(out, images);
}

int run(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() > 3 && arguments[2] == "--bitcode") {
    std::ofstream{argv[2]}.close();  // There is no report.
    return bitcode_archive({arguments.begin() + 3, arguments.end()}, argv[1]);
  }
  if (arguments.size() > 4 && arguments[2] == "--assemble") {
    return machine_code_archive(argv[4], {arguments.begin() + 4, arguments.end()}, argv[1], argv[2]);
  }
  return fail("OUT LOG --assemble LIBNVJITLINK --ptx SM PTX... or OUT LOG --bitcode BC...");
}

}  // namespace
}  // namespace torch_remote::worker::cuda

int main(int argc, char** argv) { return torch_remote::worker::cuda::run(argc, argv); }
