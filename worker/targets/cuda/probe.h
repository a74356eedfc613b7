#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/targets/cuda/device/driver.h"
#include "worker/targets/cuda/device/library.h"
#include "worker/targets/cuda/dnn/cudnn.h"
#include "worker/targets/cuda/gemm/cublaslt.h"
#include "worker/targets/cuda/nccl/nccl.h"
#include "worker/targets/probed_part.h"
#include "worker/targets/target.h"

// Reports what a worker would find on this machine for `--device cuda:N`, and how to install what is missing.
namespace torch_remote::worker::cuda {

struct ProbedGpu {
  int number = 0;  // The N of cuda:N.
  std::string name = {};
  std::string uuid = {};                     // As uuid_text().
  uint32_t sm = 0;                           // 90 for compute capability 9.0.
  uint32_t multiprocessors = 0;              // Multiprocessors.
  uint64_t free_memory = 0, all_memory = 0;  // bytes
  std::string missing = {};                  // Why it cannot be used; empty: it can.
};

struct Probe {
  std::vector<ProbedGpu> gpus;
  std::vector<ProbedPart> parts;  // The driver first.
  ProbedPart nccl;                // Optional; for process groups.
  ProbedPart aten;                // torch's CUDA kernels; optional for most ops.

  bool has_gpu() const;      // At least one GPU can be used.
  bool is_complete() const;  // A GPU can be used, and no required part is missing.
};

// Opens the parts. Tests supply the driver and libraries of the GPU emulator.
struct ProbeSource {
  std::function<Status(Driver*)> driver;
  std::function<Status(const LibrarySearchPath&, lt::Table*)> cublaslt;
  std::function<Status(const LibrarySearchPath&, dnn::Table*)> cudnn;
  std::function<Status(const LibrarySearchPath&, nccl::Table*)> nccl;
  std::function<Status(const LibrarySearchPath&, std::string* version)> nvrtc, nvjitlink;
  std::string shown_path;  // The path reported for all of them; empty: their real paths.
};

// Opens NVIDIA's driver and libraries.
ProbeSource nvidia();

// Opens each GPU for a moment, and the libraries for the life of the process. `codegen` is the path of the kernel
// compiler's library. search_path.driver is filled in; without a driver, libraries of the newest CUDA are looked for.
// Probe::aten stays empty.
Probe probe(const ProbeSource& source, LibrarySearchPath search_path, const std::string& codegen);

// docs/workers.md lists the keys of the JSON.
Probed to_probed(const Probe& probe);

}  // namespace torch_remote::worker::cuda
