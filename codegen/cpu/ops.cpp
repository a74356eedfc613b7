#include "codegen/cpu/ops.h"

#include <limits>

#include "mlir/IR/TypeUtilities.h"

namespace torch_remote::codegen::cpu {

using ir::DType;
using ir::ScalarOp;
namespace ll = mlir::LLVM;
using Float = ll::FCmpPredicate;
using Int = ll::ICmpPredicate;

// -- Types ------------------------------------------------------------------------------------------------------------

mlir::Type Ops::type(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return b.getI1Type();
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
      return b.getF32Type();
    case DType::kFloat64:
      return b.getF64Type();
    default:
      return b.getIntegerType(8 * ir::item_size(dtype));
  }
}

mlir::Type Ops::memory_type(DType dtype) {
  if (dtype == DType::kFloat32 || dtype == DType::kFloat64) return type(dtype);
  return b.getIntegerType(8 * ir::item_size(dtype));
}

namespace {

unsigned width_of(MlirValue x) { return mlir::getElementTypeOrSelf(x).getIntOrFloatBitWidth(); }

bool is_float_value(MlirValue x) { return llvm::isa<mlir::FloatType>(mlir::getElementTypeOrSelf(x)); }

}  // namespace

// -- Values of a kernel -----------------------------------------------------------------------------------------------

MlirValue Ops::constant(const Value& value, mlir::Type type) {
  return ir::is_float(value.type) ? b.number(type, value.number) : b.integer(type, value.integer);
}

MlirValue Ops::computed(const std::vector<Value>& values, const Value& value,
                        llvm::function_ref<MlirValue(uint32_t)> get) {
  const auto input = [&](uint32_t number) { return number == kNone ? MlirValue() : get(number); };
  switch (value.kind) {
    case Kind::kConvert:
      return convert(get(value.a), values[value.a].type, value.type);
    case Kind::kBits:
      return bits(get(value.a), values[value.a].type, value.type);
    case Kind::kFma:
      return fma(get(value.a), get(value.b), get(value.c));
    case Kind::kLdexp:
      return ldexp(get(value.a), get(value.b), value.type);
    default:
      return scalar_op(value.op, values[value.typed()].type, input(value.a), input(value.b), input(value.c));
  }
}

// -- Single operations ------------------------------------------------------------------------------------------------

MlirValue Ops::fma(MlirValue x, MlirValue y, MlirValue z) { return b.create<ll::FMAOp>(x, y, z); }

MlirValue Ops::is_nan(MlirValue x) { return b.create<ll::FCmpOp>(Float::uno, x, x); }

MlirValue Ops::less(DType dtype, MlirValue x, MlirValue y) {
  if (is_float_value(x)) return b.create<ll::FCmpOp>(Float::olt, x, y);
  return b.compare(is_signed(dtype) ? Int::slt : Int::ult, x, y);
}

MlirValue Ops::equal(MlirValue x, MlirValue y) {
  if (is_float_value(x)) return b.create<ll::FCmpOp>(Float::oeq, x, y);
  return b.compare(Int::eq, x, y);
}

// (x > y ? x : y) is one instruction, which gives y if one of them is NaN. For a NaN in x we then select a NaN
// constant, not x. Otherwise LLVM would merge the two conditions and no longer find that instruction.
MlirValue Ops::max(DType dtype, MlirValue x, MlirValue y) { return or_nan(x, b.select(less(dtype, y, x), x, y)); }

MlirValue Ops::min(DType dtype, MlirValue x, MlirValue y) { return or_nan(x, b.select(less(dtype, x, y), x, y)); }

MlirValue Ops::or_nan(MlirValue x, MlirValue y) {
  if (!is_float_value(x)) return y;
  return b.select(is_nan(x), b.number(x.getType(), std::numeric_limits<double>::quiet_NaN()), y);
}

// -- Functions --------------------------------------------------------------------------------------------------------

MlirValue Ops::comparison(ScalarOp op, DType dtype, MlirValue x, MlirValue y) {
  switch (op) {
    case ScalarOp::kEq:
      return equal(x, y);
    case ScalarOp::kNe:
      return is_float_value(x) ? MlirValue(b.create<ll::FCmpOp>(Float::une, x, y)) : b.compare(Int::ne, x, y);
    case ScalarOp::kLt:
      return less(dtype, x, y);
    case ScalarOp::kGt:
      return less(dtype, y, x);
    case ScalarOp::kLe:
      if (is_float_value(x)) return b.create<ll::FCmpOp>(Float::ole, x, y);
      return b.compare(is_signed(dtype) ? Int::sle : Int::ule, x, y);
    default:
      if (is_float_value(x)) return b.create<ll::FCmpOp>(Float::oge, x, y);
      return b.compare(is_signed(dtype) ? Int::sge : Int::uge, x, y);
  }
}

MlirValue Ops::logical(ScalarOp op, DType dtype, MlirValue x, MlirValue y) {
  x = convert(x, dtype, DType::kBool);
  if (op == ScalarOp::kLogicalNot) return convert(b.bit_xor(x, b.integer(x.getType(), 1)), DType::kBool, dtype);
  y = convert(y, dtype, DType::kBool);
  MlirValue result = op == ScalarOp::kLogicalAnd  ? b.bit_and(x, y)
                     : op == ScalarOp::kLogicalOr ? b.bit_or(x, y)
                                                  : b.bit_xor(x, y);
  return convert(result, DType::kBool, dtype);
}

MlirValue Ops::scalar_op(ScalarOp op, DType dtype, MlirValue x, MlirValue y, MlirValue z) {
  switch (op) {
    case ScalarOp::kEq:
    case ScalarOp::kNe:
    case ScalarOp::kLt:
    case ScalarOp::kLe:
    case ScalarOp::kGt:
    case ScalarOp::kGe:
      return comparison(op, dtype, x, y);
    case ScalarOp::kLogicalAnd:
    case ScalarOp::kLogicalNot:
    case ScalarOp::kLogicalOr:
    case ScalarOp::kLogicalXor:
      return logical(op, dtype, x, y);
    case ScalarOp::kWhere:
      return b.select(x, y, z);
    case ScalarOp::kMax:
      return max(dtype, x, y);
    case ScalarOp::kMin:
      return min(dtype, x, y);
    default:
      if (dtype == DType::kBool) return bool_op(op, x, y);
      return ir::is_float(dtype) ? float_op(op, x, y) : integer_op(op, dtype, x, y);
  }
}

MlirValue Ops::float_op(ScalarOp op, MlirValue x, MlirValue y) {
  switch (op) {
    case ScalarOp::kNeg:
      return b.create<ll::FNegOp>(x);
    case ScalarOp::kAdd:
      return b.create<ll::FAddOp>(x, y);
    case ScalarOp::kSub:
      return b.create<ll::FSubOp>(x, y);
    case ScalarOp::kMul:
      return b.create<ll::FMulOp>(x, y);
    case ScalarOp::kDiv:
      return b.create<ll::FDivOp>(x, y);
    case ScalarOp::kAbs:
      return b.create<ll::FAbsOp>(x);
    case ScalarOp::kCeil:
      return b.create<ll::FCeilOp>(x);
    case ScalarOp::kFloor:
      return b.create<ll::FFloorOp>(x);
    case ScalarOp::kTrunc:
      return b.create<ll::FTruncOp>(x);
    case ScalarOp::kRound:
      return b.create<ll::RoundEvenOp>(x);
    case ScalarOp::kSqrt:
      return b.create<ll::SqrtOp>(x);
    case ScalarOp::kCopysign:
      return b.create<ll::CopySignOp>(x, y);
    case ScalarOp::kFmax:
      return b.select(is_nan(y), x, b.select(less(DType::kFloat32, y, x), x, y));
    case ScalarOp::kFmin:
      return b.select(is_nan(y), x, b.select(less(DType::kFloat32, x, y), x, y));
    default:
      return {};
  }
}

MlirValue Ops::integer_op(ScalarOp op, DType dtype, MlirValue x, MlirValue y) {
  switch (op) {
    case ScalarOp::kNeg:
      return b.sub(b.integer(x.getType(), 0), x);
    case ScalarOp::kAdd:
      return b.add(x, y);
    case ScalarOp::kSub:
      return b.sub(x, y);
    case ScalarOp::kMul:
      return b.mul(x, y);
    case ScalarOp::kDiv:
      return quotient(dtype, x, y);
    case ScalarOp::kAbs: {
      if (!is_signed(dtype)) return x;
      MlirValue zero = b.integer(x.getType(), 0);
      return b.select(b.less_than(x, zero), b.sub(zero, x), x);
    }
    case ScalarOp::kCeil:
    case ScalarOp::kFloor:
    case ScalarOp::kTrunc:
    case ScalarOp::kRound:
      return x;
    case ScalarOp::kBitAnd:
      return b.bit_and(x, y);
    case ScalarOp::kBitOr:
      return b.bit_or(x, y);
    case ScalarOp::kBitXor:
      return b.bit_xor(x, y);
    case ScalarOp::kBitNot:
      return b.bit_xor(x, b.integer(x.getType(), -1));
    case ScalarOp::kShiftLeft:
    case ScalarOp::kShiftRight:
      return shifted(op, dtype, x, y);
    case ScalarOp::kFmax:
      return max(dtype, x, y);
    case ScalarOp::kFmin:
      return min(dtype, x, y);
    default:
      return {};
  }
}

// Like C++, bools are computed as integers and converted back by `!= 0`: 1 + 1 is 1, 1 - 1 is 0.
MlirValue Ops::bool_op(ScalarOp op, MlirValue x, MlirValue y) {
  switch (op) {
    case ScalarOp::kAdd:
    case ScalarOp::kBitOr:
    case ScalarOp::kFmax:
      return b.bit_or(x, y);
    case ScalarOp::kSub:
    case ScalarOp::kBitXor:
      return b.bit_xor(x, y);
    case ScalarOp::kMul:
    case ScalarOp::kDiv:
    case ScalarOp::kBitAnd:
    case ScalarOp::kFmin:
      return b.bit_and(x, y);
    case ScalarOp::kBitNot:
      return b.bit_xor(x, b.integer(x.getType(), 1));
    case ScalarOp::kShiftRight:
      return b.bit_and(x, b.bit_xor(y, b.integer(y.getType(), 1)));
    default:
      return x;
  }
}

// Rounds towards zero. Division by zero gives 0, and overflow wraps around; the machine's instruction would trap in
// both cases. Up to 32 bits we divide floats with a wider significand, because that has vector instructions. It is
// exact: a quotient that is not an integer differs from the nearest integer by more than the rounding error.
MlirValue Ops::quotient(DType dtype, MlirValue x, MlirValue y) {
  const bool signs = is_signed(dtype);
  MlirValue zero = b.integer(x.getType(), 0), one = b.integer(x.getType(), 1), minus_one = b.integer(x.getType(), -1);
  MlirValue by_zero = b.compare(Int::eq, y, zero);
  MlirValue by_minus_one = signs ? b.compare(Int::eq, y, minus_one) : MlirValue();
  MlirValue divisor = b.select(signs ? b.bit_or(by_zero, by_minus_one) : by_zero, one, y);
  MlirValue result;
  if (width_of(x) == 64) {
    result = b.create<ll::SDivOp>(x, divisor);
  } else {
    const DType wide = width_of(x) == 32 ? DType::kFloat64 : DType::kFloat32;
    result = b.create<ll::FDivOp>(convert(x, dtype, wide), convert(divisor, dtype, wide));
    result = convert(result, wide, dtype);
  }
  if (signs) result = b.select(by_minus_one, b.sub(zero, x), result);
  return b.select(by_zero, zero, result);
}

// A negative count, or one of at least all bits, gives what shifting bit by bit would: 0, or the sign.
MlirValue Ops::shifted(ScalarOp op, DType dtype, MlirValue x, MlirValue y) {
  MlirValue far = b.compare(Int::uge, y, b.integer(y.getType(), width_of(y)));
  MlirValue zero = b.integer(x.getType(), 0), most = b.integer(y.getType(), width_of(y) - 1);
  if (op == ScalarOp::kShiftRight && is_signed(dtype)) return b.create<ll::AShrOp>(x, b.select(far, most, y));
  MlirValue near = b.select(far, zero, y);
  MlirValue result =
      op == ScalarOp::kShiftLeft ? MlirValue(b.create<ll::ShlOp>(x, near)) : MlirValue(b.create<ll::LShrOp>(x, near));
  return b.select(far, zero, result);
}

// -- Powers of two ----------------------------------------------------------------------------------------------------

// One instruction with AVX-512, else two multiplications, of which the first one is exact.
MlirValue Ops::ldexp(MlirValue x, MlirValue power, DType dtype) {
  const bool single = dtype == DType::kFloat32;
  if (features.avx512 && llvm::isa<mlir::VectorType>(x.getType())) return scale_vector(x, power, single);
  const mlir::Type word = same_width(x.getType(), single ? b.getI32Type() : b.getI64Type());
  const int64_t mantissa = single ? 23 : 52, bias = single ? 127 : 1023;
  // The low bits of the sum are the power plus twice the bias.
  MlirValue magic = b.number(x.getType(), (single ? 0x1.8p23 : 0x1.8p52) + 2 * static_cast<double>(bias));
  MlirValue sum = b.create<ll::BitcastOp>(word, MlirValue(b.create<ll::FAddOp>(power, magic)));
  MlirValue half = b.create<ll::AShrOp>(sum, b.integer(word, 1)), shift = b.integer(word, mantissa);
  const auto factor = [&](MlirValue exponent) -> MlirValue {
    return b.create<ll::BitcastOp>(x.getType(), MlirValue(b.create<ll::ShlOp>(exponent, shift)));
  };
  return b.create<ll::FMulOp>(MlirValue(b.create<ll::FMulOp>(x, factor(half))), factor(b.sub(sum, half)));
}

// Uses vscalefps and vscalefpd; the latter takes 8 numbers at a time.
MlirValue Ops::scale_vector(MlirValue x, MlirValue power, bool single) {
  constexpr int64_t kAsIsRounded = 4;  // the current rounding direction
  const auto call = [&](llvm::StringRef name, MlirValue part, MlirValue by, mlir::Type mask) -> MlirValue {
    MlirValue arguments[] = {part, by, part, b.integer(mask, -1), b.i32(kAsIsRounded)};
    return b.create<ll::CallIntrinsicOp>(part.getType(), name, arguments).getResult(0);
  };
  if (single) return call("llvm.x86.avx512.mask.scalef.ps.512", x, power, b.getI16Type());
  llvm::SmallVector<int32_t, kLanes> low, high, all;
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    (lane < kLanes / 2 ? low : high).push_back(lane);
    all.push_back(lane);
  }
  const auto part = [&](MlirValue of, llvm::ArrayRef<int32_t> lanes) -> MlirValue {
    return b.create<ll::ShuffleVectorOp>(of, of, lanes);
  };
  const auto scaled = [&](llvm::ArrayRef<int32_t> lanes) {
    return call("llvm.x86.avx512.mask.scalef.pd.512", part(x, lanes), part(power, lanes), b.getI8Type());
  };
  return b.create<ll::ShuffleVectorOp>(scaled(low), scaled(high), all);
}

// -- Conversions ------------------------------------------------------------------------------------------------------

// Rounds towards zero. The result may become an index, so LLVM must assume nothing about a number that is out of range:
// we freeze it. Narrow integers are the low bits of a 32-bit one.
MlirValue Ops::to_integer(MlirValue x, DType to) {
  const mlir::Type wide = ir::item_size(to) == 8 ? b.getI64Type() : mlir::Type(b.getI32Type());
  MlirValue result = b.create<ll::FPToSIOp>(same_width(x.getType(), wide), x);
  result = b.create<ll::FreezeOp>(result);
  if (ir::item_size(to) < 4) result = b.create<ll::TruncOp>(same_width(x.getType(), type(to)), result);
  return result;
}

MlirValue Ops::convert(MlirValue x, DType from, DType to) {
  if (from == to) return x;
  const mlir::Type target = same_width(x.getType(), type(to));
  if (to == DType::kBool) {
    if (ir::is_float(from)) return b.create<ll::FCmpOp>(Float::une, x, b.number(x.getType(), 0));
    return b.compare(Int::ne, x, b.integer(x.getType(), 0));
  }
  if (ir::is_float(from)) {
    if (!ir::is_float(to)) return to_integer(x, to);
    if (to == DType::kFloat64) return b.create<ll::FPExtOp>(target, x);
    return b.create<ll::FPTruncOp>(target, x);
  }
  if (ir::is_float(to)) {
    if (is_signed(from)) return b.create<ll::SIToFPOp>(target, x);
    // Unsigned integers are narrow, so signed instructions convert them correctly after widening.
    x = b.create<ll::ZExtOp>(same_width(x.getType(), b.getI32Type()), x);
    return b.create<ll::SIToFPOp>(target, x);
  }
  const unsigned width = mlir::getElementTypeOrSelf(target).getIntOrFloatBitWidth();
  if (width == width_of(x)) return x;
  if (width < width_of(x)) return b.create<ll::TruncOp>(target, x);
  if (is_signed(from)) return b.create<ll::SExtOp>(target, x);
  return b.create<ll::ZExtOp>(target, x);
}

MlirValue Ops::bits(MlirValue x, DType from, DType to) {
  if (from == DType::kBool || to == DType::kBool) return convert(x, from, to);
  const mlir::Type target = same_width(x.getType(), type(to));
  return x.getType() == target ? x : MlirValue(b.create<ll::BitcastOp>(target, x));
}

MlirValue Ops::from_memory(MlirValue x, DType memory) {
  const mlir::Type f32 = same_width(x.getType(), b.getF32Type());
  switch (memory) {
    case DType::kBool:
      return b.compare(Int::ne, x, b.integer(x.getType(), 0));
    case DType::kFloat16:
      return b.create<ll::FPExtOp>(f32, b.create<ll::BitcastOp>(same_width(x.getType(), b.getF16Type()), x));
    case DType::kBFloat16: {
      MlirValue wide = b.create<ll::ZExtOp>(same_width(x.getType(), b.getI32Type()), x);
      return b.create<ll::BitcastOp>(f32, b.create<ll::ShlOp>(wide, b.integer(wide.getType(), 16)));
    }
    default:
      return x;
  }
}

MlirValue Ops::to_memory(MlirValue x, DType memory) {
  const mlir::Type stored = same_width(x.getType(), memory_type(memory));
  switch (memory) {
    case DType::kBool:
      return b.create<ll::ZExtOp>(stored, x);
    case DType::kFloat16:
      return b.create<ll::BitcastOp>(stored, b.create<ll::FPTruncOp>(same_width(x.getType(), b.getF16Type()), x));
    case DType::kBFloat16:
      return round_to_bfloat16(x);
    default:
      return x;
  }
}

// Rounds to nearest even, with integer operations: the machine's instruction treats denormals as zero.
MlirValue Ops::round_to_bfloat16(MlirValue x) {
  const mlir::Type i32 = same_width(x.getType(), b.getI32Type());
  MlirValue word = b.create<ll::BitcastOp>(i32, x), sixteen = b.integer(i32, 16);
  MlirValue odd = b.bit_and(b.create<ll::LShrOp>(word, sixteen), b.integer(i32, 1));
  MlirValue rounded = b.add(b.add(word, b.integer(i32, 0x7FFF)), odd);
  rounded = b.create<ll::LShrOp>(rounded, sixteen);
  rounded = b.select(is_nan(x), b.integer(i32, 0x7FC0), rounded);
  return b.create<ll::TruncOp>(same_width(x.getType(), b.getI16Type()), rounded);
}

// Philox4x32-10, a counter-based generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011). Words are the lower halves of 64-bit numbers. Multiplications use only these, so the upper halves may have
// any bits. The machine's multiplication of lower halves absorbs the masks.
std::array<MlirValue, 4> Ops::philox(MlirValue seed, MlirValue offset, MlirValue block) {
  const mlir::Type type = block.getType();
  MlirValue low = b.integer(type, 0xFFFFFFFF), half = b.integer(type, 32);
  const auto lower = [&](MlirValue x) { return b.bit_and(x, low); };
  const auto upper = [&](MlirValue x) -> MlirValue { return b.create<ll::LShrOp>(x, half); };
  MlirValue c0 = block, c1 = upper(block), c2 = offset, c3 = upper(offset);
  MlirValue k0 = seed, k1 = upper(seed);
  MlirValue m0 = b.integer(type, 0xD2511F53), m1 = b.integer(type, 0xCD9E8D57);
  for (int round = 0; round < 10; ++round) {
    MlirValue x = b.mul(m0, lower(c0)), y = b.mul(m1, lower(c2));
    c0 = b.bit_xor(b.bit_xor(upper(y), c1), k0);
    c1 = y;
    c2 = b.bit_xor(b.bit_xor(upper(x), c3), k1);
    c3 = x;
    k0 = b.add(k0, b.integer(type, 0x9E3779B9));
    k1 = b.add(k1, b.integer(type, 0xBB67AE85));
  }
  return {c0, c1, c2, c3};
}

MlirValue Ops::random(MlirValue seed, MlirValue offset, MlirValue number) {
  const mlir::Type type = number.getType();
  const auto [c0, c1, c2, c3] = philox(seed, offset, b.create<ll::LShrOp>(number, b.integer(type, 2)));
  MlirValue zero = b.integer(type, 0);
  MlirValue second = b.compare(Int::ne, b.bit_and(number, b.integer(type, 1)), zero);
  MlirValue last = b.compare(Int::ne, b.bit_and(number, b.integer(type, 2)), zero);
  MlirValue word = b.select(last, b.select(second, c3, c2), b.select(second, c1, c0));
  return b.create<ll::TruncOp>(same_width(type, b.getI32Type()), word);
}

MlirValue Ops::lanes(MlirValue x, MlirValue y, llvm::ArrayRef<int32_t> which) {
  return b.create<ll::ShuffleVectorOp>(x, y, which);
}

// Returns 2 * kLanes words in order: all words of kLanes / 2 blocks. Word number `first` is among the first four.
MlirValue Ops::random_blocks(MlirValue seed, MlirValue offset, MlirValue first) {
  constexpr int32_t kWords = kLanes, kBlocks = kWords / 2;
  const auto low = [](int32_t count) {
    llvm::SmallVector<int32_t, kLanes> places;
    for (int32_t i = 0; i < count; ++i) places.push_back(i);
    return places;
  };
  const auto half = [&](MlirValue x) { return lanes(x, x, low(kBlocks)); };
  const auto wide = [&](MlirValue scalar) { return half(b.splat(scalar)); };
  MlirValue block = b.create<ll::LShrOp>(first, b.i64(2));
  MlirValue blocks = b.add(wide(block), half(b.ramp(b.getI64Type(), 0)));
  const std::array<MlirValue, 4> words = philox(wide(seed), wide(offset), blocks);
  const auto narrow = [&](MlirValue x) -> MlirValue {
    return b.create<ll::TruncOp>(vector_of(b.getI32Type(), kBlocks), x);
  };
  // We interleave two words of each block, then all four.
  llvm::SmallVector<int32_t, kLanes> pairs;
  llvm::SmallVector<int32_t, 2 * kLanes> fours;
  for (int32_t i = 0; i < kBlocks; ++i) {
    pairs.append({i, kBlocks + i});
    fours.append({2 * i, 2 * i + 1, kWords + 2 * i, kWords + 2 * i + 1});
  }
  return lanes(lanes(narrow(words[0]), narrow(words[1]), pairs), lanes(narrow(words[2]), narrow(words[3]), pairs),
               fours);
}

// Returns kLanes words, from word number `first` on, which is among the first four.
MlirValue Ops::window(MlirValue words, MlirValue first) {
  std::array<MlirValue, 4> found;
  for (int32_t begin = 0; begin < 4; ++begin) {
    llvm::SmallVector<int32_t, kLanes> places;
    for (int32_t lane = 0; lane < kLanes; ++lane) places.push_back(begin + lane);
    found[static_cast<size_t>(begin)] = lanes(words, words, places);
  }
  const auto has = [&](int64_t bit) { return b.compare(Int::ne, b.bit_and(first, b.i64(bit)), b.i64(0)); };
  MlirValue odd = has(1);
  return b.select(has(2), b.select(odd, found[3], found[2]), b.select(odd, found[1], found[0]));
}

MlirValue Ops::random_vector(MlirValue seed, MlirValue offset, MlirValue first) {
  return window(random_blocks(seed, offset, first), first);
}

std::pair<MlirValue, MlirValue> Ops::random_vectors(MlirValue seed, MlirValue offset, MlirValue first) {
  const mlir::Type type = vector_of(b.getI32Type());
  MlirValue begins_block = b.compare(Int::eq, b.bit_and(first, b.i64(3)), b.i64(0));
  const auto together = [&] {
    MlirValue words = random_blocks(seed, offset, first);
    llvm::SmallVector<int32_t, kLanes> low, high;
    constexpr int32_t kWords = kLanes;
    for (int32_t lane = 0; lane < kWords; ++lane) low.push_back(lane), high.push_back(kWords + lane);
    return MlirValues{lanes(words, words, low), lanes(words, words, high)};
  };
  const auto apart = [&] {
    return MlirValues{random_vector(seed, offset, first), random_vector(seed, offset, b.add(first, b.i64(kLanes)))};
  };
  const MlirValues both = b.branch(begins_block, together, apart, {type, type}, false);
  return {both[0], both[1]};
}

// -- Memory -----------------------------------------------------------------------------------------------------------

MlirValue Ops::load(mlir::Type type, MlirValue pointer, DType memory) {
  return b.create<ll::LoadOp>(type, pointer, ir::item_size(memory));
}

void Ops::store(MlirValue value, MlirValue pointer, DType memory) {
  b.create<ll::StoreOp>(value, pointer, ir::item_size(memory));
}

}  // namespace torch_remote::codegen::cpu
