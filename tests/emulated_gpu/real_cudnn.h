#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "worker/targets/cuda/dnn/cudnn.h"

// For tests: NVIDIA's cuDNN, which plans our graphs for GPUs that this machine lacks, from a description of the GPU. It
// needs the library and its dependencies in one folder (TORCH_REMOTE_CUDA_LIB): see docs/build.md.
namespace torch_remote::worker::cuda::testing {

// Constants of cudnn_graph.h for device properties.
inline constexpr auto kDeviceKind = static_cast<dnn::DescriptorType>(38);
inline constexpr auto kDeviceOfHeuristics = static_cast<dnn::Attribute>(204),
                      kDeviceOfPlan = static_cast<dnn::Attribute>(407), kDeviceText = static_cast<dnn::Attribute>(2702);
inline constexpr auto kChar = static_cast<dnn::AttributeType>(24);

inline dnn::Table real;
inline dnn::Descriptor device_properties = nullptr;

inline std::string device_text(int version, int processors, int shared, const char* name) {
  return R"({"cudaDeviceId":0,"deviceVer":)" + std::to_string(version) +
         R"(,"driverVer":13000,"totalGlobalMem":85000000000,"maxGridSize":[2147483647,65535,65535],)"
         R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":)" +
         std::to_string(processors) + R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,)" +
         R"("maxSharedMemoryPerBlockOptin":)" + std::to_string(shared) +
         R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
         R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
         R"("smClockRateKHz":1980000,"memClockRateKHz":2619000,"memoryBusWidth":5120,"l2CacheSize":52428800,)" +
         R"("oversizedSharedMemoryPerBlock":0,"deviceName":")" + name + R"("})";
}

// `sm` is 80, 90 or 100.
inline std::string device_description(int sm) {
  if (sm == 80) return device_text(800, 108, 166912, "NVIDIA A100-SXM4-80GB");
  if (sm == 90) return device_text(900, 132, 232448, "NVIDIA H100 80GB HBM3");
  return device_text(1000, 148, 232448, "NVIDIA B200");
}

// The library without handles: objects are created for the described device instead.
inline dnn::Table without_gpu() {
  using dnn::Attribute;
  dnn::Table table = real;
  table.create = [](dnn::Handle* handle) {
    *handle = reinterpret_cast<dnn::Handle>(&real);
    return dnn::Result::kSuccess;
  };
  table.destroy = [](dnn::Handle) { return dnn::Result::kSuccess; };
  table.set_attribute = [](dnn::Descriptor descriptor, Attribute attribute, dnn::AttributeType type, int64_t count,
                           const void* elements) {
    if (attribute == Attribute::kGraphHandle) return dnn::Result::kSuccess;
    if (attribute == Attribute::kPlanHandle)
      return real.set_attribute(descriptor, kDeviceOfPlan, dnn::AttributeType::kDescriptor, 1,
                                static_cast<const void*>(&device_properties));
    if (attribute == Attribute::kHeuristicsGraph)
      (void)real.set_attribute(descriptor, kDeviceOfHeuristics, dnn::AttributeType::kDescriptor, 1,
                               static_cast<const void*>(&device_properties));
    return real.set_attribute(descriptor, attribute, type, count, elements);
  };
  return table;
}

// Opens the library and sets the described GPU. Errors are fatal test failures.
inline void open_real_cudnn(int sm) {
  LibrarySearchPath search_path;
  search_path.driver = 13000;
  if (const char* folder = std::getenv("TORCH_REMOTE_CUDA_LIB")) search_path.folders = {folder};
  const Status opened = dnn::open(search_path, &real);
  ASSERT_TRUE(opened.ok()) << opened.message();
  const std::string text = device_description(sm);
  ASSERT_EQ(real.descriptor_create(kDeviceKind, &device_properties), dnn::Result::kSuccess);
  ASSERT_TRUE(dnn::to_status(real,
                             real.set_attribute(device_properties, kDeviceText, kChar,
                                                static_cast<int64_t>(text.size()), text.data()),
                             "text")
                  .ok());
  const Status finished = dnn::to_status(real, real.descriptor_finalize(device_properties), "device");
  ASSERT_TRUE(finished.ok()) << finished.message();
}
inline void close_real_cudnn() {
  if (device_properties != nullptr) (void)real.descriptor_destroy(device_properties);
  device_properties = nullptr;
}

}  // namespace torch_remote::worker::cuda::testing
