#include "worker/targets/cpu/compiled/compiler.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstring>
#include <memory>

#include "codegen/library/codegen_api.h"

namespace torch_remote::worker::kernels {
namespace {

// The compiler library. It is opened when the first kernel is compiled.
class Library {
 public:
  Library(std::string path, std::string target) : path_(std::move(path)), target_(std::move(target)) {}

  Status compile(std::string_view text, const codegen::cpu::Variant& variant, std::vector<uint8_t>* bytes,
                 uint32_t* rows, uint32_t* finish) {
    Status status;
    if (api_ == nullptr) api_ = open(&status);
    if (api_ == nullptr) return status;
    tr_cpu_code code{};
    code.struct_size = sizeof(code);
    code.context = bytes;
    code.on_code = [](void* context, const uint8_t* data, size_t size) {
      static_cast<std::vector<uint8_t>*>(context)->assign(data, data + size);
    };
    const tr_variant wanted{sizeof(wanted), variant.streams, variant.columns};
    if (api_->compile_cpu(text.data(), text.size(), target_.c_str(), &wanted, &code) != 0) {
      return Status::internal("remote: a kernel does not compile: " + std::string(code.message));
    }
    *rows = code.rows;
    *finish = code.finish;
    return {};
  }

 private:
  // Returns null on failure, with the reason in *status.
  const tr_codegen_api* open(Status* status) const {
    const auto cannot = [&](const std::string& why) {
      *status = {ErrorCode::kUnsupported, "remote: the worker cannot open " + path_ + ": " + why};
      return nullptr;
    };
    void* library = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return cannot(dlerror());
    const auto entry = reinterpret_cast<tr_codegen_entry>(dlsym(library, TR_CODEGEN_ENTRY));
    if (entry == nullptr) return cannot("it compiles no kernels");
    const tr_codegen_api* api = entry();
    if (api->abi != TR_CODEGEN_ABI || api->struct_size < sizeof(tr_codegen_api)) {
      return cannot("it has version " + std::to_string(api->abi) + " of its interface, the worker has " +
                    std::to_string(TR_CODEGEN_ABI) + "; install them from one package");
    }
    return api;
  }

  const std::string path_, target_;
  const tr_codegen_api* api_ = nullptr;
};

}  // namespace

Status open_compiler(const std::string& path, const std::string& target, CacheOptions* options) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) {
    return {ErrorCode::kUnsupported, "remote: there is no " + path + " to compile kernels; install torch_remote again"};
  }
  // Another build of the library generates other code. We identify a build by its file, without opening it.
  options->version = std::to_string(info.st_size) + " " + std::to_string(info.st_mtim.tv_sec) + "." +
                     std::to_string(info.st_mtim.tv_nsec);
  const auto library = std::make_shared<Library>(path, target);
  options->compile = [library](std::string_view text, const codegen::cpu::Variant& variant, std::vector<uint8_t>* bytes,
                               uint32_t* rows,
                               uint32_t* finish) { return library->compile(text, variant, bytes, rows, finish); };
  return {};
}

}  // namespace torch_remote::worker::kernels
