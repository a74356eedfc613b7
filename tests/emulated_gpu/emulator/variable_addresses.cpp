#include "tests/emulated_gpu/emulator/variable_addresses.h"

#include <algorithm>
#include <cstddef>

#include "llvm/ADT/SetVector.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/ReplaceConstant.h"
#include "llvm/Support/MathExtras.h"

namespace torch_remote::codegen::emulator {
namespace {

constexpr unsigned kSharedSpace = 3;
constexpr uint64_t kSharedAlignment = 16;
// In checked mode, a gap of bytes between two variables that belong to no variable.
constexpr uint64_t kGap = 32;

bool uses_functions_or_variables(const llvm::Constant* constant) {
  if (llvm::isa<llvm::GlobalValue>(constant)) return true;
  return llvm::any_of(constant->operands(), [](const llvm::Use& operand) {
    return uses_functions_or_variables(llvm::cast<llvm::Constant>(operand.get()));
  });
}

// Whether the constant is the variable, or an address in it.
bool mentions(const llvm::Value* value, const llvm::GlobalVariable* variable) {
  if (value == variable) return true;
  const auto* expression = llvm::dyn_cast<llvm::ConstantExpr>(value);
  return expression != nullptr &&
         llvm::any_of(expression->operands(), [&](const llvm::Use& operand) { return mentions(operand, variable); });
}

// The kernel, and all functions that it calls directly or indirectly.
llvm::SetVector<llvm::Function*> reachable(llvm::Function& kernel) {
  llvm::SetVector<llvm::Function*> found;
  found.insert(&kernel);
  for (size_t i = 0; i < found.size(); ++i) {
    for (llvm::Instruction& instruction : llvm::instructions(*found[i])) {
      const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      if (call != nullptr && call->getCalledFunction() != nullptr) found.insert(call->getCalledFunction());
    }
  }
  return found;
}

}  // namespace

void VariableAddresses::lay_out() {
  if (laid_out_) return;
  laid_out_ = true;
  const llvm::DataLayout& layout = module_.getDataLayout();
  uint64_t end = 0;
  for (const bool dynamic : {false, true}) {
    for (llvm::GlobalVariable& variable : module_.globals()) {
      if (variable.getAddressSpace() != kSharedSpace) continue;
      const uint64_t bytes = layout.getTypeAllocSize(variable.getValueType());
      if ((bytes == 0 || variable.isDeclaration()) != dynamic) continue;
      end = llvm::alignTo(end, std::max(variable.getAlign().valueOrOne().value(), kSharedAlignment));
      shared_.push_back({&variable, end, dynamic ? 0 : bytes});
      if (!dynamic) end += bytes + (checked_ ? kGap : 0);
    }
  }
  dynamic_offset_ = llvm::alignTo(end, kSharedAlignment);
  for (const Shared& shared : shared_) {
    if (shared.bytes == 0) dynamic_offset_ = std::max(dynamic_offset_, shared.offset);
  }
  for (Shared& shared : shared_) {
    if (shared.bytes == 0) shared.offset = dynamic_offset_;
  }
}

void VariableAddresses::add_kernel(llvm::Function& kernel, KernelImage* image) {
  lay_out();
  image->dynamic_offset = dynamic_offset_;
  const llvm::SetVector<llvm::Function*> functions = reachable(kernel);
  for (const Shared& shared : shared_) {
    const bool used = llvm::any_of(functions, [&](llvm::Function* function) {
      return llvm::any_of(llvm::instructions(*function), [&](const llvm::Instruction& instruction) {
        return llvm::any_of(instruction.operands(),
                            [&](const llvm::Use& operand) { return mentions(operand, shared.variable); });
      });
    });
    if (!used || shared.bytes == 0) continue;
    image->shared.push_back({shared.variable->getName().str(), shared.offset, shared.bytes});
    image->attributes.shared_bytes = llvm::alignTo(image->attributes.shared_bytes, kSharedAlignment) + shared.bytes;
  }
}

void VariableAddresses::replace_uses(llvm::GlobalVariable& variable, llvm::function_ref<llvm::Value*()> address) {
  llvm::convertUsersOfConstantsToInstructions(static_cast<llvm::Constant*>(&variable));
  for (llvm::User* user : llvm::make_early_inc_range(variable.users())) {
    auto* instruction = llvm::dyn_cast<llvm::Instruction>(user);
    if (instruction == nullptr) continue;
    b_.SetInsertPoint(&*instruction->getFunction()->getEntryBlock().getFirstInsertionPt());
    user->replaceUsesOfWith(&variable, b_.CreateAddrSpaceCast(address(), variable.getType()));
  }
}

Status VariableAddresses::replace(std::vector<DeviceVariable>* globals) {
  lay_out();
  for (const char* name : {"llvm.used", "llvm.compiler.used"}) {
    if (llvm::GlobalVariable* list = module_.getGlobalVariable(name)) list->eraseFromParent();
  }
  for (const Shared& shared : shared_) {
    replace_uses(*shared.variable, [&] {
      llvm::Value* begin = b_.field(offsetof(Registers, shared), b_.getPtrTy());
      return b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), begin, shared.offset);
    });
    shared.variable->eraseFromParent();
  }
  std::vector<llvm::GlobalVariable*> variables;
  for (llvm::GlobalVariable& variable : module_.globals()) variables.push_back(&variable);
  for (llvm::GlobalVariable* variable : variables) {
    if (Status status = replace_device_variable(*variable, globals); !status) return status;
  }
  return {};
}

Status VariableAddresses::replace_device_variable(llvm::GlobalVariable& variable,
                                                  std::vector<DeviceVariable>* globals) {
  const std::string name = variable.getName().str();
  if (variable.isDeclaration()) {
    if (variable.use_empty()) return {};
    return {ErrorCode::kUnsupported, "emulator: device variable '" + name + "' is not in the module"};
  }
  if (uses_functions_or_variables(variable.getInitializer())) {
    return {ErrorCode::kUnsupported, "emulator: device variable '" + name + "' begins with an address"};
  }
  const std::string number = std::to_string(globals->size());
  DeviceVariable made = {name, "emulator.image." + number, "emulator.place." + number,
                         module_.getDataLayout().getTypeAllocSize(variable.getValueType()),
                         variable.getAlign().valueOrOne().value()};
  auto* place = llvm::cast<llvm::GlobalVariable>(module_.getOrInsertGlobal(made.pointer, b_.getPtrTy()));
  place->setInitializer(llvm::ConstantPointerNull::get(b_.getPtrTy()));
  place->setExternallyInitialized(true);
  replace_uses(variable, [&]() -> llvm::Value* { return b_.CreateLoad(b_.getPtrTy(), place); });
  variable.setLinkage(llvm::GlobalValue::ExternalLinkage);
  variable.setName(made.image);
  globals->push_back(std::move(made));
  return {};
}

}  // namespace torch_remote::codegen::emulator
