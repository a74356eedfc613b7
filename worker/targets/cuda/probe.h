#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/targets/cuda/device/driver.h"
#include "worker/targets/cuda/device/library.h"
#include "worker/targets/cuda/device/nccl.h"
#include "worker/targets/cuda/dnn/cudnn.h"
#include "worker/targets/cuda/gemm/cublaslt.h"

// What a worker would find on this machine for `--device cuda:N`, and how to install what it would not.
namespace torch_remote::worker::cuda {

// The driver, a library, the compiler of kernels.
struct ProbedPart {
  std::string name, path = {}, version = {};
  std::string missing = {};  // empty: it is there; else why it cannot be used
  std::string fix = {};      // what to do then
  std::string without = {};  // what does not work then

  // From an error: what is wrong, and behind "; " what to do.
  void set_missing(const Status& status);
};

struct ProbedGpu {
  int number = 0;  // of cuda:N
  std::string name = {};
  uint32_t sm = 0;                           // 90: compute capability 9.0
  uint32_t processors = 0;                   // multiprocessors
  uint64_t free_memory = 0, all_memory = 0;  // bytes
  std::string missing = {};                  // empty: it can be used
};

struct Probe {
  std::vector<ProbedGpu> gpus;
  std::vector<ProbedPart> parts;  // the driver first
  ProbedPart cpu;                 // what --device cpu needs
  ProbedPart nccl;                // for process groups, which do without
  ProbedPart aten;                // torch's kernels for GPUs, which most of it does without

  bool has_gpu() const;      // one can be used
  bool is_complete() const;  // and no part of it is missing
};

// Who opens what is looked at. Tests have a driver and libraries in software.
struct ProbeSource {
  std::function<Status(Driver*)> driver;
  std::function<Status(const LibraryPlaces&, lt::Table*)> cublaslt;
  std::function<Status(const LibraryPlaces&, dnn::Table*)> cudnn;
  std::function<Status(const LibraryPlaces&, nccl::Table*)> nccl;
  std::function<Status(const LibraryPlaces&, std::string* version)> nvrtc, nvjitlink;
  std::string path;  // of all of them; empty: of the files that they are in
};

// NVIDIA's.
ProbeSource nvidia();

// Opens each GPU for a moment, and the libraries, which stay open. `codegen`: the library that compiles kernels.
// places.driver is filled in; where there is no driver, libraries of the newest CUDA are looked for. `cpu` and `aten`
// stay empty.
Probe probe(const ProbeSource& source, LibraryPlaces places, const std::string& codegen);

// For people, a line or two a part; for programs, an object in JSON (docs/workers.md has its keys).
std::string to_text(const Probe& probe);
std::string to_json(const Probe& probe);

}  // namespace torch_remote::worker::cuda
