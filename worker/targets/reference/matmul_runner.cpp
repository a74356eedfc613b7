#include "worker/targets/reference/matmul_runner.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/loop/half.h"
#include "ir/analysis.h"
#include "ir/number.h"
#include "ir/ops/op_table_generated.h"
#include "worker/targets/reference/node_program.h"

namespace torch_remote::worker::reference {
namespace {

using ir::DType;

bool is_real_float(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// The operands of the ops: names of the table. `added` is empty if the op adds nothing.
struct MatmulOp {
  ir::Opcode opcode;
  std::string_view left, right, added;
};
constexpr std::array kOps = {
    MatmulOp{ir::ops::aten_mm, "self", "mat2", ""},        MatmulOp{ir::ops::aten_bmm, "self", "mat2", ""},
    MatmulOp{ir::ops::aten_addmm, "mat1", "mat2", "self"}, MatmulOp{ir::ops::aten_baddbmm, "batch1", "batch2", "self"},
    MatmulOp{ir::ops::aten_mv, "self", "vec", ""},         MatmulOp{ir::ops::aten_dot, "self", "tensor", ""},
};

const MatmulOp* find(ir::Opcode opcode) {
  const auto found = std::ranges::find(kOps, ir::op_desc(opcode).functional, &MatmulOp::opcode);
  return found == kOps.end() ? nullptr : &*found;
}

// A batch of matrices in a buffer: sizes and strides, in elements, of batch, rows and columns.
struct Matrices {
  uint32_t buffer = 0;
  DType dtype = DType::kFloat32;
  int64_t offset = 0;
  std::array<int64_t, 3> sizes = {1, 1, 1}, strides = {0, 0, 0};

  double load(std::span<const tr_buffer> buffers, int64_t batch, int64_t row, int64_t column) const {
    const std::byte* const at = element(buffers, batch, row, column);
    const auto read = [at]<typename T>(T value) {
      std::memcpy(&value, at, sizeof(value));
      return value;
    };
    switch (dtype) {
      case DType::kFloat64:
        return read(double{});
      case DType::kFloat16:
        return static_cast<double>(codegen::from_f16(read(uint16_t{})));
      case DType::kBFloat16:
        return static_cast<double>(codegen::from_bf16(read(uint16_t{})));
      default:
        return static_cast<double>(read(float{}));
    }
  }
  void store(std::span<const tr_buffer> buffers, int64_t batch, int64_t row, int64_t column, double value) const {
    std::byte* const at = element(buffers, batch, row, column);
    const auto write = [at](auto rounded) { std::memcpy(at, &rounded, sizeof(rounded)); };
    switch (dtype) {
      case DType::kFloat64:
        return write(value);
      case DType::kFloat16:
        return write(codegen::to_f16(static_cast<float>(value)));
      case DType::kBFloat16:
        return write(codegen::to_bf16(static_cast<float>(value)));
      default:
        return write(static_cast<float>(value));
    }
  }

 private:
  std::byte* element(std::span<const tr_buffer> buffers, int64_t batch, int64_t row, int64_t column) const {
    const int64_t place = offset + batch * strides[0] + row * strides[1] + column * strides[2];
    return static_cast<std::byte*>(buffers[buffer].data) + place * static_cast<int64_t>(ir::item_size(dtype));
  }
};

// `first`: the dim of Matrices that the view's first dim is. A vector is the column or row that this makes it.
Matrices matrices(const ir::View& view, std::span<const int64_t> values, size_t first) {
  Matrices made{.buffer = view.buffer, .dtype = view.dtype, .offset = values[view.offset]};
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    made.sizes[first + d] = values[view.sizes[d]];
    made.strides[first + d] = values[view.strides[d]];
  }
  return made;
}

// The added operand is broadcast to the result. Nothing if its sizes do not allow that.
std::optional<Matrices> broadcast(const ir::View& view, std::span<const int64_t> values, const Matrices& result) {
  Matrices made = matrices(view, values, 3 - view.sizes.size());
  for (size_t d = 0; d < 3; ++d) {
    if (made.sizes[d] == 1) made.strides[d] = 0;
    if (made.sizes[d] != 1 && made.sizes[d] != result.sizes[d]) return std::nullopt;
    made.sizes[d] = result.sizes[d];
  }
  return made;
}

class MatmulPlan final : public NodePlan {
 public:
  Status bind(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values) override {
    const ir::Node& its = graph.nodes[node];
    const MatmulOp& op = *find(its.opcode);
    const ir::View& left = graph.views[ir::find_argument(its, op.left)->a];
    const ir::View& right = graph.views[ir::find_argument(its, op.right)->a];
    const ir::View& result = graph.views[ir::find_result(graph, its, 0)->a];
    const bool right_is_vector = right.sizes.size() == 1;
    // A program may declare any rank.
    if (left.sizes.size() > 3 || right.sizes.size() > 3 || result.sizes.size() > (right_is_vector ? 2 : 3)) {
      return {ErrorCode::kUnsupported, "the ranks do not match"};
    }
    left_ = matrices(left, values, left.sizes.size() == 1 ? 2 : 3 - left.sizes.size());
    right_ = matrices(right, values, right_is_vector ? 1 : 3 - right.sizes.size());
    result_ = matrices(result, values, right_is_vector ? 1 : 3 - result.sizes.size());
    if (left_.sizes[2] != right_.sizes[1] || left_.sizes[0] != right_.sizes[0] ||
        result_.sizes != std::array{left_.sizes[0], left_.sizes[1], right_.sizes[2]}) {
      return {ErrorCode::kUnsupported, "the sizes do not match"};
    }
    added_.reset();
    if (op.added.empty()) return {};
    alpha_ = ir::find_argument(its, "alpha");
    beta_ = ir::find_argument(its, "beta");
    const ir::View& added = graph.views[ir::find_argument(its, op.added)->a];
    if (added.sizes.size() <= 3) added_ = broadcast(added, values, result_);
    return added_ ? Status() : Status{ErrorCode::kUnsupported, "the added tensor cannot be broadcast to the result"};
  }

  Status run(std::span<const tr_buffer> buffers, std::span<const int64_t> values) override {
    const double alpha = added_ ? ir::number_of(*alpha_, values).value_or(1) : 1;
    const double beta = added_ ? ir::number_of(*beta_, values).value_or(1) : 0;
    const auto& [batches, rows, columns] = result_.sizes;
    std::vector<double> row(static_cast<size_t>(columns));
    for (int64_t b = 0; b < batches; ++b) {
      for (int64_t i = 0; i < rows; ++i) {
        std::ranges::fill(row, 0.0);
        for (int64_t k = 0; k < left_.sizes[2]; ++k) {
          const double factor = left_.load(buffers, b, i, k);
          for (int64_t j = 0; j < columns; ++j) row[static_cast<size_t>(j)] += factor * right_.load(buffers, b, k, j);
        }
        for (int64_t j = 0; j < columns; ++j) {
          double sum = alpha * row[static_cast<size_t>(j)];
          if (beta != 0) sum += beta * added_->load(buffers, b, i, j);  // With beta 0, NaN is not added.
          result_.store(buffers, b, i, j, sum);
        }
      }
    }
    return {};
  }

 private:
  Matrices left_, right_, result_;
  std::optional<Matrices> added_;
  const ir::Arg *alpha_ = nullptr, *beta_ = nullptr;
};

class MatmulRunner final : public Runner {
 public:
  explicit MatmulRunner(Device& device) : device_(device) {}

  std::string name() const override { return "matmuls by definition"; }
  bool accepts(const ir::Graph& graph, uint32_t node) override {
    const ir::Node& its = graph.nodes[node];
    const MatmulOp* const op = find(its.opcode);
    if (op == nullptr) return false;
    const ir::Arg* const result = ir::find_result(graph, its, 0);
    if (result == nullptr) return false;
    const DType dtype = graph.views[result->a].dtype;
    const auto has_dtype = [&](std::string_view name) {
      const ir::Arg* const arg = ir::find_argument(its, name);
      return arg != nullptr && arg->tag == ir::ArgTag::kView && graph.views[arg->a].dtype == dtype &&
             !graph.views[arg->a].dynamic;
    };
    return is_real_float(dtype) && has_dtype(op->left) && has_dtype(op->right) &&
           (op->added.empty() || has_dtype(op->added));
  }
  bool may_decline() const override { return true; }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    std::vector<std::unique_ptr<NodePlan>> plans(request.graph.nodes.size());
    for (size_t n = 0; n < plans.size(); ++n) {
      if (request.may_run[n] != 0) plans[n] = std::make_unique<MatmulPlan>();
    }
    *program = std::make_unique<NodeProgram>(device_, request.graph, std::move(plans));
    return {};
  }
  bool has_opcode(ir::Opcode opcode) override { return find(opcode) != nullptr; }

 private:
  Device& device_;
};

}  // namespace

std::unique_ptr<Runner> make_matmul_runner(Device& device) { return std::make_unique<MatmulRunner>(device); }

}  // namespace torch_remote::worker::reference
