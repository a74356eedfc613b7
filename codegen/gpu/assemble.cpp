#include "codegen/gpu/assemble.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace torch_remote::codegen::gpu {
namespace {

// We declare what we use of the library, because its header comes in a package of 100 MB.
using Handle = void*;
constexpr int kSuccess = 0, kPtx = 2;

struct Functions {
  int (*create)(Handle*, uint32_t, const char**) = nullptr;
  int (*destroy)(Handle*) = nullptr;
  int (*add)(Handle, int, const void*, size_t, const char*) = nullptr;
  int (*complete)(Handle) = nullptr;
  int (*cubin_size)(Handle, size_t*) = nullptr;
  int (*cubin)(Handle, void*) = nullptr;
  int (*error_size)(Handle, size_t*) = nullptr;
  int (*error)(Handle, char*) = nullptr;
  int (*info_size)(Handle, size_t*) = nullptr;
  int (*info)(Handle, char*) = nullptr;
};

class NvJitLink : public Assembler {
 public:
  explicit NvJitLink(Functions functions) : functions_(functions) {}

  Status assemble(uint32_t sm, GpuCode* code) const override {
    const std::string arch = "-arch=sm_" + std::to_string(sm);
    const char* options[] = {arch.c_str(), "-O3", "-verbose"};
    Handle handle = nullptr;
    if (functions_.create(&handle, std::size(options), options) != kSuccess) {
      return Status::invalid("gpu: libnvJitLink does not support sm_" + std::to_string(sm));
    }
    Status status = link(handle, code);
    functions_.destroy(&handle);
    return status;
  }

 private:
  Status link(Handle handle, GpuCode* code) const {
    // The size includes the terminating 0.
    if (functions_.add(handle, kPtx, code->ptx.c_str(), code->ptx.size() + 1, "kernel") != kSuccess ||
        functions_.complete(handle) != kSuccess) {
      return Status::internal("gpu: libnvJitLink cannot assemble the code: " +
                              text(handle, functions_.error_size, functions_.error));
    }
    size_t size = 0;
    if (functions_.cubin_size(handle, &size) != kSuccess) return Status::internal("gpu: libnvJitLink returned no code");
    code->cubin.resize(size);
    if (functions_.cubin(handle, code->cubin.data()) != kSuccess) {
      return Status::internal("gpu: libnvJitLink returned no code");
    }
    code->log = text(handle, functions_.info_size, functions_.info);
    return {};
  }

  static std::string text(Handle handle, int (*size_of)(Handle, size_t*), int (*get)(Handle, char*)) {
    size_t size = 0;
    if (size_of(handle, &size) != kSuccess || size == 0) return {};
    std::string result(size, '\0');
    if (get(handle, result.data()) != kSuccess) return {};
    result.resize(std::min(result.find('\0'), result.size()));
    return result;
  }

  const Functions functions_;
};

}  // namespace

// The library is never closed, because other code may use what it made.
Status Assembler::open(const std::string& path, std::unique_ptr<Assembler>* assembler) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {ErrorCode::kUnsupported, std::string("gpu: libnvJitLink cannot be opened: ") + dlerror()};
  }
  Functions functions;
  std::string missing;
  const auto find = [&]<typename F>(F* function, const char* symbol) {
    *function = reinterpret_cast<F>(dlsym(library, symbol));
    if (*function == nullptr) missing = symbol;
  };
  find(&functions.create, "nvJitLinkCreate");
  find(&functions.destroy, "nvJitLinkDestroy");
  find(&functions.add, "nvJitLinkAddData");
  find(&functions.complete, "nvJitLinkComplete");
  find(&functions.cubin_size, "nvJitLinkGetLinkedCubinSize");
  find(&functions.cubin, "nvJitLinkGetLinkedCubin");
  find(&functions.error_size, "nvJitLinkGetErrorLogSize");
  find(&functions.error, "nvJitLinkGetErrorLog");
  find(&functions.info_size, "nvJitLinkGetInfoLogSize");
  find(&functions.info, "nvJitLinkGetInfoLog");
  if (!missing.empty()) {
    return {ErrorCode::kUnsupported, "gpu: " + path + " has no " + missing + "; libnvJitLink 12 or later is required"};
  }
  *assembler = std::make_unique<NvJitLink>(functions);
  return {};
}

}  // namespace torch_remote::codegen::gpu
