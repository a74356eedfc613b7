#include "tests/emulated_gpu/emulator/sites.h"

#include "llvm/Analysis/CFG.h"
#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/ModuleSlotTracker.h"
#include "llvm/Support/raw_ostream.h"

namespace torch_remote::codegen::emulator {
namespace {

std::string line_of(const llvm::DebugLoc& location) {
  if (!location) return "";
  std::string result;
  for (const llvm::DILocation* at = location.get(); at != nullptr; at = at->getInlinedAt()) {
    const llvm::StringRef path = at->getFilename();
    const llvm::StringRef file = path.substr(path.rfind('/') == llvm::StringRef::npos ? 0 : path.rfind('/') + 1);
    result += (result.empty() ? " (" : ", called at ") + file.str() + ":" + std::to_string(at->getLine());
  }
  return result + ")";
}

// The instruction's text without trailing metadata.
std::string text_of(const llvm::Instruction& instruction, llvm::ModuleSlotTracker& slots) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  instruction.print(stream, slots);
  llvm::StringRef shown = llvm::StringRef(text).ltrim();
  shown = shown.substr(0, shown.find(", !"));
  shown = shown.substr(0, shown.find(" !dbg"));
  shown = shown.substr(0, shown.find(" #"));
  return "'" + shown.rtrim().str() + "'" + line_of(instruction.getDebugLoc());
}

bool accesses_memory(const llvm::Instruction& instruction) {
  return llvm::isa<llvm::LoadInst, llvm::StoreInst, llvm::AtomicRMWInst, llvm::AtomicCmpXchgInst, llvm::MemIntrinsic>(
      instruction);
}

}  // namespace

Sites::Sites(llvm::Module& module, bool checked) {
  llvm::ModuleSlotTracker slots(&module);
  const auto add = [&](std::string text) {
    texts_.push_back(std::move(text));
    return static_cast<uint32_t>(texts_.size() - 1);
  };
  for (llvm::Function& function : module) {
    if (function.isDeclaration()) continue;
    slots.incorporateFunction(function);
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      if (checked && accesses_memory(instruction)) {
        accesses_.emplace_back(&instruction, add(text_of(instruction, slots)));
      } else if (llvm::isa<llvm::CallInst>(instruction) && !llvm::isa<llvm::DbgInfoIntrinsic>(instruction)) {
        numbers_[&instruction] = add(text_of(instruction, slots));
      }
    }
    if (!checked) continue;
    llvm::SmallVector<std::pair<const llvm::BasicBlock*, const llvm::BasicBlock*>> edges;
    llvm::FindFunctionBackedges(function, edges);
    llvm::SmallPtrSet<llvm::Instruction*, 8> seen;
    for (const auto& [from, to] : edges) {
      auto* branch = const_cast<llvm::Instruction*>(from->getTerminator());
      if (seen.insert(branch).second)
        loop_branches_.emplace_back(branch, add("the loop of " + text_of(*branch, slots)));
    }
  }
}

}  // namespace torch_remote::codegen::emulator
