#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ir/status.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include "tests/emulated_gpu/emulator/rewrite.h"

namespace llvm::orc {
class JITDylib;
class LLJIT;
}  // namespace llvm::orc

namespace torch_remote::codegen::emulator {

// A module, rewritten for this CPU. Each kernel is compiled when it is first launched: modules have many that a test
// does not launch. One thread at a time.
class Image {
 public:
  // Rewrites bitcode. `tag` is the device's address tag.
  static Status rewrite(llvm::StringRef bitcode, bool checked, uint64_t tag, std::unique_ptr<Image>* rewritten);
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  // Returns a kernel's description, with code only if it was compiled; nullptr if the module does not have the kernel.
  const KernelImage* find(std::string_view kernel) const;
  // Returns a kernel with its code, which it compiles if needed. kInvalid: the module does not have the kernel.
  Status compile(std::string_view kernel, const KernelImage** compiled);
  const std::vector<std::string>& sites() const { return rewritten_.sites; }
  const std::vector<DeviceVariable>& globals() const { return rewritten_.globals; }
  // The initial bytes of a device variable.
  const void* first_bytes(const DeviceVariable& global) const { return images_[&global - globals().data()]; }
  // Sets the address of a device variable for kernels that are compiled later.
  void set_address(const DeviceVariable& global, void* address) { addresses_[&global - globals().data()] = address; }

 private:
  Image();
  // Compiles and links a copy of the module without kernels, or with only one.
  Status link(const KernelImage* only, llvm::orc::JITDylib** library);
  // Looks up the address of a symbol.
  Status find_symbol(llvm::orc::JITDylib& library, const std::string& name, void** address) const;

  std::unique_ptr<llvm::orc::LLJIT> jit_;
  Rewritten rewritten_;
  llvm::SmallVector<char, 0> bitcode_;     // of the rewritten module
  std::vector<void*> images_, addresses_;  // by global: addresses of its initial bytes and on the device
};

}  // namespace torch_remote::codegen::emulator
