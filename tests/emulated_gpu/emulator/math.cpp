#include <xmmintrin.h>

#include <limits>
#include <optional>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/IR/Intrinsics.h"
#include "tests/emulated_gpu/emulator/calls.h"

// Arithmetic. Exact operations are exact; approximate operations use the C library's functions.
namespace torch_remote::codegen::emulator {
namespace {

using llvm::StringRef;
using llvm::Value;
using llvm::Intrinsic::ID;
namespace intrinsic = llvm::Intrinsic;

bool has(llvm::ArrayRef<StringRef> parts, StringRef part) { return llvm::is_contained(parts, part); }

}  // namespace

Value* IntrinsicLowering::math(Parts parts, llvm::Type* result, llvm::ArrayRef<Value*> operands) {
  if (operands.empty()) return nullptr;
  if (Value* value = bits(parts, result, operands)) return value;
  if (Value* value = convert(parts, result, operands)) return value;
  if (!operands[0]->getType()->isFPOrFPVectorTy()) return nullptr;
  if (has(parts, "rm") || has(parts, "rp") || has(parts, "rz")) return directed(parts, operands);
  if (has(parts, "xorsign") || has(parts, "sat") || has(parts, "relu")) return nullptr;
  const auto flush = [&](Value* value) -> Value* {
    if (!has(parts, "ftz") || !value->getType()->isFloatTy()) return value;
    Value* size = b_.CreateUnaryIntrinsic(intrinsic::fabs, value);
    Value* zero = b_.CreateBinaryIntrinsic(intrinsic::copysign, llvm::ConstantFP::get(value->getType(), 0), value);
    Value* least = llvm::ConstantFP::get(value->getType(), std::numeric_limits<float>::min());
    return b_.CreateSelect(b_.CreateFCmpOLT(size, least), zero, value);
  };
  llvm::SmallVector<Value*> flushed;
  for (Value* operand : operands) flushed.push_back(flush(operand));
  Value* value = arithmetic(parts, flushed);
  return value == nullptr ? nullptr : flush(value);
}

Value* IntrinsicLowering::arithmetic(Parts parts, llvm::ArrayRef<Value*> x) {
  llvm::Type* type = x[0]->getType();
  const StringRef op = parts[0];
  if (x.size() == 1) {
    const ID unary = llvm::StringSwitch<ID>(op)
                         .Case("ex2", intrinsic::exp2)
                         .Case("lg2", intrinsic::log2)
                         .Case("sin", intrinsic::sin)
                         .Case("cos", intrinsic::cos)
                         .Case("tanh", intrinsic::tanh)
                         .Cases("sqrt", "rsqrt", intrinsic::sqrt)
                         .Cases("fabs", "abs", intrinsic::fabs)
                         .Case("floor", intrinsic::floor)
                         .Case("ceil", intrinsic::ceil)
                         .Case("trunc", intrinsic::trunc)
                         .Case("round", intrinsic::roundeven)
                         .Default(intrinsic::not_intrinsic);
    if (op == "saturate") {
      Value* low = b_.CreateMaxNum(x[0], llvm::ConstantFP::get(type, 0));
      return b_.CreateMinNum(low, llvm::ConstantFP::get(type, 1));
    }
    if (op == "neg") return b_.CreateFNeg(x[0]);
    Value* value = unary != intrinsic::not_intrinsic ? b_.CreateUnaryIntrinsic(unary, x[0]) : nullptr;
    if (op == "rsqrt" || op == "rcp") {
      return b_.CreateFDiv(llvm::ConstantFP::get(type, 1), op == "rcp" ? x[0] : value);
    }
    return value;
  }
  if (x.size() == 2) {
    const bool nan = has(parts, "nan") || has(parts, "NaN");
    if (op == "add") return b_.CreateFAdd(x[0], x[1]);
    if (op == "sub") return b_.CreateFSub(x[0], x[1]);
    if (op == "mul") return b_.CreateFMul(x[0], x[1]);
    if (op == "div") return b_.CreateFDiv(x[0], x[1]);
    if (op == "fmin" || op == "min") return nan ? b_.CreateMinimum(x[0], x[1]) : b_.CreateMinNum(x[0], x[1]);
    if (op == "fmax" || op == "max") return nan ? b_.CreateMaximum(x[0], x[1]) : b_.CreateMaxNum(x[0], x[1]);
  }
  if (x.size() == 3 && op == "fma") return b_.CreateIntrinsic(intrinsic::fma, {type}, x);
  return nullptr;
}

// Operations that round down, up or toward zero.
Value* IntrinsicLowering::directed(Parts parts, llvm::ArrayRef<Value*> operands) {
  llvm::Type* type = operands[0]->getType();
  const auto op = llvm::StringSwitch<std::optional<Directed>>(parts[0])
                      .Case("add", Directed::kAdd)
                      .Case("mul", Directed::kMul)
                      .Case("div", Directed::kDiv)
                      .Case("fma", Directed::kFma)
                      .Case("sqrt", Directed::kSqrt)
                      .Case("rcp", Directed::kRcp)
                      .Default(std::nullopt);
  if (!op || has(parts, "ftz") || (!type->isFloatTy() && !type->isDoubleTy())) return nullptr;
  const uint32_t mode = has(parts, "rm") ? _MM_ROUND_DOWN : has(parts, "rp") ? _MM_ROUND_UP : _MM_ROUND_TOWARD_ZERO;
  llvm::SmallVector<Value*> arguments = {b_.getInt32(static_cast<uint32_t>(*op)), b_.getInt32(mode)};
  for (size_t i = 0; i < 3; ++i)
    arguments.push_back(i < operands.size() ? operands[i] : llvm::ConstantFP::get(type, 0));
  return b_.runtime(type->isFloatTy() ? kDirected32Function : kDirected64Function, type, arguments, Effect::kNone);
}

// f2i.rz, ui2f.rn, d2f.rn, f2h.rn, ff2bf16x2.rn, ...
Value* IntrinsicLowering::convert(Parts parts, llvm::Type* result, llvm::ArrayRef<Value*> operands) {
  const auto [from, to] = parts[0].split('2');
  if (to.empty() || parts[0].starts_with("ex2") || parts[0].starts_with("lg2")) return nullptr;
  const bool nearest = has(parts, "rn");
  if (has(parts, "relu") || has(parts, "ftz")) return nullptr;
  llvm::Type* type = operands[0]->getType();
  const bool is_unsigned = from.starts_with("u");
  if (from == "ff" && nearest && operands.size() == 2) {  // the first operand is the upper half
    Value* pair = llvm::PoisonValue::get(llvm::FixedVectorType::get(type, 2));
    pair = b_.CreateInsertElement(b_.CreateInsertElement(pair, operands[1], uint64_t{0}), operands[0], uint64_t{1});
    return b_.CreateFPTrunc(pair, result);
  }
  if (from == "f" && to == "h" && nearest)
    return b_.CreateBitCast(b_.CreateFPTrunc(operands[0], b_.getHalfTy()), result);
  if ((from == "d" || (from == "f" && to == "bf16")) && result->isFloatingPointTy() && nearest) {
    return b_.CreateFPTrunc(operands[0], result);
  }
  if (type->isIntegerTy() && (result->isFloatTy() || result->isDoubleTy())) {
    const bool exact = type->isIntegerTy(32) && result->isDoubleTy();
    if (!nearest && !exact) return nullptr;
    return is_unsigned ? b_.CreateUIToFP(operands[0], result) : b_.CreateSIToFP(operands[0], result);
  }
  if (!type->isFloatingPointTy() || !result->isIntegerTy()) return nullptr;
  const ID round = nearest            ? intrinsic::roundeven
                   : has(parts, "rz") ? intrinsic::trunc
                   : has(parts, "rm") ? intrinsic::floor
                   : has(parts, "rp") ? intrinsic::ceil
                                      : intrinsic::not_intrinsic;
  if (round == intrinsic::not_intrinsic) return nullptr;
  const ID convert = to.starts_with("u") ? intrinsic::fptoui_sat : intrinsic::fptosi_sat;
  return b_.CreateIntrinsic(convert, {result, type}, {b_.CreateUnaryIntrinsic(round, operands[0])});
}

Value* IntrinsicLowering::bits(Parts parts, llvm::Type* result, llvm::ArrayRef<Value*> x) {
  const StringRef op = parts[0], type = parts.size() > 1 ? parts[1] : "";
  llvm::Type* i64 = b_.getInt64Ty();
  if (op == "bitcast") return b_.CreateBitCast(x[0], result);
  if (op == "d2i" && (type == "lo" || type == "hi")) {
    return b_.CreateTrunc(b_.CreateLShr(b_.CreateBitCast(x[0], i64), type == "hi" ? 32 : 0), result);
  }
  if (op == "lohi") {
    Value* high = b_.CreateShl(b_.CreateZExt(x[1], i64), 32);
    return b_.CreateBitCast(b_.CreateOr(high, b_.CreateZExt(x[0], i64)), result);
  }
  const bool is_unsigned = type.starts_with("u");
  if (op == "mulhi") {
    const unsigned width = result->getIntegerBitWidth();
    llvm::Type* wide = b_.getIntNTy(2 * width);
    const auto widen = [&](Value* v) { return is_unsigned ? b_.CreateZExt(v, wide) : b_.CreateSExt(v, wide); };
    return b_.CreateTrunc(b_.CreateLShr(b_.CreateMul(widen(x[0]), widen(x[1])), width), result);
  }
  if (op == "mul24") {
    const auto low = [&](Value* v) {
      Value* shifted = b_.CreateShl(v, 8);
      return is_unsigned ? b_.CreateLShr(shifted, 8) : b_.CreateAShr(shifted, 8);
    };
    return b_.CreateMul(low(x[0]), low(x[1]));
  }
  if (op == "prmt" && x.size() == 3) {  // 4-bit selectors pick bytes of b:a, or broadcast their sign bit
    Value* source = b_.CreateOr(b_.CreateShl(b_.CreateZExt(x[1], i64), 32), b_.CreateZExt(x[0], i64));
    Value* value = b_.getInt32(0);
    for (uint64_t i = 0; i < 4; ++i) {
      Value* selected = b_.CreateLShr(x[2], 4 * i);
      Value* shift = b_.CreateZExt(b_.CreateShl(b_.CreateAnd(selected, 7), 3), i64);
      Value* byte = b_.CreateTrunc(b_.CreateLShr(source, shift), b_.getInt8Ty());
      Value* sign = b_.CreateTrunc(b_.CreateLShr(selected, 3), b_.getInt1Ty());
      byte = b_.CreateSelect(sign, b_.CreateAShr(byte, 7), byte);
      value = b_.CreateOr(value, b_.CreateShl(b_.CreateZExt(byte, b_.getInt32Ty()), 8 * i));
    }
    return value;
  }
  return nullptr;
}

}  // namespace torch_remote::codegen::emulator
