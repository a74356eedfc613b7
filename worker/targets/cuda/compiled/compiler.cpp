#include "worker/targets/cuda/compiled/compiler.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "codegen/gpu/assemble.h"
#include "codegen/library/codegen_api.h"

namespace torch_remote::worker::cuda {
namespace {

// Null if it fails; *status says why.
const tr_codegen_api* open_library(const std::string& path, Status* status) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto entry =
      library != nullptr ? reinterpret_cast<tr_codegen_entry>(dlsym(library, TR_CODEGEN_ENTRY)) : nullptr;
  if (entry == nullptr) {
    *status = {ErrorCode::kUnsupported, "remote: the worker cannot open " + path + ": " + dlerror()};
    return nullptr;
  }
  const tr_codegen_api* const api = entry();
  if (api->abi == TR_CODEGEN_ABI && api->struct_size >= sizeof(tr_codegen_api)) return api;
  *status = {ErrorCode::kUnsupported, "remote: " + path + " has version " + std::to_string(api->abi) +
                                          " of its interface, the worker has " + std::to_string(TR_CODEGEN_ABI) +
                                          "; install them from one package"};
  return nullptr;
}

Status compile_with(const tr_codegen_api& api, std::string_view text, uint32_t sm, CompiledKernel* compiled) {
  struct Taken {
    CompiledKernel* kernel;
    Status status;
  } taken{compiled, {}};
  tr_gpu_code code{};
  code.struct_size = sizeof(code);
  code.context = &taken;
  code.on_image = [](void* context, const uint8_t* bytes, size_t size) {
    static_cast<Taken*>(context)->kernel->image.assign(bytes, bytes + size);
  };
  code.on_recipe = [](void* context, const uint8_t* bytes, size_t size) {
    Taken& taken = *static_cast<Taken*>(context);
    taken.status = codegen::gpu::decode({bytes, size}, &taken.kernel->recipe);
  };
  if (api.compile_gpu(text.data(), text.size(), sm, &code) == 0) return taken.status;
  const std::string message = "remote: a kernel does not compile: " + std::string(code.message);
  return {code.unsupported != 0 ? ErrorCode::kUnsupported : ErrorCode::kInternal, message};
}

// Code for one compute capability runs on all later ones.
uint32_t target_of(uint32_t sm) { return sm >= 100 ? 100 : sm >= 90 ? 90 : sm >= 80 ? 80 : 75; }

// Identifies a build of the library by its file, as another build generates other code.
std::string version_of(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return {};
  return std::to_string(info.st_size) + " " + std::to_string(info.st_mtim.tv_sec) + "." +
         std::to_string(info.st_mtim.tv_nsec);
}

class GpuCompiler {
 public:
  GpuCompiler(std::string path, std::unique_ptr<codegen::gpu::Assembler> assembler,
              std::function<void(const std::string&)> warn)
      : path_(std::move(path)), assembler_(std::move(assembler)), warn_(std::move(warn)) {}

  Status compile(std::string_view text, uint32_t sm, CompiledKernel* compiled) {
    std::call_once(once_, [this] { api_ = open_library(path_, &status_); });
    if (api_ == nullptr) return status_;
    Status status = compile_with(*api_, text, target_of(sm), compiled);
    if (status.ok() && assembler_) use_machine_code(sm, compiled);
    return status;
  }

  // Needs an assembler.
  Status assemble(std::string_view ptx, uint32_t sm, std::vector<uint8_t>* cubin) const {
    codegen::gpu::GpuCode code;
    code.ptx = ptx;
    Status status = assembler_->assemble(sm, &code);
    if (status.ok()) *cubin = std::move(code.cubin);
    return status;
  }

 private:
  // If nvJitLink fails, the image stays PTX, which the driver compiles.
  void use_machine_code(uint32_t sm, CompiledKernel* compiled) {
    std::vector<uint8_t> cubin;
    const std::string_view ptx(reinterpret_cast<const char*>(compiled->image.data()), compiled->image.size() - 1);
    const Status status = assemble(ptx, sm, &cubin);
    if (status.ok()) {
      compiled->ptx = std::exchange(compiled->image, std::move(cubin));
    } else {
      std::call_once(warned_, [&] { warn_(status.message() + "; the driver makes machine code of kernels"); });
    }
  }

  const std::string path_;
  const std::unique_ptr<codegen::gpu::Assembler> assembler_;
  const std::function<void(const std::string&)> warn_;
  std::once_flag once_, warned_;
  const tr_codegen_api* api_ = nullptr;
  Status status_;
};

}  // namespace

Status open_gpu_compiler(const std::string& path, const LibrarySearchPath& search_path,
                         const std::function<void(const std::string&)>& warn, KernelOptions* options) {
  options->version = version_of(path);
  if (options->version.empty()) {
    return {ErrorCode::kUnsupported, "remote: there is no " + path + " to compile kernels; install torch_remote again"};
  }
  OpenLibrary library;
  std::unique_ptr<codegen::gpu::Assembler> assembler;
  Status status = cuda::open_library(kNvJitLink, search_path, &library);
  if (status.ok()) status = codegen::gpu::Assembler::open(library.path, &assembler);
  if (!status.ok()) warn(status.message() + ". Until then the driver makes machine code of kernels, in each session");
  options->version += status.ok() ? "\ncubin " + version_of(library.path) : "\nptx";
  const bool assembles = assembler != nullptr;
  const auto compiler = std::make_shared<GpuCompiler>(path, std::move(assembler), warn);
  options->warn = warn;
  options->compile = [compiler](std::string_view text, uint32_t sm, CompiledKernel* compiled) {
    return compiler->compile(text, sm, compiled);
  };
  if (!assembles) return {};
  options->assemble = [compiler](std::string_view ptx, uint32_t sm, std::vector<uint8_t>* cubin) {
    return compiler->assemble(ptx, sm, cubin);
  };
  return {};
}

}  // namespace torch_remote::worker::cuda
