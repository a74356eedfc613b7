#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "codegen/gpu/launch.h"
#include "codegen/gpu/machine.h"

// Parameters, and loads and stores of operands and of lines of totals.
namespace torch_remote::codegen::gpu {

// Where code is that computes something: a scalar, or so many places side by side along the last column dim.
struct Spot {
  MlirValue outer;   // the place along the outer one of two column dims
  MlirValue column;  // that of the first lane along the last one; null: a scalar is computed
  MlirValue left;    // i32: so many lanes are places, the first ones
};

class Memory {
 public:
  // `lanes`: side by side. `entry` is the function's first block, and has its parameters.
  Memory(Machine& machine, const Kernel& kernel, const Recipe& recipe, uint32_t lanes, mlir::Block* entry);

  MlirValue parameter(ParameterKind kind, uint32_t a = 0, uint32_t b = 0);
  MlirValue size(uint32_t dim) { return parameter(ParameterKind::kSize, dim); }
  MlirValue rows();     // of all row dims
  MlirValue columns();  // of the last column dim; 0 if there is no place along the outer one
  MlirValue scalar(uint32_t number);

  // Operands are addressed from a row (number of it in row-major order; null: from place 0), and from the place along
  // the outer column.
  void enter_row(MlirValue row);
  void enter_outer(MlirValue place);
  MlirValue row_place(uint32_t dim) { return row_places_[dim]; }

  Spot spot(MlirValue outer, MlirValue column);
  // i1: a lane is a place; all are. Computed where it is asked for: to keep it would take a register for each lane.
  MlirValue valid(const Spot& at, uint32_t lane);
  MlirValue full(const Spot& at);

  // Indices: of each indexed dim one scalar, or one for each lane.
  using Indices = std::vector<MlirValues>;
  MlirValue load(uint32_t operand, const Indices& indices);
  MlirValues load_lanes(uint32_t operand, const Indices& indices, const Spot& at);
  void store(const Store& store, MlirValue value, const Indices& indices);
  void store_lanes(const Store& store, const MlirValues& values, const Indices& indices, const Spot& at);

  // Of a total's line: the place of an element in a chunk, for a spot or (no column) for its outer place.
  MlirValue line(uint32_t total, MlirValue chunk);
  MlirValue line_place(uint32_t total, const Spot& at);
  MlirValue load_place(MlirValue line, MlirValue place, ir::DType dtype);
  void store_place(MlirValue value, MlirValue line, MlirValue place, ir::DType dtype);

 private:
  void read_scalars();
  MlirValue offset_pointer(uint32_t operand, MlirValue pointer, MlirValue elements);
  bool along_columns(uint32_t operand) const;
  bool is_plain(uint32_t operand, const Indices& indices) const;
  MlirValue checked(uint32_t operand, uint32_t dim, MlirValue index, MlirValue valid);
  void record(uint32_t operand, MlirValue index, MlirValue bound);
  // Address, and whether it may be accessed (null: it may).
  struct Place {
    MlirValue pointer, allowed;
  };
  Place scalar_place(uint32_t operand, const Indices& indices);
  Place lane_place(uint32_t operand, const Indices& indices, const Spot& at, uint32_t lane);
  MlirValue load_if(const Place& from, ir::DType dtype);
  void store_if(const Store& store, MlirValue value, const Place& to);
  void add_atomically(MlirValue value, MlirValue pointer, ir::DType dtype);
  MlirValue both(MlirValue x, MlirValue y) { return x && y ? machine_.bit_and(x, y) : (x ? x : y); }
  MlirValue zero(ir::DType dtype);

  Machine& m() { return machine_; }

  Machine& machine_;
  const Kernel& kernel_;
  const Recipe& recipe_;
  const uint32_t lanes_;
  mlir::Block* entry_;
  std::map<std::tuple<ParameterKind, uint32_t, uint32_t>, uint32_t> parameters_;
  MlirValues scalars_;                 // words
  std::vector<uint32_t> first_bound_;  // of each operand
  std::vector<MlirValue> row_pointers_, pointers_;
  std::vector<MlirValue> row_places_;
};

}  // namespace torch_remote::codegen::gpu
