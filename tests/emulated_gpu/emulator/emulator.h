#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "tests/emulated_gpu/emulator/memory.h"
#include "tests/emulated_gpu/emulator/types.h"

namespace llvm {
class Module;
}  // namespace llvm

// A GPU emulator for tests. It executes kernels for NVPTX on this CPU, and reports their errors. docs/gpu_emulation.md
// describes what it does, what it finds, and what it cannot do.
//
//   Device device;
//   std::unique_ptr<Module> module;
//   Status status = Module::load(device, llvm_module, &module);
//   status = module->launch("softmax", {.x = rows}, {.x = 256}, /*dynamic_shared=*/0, arguments, {.checked = true});
namespace torch_remote::codegen::emulator {

struct DeviceState;

// One GPU. Launches on it run one after the other, and are complete when the call returns.
class Device {
 public:
  explicit Device(size_t capacity = size_t{8} << 30) : Device(DeviceOptions{.capacity = capacity}) {}
  explicit Device(const DeviceOptions& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceMemory& memory();
  DeviceState& state() { return *state_; }

 private:
  std::unique_ptr<DeviceState> state_;
};

// Kernels and device variables of one LLVM module.
class Module {
 public:
  // Loads a module as NVPTX code generation gets it, after its O3. The module is copied. kUnsupported lists the unknown
  // names. Device variables (__device__, __constant__) are allocated in the device's memory.
  static Status load(Device& device, const llvm::Module& module, std::unique_ptr<Module>* loaded);
  // Loads LLVM IR as text or bitcode.
  static Status load(Device& device, std::string_view ir, std::unique_ptr<Module>* loaded);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  Status attributes(std::string_view kernel, KernelAttributes* attributes) const;
  // Returns the address and size of a device variable.
  Status global(std::string_view name, void** address, size_t* bytes) const;

  // `arguments` are pointers to the arguments, as for cuLaunchKernel. kOpFailed: the kernel made an error. The message
  // has the kernel, block, thread and instruction, and the line if there is debug info. Memory then stays as the kernel
  // left it. kInvalid: the launch configuration is wrong.
  Status launch(std::string_view kernel, Dim3 grid, Dim3 block, size_t dynamic_shared, void* const* arguments,
                const LaunchOptions& options = {});

 private:
  struct State;
  explicit Module(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace torch_remote::codegen::emulator
