#include "codegen/cpu/memory.h"

#include <algorithm>
#include <cstddef>

#include "codegen/cpu/call.h"

namespace torch_remote::codegen::cpu {

using ir::DType;
namespace ll = mlir::LLVM;
using Int = ll::ICmpPredicate;

namespace {

constexpr int64_t kCacheLine = 64;
constexpr int64_t kLongRow = 1 << 17;  // bytes

bool is_vector(MlirValue x) { return llvm::isa<mlir::VectorType>(x.getType()); }

}  // namespace

Memory::Memory(Ops& ops, const Kernel& kernel, const Variant& variant, MlirValue call, mlir::Block* entry)
    : ops_(ops), b_(ops.b), kernel_(kernel), variant_(variant), call_(call), entry_(entry) {
  uint32_t strides = 0, bounds = 0;
  for (const Operand& operand : kernel.operands) {
    first_stride_.push_back(strides);
    first_bound_.push_back(bounds);
    strides += kernel.dims() + operand.indexed;
    bounds += operand.indexed;
  }
  row_pointers_.resize(kernel.operands.size());
  pointers_.resize(kernel.operands.size());
}

// -- The call ---------------------------------------------------------------------------------------------------------

// Loads the address of one of the call's arrays.
MlirValue Memory::field(size_t offset) {
  MlirValue& found = fields_[offset];
  if (!found) {
    mlir::OpBuilder::InsertionGuard guard(b_);
    b_.setInsertionPointToEnd(entry_);
    MlirValue address = b_.at(call_, b_.getI8Type(), b_.i64(static_cast<int64_t>(offset)));
    found = b_.create<ll::LoadOp>(call_.getType(), address, 8);
  }
  return found;
}

// Loads an element of such an array; all elements have 8 bytes.
MlirValue Memory::element(size_t array, uint32_t number, mlir::Type type) {
  MlirValue& found = elements_[{array, number}];
  if (!found) {
    MlirValue base = field(array);
    mlir::OpBuilder::InsertionGuard guard(b_);
    b_.setInsertionPointToEnd(entry_);
    found = b_.create<ll::LoadOp>(type, b_.at(base, b_.getI64Type(), b_.i64(number)), 8);
  }
  return found;
}

MlirValue Memory::size(uint32_t column) {
  if (variant_.columns != 0 && column + 1 == kernel_.columns) {
    mlir::OpBuilder::InsertionGuard guard(b_);
    b_.setInsertionPointToEnd(entry_);
    return b_.i64(variant_.columns);
  }
  return element(offsetof(Call, sizes), column, b_.getI64Type());
}

MlirValue Memory::scalar(uint32_t number) {
  const DType dtype = kernel_.scalars[number];
  if (dtype == DType::kFloat64) return element(offsetof(Call, scalars), number, b_.getF64Type());
  MlirValue word = element(offsetof(Call, scalars), number, b_.getI64Type());
  return ops_.convert(word, DType::kInt64, dtype);
}

MlirValue Memory::row_buffer(uint32_t number) { return element(offsetof(Call, row_buffers), number, call_.getType()); }
MlirValue Memory::total(uint32_t number) { return element(offsetof(Call, totals), number, call_.getType()); }
MlirValue Memory::chunk_bytes(uint32_t number) {
  return element(offsetof(Call, chunk_strides), number, b_.getI64Type());
}

MlirValue Memory::stride(uint32_t operand, uint32_t dim) {
  return element(offsetof(Call, strides), first_stride_[operand] + dim, b_.getI64Type());
}

// -- Addresses --------------------------------------------------------------------------------------------------------

void Memory::enter_row(MlirValue row) {
  for (uint32_t o = 0; o < kernel_.operands.size(); ++o) {
    MlirValue base = element(offsetof(Call, data), o, call_.getType());
    if (row && (kernel_.operands[o].dims & kernel_.row_dims()) != 0) {
      base = b_.at(base, ops_.memory_type(kernel_.operands[o].dtype), b_.mul(row, stride(o, 0)));
    }
    pointers_[o] = row_pointers_[o] = base;
  }
}

void Memory::enter_outer(MlirValue place) {
  for (uint32_t o = 0; o < kernel_.operands.size(); ++o) {
    if ((kernel_.operands[o].dims >> kernel_.rows & 1) == 0) continue;
    MlirValue offset = b_.mul(place, stride(o, kernel_.rows));
    pointers_[o] = b_.at(row_pointers_[o], ops_.memory_type(kernel_.operands[o].dtype), offset);
  }
}

bool Memory::along_columns(uint32_t operand) const {
  return kernel_.columns > 0 && (kernel_.operands[operand].dims >> (kernel_.dims() - 1) & 1) != 0;
}

MlirValue Memory::both(MlirValue x, MlirValue y) {
  if (!x || !y) return x ? x : y;
  if (is_vector(x) != is_vector(y)) (is_vector(x) ? y : x) = b_.splat(is_vector(x) ? y : x);
  return b_.bit_and(x, y);
}

Memory::Access Memory::access(uint32_t operand, mlir::ValueRange indices, const EmitPosition& at) {
  const mlir::Type element = ops_.memory_type(kernel_.operands[operand].dtype);
  const bool moves = at.column && along_columns(operand), strided = kernel_.operands[operand].strided;
  const uint32_t last = kernel_.dims() - 1;
  // Adjacent lanes share one pointer. Otherwise (`apart`) each lane has that pointer plus an offset.
  MlirValue pointer = pointers_[operand], allowed = at.mask, offsets;
  bool apart = at.column && (!moves || strided);
  if (moves) {
    pointer = b_.at(pointer, element, strided ? b_.mul(at.column, stride(operand, last)) : at.column);
  }
  if (moves && strided) offsets = b_.mul(b_.ramp(b_.getI64Type(), 0), b_.splat(stride(operand, last)));
  if (moves && !strided) {
    for (MlirValue index : indices) apart |= is_vector(index);
    if (apart) offsets = b_.ramp(b_.getI64Type(), 0);
  }
  for (uint32_t d = 0; d < indices.size(); ++d) {
    MlirValue index = indices[d], step = stride(operand, kernel_.dims() + d);
    allowed = both(allowed, checked(operand, d, index, at));
    if (is_vector(index)) {
      MlirValue offset = b_.mul(index, b_.splat(step));
      offsets = offsets ? b_.add(offsets, offset) : offset;
    } else {
      pointer = b_.at(pointer, element, b_.mul(index, step));
    }
  }
  if (apart && !offsets) offsets = b_.integer(vector_of(b_.getI64Type()), 0);
  if (apart) pointer = b_.at(pointer, element, offsets);
  if (at.column && allowed && !is_vector(allowed)) allowed = b_.splat(allowed);
  return {pointer, allowed, !apart};
}

// Whether an index is in bounds. If it is not, the first failing index of an active lane is recorded.
MlirValue Memory::checked(uint32_t operand, uint32_t dim, MlirValue index, const EmitPosition& at) {
  MlirValue bound = element(offsetof(Call, bounds), first_bound_[operand] + dim, b_.getI64Type());
  MlirValue bounds = is_vector(index) ? b_.splat(bound) : bound;
  MlirValue inside = b_.compare(Int::ult, index, bounds);
  MlirValue outside = b_.compare(Int::uge, index, bounds);
  if (!is_vector(index)) {
    b_.if_then(outside, true, [&] { record(operand, index, bound); });
    return inside;
  }
  const mlir::Type word = b_.getIntegerType(kLanes);
  MlirValue lanes = b_.create<ll::BitcastOp>(word, both(outside, at.mask));
  b_.if_then(b_.compare(Int::ne, lanes, b_.integer(word, 0)), true, [&] {
    MlirValue lane = b_.create<ll::CountTrailingZerosOp>(word, lanes, true);
    record(operand, b_.create<ll::ExtractElementOp>(index, lane), bound);
  });
  return inside;
}

void Memory::record(uint32_t operand, MlirValue index, MlirValue bound) {
  MlirValue to = field(offsetof(Call, failure));
  const mlir::Type i32 = b_.getI32Type();
  MlirValue before = b_.create<ll::LoadOp>(i32, to, 8);
  MlirValue first = b_.compare(Int::eq, before, b_.integer(i32, kNoFailure));
  b_.if_then(first, false, [&] {
    const auto put = [&](size_t offset, MlirValue value) {
      b_.create<ll::StoreOp>(value, b_.at(to, b_.getI8Type(), b_.i64(static_cast<int64_t>(offset))), 8);
    };
    put(offsetof(IndexRecord, operand), b_.integer(i32, operand));
    put(offsetof(IndexRecord, index), index);
    put(offsetof(IndexRecord, bound), bound);
  });
}

// -- Prefetching ------------------------------------------------------------------------------------------------------

bool Memory::has_contiguous_rows(uint32_t operand) const {
  const Operand& of = kernel_.operands[operand];
  return along_columns(operand) && !of.strided && of.indexed == 0 && (of.dims & kernel_.row_dims()) != 0;
}

// Bytes from a row to the next one. 0 if rows are too long to stay in the cache until they are used.
MlirValue Memory::next_row_bytes(uint32_t operand) {
  MlirValue& found = next_rows_[operand];
  if (!found) {
    const int64_t item = ir::item_size(kernel_.operands[operand].dtype);
    MlirValue step = stride(operand, 0), columns = size(kernel_.columns - 1);
    mlir::OpBuilder::InsertionGuard guard(b_);
    b_.setInsertionPointToEnd(entry_);
    MlirValue is_short = b_.compare(Int::sle, columns, b_.i64(kLongRow / item));
    found = b_.select(is_short, b_.mul(step, b_.i64(item)), b_.i64(0));
  }
  return found;
}

void Memory::prefetch(uint32_t operand, MlirValue column, bool next_row, bool writes) {
  const DType dtype = kernel_.operands[operand].dtype;
  const mlir::Type byte = b_.getI8Type();
  MlirValue pointer = b_.at(pointers_[operand], ops_.memory_type(dtype), column);
  if (next_row) pointer = b_.at(pointer, byte, next_row_bytes(operand));
  constexpr uint32_t kNearest = 3, kData = 1;
  for (int64_t line = 0; line < 2 * kLanes * int64_t{ir::item_size(dtype)}; line += kCacheLine) {
    b_.create<ll::Prefetch>(b_.at(pointer, byte, b_.i64(line)), writes ? 1 : 0, kNearest, kData);
  }
}

// -- Elements ---------------------------------------------------------------------------------------------------------

bool Memory::has_masked(DType dtype) const {
  return ops_.features.avx512 || (ops_.features.masked && ir::item_size(dtype) >= 4);
}

MlirValue Memory::load_line(MlirValue pointer, DType dtype, const EmitPosition& at) {
  mlir::Type type = ops_.memory_type(dtype);
  if (at.column) type = vector_of(type);
  if (!at.mask) return ops_.from_memory(ops_.load(type, pointer, dtype), dtype);
  MlirValue zero = llvm::isa<mlir::FloatType>(ops_.memory_type(dtype)) ? b_.number(type, 0) : b_.integer(type, 0);
  MlirValue raw;
  if (has_masked(dtype)) {
    raw = b_.create<ll::MaskedLoadOp>(type, pointer, at.mask, zero, ir::item_size(dtype));
  } else {
    ops_.store(zero, scratch(), dtype);
    copy_masked(pointer, scratch(), dtype, at.mask);
    raw = ops_.load(type, scratch(), dtype);
  }
  return ops_.from_memory(raw, dtype);
}

void Memory::store_line(MlirValue value, MlirValue pointer, DType dtype, const EmitPosition& at) {
  MlirValue raw = ops_.to_memory(value, dtype);
  if (!at.mask) return ops_.store(raw, pointer, dtype);
  if (has_masked(dtype)) {
    b_.create<ll::MaskedStoreOp>(raw, pointer, at.mask, ir::item_size(dtype));
  } else {
    ops_.store(raw, scratch(), dtype);
    copy_masked(scratch(), pointer, dtype, at.mask);
  }
}

// Copies as many elements as `mask` has lanes: pieces of 16, 8, 4, 2 and 1, one for each bit of their number. LLVM
// would test and move each lane by itself. Compiling that takes ten times as long as all the rest.
void Memory::copy_masked(MlirValue from, MlirValue to, DType dtype, MlirValue mask) {
  const mlir::Type word = b_.getIntegerType(kLanes), element = ops_.memory_type(dtype);
  MlirValue lanes = b_.create<ll::BitcastOp>(word, mask);
  MlirValue count = ops_.convert(b_.create<ll::CtPopOp>(word, lanes), DType::kInt16, DType::kInt64);
  for (int64_t piece = kLanes; piece > 0; piece /= 2) {
    MlirValue has = b_.compare(Int::ne, b_.bit_and(count, b_.i64(piece)), b_.i64(0));
    b_.if_then(has, false, [&] {
      MlirValue done = b_.bit_and(count, b_.i64(-2 * piece));
      const mlir::Type type = piece == 1 ? element : mlir::Type(vector_of(element, piece));
      MlirValue moved = ops_.load(type, b_.at(from, element, done), dtype);
      ops_.store(moved, b_.at(to, element, done), dtype);
    });
  }
}

// Memory for 16 elements of a type without masked instructions.
MlirValue Memory::scratch() {
  if (scratch_) return scratch_;
  mlir::OpBuilder::InsertionGuard guard(b_);
  b_.setInsertionPointToEnd(entry_);
  const mlir::Type type = vector_of(ops_.features.masked ? b_.getI16Type() : b_.getI64Type());
  scratch_ = b_.create<ll::AllocaOp>(call_.getType(), type, b_.i64(1), 32);
  return scratch_;
}

MlirValue Memory::load(uint32_t operand, mlir::ValueRange indices, const EmitPosition& at) {
  const DType dtype = kernel_.operands[operand].dtype;
  const Access from = access(operand, indices, at);
  if (from.is_contiguous && at.column) return load_line(from.pointer, dtype, {at.outer, at.column, from.allowed});
  const mlir::Type element = ops_.memory_type(dtype);
  const mlir::Type type = at.column ? vector_of(element) : element;
  MlirValue zero = llvm::isa<mlir::FloatType>(element) ? b_.number(type, 0) : b_.integer(type, 0);
  if (at.column) {
    MlirValue mask = from.allowed ? from.allowed : b_.integer(vector_of(b_.getI1Type()), 1);
    MlirValue raw = b_.create<ll::masked_gather>(type, from.pointer, mask, zero, ir::item_size(dtype));
    return ops_.from_memory(raw, dtype);
  }
  if (!from.allowed) return ops_.from_memory(ops_.load(type, from.pointer, dtype), dtype);
  const auto loaded = [&] { return MlirValues{ops_.load(type, from.pointer, dtype)}; };
  const auto nothing = [&] { return MlirValues{zero}; };
  return ops_.from_memory(b_.branch(from.allowed, loaded, nothing, type, false)[0], dtype);
}

void Memory::store(const Store& store, MlirValue value, mlir::ValueRange indices, const EmitPosition& at) {
  const DType dtype = kernel_.operands[store.operand].dtype;
  const Access to = access(store.operand, indices, at);
  const auto sum = [&](MlirValue before) { return ops_.scalar_op(ir::ScalarOp::kAdd, dtype, before, value, {}); };
  if (at.column && to.is_contiguous) {
    const EmitPosition where = {at.outer, at.column, to.allowed};
    if (variant_.streams && !to.allowed && !store.adds && store.indices.empty()) {
      return stream(value, to.pointer, dtype);
    }
    return store_line(store.adds ? sum(load_line(to.pointer, dtype, where)) : value, to.pointer, dtype, where);
  }
  if (at.column) {
    if (store.adds) return add_lane_by_lane(value, to, dtype);
    MlirValue mask = to.allowed ? to.allowed : b_.integer(vector_of(b_.getI1Type()), 1);
    b_.create<ll::masked_scatter>(ops_.to_memory(value, dtype), to.pointer, mask, ir::item_size(dtype));
    return;
  }
  const auto write = [&] {
    store_line(store.adds ? sum(load_line(to.pointer, dtype, {})) : value, to.pointer, dtype, {});
  };
  if (!to.allowed) return write();
  b_.if_then(to.allowed, false, write);
}

// Stores 16 elements past the caches. If the alignment were not known, LLVM would emit an ordinary store.
void Memory::stream(MlirValue value, MlirValue pointer, DType dtype) {
  const auto align = static_cast<uint32_t>(std::min<int64_t>(kStreamAlign, kLanes * ir::item_size(dtype)));
  b_.create<ll::StoreOp>(ops_.to_memory(value, dtype), pointer, align, /*isVolatile=*/false,
                         /*isNonTemporal=*/true);
}

// Several lanes may address the same position, so each one must see what the lanes before it wrote.
void Memory::add_lane_by_lane(MlirValue value, const Access& to, DType dtype) {
  b_.loop(b_.i64(0), b_.i64(kLanes), 1, {}, [&](MlirValue lane, mlir::ValueRange) {
    const auto of_lane = [&](MlirValue x) -> MlirValue { return b_.create<ll::ExtractElementOp>(x, lane); };
    const auto write = [&] {
      MlirValue pointer = of_lane(to.pointer), before = load_line(pointer, dtype, {});
      store_line(ops_.scalar_op(ir::ScalarOp::kAdd, dtype, before, of_lane(value), {}), pointer, dtype, {});
    };
    if (to.allowed) {
      b_.if_then(of_lane(to.allowed), false, write);
    } else {
      write();
    }
    return MlirValues();
  });
}

}  // namespace torch_remote::codegen::cpu
