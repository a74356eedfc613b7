#include "worker/targets/cpu/compiled/gemm.h"

#include <algorithm>
#include <optional>

#include "ir/fusion/fusion.h"
#include "ir/number.h"
#include "ir/ops/op_table_generated.h"
#include "worker/targets/cpu/compiled/scratch.h"
#include "worker/targets/cpu/loops/host.h"

namespace torch_remote::worker::kernels {
namespace {

using ir::Arg;
using ir::ArgTag;

// The least work of a part that is worth waking a thread: some 10 us of multiplications in the cache, or of reading
// weights from memory.
constexpr int64_t kMultiplications = 1 << 20, kBytes = 1 << 17;

std::optional<GemmType> type_of(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::kFloat32:
      return GemmType::kFloat;
    case ir::DType::kBFloat16:
      return GemmType::kBFloat16;
    case ir::DType::kFloat16:
      return GemmType::kHalf;
    default:
      return std::nullopt;
  }
}

int64_t item_size(GemmType type) { return type == GemmType::kFloat ? 4 : 2; }

}  // namespace

const GemmLoops* gemm_loops(std::string_view target) { return loops_for(target, kGemmLevels); }

void run_gemm(const GemmLoops& loops, const GemmCall& call, const ParallelFor& parallel) {
  const int64_t parts = (call.columns + kGemmColumns - 1) / kGemmColumns;
  const auto body = [&](int64_t begin, int64_t end) {
    loops.run(call, begin * kGemmColumns, std::min(end * kGemmColumns, call.columns));
  };
  const int64_t weights = kGemmColumns * call.depth;
  const int64_t grain = std::max<int64_t>(
      1, std::min(kMultiplications / (weights * call.rows), kBytes / (weights * item_size(call.type))));
  if (parallel && parts > grain) {
    parallel(parts, grain, body);
  } else {
    body(0, parts);
  }
}

// Reads a node's arguments into a SmallGemm. Each function returns whether the loops support them.
class SmallGemmBinder {
 public:
  SmallGemmBinder(const ir::Graph& graph, std::span<const int64_t> values, SmallGemm* matmul)
      : graph_(graph), values_(values), matmul_(matmul), call_(matmul->call_) {}

  bool mm(const ir::Node& node) { return operands(node.args[0], node.args[1], node.results[0]); }

  bool addmm(const ir::Node& node) {
    return operands(node.args[1], node.args[2], node.results[0]) && number(node.args[3], &call_.beta) &&
           number(node.args[4], &call_.alpha) && (call_.beta == 0 || addend(node.args[0]));
  }

 private:
  // A view with its sizes and strides in this run.
  struct Matrix {
    const ir::View& view;
    int64_t rows, columns, row_stride, column_stride;
  };

  std::optional<Matrix> matrix(const Arg& arg) const {
    if (arg.tag != ArgTag::kView) return std::nullopt;
    const ir::View& view = graph_.views[arg.a];
    if (view.dynamic || view.sizes.size() != 2) return std::nullopt;
    return Matrix{view, values_[view.sizes[0]], values_[view.sizes[1]], values_[view.strides[0]],
                  values_[view.strides[1]]};
  }

  SmallGemm::Location location(const ir::View& view) const {
    return {view.buffer, values_[view.offset] * static_cast<int64_t>(ir::item_size(view.dtype))};
  }

  bool operands(const Arg& left_arg, const Arg& right_arg, const Arg& result_arg) {
    const std::optional<Matrix> left = matrix(left_arg), right = matrix(right_arg), result = matrix(result_arg);
    if (!left || !right || !result) return false;
    const std::optional<GemmType> type = type_of(left->view.dtype);
    if (!type || right->view.dtype != left->view.dtype || result->view.dtype != left->view.dtype) return false;
    dtype_ = left->view.dtype;
    call_.type = *type;
    call_.rows = left->rows;
    call_.depth = left->columns;
    call_.columns = right->columns;
    if (right->rows != call_.depth || result->rows != call_.rows || result->columns != call_.columns) return false;
    if (call_.rows < 1 || call_.rows > ir::kMaxMatmulRows || call_.depth < 1 || call_.columns < 1) return false;
    const auto along = [](int64_t stride, int64_t size) { return stride == 1 || size == 1; };
    if (!along(left->column_stride, call_.depth) || !along(right->row_stride, call_.depth) ||
        !along(result->column_stride, call_.columns)) {
      return false;
    }
    call_.left_line = left->row_stride;
    call_.right_line = right->column_stride;
    call_.result_line = result->row_stride;
    matmul_->left_ = location(left->view);
    matmul_->right_ = location(right->view);
    matmul_->result_ = location(result->view);
    return true;
  }

  // The operand is broadcast along its dims of size 1 and along missing leading dims.
  bool addend(const Arg& arg) {
    if (arg.tag != ArgTag::kView || graph_.views[arg.a].dynamic) return false;
    const ir::View& view = graph_.views[arg.a];
    const size_t rank = view.sizes.size();
    if (view.dtype != dtype_ || rank > 2) return false;
    const int64_t wanted[2] = {call_.rows, call_.columns};
    int64_t strides[2] = {0, 0};
    for (size_t d = 0; d < rank; ++d) {
      const int64_t size = values_[view.sizes[d]];
      if (size != wanted[2 - rank + d] && size != 1) return false;
      if (size != 1) strides[2 - rank + d] = values_[view.strides[d]];
    }
    call_.addend_row = strides[0];
    call_.addend_column = strides[1];
    matmul_->addend_ = location(view);
    matmul_->adds_ = true;
    return true;
  }

  bool number(const Arg& arg, float* number) const {
    const std::optional<double> found = ir::number_of(arg, values_);
    if (found) *number = static_cast<float>(*found);
    return found.has_value();
  }

  const ir::Graph& graph_;
  const std::span<const int64_t> values_;
  SmallGemm* const matmul_;
  GemmCall& call_;
  ir::DType dtype_ = ir::DType::kFloat32;
};

std::unique_ptr<SmallGemm> SmallGemm::bind(const ir::Graph& graph, const ir::Node& node,
                                           std::span<const int64_t> values, const GemmLoops& loops) {
  std::unique_ptr<SmallGemm> made(new SmallGemm(loops));
  SmallGemmBinder binder(graph, values, made.get());
  const bool fits = node.opcode == ir::ops::aten_mm      ? binder.mm(node)
                    : node.opcode == ir::ops::aten_addmm ? binder.addmm(node)
                                                         : false;
  return fits ? std::move(made) : nullptr;
}

double SmallGemm::points() const {
  return gemm_points(static_cast<double>(call_.columns) * static_cast<double>(call_.depth), call_.rows);
}

size_t SmallGemm::scratch() const {
  return call_.type == GemmType::kFloat ? 0 : static_cast<size_t>(call_.rows * call_.depth) * sizeof(float);
}

void SmallGemm::run(std::span<const tr_buffer> buffers, const ParallelFor& parallel) const {
  const auto at = [&](const Location& location) {
    return static_cast<std::byte*>(buffers[location.buffer].data) + location.offset;
  };
  GemmCall call = call_;
  call.right = at(right_);
  call.result = at(result_);
  if (adds_) call.addend = at(addend_);
  if (call.type == GemmType::kFloat) {
    call.left = reinterpret_cast<const float*>(at(left_));
  } else {
    thread_local Scratch memory;
    float* const rows = reinterpret_cast<float*>(memory.get(scratch()));
    for (int64_t r = 0; r < call.rows; ++r) {
      loops_.convert(call.type, at(left_) + r * call_.left_line * item_size(call.type), call.depth,
                     rows + r * call.depth);
    }
    call.left = rows;
    call.left_line = call.depth;
  }
  run_gemm(loops_, call, parallel);
}

}  // namespace torch_remote::worker::kernels
