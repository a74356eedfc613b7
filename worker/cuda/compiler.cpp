#include "worker/cuda/compiler.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <memory>

#include "codegen/library/codegen_api.h"

namespace torch_remote::worker::cuda {
namespace {

// Null: *status says why.
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
  code.take_image = [](void* context, const uint8_t* bytes, size_t size) {
    static_cast<Taken*>(context)->kernel->image.assign(bytes, bytes + size);
  };
  code.take_recipe = [](void* context, const uint8_t* bytes, size_t size) {
    Taken& taken = *static_cast<Taken*>(context);
    taken.status = codegen::gpu::decode({bytes, size}, &taken.kernel->recipe);
  };
  if (api.compile_gpu(text.data(), text.size(), sm, &code) == 0) return taken.status;
  const std::string message = "remote: a kernel does not compile: " + std::string(code.message);
  return {code.unsupported != 0 ? ErrorCode::kUnsupported : ErrorCode::kInternal, message};
}

// Kernels for a processor run on all later ones.
uint32_t target_of(uint32_t sm) { return sm >= 100 ? 100 : sm >= 90 ? 90 : 80; }

}  // namespace

Status open_gpu_compiler(const std::string& path, Compile* compile) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) {
    return {ErrorCode::kUnsupported, "remote: there is no " + path + " to compile kernels; install torch_remote again"};
  }
  *compile = [path, api = static_cast<const tr_codegen_api*>(nullptr)](std::string_view text, uint32_t sm,
                                                                       CompiledKernel* compiled) mutable {
    Status status;
    if (api == nullptr) api = open_library(path, &status);
    return api == nullptr ? status : compile_with(*api, text, target_of(sm), compiled);
  };
  return {};
}

}  // namespace torch_remote::worker::cuda
