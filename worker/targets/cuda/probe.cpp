#include "worker/targets/cuda/probe.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "worker/targets/cuda/compiled/compiler.h"
#include "worker/targets/cuda/device/gpu.h"
#include "worker/targets/cuda/device/gpu_list.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int kNewestCuda = 13000;

// "13.1.0" for 130100, the version format of cuBLASLt and cuDNN.
std::string version_text(size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// The path of a library that is open; empty if it is not.
std::string path_of(const char* soname) {
  void* const handle = dlopen(soname, RTLD_NOW | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) return {};
  std::string path = map->l_name;
  dlclose(handle);
  return path;
}

// The driver's own version ("580.65.06"), as its kernel module reports it; empty if it does not.
std::string module_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line, word;
  std::getline(file, line);  // NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul ...
  std::istringstream words(line);
  while (words >> word) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return {};
}

ProbedPart probe_driver(const ProbeSource& source, Driver* driver, int* version) {
  ProbedPart part{.name = "driver", .without = "there is no GPU to use"};
  Status status = source.driver(driver);
  if (status.ok()) status = to_status(*driver, driver->driver_get_version(version), "cuDriverGetVersion");
  part.path = source.shown_path.empty() ? path_of(kDriverLibrary) : source.shown_path;
  if (!status.ok()) {
    *version = 0;
    part.set_missing(status);
    return part;
  }
  const std::string module = source.shown_path.empty() ? module_version() : "";
  const std::string cuda = "CUDA " + std::to_string(*version / 1000) + "." + std::to_string(*version % 1000 / 10);
  part.version = module.empty() ? cuda : module + ", " + cuda;
  return part;
}

ProbedGpu probe_gpu(const Driver& driver, int number) {
  ProbedGpu found{.number = number};
  DeviceNumber device = 0;
  std::array<char, 256> name{};
  size_t memory = 0;
  if (driver.device_get(&device, number) == Result::kSuccess) {
    (void)driver.device_get_name(name.data(), name.size() - 1, device);
    (void)driver.device_total_mem(&memory, device);
  }
  found.name = name.data();
  found.uuid = uuid_text(driver, device);
  found.all_memory = memory;
  std::shared_ptr<Gpu> gpu;
  if (const Status status = Gpu::open(driver, number, &gpu); !status.ok()) {
    ProbedPart part;
    part.set_missing(status);
    found.missing = part.missing + (part.fix.empty() ? "" : "; " + part.fix);
    return found;
  }
  found.sm = gpu->sm();
  found.multiprocessors = gpu->multiprocessors();
  found.free_memory = gpu->free_memory();
  return found;
}

// The result of a library's `open`, and the library's path.
ProbedPart probe_library(const ProbeSource& source, const Library& library, const LibrarySearchPath& search_path,
                         const std::string& consequence, const std::function<Status(std::string*)>& open) {
  ProbedPart part{.name = std::string(library.name), .without = consequence};
  part.path = source.shown_path;
  Status status;
  if (source.shown_path.empty()) {
    OpenLibrary opened;
    status = open_library(library, search_path, &opened);
    part.path = opened.path;
  }
  if (status.ok()) status = open(&part.version);
  if (!status.ok()) part.set_missing(status);
  return part;
}

std::string gibibytes(uint64_t bytes) {
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%.1f", static_cast<double>(bytes) / (uint64_t{1} << 30));
  return text.data();
}

std::string json_of(const ProbedGpu& gpu) {
  return "{\"device\": \"cuda:" + std::to_string(gpu.number) + "\", \"name\": " + json_text(gpu.name) +
         ", \"uuid\": " + json_text(gpu.uuid) + ", \"sm\": " + std::to_string(gpu.sm) +
         ", \"processors\": " + std::to_string(gpu.multiprocessors) +
         ", \"free_memory\": " + std::to_string(gpu.free_memory) +
         ", \"all_memory\": " + std::to_string(gpu.all_memory) + ", \"missing\": " + json_text(gpu.missing) + "}";
}

template <typename T>
std::string json_list(const std::vector<T>& items) {
  std::string result;
  for (const T& item : items) result += (result.empty() ? "" : ", ") + json_of(item);
  return "[" + result + "]";
}

}  // namespace

bool Probe::has_gpu() const {
  return std::ranges::any_of(gpus, [](const ProbedGpu& gpu) { return gpu.missing.empty(); });
}

bool Probe::is_complete() const {
  return has_gpu() && std::ranges::all_of(parts, [](const ProbedPart& part) { return part.missing.empty(); });
}

ProbeSource nvidia() {
  return {.driver = [](Driver* driver) { return open_driver(kDriverLibrary, driver); },
          .cublaslt = lt::open,
          .cudnn = dnn::open,
          .nccl = nccl::open,
          .nvrtc =
              [](const LibrarySearchPath& search_path, std::string* version) {
                OpenLibrary library;
                Status status = open_library(dnn::kCompiler, search_path, &library);
                if (status.ok()) *version = std::to_string(library.major);
                return status;
              },
          .nvjitlink =
              [](const LibrarySearchPath& search_path, std::string* version) {
                OpenLibrary library;
                Status status = open_library(kNvJitLink, search_path, &library);
                if (!status.ok()) return status;
                unsigned major = static_cast<unsigned>(library.major), minor = 0;
                const auto get = reinterpret_cast<int (*)(unsigned*, unsigned*)>(library.find("nvJitLinkVersion"));
                const bool tells = get != nullptr && get(&major, &minor) == 0;  // CUDA 12.2 lacks the function.
                *version = std::to_string(major) + (tells ? "." + std::to_string(minor) : "");
                return status;
              },
          .shown_path = ""};
}

Probe probe(const ProbeSource& source, LibrarySearchPath search_path, const std::string& codegen) {
  Probe result;
  Driver driver;
  result.parts.push_back(probe_driver(source, &driver, &search_path.driver));
  const bool has_driver = result.parts[0].missing.empty();
  int count = 0;
  if (has_driver && driver.device_get_count(&count) == Result::kSuccess) {
    for (int number = 0; number < count; ++number) result.gpus.push_back(probe_gpu(driver, number));
  }
  if (!has_driver) search_path.driver = kNewestCuda;
  result.parts.push_back(
      probe_library(source, lt::kLibrary, search_path, "matmuls are refused", [&](std::string* version) {
        lt::Table table;
        Status status = source.cublaslt(search_path, &table);
        if (status.ok()) *version = version_text(table.get_version());
        return status;
      }));
  result.parts.push_back(probe_library(source, dnn::kLibrary, search_path,
                                       "convolutions are refused, and attention is computed without tensor cores",
                                       [&](std::string* version) {
                                         dnn::Table table;
                                         Status status = source.cudnn(search_path, &table);
                                         if (status.ok()) *version = version_text(table.get_version());
                                         return status;
                                       }));
  result.parts.push_back(probe_library(source, dnn::kCompiler, search_path,
                                       "attention in half types is computed without tensor cores",
                                       [&](std::string* version) { return source.nvrtc(search_path, version); }));
  result.parts.push_back(probe_library(source, kNvJitLink, search_path,
                                       "the driver makes machine code of kernels, in each session",
                                       [&](std::string* version) { return source.nvjitlink(search_path, version); }));
  result.nccl =
      probe_library(source, nccl::kLibrary, search_path,
                    "collective ops of process groups go through the hosts' memory", [&](std::string* version) {
                      nccl::Table table;
                      Status status = source.nccl(search_path, &table);
                      int number = 0;
                      if (status.ok() && table.get_version(&number) == nccl::Result::kSuccess) {
                        *version = nccl::version_text(number);
                      }
                      return status;
                    });
  ProbedPart compiler{.name = "compiler", .path = codegen, .without = "there are no kernels"};
  if (access(codegen.c_str(), R_OK) != 0) {
    compiler.missing = "there is no " + codegen;
    compiler.fix = "install torch_remote again, or set its path: --codegen FILE";
  }
  result.parts.push_back(std::move(compiler));
  return result;
}

Probed to_probed(const Probe& probe) {
  Probed probed;
  std::string& text = probed.text;
  add_part(probe.parts[0], &text);
  for (const ProbedGpu& gpu : probe.gpus) {
    std::string what = gpu.name;
    if (gpu.missing.empty()) {
      what += ": sm_" + std::to_string(gpu.sm) + ", " + std::to_string(gpu.multiprocessors) + " processors, " +
              gibibytes(gpu.free_memory) + " of " + gibibytes(gpu.all_memory) + " GiB free";
    } else {
      what += ": cannot be used: " + gpu.missing;
    }
    add_line("cuda:" + std::to_string(gpu.number), what, &text);
  }
  for (size_t i = 1; i < probe.parts.size(); ++i) add_part(probe.parts[i], &text);
  if (!probe.nccl.name.empty()) add_part(probe.nccl, &text);
  if (!probe.aten.name.empty()) add_part(probe.aten, &text);
  text += probe.is_complete() ? "Nothing is missing for GPUs.\n"
          : probe.has_gpu()   ? "GPUs can be used, except for the missing parts.\n"
                              : "No GPU can be used.\n";
  const auto boolean = [](bool value) { return std::string(value ? "true" : "false"); };
  probed.json = "\"usable\": " + boolean(probe.has_gpu()) + ", \"complete\": " + boolean(probe.is_complete()) +
                ", \"gpus\": " + json_list(probe.gpus) + ", \"parts\": " + json_list(probe.parts) +
                ", \"nccl\": " + json_of(probe.nccl) + ", \"aten\": " + json_of(probe.aten);
  probed.status = probe.is_complete() ? 0 : probe.has_gpu() ? 1 : 2;
  return probed;
}

}  // namespace torch_remote::worker::cuda
