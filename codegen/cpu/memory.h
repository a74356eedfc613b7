#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "codegen/cpu/call.h"
#include "codegen/cpu/ops.h"

// Loads and stores of operands, and of lines. A line is here an array in memory, not a line of positions as in
// loop_ir.h. The caller of a kernel provides it (codegen/cpu/call.h). It has the elements of a spilled value for one
// row, or the partial results of a total for one chunk. A total is a reduction over rows. Each chunk of rows is reduced
// separately.
namespace torch_remote::codegen::cpu {

// The position for which code is emitted. With a `column` it is a vector of kLanes positions along the last column dim.
// Without one it is a scalar, for which operands are addressed at column 0.
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

  // Load or store an operand's elements. `indices` has one index for each of its indexed dims (Operand::indexed), in
  // order: a scalar, or a vector with one index per lane. The code checks indices and records the first failure in
  // Call::failure. A lane whose index is out of bounds loads 0 and stores nothing.
  MlirValue load(uint32_t operand, mlir::ValueRange indices, const EmitPosition& at);
  void store(const Store& store, MlirValue value, mlir::ValueRange indices, const EmitPosition& at);

  // Whether a row of the operand is contiguous, and different rows have different addresses.
  bool has_contiguous_rows(uint32_t operand) const;
  // Prefetches 2 * kLanes elements of the operand, which one iteration of the main loop uses. They begin at `column` of
  // this row, or of the next row if `next_row`. Rows of more than 128 KiB do not stay in the cache until the next row
  // is used, so `next_row` has no effect for them. `writes`: the loop writes the elements. The operand must have
  // contiguous rows (has_contiguous_rows()).
  void prefetch(uint32_t operand, MlirValue column, bool next_row, bool writes);

  // Load or store contiguous elements: kLanes of them if `at` has a column, else one. `pointer` is the address of the
  // first one. Active lanes must precede inactive ones. Inactive lanes load 0 and store nothing.
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
  // Emits a bounds check, which records a failure. Returns whether the index is in bounds: i1, or a vector of i1.
  MlirValue checked(uint32_t operand, uint32_t dim, MlirValue index, const EmitPosition& at);
  // Writes the failure to Call::failure, unless that has one already.
  void record(uint32_t operand, MlirValue index, MlirValue bound);
  void add_lane_by_lane(MlirValue value, const Access& to, ir::DType dtype);

  bool has_masked(ir::DType dtype) const;  // whether the target has instructions for it
  void copy_masked(MlirValue from, MlirValue to, ir::DType dtype, MlirValue mask);
  MlirValue scratch();
  MlirValue field(size_t offset);
  MlirValue element(size_t array, uint32_t number, mlir::Type type);
  MlirValue stride(uint32_t operand, uint32_t dim);
  MlirValue both(MlirValue x, MlirValue y);  // the lanes that are in two masks; null: all lanes
  void stream(MlirValue value, MlirValue pointer, ir::DType dtype);
  bool along_columns(uint32_t operand) const;  // whether the operand varies along the last column dim
  MlirValue next_row_bytes(uint32_t operand);

  Ops& ops_;
  LlvmBuilder& b_;
  const Kernel& kernel_;
  const Variant variant_;
  MlirValue call_;
  mlir::Block* entry_;
  MlirValue scratch_;
  std::vector<uint32_t> first_stride_, first_bound_;  // for each operand
  // Values that are loaded only once: pointers in the call by their offset, elements of the arrays that they point to.
  std::map<size_t, MlirValue> fields_;
  std::map<uint32_t, MlirValue> next_rows_;
  std::map<std::pair<size_t, uint32_t>, MlirValue> elements_;
  // For each operand: its address at the current row, and that at the current outer position of this row.
  std::vector<MlirValue> row_pointers_, pointers_;
};

}  // namespace torch_remote::codegen::cpu
