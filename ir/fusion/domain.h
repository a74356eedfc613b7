#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/fusion/fusion.h"
#include "ir/graph.h"

// Which nodes one loop nest can do: the points that they are all computed at. Passes ask when they make groups, code
// generation when it makes a kernel of one, so that both agree.
//
// It looks at the numbers of one run: sizes, strides and offsets. Whether [s1, s2] and [s3, s4, s5] are the same
// elements, one can only tell when one knows them. A group that was made with the numbers of one run is looked at again
// in each run in which they are others.
namespace torch_remote::ir {

inline constexpr uint32_t kMaxDomainDims = 8;
using DimMask = uint32_t;  // bit d: dim d of the domain

// What happens to a reduced value.
enum class Reduces : uint8_t {
  kNothing,
  kColumns,  // over the columns: one number a row, which the row's elements may use
  kRows,     // over the rows: known when all rows are done
  kAll,      // over both
};

class Domain {
 public:
  // `values` are those of the graph's symbols (ir::evaluate). Of ops over lists, it is the `item`-th tensors' domain.
  Domain(const Graph& graph, std::span<const int64_t> values, uint32_t item = 0)
      : graph_(&graph), values_(values), item_(item) {}

  // Adds a node after those that are there. False: one loop nest cannot do it too, and nothing has changed.
  bool add(uint32_t node);

  // A dim of a view where an index says.
  struct Indexed {
    int64_t size = 0, stride = 0;
  };
  struct Access {
    Part part;
    int64_t offset = 0;            // elements
    std::vector<int64_t> strides;  // of each dim, elements; 0: it does not vary
    std::vector<Indexed> indexed;  // of the dims that indices choose
    DimMask dims = 0;
    bool finish = false;  // it writes what is known when all rows are done
  };
  struct Member {
    uint32_t node = 0;
    Form form;
    std::vector<Access> accesses;  // of each of the form's parts
    DimMask space = 0;
    std::vector<DimMask> axes;  // of the space: the dims that each lies along
    Reduces reduces = Reduces::kNothing;
  };

  const std::vector<Member>& members() const { return members_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }  // of the dims, outer ones first
  int64_t points() const;
  // Dims that reductions over columns go along; 0 while nothing says which they are.
  DimMask columns() const { return marks_.columns; }
  DimMask all() const { return (1u << sizes_.size()) - 1; }
  // Rows that reductions over rows do not reduce: each of their places is done for itself.
  DimMask kept_rows() const { return marks_.kept_rows; }

 private:
  struct Axis;
  bool try_add(uint32_t node);
  bool is_near(const View& view) const;
  bool map_axes(const Form& form, std::vector<std::vector<uint32_t>>* dims_of_axis);
  bool map_by_operand(const Form& form, const std::vector<int64_t>& sizes,
                      std::vector<std::vector<uint32_t>>* dims_of_axis);
  bool match(std::vector<Axis> dims, std::vector<Axis> axes, std::vector<std::vector<uint32_t>>* dims_of_axis);
  // Each mask of dims becomes change(mask).
  template <typename Change>
  void change_masks(const Change& change);
  void split(uint32_t dim, int64_t inner);
  void undo_splits(size_t left);
  bool place(Member& member, const std::vector<std::vector<uint32_t>>& dims_of_axis);
  bool find_level(Member& member, const std::vector<std::vector<uint32_t>>& dims_of_axis);
  bool choose_columns(const Member& member, DimMask reduced, bool plain);
  bool keeps_rows(const Member& member, const Access& result);
  bool goes_along_lines(const Member& member) const;
  bool has_one_layout() const;
  bool is_dealt_one_way() const;
  const Access* maker(uint32_t buffer) const;
  bool may_access(const Member& member) const;
  int64_t value(Sym symbol) const { return values_[symbol]; }

  const Graph* graph_;
  std::span<const int64_t> values_;
  uint32_t item_;
  std::vector<int64_t> sizes_;
  std::vector<Member> members_;
  std::vector<uint32_t> splits_;  // dims that were split since add() began
  // What the reductions so far say of the dims.
  struct Marks {
    DimMask columns = 0;
    bool totals = false;  // there are reductions over rows
    DimMask kept_rows = 0;
    DimMask lines = 0;  // columns that some of them reduce, the inner ones; 0: there are none such
  } marks_;
};

}  // namespace torch_remote::ir
