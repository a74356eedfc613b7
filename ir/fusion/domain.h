#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/fusion/fusion.h"
#include "ir/graph.h"

// A domain is a set of nodes that one loop nest can compute, with the points at which it computes them. Passes use it
// to make groups, and code generation to make a kernel of a group, so that both agree.
//
// A domain is built from the numbers of one run: sizes, strides and offsets. Whether [s1, s2] and [s3, s4, s5] are the
// same elements depends on these numbers. So a group that was made with the numbers of one run is checked again in each
// run whose numbers differ.
namespace torch_remote::ir {

inline constexpr uint32_t kMaxDomainDims = 8;
using DimMask = uint32_t;  // bit d: dim d of the domain

// The dims over which a node reduces.
enum class ReductionKind : uint8_t {
  kNothing,
  kColumns,  // over the columns: one value per row, which the row's elements may use
  kRows,     // over the rows: available after all rows
  kAll,      // over rows and columns
};

// The nodes that a domain may have.
enum class DomainKind : uint8_t {
  kGroup,  // any nodes
  // The next two kinds have one node. Its dims may have size 0, which compiled code does not support. It may reduce
  // over dims of size 1.
  kNodeByRows,  // the columns are always the dims over which the node reduces
  kNode,        // the node may divide integers by elements, because the interpreter reports a division by zero
};

class IterationDomain {
 public:
  // `values`: the values of the graph's symbols (ir::evaluate). Graph and values must outlive the domain. `item`: for
  // multi-tensor ops, the index of the tensors in their lists.
  IterationDomain(const Graph& graph, std::span<const int64_t> values, uint32_t item = 0,
                  DomainKind kind = DomainKind::kGroup)
      : graph_(&graph), values_(values), item_(item), kind_(kind) {}

  // Adds a node after the existing ones. Returns false, and changes nothing, if one loop nest cannot compute all of
  // them.
  bool add(uint32_t node);

  // A dim of a view along which an index tensor gives the position.
  struct IndexedDim {
    int64_t size = 0, stride = 0;
  };
  struct Access {
    Part part;
    int64_t offset = 0;                     // elements
    std::vector<int64_t> strides;           // of each dim, in elements; 0: the access does not vary along it
    std::vector<IndexedDim> indexed;        // the view's dims along which index tensors give the position
    DimMask dims = 0;                       // the domain's dims whose stride is not 0
    bool available_after_all_rows = false;  // the access writes a value that is available only after all rows
  };
  struct Member {
    uint32_t node = 0;
    KernelForm form;
    std::vector<Access> accesses;  // one for each of the form's parts
    DimMask space = 0;             // the dims that the axes of the node's space (KernelForm::space) map to
    std::vector<DimMask> axes;     // for each axis of the space: the dims that it maps to
    ReductionKind reduces = ReductionKind::kNothing;
  };

  const std::vector<Member>& members() const { return members_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }  // of the dims, outer dims first
  int64_t points() const;                                       // the product of the dims' sizes; at most 2^40
  // Whether the kernel reports an integer division by zero.
  bool checks_divisors() const { return kind_ == DomainKind::kNode; }
  // The dims over which column reductions reduce; 0 until a reduction determines them.
  DimMask columns() const { return marks_.columns; }
  DimMask all() const { return (1u << sizes_.size()) - 1; }
  // The row dims that remain when the kernel reduces over rows. Each position along them has its own reduction.
  DimMask unreduced_rows() const { return marks_.unreduced_rows; }

 private:
  struct Axis;
  bool try_add(uint32_t node);
  bool strides_cannot_overflow(const View& view) const;
  bool map_axes(const KernelForm& form, std::vector<std::vector<uint32_t>>* dims_of_axis);
  bool map_by_operand(const KernelForm& form, const std::vector<int64_t>& sizes,
                      std::vector<std::vector<uint32_t>>* dims_of_axis);
  bool match(std::vector<Axis> dims, std::vector<Axis> axes, std::vector<std::vector<uint32_t>>* dims_of_axis);
  // Replaces each mask of dims by change(mask).
  template <typename Change>
  void change_masks(const Change& change);
  void split(uint32_t dim, int64_t inner);
  void undo_splits(size_t left);
  bool compute_strides(Member& member, const std::vector<std::vector<uint32_t>>& dims_of_axis);
  bool find_reduction(Member& member, const std::vector<std::vector<uint32_t>>& dims_of_axis);
  // `may_reduce_rows`: the node may also be computed as a reduction over rows, as sums and maxima may.
  bool choose_columns(const Member& member, DimMask reduced, bool may_reduce_rows);
  bool record_row_reduction(const Member& member, const Access& result);
  bool innermost_column_is_reduced(const Member& member) const;
  bool has_one_layout() const;
  bool has_one_partitioning() const;
  const Access* last_writer(uint32_t buffer) const;
  bool accesses_are_compatible(const Member& member) const;
  int64_t value(Sym symbol) const { return values_[symbol]; }

  const Graph* graph_;
  std::span<const int64_t> values_;
  uint32_t item_;
  DomainKind kind_;
  std::vector<int64_t> sizes_;
  std::vector<Member> members_;
  std::vector<uint32_t> splits_;  // dims that were split since add() began
  // Properties of the dims that the reductions so far determine.
  struct Marks {
    DimMask columns = 0;
    bool has_row_reductions = false;  // there are reductions over rows
    DimMask unreduced_rows = 0;
    DimMask reduced_columns = 0;  // inner columns that some reductions over rows also reduce; 0: none
  } marks_;
};

}  // namespace torch_remote::ir
