#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "codegen/cpu/call.h"
#include "codegen/cpu/ops.h"

// Loads and stores of operands, and of lines of kept values and totals.
namespace torch_remote::codegen::cpu {

// Where code is that computes something: a scalar (no `column`), or 16 places along the last column dim.
struct Point {
  MlirValue outer;   // the place along the outer one of two column dims
  MlirValue column;  // that of the first lane along the last one
  MlirValue mask;    // lanes that are places; null: all are
};

class Memory {
 public:
  // `call` is the function's argument, `entry` its first block: what is read from the call is read there.
  Memory(Ops& ops, const Kernel& kernel, const Variant& variant, MlirValue call, mlir::Block* entry);

  MlirValue size(uint32_t column);
  MlirValue scalar(uint32_t number);
  MlirValue kept(uint32_t number);
  MlirValue total(uint32_t number);
  MlirValue chunk_bytes(uint32_t number);  // from a chunk's line of a total to the next one's

  // Operands are addressed from the row, and from the place along the outer column.
  void enter_row(MlirValue row);
  void enter_outer(MlirValue place);

  // Indices are scalars, or vectors of one for each lane.
  MlirValue load(uint32_t operand, mlir::ValueRange indices, const Point& at);
  void store(const Store& store, MlirValue value, mlir::ValueRange indices, const Point& at);

  // Whether a row of the operand lies side by side, and other rows elsewhere.
  bool has_lines(uint32_t operand) const;
  // Fetches what such an operand has at the columns from `column` on, as far as a pair of vectors goes: of this row or
  // of the next one.
  void prefetch(uint32_t operand, MlirValue column, bool next_row, bool writes);

  // Elements that lie side by side, from a pointer to the first one. (A scalar, if `at` has no column.) Lanes that are
  // places come first.
  MlirValue load_line(MlirValue pointer, ir::DType dtype, const Point& at);
  void store_line(MlirValue value, MlirValue pointer, ir::DType dtype, const Point& at);

 private:
  // What a load or a store touches.
  struct Place {
    MlirValue pointer;  // to the first element, or a vector of pointers
    MlirValue allowed;  // where it may: i1 or a vector of them; null: everywhere
    bool side_by_side = false;
  };
  Place place(uint32_t operand, mlir::ValueRange indices, const Point& at);
  MlirValue checked(uint32_t operand, uint32_t dim, MlirValue index, const Point& at);
  void record(uint32_t operand, MlirValue index, MlirValue bound);
  void add_lane_by_lane(MlirValue value, const Place& to, ir::DType dtype);

  void copy_some(MlirValue from, MlirValue to, ir::DType dtype, MlirValue mask);
  MlirValue scratch();
  MlirValue field(size_t offset);
  MlirValue element(size_t array, uint32_t number, mlir::Type type);
  MlirValue stride(uint32_t operand, uint32_t dim);
  MlirValue both(MlirValue x, MlirValue y);
  void stream(MlirValue value, MlirValue pointer, ir::DType dtype);
  bool along_columns(uint32_t operand) const;
  MlirValue next_row_bytes(uint32_t operand);

  Ops& ops_;
  const Kernel& kernel_;
  const Variant variant_;
  MlirValue call_;
  mlir::Block* entry_;
  MlirValue scratch_;
  std::vector<uint32_t> first_stride_, first_bound_;  // of each operand
  std::map<size_t, MlirValue> fields_;
  std::map<uint32_t, MlirValue> next_rows_;
  std::map<std::pair<size_t, uint32_t>, MlirValue> elements_;
  std::vector<MlirValue> row_pointers_, pointers_;
};

}  // namespace torch_remote::codegen::cpu
