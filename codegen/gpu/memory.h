#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "codegen/gpu/gpu_ops.h"
#include "codegen/gpu/launch.h"

// Kernel parameters, and loads and stores of operands and of lines of totals.
namespace torch_remote::codegen::gpu {

// The position for which code is emitted: a scalar, or several adjacent positions (lanes) along the last column dim.
struct EmitPosition {
  MlirValue outer;   // index along the outer one of two column dims
  MlirValue column;  // index of the first lane along the last column dim; null: a scalar
  MlirValue left;    // i32: number of active lanes, which are the first ones
};

class Memory {
 public:
  // `lanes` is the number of adjacent positions. `entry` is the function's first block, which has its parameters.
  Memory(GpuOps& ops, const Kernel& kernel, const Recipe& recipe, uint32_t lanes, mlir::Block* entry);

  MlirValue parameter(ParameterKind kind, uint32_t a = 0, uint32_t b = 0);
  MlirValue size(uint32_t dim) { return parameter(ParameterKind::kSize, dim); }
  MlirValue rows();     // number of positions of all row dims
  MlirValue columns();  // size of the last column dim; 0 if the outer one is empty
  MlirValue scalar(uint32_t number);

  // These set the row and the position along the outer column dim at which operands are addressed. `row` is the
  // row-major number of a row; null: position 0 of all row dims.
  void enter_row(MlirValue row);
  void enter_outer(MlirValue place);
  MlirValue row_place(uint32_t dim) { return row_places_[dim]; }

  EmitPosition position(MlirValue outer, MlirValue column);
  // valid: whether the lane is active. full: whether all lanes are. Both are i1, and are computed at each use, because
  // keeping them would take a register for each lane.
  MlirValue valid(const EmitPosition& at, uint32_t lane);
  MlirValue full(const EmitPosition& at);

  // For each indexed dim: one index, or one for each lane.
  using Indices = std::vector<MlirValues>;
  MlirValue load(uint32_t operand, const Indices& indices);
  MlirValues load_lanes(uint32_t operand, const Indices& indices, const EmitPosition& at);
  void store(const Store& store, MlirValue value, const Indices& indices);
  void store_lanes(const Store& store, const MlirValues& values, const Indices& indices, const EmitPosition& at);

  // A total's line is an array with the total's partial results for one chunk of rows (launch.h). line() returns the
  // address of the line of `chunk`. line_place() returns an index in a line: that of the element at `at`. If the total
  // does not vary over the last column dim, `at` needs no column.
  MlirValue line(uint32_t total, MlirValue chunk);
  MlirValue line_place(uint32_t total, const EmitPosition& at);
  MlirValue load_place(MlirValue line, MlirValue place, ir::DType dtype);
  void store_place(MlirValue value, MlirValue line, MlirValue place, ir::DType dtype);

 private:
  void read_scalars();
  MlirValue offset_pointer(uint32_t operand, MlirValue pointer, MlirValue elements);
  bool along_columns(uint32_t operand) const;
  bool is_contiguous(uint32_t operand, const Indices& indices) const;
  MlirValue checked(uint32_t operand, uint32_t dim, MlirValue index, MlirValue valid);
  void record(uint32_t operand, MlirValue index, MlirValue bound);
  // An address, and whether it may be accessed (null: always).
  struct Access {
    MlirValue pointer, allowed;
  };
  Access scalar_access(uint32_t operand, const Indices& indices);
  Access lane_access(uint32_t operand, const Indices& indices, const EmitPosition& at, uint32_t lane);
  MlirValue load_if(const Access& from, ir::DType dtype);
  void store_if(const Store& store, MlirValue value, const Access& to);
  void add_atomically(MlirValue value, MlirValue pointer, ir::DType dtype);
  MlirValue both(MlirValue x, MlirValue y) { return x && y ? b_.bit_and(x, y) : (x ? x : y); }
  MlirValue zero(ir::DType dtype);

  GpuOps& ops_;
  LlvmBuilder& b_;
  const Kernel& kernel_;
  const Recipe& recipe_;
  const uint32_t lanes_;
  mlir::Block* entry_;
  std::map<std::tuple<ParameterKind, uint32_t, uint32_t>, uint32_t> parameters_;
  MlirValues scalars_;                 // for each scalar: its 8 bytes
  std::vector<uint32_t> first_bound_;  // for each operand
  std::vector<MlirValue> row_pointers_, pointers_;
  std::vector<MlirValue> row_places_;
};

}  // namespace torch_remote::codegen::gpu
