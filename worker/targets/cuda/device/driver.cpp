#include "worker/targets/cuda/device/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace torch_remote::worker::cuda {
namespace {

constexpr const char* kInstall =
    "install NVIDIA's driver 525.60 or later (Debian: apt install nvidia-driver; Ubuntu: apt install "
    "nvidia-driver-535-server); for containers: also install nvidia-container-toolkit on the host, and run with --gpus "
    "all";

using GetProcAddress = int (*)(const char* name, void** function, int version, uint64_t flags, int* found);

Status unsupported(const std::string& what) { return {ErrorCode::kUnsupported, "cuda: " + what + "; " + kInstall}; }

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Drivers older than CUDA 12.0 lack cuGetProcAddress_v2 but have cuDriverGetVersion.
Status check_version(void* library, const std::string& path) {
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) return unsupported(path + " is not NVIDIA's driver");
  if (version >= kDriverVersion) return {};
  return unsupported("this machine's driver is for CUDA " + version_text(version) + ", but CUDA " +
                     version_text(kDriverVersion) + " is required");
}

}  // namespace

Status open_driver(const std::string& library, Driver* driver) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return unsupported("there is no driver: " + std::string(dlerror()));
  if (Status status = check_version(handle, library); !status.ok()) return status;
  const auto find = reinterpret_cast<GetProcAddress>(dlsym(handle, "cuGetProcAddress_v2"));
  if (find == nullptr) return unsupported(library + " has no cuGetProcAddress_v2");
  std::string missing;
  Driver found;
  const auto fill = [&]<typename F>(F* function, const char* name) {
    void* address = nullptr;
    int query = 0;
    if (find(name, &address, kDriverVersion, 0, &query) != 0 || address == nullptr) {
      missing += (missing.empty() ? "" : ", ") + std::string(name);
    }
    *function = reinterpret_cast<F>(address);
  };
#define TORCH_REMOTE_CUDA_FILL(member, name, parameters) fill(&found.member, #name);
  TORCH_REMOTE_CUDA_FUNCTIONS(TORCH_REMOTE_CUDA_FILL)
#undef TORCH_REMOTE_CUDA_FILL
  if (!missing.empty()) return unsupported(library + " has no " + missing);
  const Result result = found.init(0);
  if (result == Result::kNoDevice) return unsupported("the driver finds no GPU" + hidden_gpus());
  if (Status status = to_status(found, result, "cuInit"); !status.ok()) return status;
  *driver = found;
  return {};
}

bool is_lost(Result result) {
  switch (result) {
    case Result::kDeinitialized:
    case Result::kEccUncorrectable:
    case Result::kIllegalAddress:
    case Result::kLaunchTimeout:
    case Result::kContextIsDestroyed:
    case Result::kMisalignedAddress:
    case Result::kLaunchFailed:
      return true;
    default:
      break;
  }
  // NVLink error, contained error, hardware stack error, illegal instruction, invalid address space, invalid pc, tensor
  // memory leak, end of the MPS client, and error of an external device. The codes between them do not end a context.
  constexpr int kOthers[] = {220, 226, 714, 715, 717, 718, 721, 810, 911};
  return std::ranges::find(kOthers, static_cast<int>(result)) != std::end(kOthers);
}

Status to_status(const Driver& driver, Result result, const char* what) {
  if (result == Result::kSuccess) return {};
  const char *name = nullptr, *text = nullptr;
  if (driver.get_error_name(result, &name) != Result::kSuccess || name == nullptr) name = "unknown";
  if (driver.get_error_string(result, &text) != Result::kSuccess || text == nullptr) text = "error";
  const ErrorCode code = result == Result::kOutOfMemory ? ErrorCode::kOutOfMemory
                         : is_lost(result)              ? ErrorCode::kLost
                                                        : ErrorCode::kInternal;
  return {
      code,
      "cuda: " + std::string(what) + ": " + text + " (" + name + ", " + std::to_string(static_cast<int>(result)) + ")",
      result == Result::kOutOfMemory ? "OutOfMemoryError" : ""};
}

std::string hidden_gpus() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr ? " (CUDA_VISIBLE_DEVICES=" + std::string(visible) + " may hide some)" : "";
}

}  // namespace torch_remote::worker::cuda
