#include "worker/targets/cuda/cuda_target.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "codegen/loop/scalar_ops.h"
#include "remote/wire/environment.h"
#include "worker/targets/cache_folder.h"
#include "worker/targets/cuda/compiled/compiler.h"
#include "worker/targets/cuda/compiled/cuda_runner.h"
#include "worker/targets/cuda/device/cuda_device.h"
#include "worker/targets/cuda/device/gpu_list.h"
#include "worker/targets/cuda/device/library_search.h"
#include "worker/targets/cuda/device/nccl_collectives.h"
#include "worker/targets/cuda/dnn/cudnn.h"
#include "worker/targets/cuda/gemm/cublaslt.h"
#include "worker/targets/cuda/gemm/gemm_runner.h"
#include "worker/targets/cuda/probe.h"
#include "worker/targets/cuda/runners.h"
#include "worker/targets/cuda/self_test/self_test.h"

namespace torch_remote::worker {
namespace {

// Without torch's kernels, the worker has only its hand-written ones for the rest.
constexpr const char* kWithoutAten = "most of linalg, fft and special functions are refused on a GPU";

// Found once per process, before sessions are confined: it may run an interpreter.
const cuda::LibrarySearchPath& library_search_path() {
  static const cuda::LibrarySearchPath found = cuda::find_libraries(remote::package_folder());
  return found;
}

cuda::AtenSource aten_source(const std::string& plugin) {
  const char* folder = std::getenv("TORCH_REMOTE_TORCH_LIB");
  const bool given = folder != nullptr && *folder != '\0';
  return cuda::find_aten(given ? folder : remote::package_folder().parent_path() / "torch/lib", plugin);
}

DeviceOpener open_gpu(const std::string& id) {
  return [id, libraries = library_search_path()](remote::Transport&, const DeviceOptions& options,
                                                 const std::function<tr_client_activity()>&, OpenDevice* opened) {
    cuda::CudaDevice::Options device_options;
    device_options.limit = options.memory_limit;
    device_options.kernels.folder = cache_folder();
    cuda::LibrarySearchPath search_path = libraries;
    const cuda::Driver& driver = device_options.driver;
    Status status = cuda::open_driver(cuda::kDriverLibrary, &device_options.driver);
    if (status.ok()) {
      status = cuda::to_status(driver, driver.driver_get_version(&search_path.driver), "cuDriverGetVersion");
    }
    if (status.ok()) status = cuda::find_gpu(driver, id, &device_options.ordinal);
    if (status.ok()) {
      status = cuda::open_gpu_compiler(
          options.codegen, search_path, [](const std::string& text) { spdlog::warn("{}", text); },
          &device_options.kernels);
    }
    std::unique_ptr<cuda::CudaDevice> device;
    if (status.ok()) status = cuda::CudaDevice::open(device_options, &device);
    if (!status.ok()) return status;
    const auto cudnn = std::make_shared<cuda::CudnnTable>(
        [search_path](cuda::dnn::Table* table) { return cuda::dnn::open(search_path, table); });
    Runners runners = cuda::make_runners(
        *device, {.cublaslt = [search_path](cuda::lt::Table* table) { return cuda::lt::open(search_path, table); },
                  .cudnn = cudnn,
                  .kernels = cuda::hand_written_kernels(),
                  .aten = aten_source(options.plugin),
                  .folder = cache_folder()});
    std::ranges::move(runners, std::back_inserter(opened->runners));
    opened->collectives = cuda::make_nccl_collectives(
        device->shared_gpu(), [search_path](cuda::nccl::Table* table) { return cuda::nccl::open(search_path, table); });
    opened->targets = {"sm_" + std::to_string(device->gpu().sm())};
    opened->group_kind_mask = cuda::group_kind_mask() | cuda::gemm_group_kind_mask();
    opened->dtype_mask = codegen::memory_types();
    opened->device = std::move(device);
    return status;
  };
}

DeviceList list_devices(const cuda::ProbeSource& source) {
  DeviceList list;
  cuda::Driver driver;
  std::vector<cuda::ListedGpu> gpus;
  Status status = source.driver(&driver);
  if (status.ok()) status = cuda::list_gpus(driver, &gpus);
  if (!status.ok()) list.missing = status.message();
  for (const cuda::ListedGpu& gpu : gpus) {
    list.devices.push_back({.device = "cuda:" + std::to_string(gpu.ordinal), .id = gpu.uuid, .name = gpu.name});
  }
  return list;
}

}  // namespace

Target cuda_target() { return cuda_target(cuda::nvidia(), cuda::hand_written_kernels()); }

Target cuda_target(cuda::ProbeSource source, cuda::KernelArchive kernels) {
  return {.name = "cuda",
          .about = "an NVIDIA GPU, which executes the ops that have kernels",
          .numbered = true,
          .gpu = true,
          .load = {},
          .is_id = cuda::is_gpu_id,
          .open = open_gpu,
          .probe =
              [source](const DeviceOptions& options) {
                cuda::Probe found = cuda::probe(source, library_search_path(), options.codegen);
                const cuda::AtenSource aten = aten_source(options.plugin);
                found.aten = {.name = "libtorch", .path = aten.found, .without = kWithoutAten};
                if (!aten.open) found.aten.set_missing({ErrorCode::kUnsupported, aten.missing});
                return cuda::to_probed(found);
              },
          .list = [source] { return list_devices(source); },
          .self_test =
              [source, kernels](const std::function<DeviceOpener(const std::string& id)>& open,
                                const DeviceOptions& options, const SelfTestReport& report) {
                const auto gpus = static_cast<int>(list_devices(source).devices.size());
                return cuda::self_test(open, options, kernels, gpus, report);
              }};
}

}  // namespace torch_remote::worker
