#include "worker/cuda/emulated/open.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "worker/cuda/attention_runner.h"
#include "worker/cuda/convolution_runner.h"
#include "worker/cuda/cuda_runner.h"
#include "worker/cuda/emulated/compile.h"
#include "worker/cuda/emulated/emulated_cublaslt.h"
#include "worker/cuda/emulated/emulated_cudnn.h"
#include "worker/cuda/emulated/written.h"
#include "worker/cuda/op_runner.h"
#include "worker/cuda/product_runner.h"

namespace torch_remote::worker::cuda::emulated {

EmulatedDriver& gpus() {
  static EmulatedDriver* const driver = [] {  // to the end of the process
    const char* seed = std::getenv("TORCH_REMOTE_TEST_DELAYS");
    const char* checked = std::getenv("TORCH_REMOTE_TEST_CHECKED");
    return new EmulatedDriver({.devices = 2,
                               .seed = seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1,
                               .checked = checked != nullptr && *checked == '1'});
  }();
  return *driver;
}

DeviceOpener device_opener(int ordinal) {
  return [ordinal](remote::Transport&, const ServerOptions& options, const std::function<tr_client()>&,
                   OpenDevice* opened) {
    std::unique_ptr<CudaDevice> device;
    Status status = CudaDevice::open(
        {.driver = gpus().driver(), .ordinal = ordinal, .limit = options.memory_limit, .kernels = {.compile = compile}},
        &device);
    if (!status.ok()) return status;
    const std::shared_ptr<WrittenUnits> written = make_written_units(*device, written_kernels());
    opened->runners.push_back(make_cuda_runner(*device, written));
    opened->runners.push_back(make_product_runner(
        *device,
        [](lt::Table* table) {
          *table = cublaslt();
          return Status();
        },
        ""));
    const auto table = std::make_shared<CudnnTable>([](dnn::Table* opened_table) {
      *opened_table = cudnn();
      return Status();
    });
    opened->runners.push_back(make_convolution_runner(*device, table, ""));
    opened->runners.push_back(make_attention_runner(*device, table, "", written));
    opened->runners.push_back(make_op_runner(*device, written));
    opened->targets = {"sm_" + std::to_string(device->gpu().sm())};
    opened->group_kinds = group_kinds() | product_group_kinds();
    opened->dtypes = dtypes();
    opened->device = std::move(device);
    return status;
  };
}

Status open_device(remote::Transport& transport, const ServerOptions& options,
                   std::function<tr_client()> client_activity, OpenDevice* opened) {
  return device_opener(0)(transport, options, std::move(client_activity), opened);
}

ProbeSource probe_source() {
  return {.driver =
              [](Driver* driver) {
                *driver = gpus().driver();
                return to_status(*driver, driver->init(0), "cuInit");
              },
          .cublaslt =
              [](const LibraryPlaces&, lt::Table* table) {
                *table = cublaslt();
                return Status();
              },
          .cudnn =
              [](const LibraryPlaces&, dnn::Table* table) {
                *table = cudnn();
                return Status();
              },
          .nvrtc = [](const LibraryPlaces&, std::string*) { return Status(); },
          .nvjitlink = [](const LibraryPlaces&, std::string*) { return Status(); },
          .path = "in software"};
}

void tell_calls() {
  const char* const path = std::getenv("TORCH_REMOTE_TEST_CALLS");
  if (path == nullptr || *path == 0) return;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, path = std::string(path)] {
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
