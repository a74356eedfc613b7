#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "codegen/cpu/call.h"
#include "codegen/cpu/ops.h"

// Loads and stores of operands, and of lines. A line is an array in memory that the caller of a kernel provides
// (codegen/cpu/call.h): the elements of a spilled value for one row, or the partial results of a total for one chunk. A
// total is a reduction over rows. Each chunk of rows is reduced separately.
namespace torch_remote::codegen::cpu {

// The position for which code is emitted: a scalar (no `column`), or 16 positions along the last column dim.
struct EmitPosition {
  MlirValue outer;   // index along the outer one of two column dims
  MlirValue column;  // index of the first lane along the last column dim
  MlirValue mask;    // active lanes; null: all
};

class Memory {
 public:
  // `call` is the function's argument. Values that are read from it are loaded once, in `entry`, the function's first
  // block.
  Memory(Ops& ops, const Kernel& kernel, const Variant& variant, MlirValue call, mlir::Block* entry);

  MlirValue size(uint32_t column);
  MlirValue scalar(uint32_t number);
  MlirValue row_buffer(uint32_t number);   // the address of the spilled value's line
  MlirValue total(uint32_t number);        // the address of the total's line; in `finish`: of the first chunk's
  MlirValue chunk_bytes(uint32_t number);  // in `finish`: bytes from the total's line of one chunk to that of the next

  // These set the row, and the position along the outer column dim, at which operands are addressed.
  void enter_row(MlirValue row);
  void enter_outer(MlirValue place);

  // Each index is a scalar, or a vector with one index per lane.
  MlirValue load(uint32_t operand, mlir::ValueRange indices, const EmitPosition& at);
  void store(const Store& store, MlirValue value, mlir::ValueRange indices, const EmitPosition& at);

  // Whether a row of the operand is contiguous, and different rows have different addresses.
  bool has_contiguous_rows(uint32_t operand) const;
  // Prefetches 2 * kLanes elements of the operand, which one iteration of the main loop uses. They begin at `column`,
  // in the next row if `next_row`, else in this one. A row of more than 128 KiB would leave the cache before its use.
  // So with such rows `next_row` has no effect. The operand must have contiguous rows (has_contiguous_rows()).
  void prefetch(uint32_t operand, MlirValue column, bool next_row, bool writes);

  // Loads or stores contiguous elements, given a pointer to the first one. A scalar if `at` has no column. Active lanes
  // must be the first ones.
  MlirValue load_line(MlirValue pointer, ir::DType dtype, const EmitPosition& at);
  void store_line(MlirValue value, MlirValue pointer, ir::DType dtype, const EmitPosition& at);

 private:
  // The memory that a load or store accesses.
  struct Access {
    MlirValue pointer;  // to the first element, or a vector of pointers
    MlirValue allowed;  // where access is allowed: i1 or a vector of i1; null: everywhere
    bool is_contiguous = false;
  };
  Access access(uint32_t operand, mlir::ValueRange indices, const EmitPosition& at);
  MlirValue checked(uint32_t operand, uint32_t dim, MlirValue index, const EmitPosition& at);
  void record(uint32_t operand, MlirValue index, MlirValue bound);
  void add_lane_by_lane(MlirValue value, const Access& to, ir::DType dtype);

  bool has_masked(ir::DType dtype) const;  // whether the target has instructions for it
  void copy_masked(MlirValue from, MlirValue to, ir::DType dtype, MlirValue mask);
  MlirValue scratch();
  MlirValue field(size_t offset);
  MlirValue element(size_t array, uint32_t number, mlir::Type type);
  MlirValue stride(uint32_t operand, uint32_t dim);
  MlirValue both(MlirValue x, MlirValue y);
  void stream(MlirValue value, MlirValue pointer, ir::DType dtype);
  bool along_columns(uint32_t operand) const;
  MlirValue next_row_bytes(uint32_t operand);

  Ops& ops_;
  LlvmBuilder& b_;
  const Kernel& kernel_;
  const Variant variant_;
  MlirValue call_;
  mlir::Block* entry_;
  MlirValue scratch_;
  std::vector<uint32_t> first_stride_, first_bound_;  // for each operand
  std::map<size_t, MlirValue> fields_;
  std::map<uint32_t, MlirValue> next_rows_;
  std::map<std::pair<size_t, uint32_t>, MlirValue> elements_;
  std::vector<MlirValue> row_pointers_, pointers_;
};

}  // namespace torch_remote::codegen::cpu
