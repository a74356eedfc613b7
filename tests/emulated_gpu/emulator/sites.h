#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "llvm/IR/Instruction.h"
#include "llvm/IR/Module.h"

namespace torch_remote::codegen::emulator {

// Instructions that findings can name: their text and line in the module before it is rewritten.
class Sites {
 public:
  using Instructions = std::vector<std::pair<llvm::Instruction*, uint32_t>>;

  // Collects calls. If `checked`, also memory accesses and branches back to a loop's beginning.
  Sites(llvm::Module& module, bool checked);

  // The number of a call.
  uint32_t of(const llvm::Instruction& instruction) const { return numbers_.lookup(&instruction); }
  // Instructions that access memory; more may be added.
  Instructions& accesses() { return accesses_; }
  // Branches back to the beginning of a loop.
  const Instructions& loop_branches() const { return loop_branches_; }
  std::vector<std::string> take() { return std::move(texts_); }

 private:
  std::vector<std::string> texts_{""};
  llvm::DenseMap<const llvm::Instruction*, uint32_t> numbers_;
  Instructions accesses_, loop_branches_;
};

}  // namespace torch_remote::codegen::emulator
