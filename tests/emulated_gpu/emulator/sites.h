#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "llvm/IR/Instruction.h"
#include "llvm/IR/Module.h"

namespace torch_remote::codegen::emulator {

// Instructions that findings may name, as the module has them before it is rewritten: their text, and their line.
class Sites {
 public:
  using Places = std::vector<std::pair<llvm::Instruction*, uint32_t>>;

  // Calls; if `checked`, accesses to memory and turns of loops, too.
  Sites(llvm::Module& module, bool checked);

  // Of a call.
  uint32_t of(const llvm::Instruction& instruction) const { return numbers_.lookup(&instruction); }
  // What accesses memory; more may be added.
  Places& accesses() { return accesses_; }
  // What goes back to the beginning of a loop.
  const Places& turns() const { return turns_; }
  std::vector<std::string> take() { return std::move(texts_); }

 private:
  std::vector<std::string> texts_{""};
  llvm::DenseMap<const llvm::Instruction*, uint32_t> numbers_;
  Places accesses_, turns_;
};

}  // namespace torch_remote::codegen::emulator
