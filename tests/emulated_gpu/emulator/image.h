#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ir/status.h"
#include "llvm/ADT/StringRef.h"
#include "tests/emulated_gpu/emulator/rewrite.h"

namespace llvm::orc {
class LLJIT;
}  // namespace llvm::orc

namespace torch_remote::codegen::emulator {

// A module, rewritten and compiled for this CPU.
class Image {
 public:
  // Compiles bitcode. `tag` is the device's address tag.
  static Status compile(llvm::StringRef bitcode, bool checked, uint64_t tag, std::unique_ptr<Image>* compiled);
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  const KernelImage* kernel(std::string_view name) const;
  const std::vector<KernelImage>& kernels() const { return rewritten_.kernels; }
  const std::vector<std::string>& sites() const { return rewritten_.sites; }
  const std::vector<DeviceVariable>& globals() const { return rewritten_.globals; }
  // The initial bytes of a device variable.
  const void* first_bytes(const DeviceVariable& global) const;
  // Sets the address of a device variable in the compiled code.
  void set_address(const DeviceVariable& global, void* address);

 private:
  Image();
  // Looks up the address of a symbol.
  Status find(const std::string& name, void** address) const;

  std::unique_ptr<llvm::orc::LLJIT> jit_;
  Rewritten rewritten_;
  std::vector<void*> images_, pointer_addresses_;  // by global: addresses of its initial bytes and of its pointer
};

}  // namespace torch_remote::codegen::emulator
