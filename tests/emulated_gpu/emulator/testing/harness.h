#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ir/status.h"
#include "tests/emulated_gpu/emulator/emulator.h"

namespace llvm {
class Module;
}  // namespace llvm

// Helpers for tests of kernels on the emulated GPU.
namespace torch_remote::codegen::emulator::testing {

// Runs LLVM's O3 for NVPTX (sm_80), which produces the input of code generation.
Status optimize_for_nvptx(llvm::Module& module);

// Loads a file of bitcode or IR that a front end made for NVPTX. It is optimized by default. Any error ends the test
// program.
std::unique_ptr<Module> load_file(Device& device, const std::string& path, bool optimize = true);
// Loads IR from text.
std::unique_ptr<Module> load_text(Device& device, const std::string& ir, bool optimize = true);
std::string read_file(const std::string& path);

[[noreturn]] void fail(const std::string& what);
inline void must(const Status& status) {
  if (!status) fail(status.message());
}

// Device memory that is freed with the object.
template <typename T>
class Buffer {
 public:
  // Uninitialized memory.
  Buffer(Device& device, size_t count, const std::string& name) : device_(device), count_(count) {
    must(device.memory().allocate(count * sizeof(T), &address_, name));
  }
  Buffer(Device& device, const std::vector<T>& values, const std::string& name) : Buffer(device, values.size(), name) {
    write(values);
  }
  ~Buffer() { must(device_.memory().free(address_)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void write(const std::vector<T>& values) {
    must(device_.memory().write(address_, values.data(), values.size() * sizeof(T)));
  }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    must(device_.memory().read(values.data(), address_, count_ * sizeof(T)));
    return values;
  }
  // A pointer to the address, for the arguments of a launch.
  void* argument() { return static_cast<void*>(&address_); }

 private:
  Device& device_;
  size_t count_;
  void* address_ = nullptr;
};

}  // namespace torch_remote::codegen::emulator::testing
