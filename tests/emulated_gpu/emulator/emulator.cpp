#include "tests/emulated_gpu/emulator/emulator.h"

#include <map>
#include <mutex>

#include "llvm/ADT/SmallVector.h"
#include "llvm/Bitcode/BitcodeWriter.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/IRReader/IRReader.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/raw_ostream.h"
#include "tests/emulated_gpu/emulator/device.h"
#include "tests/emulated_gpu/emulator/image.h"
#include "tests/emulated_gpu/emulator/launch.h"

namespace torch_remote::codegen::emulator {

Device::Device(const DeviceOptions& options) : state_(std::make_unique<DeviceState>(options)) {}
Device::~Device() = default;
DeviceMemory& Device::memory() { return state_->memory; }

struct Module::State {
  struct Global {
    void* address = nullptr;
    size_t bytes = 0;
  };

  explicit State(Device& device) : device(device.state()) {}
  ~State() {
    for (const auto& [name, global] : globals) (void)device.memory.free(global.address).ok();
  }

  // Rewrites the module on first use.
  Status image(bool checked, Image** result) {
    const std::lock_guard lock(mutex);
    std::unique_ptr<Image>& image = images[checked ? 1 : 0];
    if (!image) {
      std::unique_ptr<Image> made;
      if (Status status = Image::rewrite({bitcode.data(), bitcode.size()}, checked, device.tag, &made); !status)
        return status;
      if (Status status = place_globals(*made); !status) return status;
      image = std::move(made);
    }
    *result = image.get();
    return {};
  }

  // Sets the kernel and the sites of the launch.
  Status compile(std::string_view name, Launch* launch) {
    Image* made = nullptr;
    if (Status status = image(launch->options.checked, &made); !status || made == nullptr) return status;
    launch->sites = &made->sites();
    const std::lock_guard lock(mutex);
    return made->compile(name, &launch->kernel);
  }

  // Both images use the same variables.
  Status place_globals(Image& image) {
    for (const DeviceVariable& variable : image.globals()) {
      Global& global = globals[variable.name];
      if (global.address == nullptr) {
        if (Status status = device.memory.allocate(variable.bytes, &global.address, variable.name, true); !status) {
          globals.erase(variable.name);
          return status;
        }
        global.bytes = variable.bytes;
        if (Status status = device.memory.write(global.address, image.first_bytes(variable), variable.bytes); !status) {
          return status;
        }
      }
      image.set_address(variable, global.address);
    }
    return {};
  }

  DeviceState& device;
  llvm::SmallVector<char, 0> bitcode;
  std::mutex mutex;
  std::unique_ptr<Image> images[2];  // unchecked, checked
  std::map<std::string, Global, std::less<>> globals;
};

Module::Module(std::unique_ptr<State> state) : state_(std::move(state)) {}
Module::~Module() = default;

Status Module::load(Device& device, const llvm::Module& module, std::unique_ptr<Module>* loaded) {
  auto state = std::make_unique<State>(device);
  llvm::raw_svector_ostream stream(state->bitcode);
  llvm::WriteBitcodeToFile(module, stream);
  Image* image = nullptr;
  if (Status status = state->image(/*checked=*/false, &image); !status) return status;
  loaded->reset(new Module(std::move(state)));
  return {};
}

Status Module::load(Device& device, std::string_view ir, std::unique_ptr<Module>* loaded) {
  llvm::LLVMContext context;
  llvm::SMDiagnostic problem;
  const auto module = llvm::parseIR(llvm::MemoryBufferRef({ir.data(), ir.size()}, "kernels"), problem, context);
  if (!module) {
    std::string text;
    llvm::raw_string_ostream stream(text);
    problem.print("emulator", stream, /*ShowColors=*/false);
    return Status::invalid(text);
  }
  return load(device, *module, loaded);
}

Status Module::attributes(std::string_view kernel, KernelAttributes* attributes) const {
  const KernelImage* found = state_->images[0]->find(kernel);
  if (found == nullptr) return Status::invalid("emulator: the module has no kernel '" + std::string(kernel) + "'");
  *attributes = found->attributes;
  return {};
}

Status Module::global(std::string_view name, void** address, size_t* bytes) const {
  const auto found = state_->globals.find(name);
  if (found == state_->globals.end()) {
    return Status::invalid("emulator: the module has no device variable '" + std::string(name) + "'");
  }
  *address = found->second.address;
  *bytes = found->second.bytes;
  return {};
}

Status Module::launch(std::string_view kernel, Dim3 grid, Dim3 block, size_t dynamic_shared, void* const* arguments,
                      const LaunchOptions& options) {
  Launch launch;
  launch.grid = grid;
  launch.block = block;
  launch.dynamic_shared = dynamic_shared;
  launch.arguments = arguments;
  launch.options = options;
  if (Status status = state_->compile(kernel, &launch); !status) return status;
  return run_launch(state_->device, launch);
}

}  // namespace torch_remote::codegen::emulator
