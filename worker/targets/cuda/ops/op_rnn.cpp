#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/analysis.h"
#include "ir/rnn.h"
#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/rnn_arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"
#include "worker/targets/cuda/ops/rnn_sizes.h"

// Recurrent layers (`remote::rnn`). One GEMM computes the input projections of all time steps. Each step then runs a
// GEMM with the hidden state and a pointwise cell kernel. Intermediate state is f32, or f64 for f64.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;
using ir::RnnMode;

constexpr int64_t kTile = 16;
constexpr int64_t kMaxSteps = 1 << 20;  // Each step is a few launches.

// A matrix with any strides.
struct GateMatrix {
  Location location;
  DType dtype = DType::kFloat32;
  int64_t rows = 0, columns = 0, row = 0, column = 1;

  GateMatrix transposed() const { return {location, dtype, columns, rows, column, row}; }
};

Location offset_by(Location location, int64_t elements, DType dtype) {
  location.offset += static_cast<uint64_t>(elements) * ir::item_size(dtype);
  return location;
}

// One direction of a layer: its contiguous weights.
struct Direction {
  bool reverse = false;
  Location w_ih, w_hh, b_ih, b_hh;  // Biases are kNoLocation if there are none.
  int64_t index = 0;

  int64_t at(int64_t step, int64_t steps) const { return reverse ? steps - 1 - step : step; }
};

class Layer {
 public:
  explicit Layer(OpNode& node, PlanBuilder& plan) : node_(node), plan_(plan) {}

  Status forward();
  Status backward();

 private:
  Status open();
  OpTensor wide_tensor(std::vector<int64_t> sizes) { return plan_.scratch_tensor(wide_, std::move(sizes)); }
  static OpTensor part_of(const OpTensor& whole, size_t dim, int64_t index);
  GateMatrix matrix(Location location, DType dtype, int64_t rows, int64_t columns) const {
    return {location, dtype, rows, columns, columns, 1};
  }
  // c = a b + biases; with `adds`, added to the content of c.
  void gemm(const GateMatrix& a, const GateMatrix& b, const GateMatrix& c, Location bias = {}, Location more_bias = {},
            bool adds = false);
  void sum(const GateMatrix& a, Location to);
  void forward(const Direction& direction);
  void backward(const Direction& direction, const std::optional<GateMatrix>& grad_input);
  std::optional<OpTensor> weight_gradient(const Direction& direction, int64_t which) const;
  // The element offset of step t and this direction in a tensor [steps, batch, directions * units].
  int64_t offset_of(const OpTensor& tensor, const Direction& direction, int64_t t) const {
    return t * tensor.strides[0] + direction.index * units_ * tensor.strides[2];
  }
  int64_t state_size() const { return batch_ * units_; }

  OpNode& node_;
  PlanBuilder& plan_;
  RnnMode mode_ = RnnMode::kTanh;
  DType dtype_ = DType::kFloat32, wide_ = DType::kFloat32;
  OpTensor input_, hx_;
  std::optional<OpTensor> cx_, output_, reserve_;
  Location packed_input_;
  int64_t steps_ = 0, batch_ = 0, inputs_ = 0, units_ = 0, gates_ = 1, stride_ = 2;
  std::vector<Direction> directions_;
};

OpTensor Layer::part_of(const OpTensor& whole, size_t dim, int64_t index) {
  OpTensor part = whole;
  part.location = offset_by(whole.location, index * whole.strides[dim], whole.dtype);
  part.sizes.erase(part.sizes.begin() + static_cast<std::ptrdiff_t>(dim));
  part.strides.erase(part.strides.begin() + static_cast<std::ptrdiff_t>(dim));
  return part;
}

Status Layer::open() {
  const auto input = node_.tensor("input"), hx = node_.tensor("hx");
  const ir::Arg* const weights = node_.argument("weight");
  if (!input || !hx || input->sizes.size() != 3 || hx->sizes.size() != 3 || weights == nullptr)
    return unsupported("without operands");
  if (!has_rnn_sizes(node_) || input->sizes[0] > kMaxSteps) return unsupported("of sizes that do not match");
  input_ = *input;
  hx_ = *hx;
  cx_ = node_.tensor("cx");
  mode_ = static_cast<RnnMode>(node_.integer("mode"));
  dtype_ = input_.dtype;
  if (!ir::is_float(dtype_)) return unsupported("of integers");
  wide_ = dtype_ == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  gates_ = ir::rnn_gates(mode_);
  steps_ = input_.sizes[0];
  batch_ = input_.sizes[1];
  inputs_ = input_.sizes[2];
  units_ = hx_.sizes[2];
  const int64_t count = hx_.sizes[0];
  if (count < 1 || steps_ < 1 || (mode_ == RnnMode::kLstm && !cx_)) return unsupported("without a state");
  stride_ = static_cast<int64_t>(weights->items.size()) / count;
  if (stride_ != 2 && stride_ != 4) return unsupported("with such weights");
  packed_input_ = plan_.packed(input_);
  for (int64_t i = 0; i < count; ++i) {
    Direction direction{.reverse = i == 1, .w_ih = {}, .w_hh = {}, .b_ih = {}, .b_hh = {}, .index = i};
    Location* const positions[] = {&direction.w_ih, &direction.w_hh, &direction.b_ih, &direction.b_hh};
    for (int64_t w = 0; w < stride_; ++w) {
      const ir::Arg& arg = weights->items[static_cast<size_t>(i * stride_ + w)];
      if (arg.tag != ir::ArgTag::kView) return unsupported("without weights");
      *positions[w] = plan_.packed(node_.tensor_of(arg.a));
    }
    directions_.push_back(direction);
  }
  return {};
}

void Layer::gemm(const GateMatrix& a, const GateMatrix& b, const GateMatrix& c, Location bias, Location more_bias,
                 bool adds) {
  const RnnGemmArguments arguments{.rows = a.rows,
                                   .columns = b.columns,
                                   .depth = a.columns,
                                   .a_row = a.row,
                                   .a_depth = a.column,
                                   .b_depth = b.row,
                                   .b_column = b.column,
                                   .a_dtype = static_cast<i64>(a.dtype),
                                   .b_dtype = static_cast<i64>(b.dtype),
                                   .c_dtype = static_cast<i64>(c.dtype),
                                   .bias_dtype = static_cast<i64>(dtype_),
                                   .adds = adds ? 1 : 0};
  const int64_t tiles = (a.rows + kTile - 1) / kTile * ((b.columns + kTile - 1) / kTile);
  plan_
      .launch(KernelFile::kRnn, wide_ == DType::kFloat64 ? "rnn_gemm_wide" : "rnn_gemm", arguments,
              std::min(tiles, kMaxBlocks))
      .at(&RnnGemmArguments::a, a.location)
      .at(&RnnGemmArguments::b, b.location)
      .at(&RnnGemmArguments::c, c.location)
      .at(&RnnGemmArguments::bias, bias)
      .at(&RnnGemmArguments::more_bias, more_bias);
}

void Layer::sum(const GateMatrix& a, Location to) {
  const RnnSumArguments arguments{.rows = a.rows,
                                  .columns = a.columns,
                                  .a_dtype = static_cast<i64>(a.dtype),
                                  .out_dtype = static_cast<i64>(dtype_)};
  plan_.launch(KernelFile::kRnn, "rnn_sum", arguments, blocks_for(a.columns))
      .at(&RnnSumArguments::a, a.location)
      .at(&RnnSumArguments::out, to);
}

// --- forward ---------------------------------------------------------------------------------------------------------

Status Layer::forward() {
  if (Status status = open(); !status.ok()) return status;
  output_ = node_.result(0);
  reserve_ = node_.result(3);
  if (reserve_ && (reserve_->count() == 0 || !reserve_->is_packed())) reserve_.reset();
  for (const Direction& direction : directions_) forward(direction);
  return {};
}

void Layer::forward(const Direction& direction) {
  const bool is_gru = mode_ == RnnMode::kGru;
  const int64_t width = gates_ * units_, rows = steps_ * batch_;
  const OpTensor gates = wide_tensor({steps_, batch_, width}), hidden = wide_tensor({batch_, width}),
                 states = wide_tensor({steps_ + 1, batch_, units_}), cell = wide_tensor({batch_, units_});
  // A GRU applies its reset gate to the hidden state's projection, bias included, before it adds the input's
  // projection. So b_hh belongs to the hidden state's GEMM.
  gemm(matrix(packed_input_, dtype_, rows, inputs_), matrix(direction.w_ih, dtype_, width, inputs_).transposed(),
       matrix(gates.location, wide_, rows, width), direction.b_ih, is_gru ? Location() : direction.b_hh);
  plan_.copy(part_of(hx_, 0, direction.index), part_of(states, 0, 0));
  if (mode_ == RnnMode::kLstm) plan_.copy(part_of(*cx_, 0, direction.index), cell);
  const GateMatrix w_hh = matrix(direction.w_hh, dtype_, width, units_).transposed();
  for (int64_t step = 0; step < steps_; ++step) {
    const int64_t t = direction.at(step, steps_);
    const Location before = offset_by(states.location, step * state_size(), wide_);
    gemm(matrix(before, wide_, batch_, units_), w_hh, matrix(hidden.location, wide_, batch_, width),
         is_gru ? direction.b_hh : Location());
    RnnCellArguments arguments{.batch = batch_,
                               .units = units_,
                               .mode = static_cast<i64>(mode_),
                               .part = steps_ * state_size(),
                               .dtype = static_cast<i64>(dtype_),
                               .wide = static_cast<i64>(wide_)};
    Location output, kept;
    if (output_) {
      arguments.output_batch = output_->strides[1];
      arguments.output_unit = output_->strides[2];
      output = offset_by(output_->location, offset_of(*output_, direction, t), dtype_);
    }
    if (reserve_) {
      const int64_t share = reserve_->count() / static_cast<int64_t>(directions_.size());
      kept = offset_by(reserve_->location, direction.index * share + t * state_size(), dtype_);
    }
    plan_.launch(KernelFile::kRnn, "rnn_cell", arguments, blocks_for(state_size()))
        .at(&RnnCellArguments::gates, offset_by(gates.location, t * batch_ * width, wide_))
        .at(&RnnCellArguments::hidden, hidden.location)
        .at(&RnnCellArguments::before, before)
        .at(&RnnCellArguments::state, offset_by(states.location, (step + 1) * state_size(), wide_))
        .at(&RnnCellArguments::cell, cell.location)
        .at(&RnnCellArguments::output, output)
        .at(&RnnCellArguments::reserve, kept);
  }
  if (const auto hy = node_.result(1)) plan_.copy(part_of(states, 0, steps_), part_of(*hy, 0, direction.index));
  if (const auto cy = node_.result(2); cy && mode_ == RnnMode::kLstm)
    plan_.copy(cell, part_of(*cy, 0, direction.index));
}

// --- backward --------------------------------------------------------------------------------------------------------

Status Layer::backward() {
  if (Status status = open(); !status.ok()) return status;
  output_ = node_.tensor("output");
  reserve_ = node_.tensor("reserve");
  const bool keeps = ir::rnn_reserve(mode_) != 0;
  if (!output_ || (keeps && (!reserve_ || reserve_->count() == 0))) return unsupported("without what was kept");
  const auto grad_input = node_.result(0);
  std::optional<GateMatrix> wide;
  if (grad_input) wide = matrix(wide_tensor({steps_, batch_, inputs_}).location, wide_, steps_ * batch_, inputs_);
  for (const Direction& direction : directions_) backward(direction, wide);
  if (grad_input) {
    OpTensor from = *grad_input;
    from.dtype = wide_;
    from.location = wide->location;
    from.strides = packed_strides(from.sizes);
    plan_.copy(from, *grad_input);
  }
  return {};
}

std::optional<OpTensor> Layer::weight_gradient(const Direction& direction, int64_t which) const {
  return node_.listed_result(3, static_cast<size_t>(direction.index * stride_ + which));
}

void Layer::backward(const Direction& direction, const std::optional<GateMatrix>& grad_input) {
  const bool is_gru = mode_ == RnnMode::kGru, is_lstm = mode_ == RnnMode::kLstm;
  const int64_t width = gates_ * units_, rows = steps_ * batch_;
  const OpTensor gates = wide_tensor({steps_, batch_, width});
  const OpTensor hidden = is_gru ? wide_tensor({steps_, batch_, width}) : gates;
  const OpTensor grad = wide_tensor({batch_, units_}), grad_cell = wide_tensor({batch_, units_});
  const auto begin = [&](std::string_view name, const OpTensor& to) {
    const auto given = node_.tensor(name);
    if (given && given->count() != 0) return plan_.copy(part_of(*given, 0, direction.index), to);
    plan_.zero(to.location, to.nbytes());
  };
  begin("grad_hy", grad);
  begin("grad_cy", grad_cell);
  auto grad_output = node_.tensor("grad_output");
  if (grad_output && grad_output->count() == 0) grad_output.reset();
  const Location kept =
      !reserve_ ? Location()
                : offset_by(plan_.packed(*reserve_),
                            direction.index * (reserve_->count() / static_cast<int64_t>(directions_.size())), dtype_);
  const OpTensor hx = part_of(hx_, 0, direction.index);
  const Location cx = is_lstm ? plan_.packed(part_of(*cx_, 0, direction.index)) : Location();
  const int64_t part = steps_ * state_size();
  const GateMatrix w_hh = matrix(direction.w_hh, dtype_, width, units_);
  for (int64_t step = steps_; step-- > 0;) {
    const int64_t t = direction.at(step, steps_), earlier = direction.at(step - 1, steps_);
    RnnCellBackwardArguments arguments{.batch = batch_,
                                       .units = units_,
                                       .mode = static_cast<i64>(mode_),
                                       .output_batch = output_->strides[1],
                                       .output_unit = output_->strides[2],
                                       .before_batch = step == 0 ? hx.strides[0] : output_->strides[1],
                                       .before_unit = step == 0 ? hx.strides[1] : output_->strides[2],
                                       .before_cell_batch = units_,
                                       .part = part,
                                       .dtype = static_cast<i64>(dtype_),
                                       .wide = static_cast<i64>(wide_)};
    Location of_output;
    if (grad_output) {
      arguments.grad_batch = grad_output->strides[1];
      arguments.grad_unit = grad_output->strides[2];
      of_output = offset_by(grad_output->location, offset_of(*grad_output, direction, t), dtype_);
    }
    const Location before =
        step == 0 ? hx.location : offset_by(output_->location, offset_of(*output_, direction, earlier), dtype_);
    Location before_cell;
    if (is_lstm) before_cell = step == 0 ? cx : offset_by(kept, 4 * part + earlier * state_size(), dtype_);
    plan_.launch(KernelFile::kRnn, "rnn_cell_backward", arguments, blocks_for(state_size()))
        .at(&RnnCellBackwardArguments::grad_gates, offset_by(gates.location, t * batch_ * width, wide_))
        .at(&RnnCellBackwardArguments::grad_hidden, offset_by(hidden.location, t * batch_ * width, wide_))
        .at(&RnnCellBackwardArguments::grad_state, grad.location)
        .at(&RnnCellBackwardArguments::grad_cell, grad_cell.location)
        .at(&RnnCellBackwardArguments::grad_output, of_output)
        .at(&RnnCellBackwardArguments::before, before)
        .at(&RnnCellBackwardArguments::before_cell, before_cell)
        .at(&RnnCellBackwardArguments::output, offset_by(output_->location, offset_of(*output_, direction, t), dtype_))
        .at(&RnnCellBackwardArguments::reserve, reserve_ ? offset_by(kept, t * state_size(), dtype_) : Location());
    gemm(matrix(offset_by(hidden.location, t * batch_ * width, wide_), wide_, batch_, width), w_hh,
         matrix(grad.location, wide_, batch_, units_), {}, {}, is_gru);
  }
  if (const auto made = node_.result(1)) plan_.copy(grad, part_of(*made, 0, direction.index));
  if (const auto made = node_.result(2)) plan_.copy(grad_cell, part_of(*made, 0, direction.index));

  const GateMatrix of_gates = matrix(gates.location, wide_, rows, width),
                   of_hidden = matrix(hidden.location, wide_, rows, width);
  if (grad_input)
    gemm(of_gates, matrix(direction.w_ih, dtype_, width, inputs_), *grad_input, {}, {}, direction.index != 0);
  if (const auto made = weight_gradient(direction, 0)) {
    gemm(of_gates.transposed(), matrix(packed_input_, dtype_, rows, inputs_),
         matrix(plan_.output(*made), dtype_, width, inputs_));
  }
  if (const auto made = weight_gradient(direction, 1)) {
    // The hidden state before each step.
    OpTensor before = wide_tensor({steps_, batch_, units_});
    for (int64_t step = 0; step < steps_; ++step) {
      OpTensor from = hx;
      if (step != 0) {
        from = part_of(*output_, 0, direction.at(step - 1, steps_));
        from.location = offset_by(from.location, direction.index * units_ * from.strides[1], dtype_);
        from.sizes[1] = units_;
      }
      plan_.copy(from, part_of(before, 0, direction.at(step, steps_)));
    }
    gemm(of_hidden.transposed(), matrix(before.location, wide_, rows, units_),
         matrix(plan_.output(*made), dtype_, width, units_));
  }
  for (const int64_t which : {2, 3}) {
    if (which >= stride_) break;
    if (const auto made = weight_gradient(direction, which))
      sum(which == 2 ? of_gates : of_hidden, plan_.output(*made));
  }
}

}  // namespace

bool has_rnn_sizes(OpNode& node) {
  using Sizes = std::vector<int64_t>;
  const auto input = node.tensor("input"), hx = node.tensor("hx");
  const ir::Arg* const weights = node.argument("weight");
  const int64_t mode = node.integer("mode");
  if (!input || !hx || input->sizes.size() != 3 || hx->sizes.size() != 3 || weights == nullptr) return false;
  if (mode < 0 || mode > static_cast<int64_t>(RnnMode::kGru)) return false;
  const int64_t steps = input->sizes[0], batch = input->sizes[1], directions = hx->sizes[0], units = hx->sizes[2];
  const int64_t width = ir::rnn_gates(static_cast<RnnMode>(mode)) * units;
  const auto has = [&](const std::optional<OpTensor>& tensor, const Sizes& sizes) {
    return !tensor || (tensor->dtype == input->dtype && tensor->sizes == sizes);
  };
  if (directions != 1 && directions != 2) return false;
  const size_t stride = weights->items.size() / static_cast<size_t>(directions);
  if ((stride != 2 && stride != 4) || weights->items.size() % stride != 0) return false;
  const auto weight_sizes = [&](size_t which) {
    return which == 0 ? Sizes{width, input->sizes[2]} : which == 1 ? Sizes{width, units} : Sizes{width};
  };
  for (size_t i = 0; i < weights->items.size(); ++i) {
    const ir::Arg& arg = weights->items[i];
    if (arg.tag != ir::ArgTag::kView || !has(node.tensor_of(arg.a), weight_sizes(i % stride))) return false;
  }
  const Sizes& state = hx->sizes;
  const Sizes output = {steps, batch, directions * units};
  const bool is_lstm = static_cast<RnnMode>(mode) == RnnMode::kLstm;
  if (!has(hx, {directions, batch, units}) || (is_lstm && !has(node.tensor("cx"), state))) return false;
  const int64_t kept = count_of(Sizes{directions, ir::rnn_reserve(static_cast<RnnMode>(mode)), steps, batch, units});
  const auto has_reserve = [&](const std::optional<OpTensor>& reserve) {
    return !reserve || reserve->count() == 0 || (reserve->dtype == input->dtype && reserve->count() >= kept);
  };
  if (ir::find_argument(node.ir_node(), "output") == nullptr) {  // The forward pass.
    return has(node.result(0), output) && has(node.result(1), state) && (!is_lstm || has(node.result(2), state)) &&
           has_reserve(node.result(3));
  }
  const auto has_gradient = [&](std::string_view name, const Sizes& sizes) {
    const auto tensor = node.tensor(name);
    return !tensor || tensor->count() == 0 || has(tensor, sizes);
  };
  for (size_t i = 0; i < weights->items.size(); ++i) {
    if (!has(node.listed_result(3, i), weight_sizes(i % stride))) return false;
  }
  return has(node.tensor("output"), output) && has_gradient("grad_output", output) && has_gradient("grad_hy", state) &&
         has_gradient("grad_cy", state) && has_reserve(node.tensor("reserve")) && has(node.result(0), input->sizes) &&
         has(node.result(1), state) && has(node.result(2), state);
}

Status rnn_plans::forward(OpNode& node, PlanBuilder& plan) { return Layer(node, plan).forward(); }
Status rnn_plans::backward(OpNode& node, PlanBuilder& plan) { return Layer(node, plan).backward(); }

}  // namespace torch_remote::worker::cuda
