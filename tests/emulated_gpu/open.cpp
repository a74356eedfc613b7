#include "tests/emulated_gpu/open.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "codegen/loop/scalar_ops.h"
#include "tests/emulated_gpu/compile.h"
#include "tests/emulated_gpu/emulated_cublaslt.h"
#include "tests/emulated_gpu/emulated_cudnn.h"
#include "tests/emulated_gpu/emulated_nccl.h"
#include "tests/emulated_gpu/hand_written_kernels.h"
#include "tests/emulated_gpu/libtorch/torch_cuda.h"
#include "worker/runner/plugin_loader.h"
#include "worker/targets/cuda/compiled/cuda_runner.h"
#include "worker/targets/cuda/device/gpu_list.h"
#include "worker/targets/cuda/nccl/nccl_collectives.h"
#include "worker/targets/cuda/runners.h"

namespace torch_remote::worker::cuda::emulated {

namespace {

// Copies for the emulated libtorch_cuda.so (tests/emulated_gpu/libtorch). The GPU's context is current.
template <typename F>
void copy_for_torch(void* stream, F&& queue) {
  const Driver& driver = gpus().driver();
  auto* const on = static_cast<Stream>(stream);
  Status status = to_status(driver, queue(driver, on), "a copy for torch");
  if (status.ok()) status = to_status(driver, driver.stream_synchronize(on), "cuStreamSynchronize");
  if (!status.ok()) throw std::runtime_error(status.message());
}
void read_for_torch(void* to, const void* from, size_t nbytes, void* stream) {
  copy_for_torch(stream, [&](const Driver& driver, Stream on) {
    return driver.memcpy_dtoh_async(to, reinterpret_cast<DevicePointer>(from), nbytes, on);
  });
}
void write_for_torch(void* to, const void* from, size_t nbytes, void* stream) {
  copy_for_torch(stream, [&](const Driver& driver, Stream on) {
    return driver.memcpy_htod_async(reinterpret_cast<DevicePointer>(to), from, nbytes, on);
  });
}

AtenSource aten_in_software(const std::string& plugin) {
  const char* const library = std::getenv("TORCH_REMOTE_TEST_TORCH_CUDA");
  AtenSource source;
  if (library == nullptr || *library == '\0') {
    source.missing = "this GPU is one in software; set TORCH_REMOTE_TEST_TORCH_CUDA";
    return source;
  }
  source.library = source.found = library;
  source.open = [plugin, path = source.library](const tr_runner_api** api) {
    Status status = load_plugin(plugin, api);
    if (!status.ok()) return status;
    void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (opened == nullptr) return Status::internal(dlerror());
    static const TorchCudaDriver driver{2, read_for_torch, write_for_torch};
    reinterpret_cast<TorchCudaSetDriver>(dlsym(opened, "torch_remote_set_driver"))(&driver);
    return status;
  };
  return source;
}

// TORCH_REMOTE_TEST_NCCL is "missing", or "refused 1" with the rank that gets the error that its GPU is used twice.
Status open_emulated_nccl(nccl::Table* table) {
  const char* const given = std::getenv("TORCH_REMOTE_TEST_NCCL");
  const std::string_view what = given != nullptr ? given : "";
  if (what == "missing") return {ErrorCode::kUnsupported, "cuda: no libnccl.so: TORCH_REMOTE_TEST_NCCL says so"};
  *table = nccl(what.starts_with("refused ") ? std::atoi(given + 8) : -1);
  return {};
}

}  // namespace

EmulatedDriver& gpus() {
  static EmulatedDriver* const driver = [] {  // never destroyed
    const char* seed = std::getenv("TORCH_REMOTE_TEST_DELAYS");
    const char* checked = std::getenv("TORCH_REMOTE_TEST_CHECKED");
    const char* others = std::getenv("TORCH_REMOTE_TEST_OTHERS");
    const std::string_view bytes = others != nullptr ? others : "";
    const char* version = std::getenv("TORCH_REMOTE_TEST_DRIVER");
    const char* without_pools = std::getenv("TORCH_REMOTE_TEST_WITHOUT_POOLS");
    return new EmulatedDriver({.devices = 2,
                               .seed = seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1,
                               .checked = checked != nullptr && *checked == '1',
                               .peer_access = bytes == "refused"   ? Options::PeerAccess::kRefused
                                              : bytes == "garbled" ? Options::PeerAccess::kGarbled
                                                                   : Options::PeerAccess::kReadable,
                               .driver = version != nullptr ? std::atoi(version) : kDriverVersion,
                               .memory_pools = without_pools == nullptr || *without_pools != '1'});
  }();
  return *driver;
}

DeviceOpener device_opener(const std::string& id) {
  return [id](remote::Transport&, const DeviceOptions& options, const std::function<tr_client_activity()>&,
              OpenDevice* opened) {
    std::unique_ptr<CudaDevice> device;
    int ordinal = 0;
    if (Status found = find_gpu(gpus().driver(), id, &ordinal); !found.ok()) return found;
    Status status = CudaDevice::open(
        {.driver = gpus().driver(), .ordinal = ordinal, .limit = options.memory_limit, .kernels = {.compile = compile}},
        &device);
    if (!status.ok()) return status;
    const auto table = std::make_shared<CudnnTable>([](dnn::Table* opened_table) {
      const char* const without = std::getenv("TORCH_REMOTE_TEST_WITHOUT_CUDNN");
      if (without != nullptr && *without == '1') {
        return Status{ErrorCode::kUnsupported, "cuda: no libcudnn.so: TORCH_REMOTE_TEST_WITHOUT_CUDNN is set"};
      }
      *opened_table = cudnn();
      return Status();
    });
    Runners runners = make_runners(*device, {.cublaslt =
                                                 [](lt::Table* products) {
                                                   *products = cublaslt();
                                                   return Status();
                                                 },
                                             .cudnn = table,
                                             .kernels = hand_written_kernels(),
                                             .aten = aten_in_software(options.plugin)});
    std::ranges::move(runners, std::back_inserter(opened->runners));
    opened->collectives = make_nccl_collectives(device->shared_gpu(), open_emulated_nccl);
    opened->targets = {"sm_" + std::to_string(device->gpu().sm())};
    opened->group_kind_mask = group_kind_mask() | gemm_group_kind_mask();
    opened->dtype_mask = codegen::memory_types();
    opened->device = std::move(device);
    return status;
  };
}

Status open_device(remote::Transport& transport, const DeviceOptions& options,
                   std::function<tr_client_activity()> client_activity, OpenDevice* opened) {
  return device_opener("0")(transport, options, std::move(client_activity), opened);
}

ProbeSource probe_source() {
  return {.driver =
              [](Driver* driver) {
                *driver = gpus().driver();
                return to_status(*driver, driver->init(0), "cuInit");
              },
          .cublaslt =
              [](const LibrarySearchPath&, lt::Table* table) {
                *table = cublaslt();
                return Status();
              },
          .cudnn =
              [](const LibrarySearchPath&, dnn::Table* table) {
                *table = cudnn();
                return Status();
              },
          .nccl = [](const LibrarySearchPath&, nccl::Table* table) { return open_emulated_nccl(table); },
          .nvrtc = [](const LibrarySearchPath&, std::string*) { return Status(); },
          .nvjitlink = [](const LibrarySearchPath&, std::string*) { return Status(); },
          .shown_path = "in software"};
}

void report_calls_on_signal() {
  const char* const path = std::getenv("TORCH_REMOTE_TEST_CALLS");
  if (path == nullptr || *path == 0) return;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::string own = path;  // "%" stands for the pid
  if (const size_t at = own.find('%'); at != std::string::npos) own.replace(at, 1, std::to_string(getpid()));
  std::thread([signals, path = std::move(own)] {
    for (int signal = 0; sigwait(&signals, &signal) == 0;) {
      const std::string part = path + ".part";
      std::ofstream file(part, std::ios::trunc);
      for (const auto& [name, count] : gpus().calls()) file << name << " " << count << "\n";
      file.close();
      std::filesystem::rename(part, path);
    }
  }).detach();
}

}  // namespace torch_remote::worker::cuda::emulated
