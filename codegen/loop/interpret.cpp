#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "codegen/loop/facts.h"
#include "codegen/loop/loop_ir.h"
#include "codegen/loop/scalar_math.h"
#include "codegen/loop/scalar_ops.h"

// Computes row by row, value by value. A value over columns is computed for all columns before the next value. A row's
// stores follow all its values, so loads read the memory before the kernel. No row stores to another row's positions.
namespace torch_remote::codegen {
namespace {

using ir::DType;

class Interpreter {
 public:
  Interpreter(const Kernel& kernel, const Arguments& arguments, const Order& order)
      : kernel_(kernel),
        arguments_(arguments),
        order_(order),
        facts_(facts(kernel)),
        uses_(uses(kernel, facts_)),
        cells_(kernel.values.size()) {}

  Status run() {
    if (Status status = check(); !status.ok()) return status;
    for (uint32_t d = kernel_.rows; d < kernel_.dims(); ++d) columns_ *= arguments_.sizes[d];
    if (kernel_.columns != 0) line_ = std::max<int64_t>(1, arguments_.sizes[kernel_.dims() - 1]);
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) cells_[i].resize(static_cast<size_t>(points(facts_[i].dims)));
    rows();
    finish();
    return {};
  }

  const IndexFailure& failure() const { return failure_; }

 private:
  // The state of a reduction over rows: the current chunk, and the previous chunks in each lane.
  struct Total {
    uint32_t value;
    std::vector<Cell> chunk;
    std::vector<std::vector<Cell>> lanes;
  };

  bool over_columns(DimSet dims) const { return (dims & kernel_.column_dims()) != 0; }
  DType type(uint32_t value) const { return kernel_.values[value].type; }
  // Whether a value varies only over the outer one of two columns, so that there is one number per line.
  bool by_line(DimSet dims) const { return over_columns(dims) && (dims & kernel_.last_column()) == 0; }
  int64_t points(DimSet dims) const {
    return by_line(dims) ? arguments_.sizes[kernel_.rows] : over_columns(dims) ? columns_ : 1;
  }
  // The position among all columns of a point of these dims. If there is one point per line, it is the line's first
  // position.
  int64_t place_of(DimSet dims, int64_t point) const { return by_line(dims) ? point * line_ : point; }
  Cell cell(uint32_t value, int64_t place) const {
    const DimSet dims = facts_[value].dims;
    return cells_[value][static_cast<size_t>(by_line(dims) ? place / line_ : over_columns(dims) ? place : 0)];
  }

  // -- Arguments ------------------------------------------------------------------------------------------------------

  Status check() {
    size_t strides = 0, bounds = 0;
    for (const Operand& operand : kernel_.operands) {
      strides += kernel_.dims() + operand.indexed;
      bounds += operand.indexed;
    }
    if (arguments_.sizes.size() != kernel_.dims()) return Status::invalid("interpret: a size is needed for each dim");
    if (arguments_.data.size() != kernel_.operands.size() || arguments_.strides.size() != strides ||
        arguments_.bounds.size() != bounds || arguments_.scalars.size() != kernel_.scalars.size()) {
      return Status::invalid("interpret: the number of data, strides, bounds or scalars differs from the kernel's");
    }
    if (std::ranges::any_of(arguments_.sizes, [](int64_t size) { return size < 0; })) {
      return Status::invalid("interpret: a size is negative");
    }
    size_t stride = 0, bound = 0;
    for (uint32_t i = 0; i < kernel_.operands.size(); ++i) {
      const Operand& operand = kernel_.operands[i];
      for (uint32_t d = 0; d < kernel_.dims(); ++d) {
        const bool varies = (operand.dims >> d & 1) != 0;
        const bool is_unit = varies && kernel_.columns != 0 && d + 1 == kernel_.dims() && !operand.strided;
        const int64_t given = arguments_.strides[stride + d];
        if ((!varies && given != 0) || (is_unit && given != 1)) {
          return Status::invalid("interpret: a" + std::to_string(i) + " has stride " + std::to_string(given) +
                                 " along dim " + std::to_string(d) + ", the kernel has " + (varies ? "1" : "0"));
        }
      }
      first_stride_.push_back(stride);
      first_bound_.push_back(bound);
      stride += kernel_.dims() + operand.indexed;
      bound += operand.indexed;
    }
    return {};
  }

  // -- Rows, and the values after them --------------------------------------------------------------------------------

  void rows() {
    int64_t count = 1;
    for (uint32_t d = 0; d < kernel_.rows; ++d) count *= arguments_.sizes[d];
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
      const Value& value = kernel_.values[i];
      if (!is_total(value) || !uses_.finish[i]) continue;
      const std::vector<Cell> none(cells_[i].size(), identity(value.reduction, value.type));
      totals_.push_back({i, none, std::vector(order_.chunk_lanes, none)});
    }
    for (int64_t row = 0; row < count; ++row) {
      int64_t rest = row;
      for (uint32_t d = kernel_.rows; d-- > 0; rest /= arguments_.sizes[d]) place_[d] = rest % arguments_.sizes[d];
      for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
        if (uses_.rows[i]) compute(i);
      }
      stores(false);
      for (Total& total : totals_) add(total);
      if ((row + 1) % order_.chunk == 0 || row + 1 == count) end_chunk(row / order_.chunk);
      if (failure_.operand != kNone) failed_before_ = true;
    }
  }

  void add(Total& total) {
    const Value& value = kernel_.values[total.value];
    const DimSet dims = facts_[total.value].dims;
    for (int64_t point = 0; point < points(dims); ++point) {
      Cell& sum = total.chunk[static_cast<size_t>(point)];
      const Cell next =
          value.over == Over::kLines ? reduce_lines(value, point, point + 1) : cell(value.a, place_of(dims, point));
      sum = combine(value.reduction, value.type, sum, next);
    }
  }

  void end_chunk(int64_t number) {
    for (Total& total : totals_) {
      const Value& value = kernel_.values[total.value];
      std::vector<Cell>& lane = total.lanes[static_cast<size_t>(number % order_.chunk_lanes)];
      for (size_t i = 0; i < lane.size(); ++i) {
        lane[i] = combine(value.reduction, value.type, lane[i], total.chunk[i]);
        total.chunk[i] = identity(value.reduction, value.type);
      }
    }
  }

  // Adds the upper half of the lanes to the lower half until only lane `first` is left. Lanes are `stride` apart.
  template <typename Step>
  static void fold(size_t first, size_t stride, size_t count, Step&& step) {
    for (size_t half = count / 2; half > 0; half /= 2) {
      for (size_t lane = 0; lane < half; ++lane) step(first + lane * stride, first + (lane + half) * stride);
    }
  }

  void finish() {
    place_ = {};
    for (Total& total : totals_) {
      const Value& value = kernel_.values[total.value];
      fold(0, 1, order_.chunk_lanes, [&](size_t lower, size_t upper) {
        for (size_t i = 0; i < total.chunk.size(); ++i) {
          Cell& sum = total.lanes[lower][i];
          sum = combine(value.reduction, value.type, sum, total.lanes[upper][i]);
        }
      });
      cells_[total.value] = total.lanes[0];
    }
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
      const bool total = kernel_.values[i].kind == Kind::kReduce;
      if (uses_.finish[i] && !total) compute(i);
    }
    stores(true);
  }

  // -- Values ---------------------------------------------------------------------------------------------------------

  void compute(uint32_t index) {
    const Value& value = kernel_.values[index];
    if (value.kind == Kind::kReduce) {
      cells_[index][0] = value.reduction == Reduction::kArgMax || value.reduction == Reduction::kArgMin
                             ? best_place(value)
                             : reduce_columns(value);
      return;
    }
    if (value.kind == Kind::kRunning) {
      const int64_t lines = line_ == 0 ? 0 : points(facts_[index].dims) / line_;
      for (int64_t line = 0; line < lines; ++line) run_along(index, value, line * line_);
      return;
    }
    for (int64_t point = 0; point < points(facts_[index].dims); ++point) {
      cells_[index][static_cast<size_t>(point)] = element(index, value, place_of(facts_[index].dims, point));
    }
  }

  // Computes a running reduction along the line whose first cell is `first`.
  void run_along(uint32_t index, const Value& value, int64_t first) {
    const Cell none = identity(value.reduction, value.type);
    Cell before = none;
    for (int64_t begin = 0; begin < line_; begin += kRunningBlock) {
      std::array<Cell, kRunningBlock> block;
      block.fill(none);
      const int64_t count = std::min(line_ - begin, kRunningBlock);
      for (int64_t k = 0; k < count; ++k) {
        block[static_cast<size_t>(k)] = cell(value.a, place_of(facts_[index].dims, first + begin + k));
      }
      for (int64_t apart = 1; apart < kRunningBlock; apart *= 2) {
        for (int64_t k = kRunningBlock - 1; k >= 0; --k) {
          Cell& here = block[static_cast<size_t>(k)];
          const Cell other = k < apart ? none : block[static_cast<size_t>(k - apart)];
          here = combine(value.reduction, value.type, here, other);
        }
      }
      for (int64_t k = 0; k < count; ++k) {
        Cell& made = cells_[index][static_cast<size_t>(first + begin + k)];
        made = combine(value.reduction, value.type, block[static_cast<size_t>(k)], before);
      }
      before = cells_[index][static_cast<size_t>(first + begin + count - 1)];
    }
  }

  Cell element(uint32_t index, const Value& value, int64_t point) {
    const auto input = [&](uint32_t which) { return which == kNone ? Cell{} : cell(which, point); };
    switch (value.kind) {
      case Kind::kScalar:
        return {arguments_.scalars[value.a]};
      case Kind::kIndex:
        go_to(point);
        return to_cell(place_[value.a]);
      case Kind::kLoad: {
        const void* const found = find(value.operand, value.indices, point, index);
        return found == nullptr ? Cell{} : load_element(kernel_.operands[value.operand].dtype, found);
      }
      case Kind::kRandom:
        return to_cell(int64_t{random_word(input(value.a).bits, input(value.b).bits, input(value.c).bits)});
      case Kind::kReduce:
      case Kind::kRunning:
        return {};
      default: {
        const DType operand = value.typed() == kNone ? value.type : type(value.typed());
        return evaluate(value, operand, input(value.a), input(value.b), input(value.c));
      }
    }
  }

  Cell reduce_columns(const Value& value) const {
    const int64_t length = arguments_.sizes[kernel_.dims() - 1];
    return reduce_lines(value, 0, length == 0 ? 0 : columns_ / length);
  }

  // Reduces some lines as Order defines. Each line of the last column dim begins a block.
  Cell reduce_lines(const Value& value, int64_t first, int64_t last) const {
    const auto step = [&](Cell& so_far, Cell next) { so_far = combine(value.reduction, value.type, so_far, next); };
    const std::vector<Cell> none(order_.lanes, identity(value.reduction, value.type));
    std::vector<Cell> lanes = none;
    const int64_t length = arguments_.sizes[kernel_.dims() - 1];
    for (int64_t line = first; line < last; ++line) {
      for (int64_t begin = 0; begin < length; begin += order_.block) {
        std::vector<Cell> block = none;
        const int64_t end = std::min(length, begin + int64_t{order_.block});
        if (is_wide_sum(kernel_, value)) {
          add_short_sums(value, line * length, begin, end, &lanes);
          continue;
        }
        for (int64_t k = begin; k < end; ++k) {
          step(block[static_cast<size_t>(k % order_.lanes)], cell(value.a, line * length + k));
        }
        for (uint32_t lane = 0; lane < order_.lanes; ++lane) step(lanes[lane], block[lane]);
      }
    }
    size_t left = 1;  // lanes are added up so far in groups of this size; the first lane of each has the sum
    for (const size_t group : {size_t{order_.groups[0]}, size_t{order_.groups[1]}, size_t{order_.lanes}}) {
      for (size_t first = 0; first < order_.lanes; first += group) {
        fold(first, left, group / left, [&](size_t lower, size_t upper) { step(lanes[lower], lanes[upper]); });
      }
      left = group;
    }
    return lanes[0];
  }

  // Adds the elements of positions `begin` to `end` to the lanes, as short sums. `line` is the first position of the
  // line.
  void add_short_sums(const Value& value, int64_t line, int64_t begin, int64_t end, std::vector<Cell>* lanes) const {
    const DType narrow = type(value.a);
    const Value& operand = kernel_.values[value.a];
    const bool products = sums_products(kernel_, value);
    const Value fma{.kind = Kind::kFma, .type = narrow};
    for (int64_t first = begin; first < end; first += order_.short_sum) {
      std::vector<Cell> sums(order_.lanes, identity(Reduction::kSum, narrow));
      for (int64_t k = first; k < std::min(end, first + int64_t{order_.short_sum}); ++k) {
        Cell& sum = sums[static_cast<size_t>(k % order_.lanes)];
        const Cell next = cell(value.a, line + k);
        sum = products ? evaluate(fma, narrow, cell(operand.a, line + k), cell(operand.b, line + k), sum)
                       : combine(Reduction::kSum, narrow, sum, next);
      }
      const uint32_t left = std::min(order_.lanes, order_.wide_lanes);
      for (uint32_t half = order_.lanes / 2; half >= left; half /= 2) {
        for (uint32_t lane = 0; lane < half; ++lane) {
          sums[lane] = combine(Reduction::kSum, narrow, sums[lane], sums[lane + half]);
        }
      }
      for (uint32_t lane = 0; lane < left; ++lane) {
        Cell& sum = (*lanes)[lane];
        sum = combine(Reduction::kSum, value.type, sum, convert(narrow, value.type, sums[lane]));
      }
    }
  }

  Cell best_place(const Value& value) const {
    int64_t best = 0;
    for (int64_t point = 1; point < columns_; ++point) {
      if (prefers_next(value.reduction, type(value.a), cell(value.a, best), cell(value.a, point))) best = point;
    }
    return to_cell(best);
  }

  // -- Memory ---------------------------------------------------------------------------------------------------------

  void go_to(int64_t point) {
    if (kernel_.columns != 0) place_[kernel_.dims() - 1] = point % line_;
    if (kernel_.columns == 2) place_[kernel_.rows] = point / line_;
  }

  // The address of an operand's element; nullptr if an index is out of bounds. `sequence` numbers values, then stores.
  uint8_t* find(uint32_t operand, const std::vector<uint32_t>& indices, int64_t point, size_t sequence) {
    const int64_t* const strides = arguments_.strides.data() + first_stride_[operand];
    const int64_t* const bounds = arguments_.bounds.data() + first_bound_[operand];
    int64_t offset = 0;
    for (size_t i = 0; i < indices.size(); ++i) {
      const auto index = from_cell<int64_t>(cell(indices[i], point));
      if (index < 0 || index >= bounds[i]) {
        fail({operand, index, bounds[i]}, point, sequence);
        return nullptr;
      }
      offset += index * strides[kernel_.dims() + i];
    }
    go_to(point);
    for (uint32_t d = 0; d < kernel_.dims(); ++d) offset += place_[d] * strides[d];
    return static_cast<uint8_t*>(arguments_.data[operand]) + offset * item_size(kernel_.operands[operand].dtype);
  }

  // Records the first failure: of the first row, there of the first position among the columns, there of the first line
  // of text.
  void fail(const IndexFailure& failure, int64_t point, size_t sequence) {
    const std::pair<int64_t, size_t> at = {point, sequence};
    if (failed_before_ || (failure_.operand != kNone && at >= failed_at_)) return;
    failure_ = failure;
    failed_at_ = at;
  }

  void stores(bool finish) {
    for (size_t i = 0; i < kernel_.stores.size(); ++i) {
      const Store& store = kernel_.stores[i];
      const StoreFacts at = facts(kernel_, store, facts_);
      if (at.finish != finish) continue;
      for (int64_t place = 0; place < points(at.dims); ++place) {
        const int64_t point = place_of(at.dims, place);
        uint8_t* const element = find(store.operand, store.indices, point, kernel_.values.size() + i);
        if (element != nullptr) write(store, cell(store.value, point), element);
      }
    }
  }

  void write(const Store& store, Cell cell, uint8_t* element) const {
    const DType memory = kernel_.operands[store.operand].dtype;
    if (store.adds) cell = apply(ir::ScalarOp::kAdd, loaded_type(memory), load_element(memory, element), cell, {});
    store_element(memory, cell, element);
  }

  const Kernel& kernel_;
  const Arguments& arguments_;
  const Order order_;
  const std::vector<Facts> facts_;
  const UsedValues uses_;
  std::vector<size_t> first_stride_, first_bound_;  // for each operand
  int64_t columns_ = 1;                             // number of positions of all column dims
  int64_t line_ = 1;                                // number of positions of the last column dim, at least 1
  std::array<int64_t, kMaxDims> place_ = {};        // current position in the domain
  std::vector<std::vector<Cell>> cells_;            // of each value, in the current row
  std::vector<Total> totals_;
  IndexFailure failure_;
  std::pair<int64_t, size_t> failed_at_;
  bool failed_before_ = false;  // in an earlier row
};

}  // namespace

Status interpret(const Kernel& kernel, const Arguments& arguments, const Order& order, IndexFailure* failure) {
  if (failure != nullptr) *failure = {};
  if (Status status = verify(kernel); !status.ok()) return status;
  const bool powers = std::has_single_bit(order.lanes) && std::has_single_bit(order.wide_lanes) &&
                      std::has_single_bit(order.chunk_lanes) && std::has_single_bit(order.groups[0]) &&
                      std::has_single_bit(order.groups[1]);
  const bool ascend = order.groups[0] <= order.groups[1] && order.groups[1] <= order.lanes;
  if (!powers || !ascend || order.block == 0 || order.block % order.lanes != 0 || order.short_sum == 0 ||
      order.short_sum % order.lanes != 0 || order.chunk <= 0) {
    return Status::invalid(
        "interpret: lanes, wide lanes, groups and folds must be powers of two, groups ascend up to lanes, block and "
        "narrow be "
        "multiples of lanes, chunk 1 or more");
  }
  Interpreter interpreter(kernel, arguments, order);
  if (Status status = interpreter.run(); !status.ok()) return status;
  if (failure != nullptr) *failure = interpreter.failure();
  return {};
}

}  // namespace torch_remote::codegen
