#include "worker/targets/cpu/compiled/library_gemm.h"

#include <algorithm>
#include <optional>

#include "ir/number.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::worker::kernels {

using ir::Arg;
using ir::ArgTag;

// Reads a node's arguments into a tr_matmul. Each function returns whether a library may compute it.
class LibraryGemmBinder {
 public:
  LibraryGemmBinder(const ir::Graph& graph, std::span<const int64_t> values, LibraryGemm* made)
      : graph_(graph), values_(values), made_(made), matmul_(made->matmul_) {}

  bool multiplies(const ir::Node& node, bool batches) {
    return operands(node.args[0], node.args[1], node.results[0], batches);
  }

  bool multiplies_and_adds(const ir::Node& node, bool batches) {
    const std::optional<double> beta = ir::number_of(node.args[3], values_),
                                alpha = ir::number_of(node.args[4], values_);
    if (alpha != 1.0 || (beta != 0.0 && beta != 1.0)) return false;
    return operands(node.args[1], node.args[2], node.results[0], batches) && (beta == 0.0 || adds(node.args[0]));
  }

 private:
  // A view with its sizes and strides in this run; a single matrix is a batch of one.
  struct Matrices {
    const ir::View& view;
    int64_t batches, rows, columns;
    tr_matrix strides;
  };

  std::optional<Matrices> matrices(const Arg& arg, bool batches) const {
    if (arg.tag != ArgTag::kView) return std::nullopt;
    const ir::View& view = graph_.views[arg.a];
    const size_t first = batches ? 1 : 0;
    if (view.dynamic || view.dtype != ir::DType::kFloat32 || view.sizes.size() != first + 2) return std::nullopt;
    const auto size = [&](size_t dim) { return values_[view.sizes[dim]]; };
    const auto stride = [&](size_t dim) { return values_[view.strides[dim]]; };
    return Matrices{view,
                    batches ? size(0) : 1,
                    size(first),
                    size(first + 1),
                    {nullptr, batches ? stride(0) : 0, stride(first), stride(first + 1)}};
  }

  LibraryGemm::Location location(const ir::View& view) const {
    return {view.buffer, values_[view.offset] * static_cast<int64_t>(ir::item_size(view.dtype))};
  }

  // Whether one of its dims has stride 1.
  static bool has_lines(const Matrices& m) {
    return m.rows == 1 || m.columns == 1 || m.strides.row_stride == 1 || m.strides.column_stride == 1;
  }

  static bool has_no_gaps(const Matrices& m) {
    return (m.columns == 1 || m.strides.column_stride == 1) && (m.rows == 1 || m.strides.row_stride == m.columns) &&
           (m.batches == 1 || m.strides.batch_stride == m.rows * m.columns);
  }

  bool operands(const Arg& left_arg, const Arg& right_arg, const Arg& result_arg, bool batches) {
    const std::optional<Matrices> left = matrices(left_arg, batches), right = matrices(right_arg, batches),
                                  result = matrices(result_arg, batches);
    if (!left || !right || !result || left->columns != right->rows || result->rows != left->rows ||
        result->columns != right->columns || left->batches != right->batches || result->batches != left->batches) {
      return false;
    }
    if (left->rows < 1 || left->columns < 1 || right->columns < 1 || left->batches < 1) return false;
    if (!has_lines(*left) || !has_lines(*right) || !has_no_gaps(*result)) return false;
    matmul_.struct_size = sizeof(matmul_);
    matmul_.dtype = static_cast<int>(ir::DType::kFloat32);
    matmul_.batches = batches ? left->batches : 0;
    matmul_.rows = left->rows;
    matmul_.depth = left->columns;
    matmul_.columns = right->columns;
    matmul_.left = left->strides;
    matmul_.right = right->strides;
    matmul_.result = result->strides;
    made_->left_ = location(left->view);
    made_->right_ = location(right->view);
    made_->result_ = location(result->view);
    return true;
  }

  // The operand is broadcast along its dims of size 1 and along missing leading dims.
  bool adds(const Arg& arg) {
    if (arg.tag != ArgTag::kView || graph_.views[arg.a].dynamic) return false;
    const ir::View& view = graph_.views[arg.a];
    const size_t rank = view.sizes.size(), wanted_rank = matmul_.batches == 0 ? 2 : 3;
    if (view.dtype != ir::DType::kFloat32 || rank > wanted_rank) return false;
    const int64_t wanted[3] = {matmul_.batches, matmul_.rows, matmul_.columns};
    int64_t strides[3] = {0, 0, 0};
    for (size_t d = 0; d < rank; ++d) {
      const int64_t size = values_[view.sizes[d]];
      const size_t at = 3 - rank + d;
      if (size != wanted[at] && size != 1) return false;
      if (size != 1) strides[at] = values_[view.strides[d]];
    }
    matmul_.addend = {nullptr, strides[0], strides[1], strides[2]};
    made_->addend_ = location(view);
    made_->adds_ = true;
    return true;
  }

  const ir::Graph& graph_;
  const std::span<const int64_t> values_;
  LibraryGemm* const made_;
  tr_matmul& matmul_;
};

std::unique_ptr<LibraryGemm> LibraryGemm::bind(const ir::Graph& graph, const ir::Node& node,
                                               std::span<const int64_t> values) {
  std::unique_ptr<LibraryGemm> made(new LibraryGemm());
  LibraryGemmBinder binder(graph, values, made.get());
  const bool fits = node.opcode == ir::ops::aten_mm        ? binder.multiplies(node, false)
                    : node.opcode == ir::ops::aten_bmm     ? binder.multiplies(node, true)
                    : node.opcode == ir::ops::aten_addmm   ? binder.multiplies_and_adds(node, false)
                    : node.opcode == ir::ops::aten_baddbmm ? binder.multiplies_and_adds(node, true)
                                                           : false;
  return fits ? std::move(made) : nullptr;
}

GemmShape shape_of(const tr_matmul& p) {
  return {.type = GemmType::kFloat,
          .rows = p.rows,
          .columns = p.columns,
          .depth = p.depth,
          .batches = p.batches,
          .left_transposed = p.left.column_stride != 1 && p.depth != 1,
          .right_row_major = p.right.row_stride != 1 && p.depth != 1};
}

double LibraryGemm::points() const {
  const auto batches = static_cast<double>(std::max<int64_t>(matmul_.batches, 1));
  return gemm_points(batches * static_cast<double>(matmul_.columns) * static_cast<double>(matmul_.depth), matmul_.rows);
}

bool LibraryGemm::run(std::span<const tr_buffer> buffers, const std::function<bool(const tr_matmul&)>& library) const {
  const auto at = [&](const Location& location) -> void* {
    return static_cast<std::byte*>(buffers[location.buffer].data) + location.offset;
  };
  tr_matmul matmul = matmul_;
  matmul.algorithm = TR_MATMUL_ONEDNN;
  matmul.left.data = at(left_);
  matmul.right.data = at(right_);
  matmul.result.data = at(result_);
  if (adds_) matmul.addend.data = at(addend_);
  return library(matmul);
}

}  // namespace torch_remote::worker::kernels
