#include "codegen/gpu/memory.h"

#include <algorithm>
#include <cstddef>

namespace torch_remote::codegen::gpu {

using ir::DType;
namespace ll = mlir::LLVM;
using Int = ll::ICmpPredicate;

Memory::Memory(GpuOps& ops, const Kernel& kernel, const Recipe& recipe, uint32_t lanes, mlir::Block* entry)
    : ops_(ops), b_(ops.b), kernel_(kernel), recipe_(recipe), lanes_(lanes), entry_(entry) {
  for (uint32_t i = 0; i < recipe.parameters.size(); ++i) {
    const Parameter& parameter = recipe.parameters[i];
    parameters_[{parameter.kind, parameter.a, parameter.b}] = i;
  }
  uint32_t bounds = 0;
  for (const Operand& operand : kernel.operands) {
    first_bound_.push_back(bounds);
    bounds += operand.indexed;
  }
  row_pointers_.resize(kernel.operands.size());
  row_places_.resize(kernel.rows);
  if (!kernel.scalars.empty()) read_scalars();
}

// -- Parameters -------------------------------------------------------------------------------------------------------

MlirValue Memory::parameter(ParameterKind kind, uint32_t a, uint32_t b) {
  return entry_->getArgument(parameters_.at({kind, a, b}));
}

MlirValue Memory::rows() {
  MlirValue count = b_.i64(1);
  for (uint32_t d = 0; d < kernel_.rows; ++d) count = b_.mul(count, size(d));
  return count;
}

MlirValue Memory::columns() {
  if (kernel_.columns == 0) return b_.i64(1);
  MlirValue last = size(kernel_.dims() - 1);
  if (kernel_.columns == 1) return last;
  return b_.select(b_.is_zero(size(kernel_.rows)), b_.i64(0), last);
}

// All threads take the same branch, once. Scalars that a function does not use are not read.
void Memory::read_scalars() {
  MlirValue from = parameter(ParameterKind::kScalarsAddress);
  for (uint32_t s = 0; s < kernel_.scalars.size(); ++s) scalars_.push_back(parameter(ParameterKind::kScalar, s));
  MlirValue elsewhere = b_.compare(Int::ne, from, b_.create<ll::ZeroOp>(from.getType()));
  scalars_ = b_.if_then_else(elsewhere, scalars_, [&] {
    MlirValues read;
    for (MlirValue scalar : scalars_) {
      MlirValue at = b_.at(from, b_.getI64Type(), b_.i64(static_cast<int64_t>(read.size())));
      read.push_back(b_.create<ll::LoadOp>(scalar.getType(), at, 8));
    }
    return read;
  });
}

MlirValue Memory::scalar(uint32_t number) {
  MlirValue word = scalars_[number];
  return kernel_.scalars[number] == DType::kBool ? ops_.convert(word, DType::kInt64, DType::kBool) : word;
}

// -- Addresses --------------------------------------------------------------------------------------------------------

MlirValue Memory::offset_pointer(uint32_t operand, MlirValue pointer, MlirValue elements) {
  return b_.at(pointer, ops_.memory_type(kernel_.operands[operand].dtype), elements);
}

void Memory::enter_row(MlirValue row) {
  for (uint32_t d = kernel_.rows; row && d-- > 0;) {
    if (d == 0) {
      row_places_[0] = row;
      break;
    }
    MlirValue rest = b_.divide(row, size(d));
    row_places_[d] = b_.sub(row, b_.mul(rest, size(d)));
    row = rest;
  }
  for (uint32_t o = 0; o < kernel_.operands.size(); ++o) {
    MlirValue base = parameter(ParameterKind::kData, o);
    for (uint32_t d = 0; row && d < kernel_.rows; ++d) {
      if ((kernel_.operands[o].dims >> d & 1) == 0) continue;
      base = offset_pointer(o, base, b_.mul(row_places_[d], parameter(ParameterKind::kStride, o, d)));
    }
    row_pointers_[o] = base;
  }
  pointers_ = row_pointers_;
}

void Memory::enter_outer(MlirValue place) {
  for (uint32_t o = 0; o < kernel_.operands.size(); ++o) {
    if ((kernel_.operands[o].dims >> kernel_.rows & 1) == 0) continue;
    MlirValue offset = b_.mul(place, parameter(ParameterKind::kStride, o, kernel_.rows));
    pointers_[o] = offset_pointer(o, row_pointers_[o], offset);
  }
}

EmitPosition Memory::position(MlirValue outer, MlirValue column) {
  MlirValue left = b_.create<ll::SMinOp>(b_.sub(columns(), column), b_.i64(lanes_));
  return {outer, column, b_.create<ll::TruncOp>(b_.getI32Type(), left)};
}

MlirValue Memory::valid(const EmitPosition& at, uint32_t lane) { return b_.less_than(b_.i32(lane), at.left); }

MlirValue Memory::full(const EmitPosition& at) { return ops_.equal(at.left, b_.i32(lanes_)); }

bool Memory::along_columns(uint32_t operand) const {
  return kernel_.columns > 0 && (kernel_.operands[operand].dims >> (kernel_.dims() - 1) & 1) != 0;
}

// Whether lanes are adjacent in memory.
bool Memory::is_contiguous(uint32_t operand, const Indices& indices) const {
  return along_columns(operand) && !kernel_.operands[operand].strided &&
         std::ranges::all_of(indices, [](const MlirValues& index) { return index.size() == 1; });
}

// Whether an index is in bounds. If it is not, and the position is valid (null: it is), the index is recorded.
MlirValue Memory::checked(uint32_t operand, uint32_t dim, MlirValue index, MlirValue valid) {
  MlirValue bound = parameter(ParameterKind::kBound, first_bound_[operand] + dim);
  MlirValue outside = b_.compare(Int::uge, index, bound);
  b_.if_then(both(outside, valid), true, [&] { record(operand, index, bound); });
  return b_.compare(Int::ult, index, bound);
}

// The first thread that finds the record free writes its failure. Each failing thread clears the bit of its operand in
// `unfailed_operands`.
void Memory::record(uint32_t operand, MlirValue index, MlirValue bound) {
  MlirValue to = parameter(ParameterKind::kFailure);
  MlirValue bit = b_.i64(kIndirectRecord), word = b_.create<ll::PtrToIntOp>(b_.getI64Type(), to);
  to = b_.if_then_else(b_.compare(Int::ne, b_.bit_and(word, bit), b_.i64(0)), MlirValues{to}, [&] {
    MlirValue at = b_.create<ll::IntToPtrOp>(to.getType(), b_.bit_xor(word, bit));
    return MlirValues{b_.create<ll::LoadOp>(to.getType(), at, 8)};
  })[0];
  MlirValue good = b_.at(to, b_.getI8Type(), b_.i64(offsetof(IndexRecord, unfailed_operands)));
  const uint32_t others = ~(uint32_t{1} << std::min<uint32_t>(operand, 31));
  b_.create<ll::AtomicRMWOp>(ll::AtomicBinOp::_and, good, b_.i32(static_cast<int32_t>(others)),
                             ll::AtomicOrdering::monotonic);
  MlirValue exchanged = b_.create<ll::AtomicCmpXchgOp>(to, b_.i32(kNone), b_.i32(operand),
                                                       ll::AtomicOrdering::monotonic, ll::AtomicOrdering::monotonic);
  MlirValue first = b_.create<ll::ExtractValueOp>(exchanged, llvm::ArrayRef<int64_t>{1});
  b_.if_then(first, false, [&] {
    const auto put = [&](size_t offset, MlirValue value) {
      MlirValue address = b_.at(to, b_.getI8Type(), b_.i64(static_cast<int64_t>(offset)));
      b_.create<ll::StoreOp>(value, address, 8);
    };
    put(offsetof(IndexRecord, index), index);
    put(offsetof(IndexRecord, bound), bound);
  });
}

Memory::Access Memory::scalar_access(uint32_t operand, const Indices& indices) {
  Access place{pointers_[operand], {}};
  for (uint32_t d = 0; d < indices.size(); ++d) {
    MlirValue step = parameter(ParameterKind::kStride, operand, kernel_.dims() + d);
    place.allowed = both(place.allowed, checked(operand, d, indices[d][0], {}));
    place.pointer = offset_pointer(operand, place.pointer, b_.mul(indices[d][0], step));
  }
  return place;
}

Memory::Access Memory::lane_access(uint32_t operand, const Indices& indices, const EmitPosition& at, uint32_t lane) {
  Access place{pointers_[operand], valid(at, lane)};
  if (along_columns(operand)) {
    MlirValue column = b_.add(at.column, b_.i64(lane));
    if (kernel_.operands[operand].strided) {
      column = b_.mul(column, parameter(ParameterKind::kStride, operand, kernel_.dims() - 1));
    }
    place.pointer = offset_pointer(operand, place.pointer, column);
  }
  for (uint32_t d = 0; d < indices.size(); ++d) {
    MlirValue index = indices[d][indices[d].size() == 1 ? 0 : lane];
    MlirValue step = parameter(ParameterKind::kStride, operand, kernel_.dims() + d);
    place.allowed = both(place.allowed, checked(operand, d, index, valid(at, lane)));
    place.pointer = offset_pointer(operand, place.pointer, b_.mul(index, step));
  }
  return place;
}

// -- Elements ---------------------------------------------------------------------------------------------------------

MlirValue Memory::zero(DType dtype) {
  const mlir::Type type = ops_.memory_type(dtype);
  return llvm::isa<mlir::FloatType>(type) ? b_.number(type, 0) : b_.integer(type, 0);
}

MlirValue Memory::load_if(const Access& from, DType dtype) {
  const auto load = [&] { return MlirValues{ops_.load(ops_.memory_type(dtype), from.pointer, dtype)}; };
  if (!from.allowed) return load()[0];
  return b_.if_then_else(from.allowed, MlirValues{zero(dtype)}, load)[0];
}

MlirValue Memory::load(uint32_t operand, const Indices& indices) {
  const DType dtype = kernel_.operands[operand].dtype;
  return ops_.from_memory(load_if(scalar_access(operand, indices), dtype), dtype);
}

MlirValues Memory::load_lanes(uint32_t operand, const Indices& indices, const EmitPosition& at) {
  const DType dtype = kernel_.operands[operand].dtype;
  const mlir::Type element = ops_.memory_type(dtype);
  MlirValues result;
  if (lanes_ == 1 || operand >= 64 || !is_contiguous(operand, indices)) {
    for (uint32_t lane = 0; lane < lanes_; ++lane) {
      result.push_back(ops_.from_memory(load_if(lane_access(operand, indices, at, lane), dtype), dtype));
    }
    return result;
  }
  Access first = scalar_access(operand, indices);
  first.pointer = offset_pointer(operand, first.pointer, at.column);
  const auto together = [&] {
    const mlir::Type type = cpu::vector_of(element, lanes_);
    MlirValue all = b_.create<ll::LoadOp>(type, first.pointer, access_bytes(ir::item_size(dtype), lanes_));
    MlirValues lanes;
    for (uint32_t lane = 0; lane < lanes_; ++lane) {
      lanes.push_back(b_.create<ll::ExtractElementOp>(all, b_.i32(lane)));
    }
    return lanes;
  };
  const auto apart = [&] {
    MlirValues lanes;
    for (uint32_t lane = 0; lane < lanes_; ++lane) {
      lanes.push_back(load_if({offset_pointer(operand, first.pointer, b_.i64(lane)), valid(at, lane)}, dtype));
    }
    return lanes;
  };
  const llvm::SmallVector<mlir::Type> types(lanes_, element);
  MlirValue bit = b_.bit_and(parameter(ParameterKind::kAligned), b_.i64(int64_t{1} << operand));
  MlirValue fits = both(both(full(at), first.allowed), b_.compare(Int::ne, bit, b_.i64(0)));
  result = b_.branch(
      fits, together,
      [&] { return b_.if_then_else(both(first.allowed, valid(at, 0)), MlirValues(lanes_, zero(dtype)), apart); }, types,
      false);
  for (MlirValue& lane : result) lane = ops_.from_memory(lane, dtype);
  return result;
}

void Memory::add_atomically(MlirValue value, MlirValue pointer, DType dtype) {
  b_.create<ll::AtomicRMWOp>(ll::AtomicBinOp::add, pointer, ops_.to_memory(value, dtype),
                             ll::AtomicOrdering::monotonic);
}

// If indices choose the positions, several threads may add to one position. Otherwise each thread has its own
// positions.
void Memory::store_if(const Store& store, MlirValue value, const Access& to) {
  const DType dtype = kernel_.operands[store.operand].dtype;
  const auto write = [&] {
    if (store.adds && !store.indices.empty()) return add_atomically(value, to.pointer, dtype);
    MlirValue sum = value;
    if (store.adds) {
      MlirValue before = ops_.from_memory(ops_.load(ops_.memory_type(dtype), to.pointer, dtype), dtype);
      sum = ops_.scalar_op(ir::ScalarOp::kAdd, dtype, before, value, {});
    }
    ops_.store(ops_.to_memory(sum, dtype), to.pointer, dtype);
  };
  if (!to.allowed) return write();
  b_.if_then(to.allowed, false, write);
}

void Memory::store(const Store& store, MlirValue value, const Indices& indices) {
  store_if(store, value, scalar_access(store.operand, indices));
}

void Memory::store_lanes(const Store& store, const MlirValues& values, const Indices& indices, const EmitPosition& at) {
  const DType dtype = kernel_.operands[store.operand].dtype;
  const auto apart = [&] {
    for (uint32_t lane = 0; lane < lanes_; ++lane) {
      store_if(store, values[lane], lane_access(store.operand, indices, at, lane));
    }
  };
  if (lanes_ == 1 || store.operand >= 64 || !indices.empty() || !is_contiguous(store.operand, indices)) return apart();
  const auto together = [&] {
    const mlir::Type type = cpu::vector_of(ops_.memory_type(dtype), lanes_);
    const uint32_t align = access_bytes(ir::item_size(dtype), lanes_);
    MlirValue pointer = offset_pointer(store.operand, pointers_[store.operand], at.column);
    MlirValue before = store.adds ? MlirValue(b_.create<ll::LoadOp>(type, pointer, align)) : MlirValue();
    MlirValue all = b_.create<ll::UndefOp>(type);
    for (uint32_t lane = 0; lane < lanes_; ++lane) {
      MlirValue value = values[lane];
      if (before) {
        MlirValue old = ops_.from_memory(b_.create<ll::ExtractElementOp>(before, b_.i32(lane)), dtype);
        value = ops_.scalar_op(ir::ScalarOp::kAdd, dtype, old, value, {});
      }
      all = b_.create<ll::InsertElementOp>(all, ops_.to_memory(value, dtype), b_.i32(lane));
    }
    b_.create<ll::StoreOp>(all, pointer, align);
  };
  MlirValue bit = b_.bit_and(parameter(ParameterKind::kAligned), b_.i64(int64_t{1} << store.operand));
  MlirValue fits = b_.bit_and(full(at), b_.compare(Int::ne, bit, b_.i64(0)));
  b_.branch(
      fits,
      [&] {
        together();
        return MlirValues();
      },
      [&] {
        apart();
        return MlirValues();
      },
      {}, false);
}

// -- Lines of totals --------------------------------------------------------------------------------------------------

MlirValue Memory::line(uint32_t total, MlirValue chunk) {
  MlirValue elements = chunk;
  for (uint32_t d = kernel_.rows; d < kernel_.dims(); ++d) {
    if ((recipe_.totals[total].dims >> d & 1) != 0) elements = b_.mul(elements, size(d));
  }
  const mlir::Type type = b_.getIntegerType(8 * recipe_.totals[total].item_size);
  return b_.at(parameter(ParameterKind::kLines, total), type, elements);
}

MlirValue Memory::line_place(uint32_t total, const EmitPosition& at) {
  const DimSet dims = recipe_.totals[total].dims;
  const bool last = kernel_.columns > 0 && (dims >> (kernel_.dims() - 1) & 1) != 0;
  const bool outer = kernel_.columns > 1 && (dims >> kernel_.rows & 1) != 0;
  if (!outer) return last ? at.column : b_.i64(0);
  return last ? b_.add(b_.mul(at.outer, size(kernel_.dims() - 1)), at.column) : at.outer;
}

MlirValue Memory::load_place(MlirValue line, MlirValue place, DType dtype) {
  const mlir::Type type = ops_.memory_type(dtype);
  return ops_.from_memory(ops_.load(type, b_.at(line, type, place), dtype), dtype);
}

void Memory::store_place(MlirValue value, MlirValue line, MlirValue place, DType dtype) {
  ops_.store(ops_.to_memory(value, dtype), b_.at(line, ops_.memory_type(dtype), place), dtype);
}

}  // namespace torch_remote::codegen::gpu
