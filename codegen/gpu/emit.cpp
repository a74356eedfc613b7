#include "codegen/gpu/emit.h"

#include <string>

#include "codegen/gpu/body.h"
#include "codegen/gpu/gpu_ops.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

namespace torch_remote::codegen::gpu {
namespace {

namespace ll = mlir::LLVM;
using mlir::NVVM::NVVMDialect;

constexpr int32_t kPointsBlocks = 3;

llvm::StringRef text(std::string_view view) { return {view.data(), view.size()}; }

uint32_t most_threads(Function function) {
  switch (function) {
    case Function::kPoints:
      return kPointsThreads;
    case Function::kFinish:
      return kFinishThreads;
    case Function::kRowsReloaded:
      return kLoopedThreads;
    case Function::kRowsInRegisters:
      break;
  }
  return kTeamThreads;
}

mlir::Type type_of(const Kernel& kernel, const Parameter& parameter, mlir::OpBuilder& builder) {
  switch (parameter.kind) {
    case ParameterKind::kData:
    case ParameterKind::kFailure:
    case ParameterKind::kLines:
    case ParameterKind::kScalarsAddress:
      return ll::LLVMPointerType::get(builder.getContext(), kGlobalSpace);
    case ParameterKind::kScalar:
      if (kernel.scalars[parameter.a] == ir::DType::kFloat64) return builder.getF64Type();
      return builder.getI64Type();
    default:
      return builder.getI64Type();
  }
}

void emit_function(LlvmBuilder& builder, Function function, const Plans& plans, const Recipe& recipe) {
  llvm::SmallVector<mlir::Type> arguments;
  for (const Parameter& parameter : recipe.parameters) arguments.push_back(type_of(plans.kernel, parameter, builder));
  const auto type = ll::LLVMFunctionType::get(ll::LLVMVoidType::get(builder.getContext()), arguments);
  auto code = builder.create<ll::LLVMFuncOp>(text(name(function)), type);
  code->setAttr(NVVMDialect::getKernelFuncAttrName(), builder.getUnitAttr());
  const auto threads = static_cast<int32_t>(most_threads(function));
  code->setAttr(NVVMDialect::getMaxntidAttrName(), builder.getDenseI32ArrayAttr({threads, 1, 1}));
  // This limits the registers of a thread, so that kPointsBlocks blocks can run on a multiprocessor at once.
  if (function == Function::kPoints) {
    code->setAttr(NVVMDialect::getMinctasmAttrName(), builder.getI32IntegerAttr(kPointsBlocks));
  }
  SharedMemory shared{.name = "shared_" + std::string(name(function))};
  {
    mlir::OpBuilder::InsertionGuard guard(builder);
    mlir::Block* entry = code.addEntryBlock(builder);
    builder.setInsertionPointToStart(entry);
    emit_body(builder, function, plans, recipe, entry, &shared);
    builder.create<ll::ReturnOp>(mlir::ValueRange());
  }
  if (shared.places == 0) return;
  const auto places = ll::LLVMArrayType::get(builder.getI64Type(), shared.places);
  builder.create<ll::GlobalOp>(places, /*isConstant=*/false, ll::Linkage::Internal, shared.name, mlir::Attribute(),
                               /*alignment=*/16, kSharedSpace);
}

}  // namespace

std::vector<Function> functions(const Recipe& recipe) {
  std::vector<Function> result;
  if (recipe.shape == Shape::kPoints) {
    result.push_back(Function::kPoints);
  } else {
    if (recipe.slots != 0) result.push_back(Function::kRowsInRegisters);
    result.push_back(Function::kRowsReloaded);
  }
  if (recipe.finish_columns != 0) result.push_back(Function::kFinish);
  return result;
}

mlir::OwningOpRef<mlir::ModuleOp> emit(const Plans& plans, const Recipe& recipe, mlir::MLIRContext& context) {
  LlvmBuilder builder(mlir::UnknownLoc::get(&context), &context);
  mlir::OwningOpRef<mlir::ModuleOp> module = builder.create<mlir::ModuleOp>();
  builder.setInsertionPointToEnd(module->getBody());
  for (const Function function : functions(recipe)) emit_function(builder, function, plans, recipe);
  return module;
}

}  // namespace torch_remote::codegen::gpu
