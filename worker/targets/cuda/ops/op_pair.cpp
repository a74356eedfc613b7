#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/pair_arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Matmuls of integers, for which cuBLASLt has no types, and of single rows that compiled kernels do not support. Also
// products of three tensors, and distances between rows.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

// How a tensor's dims map to [batch, rows, columns].
enum class PairLayout : uint8_t { kMatrix, kColumn, kRow };

struct PairMatrix {
  int64_t batch = 1, rows = 1, columns = 1;
  int64_t strides[3] = {};
};
bool read(const OpTensor& tensor, PairLayout lies, PairMatrix* matrix) {
  const size_t rank = tensor.sizes.size(), wanted = lies == PairLayout::kMatrix ? 2 : 1;
  if (rank < wanted || rank > wanted + 1 || (lies != PairLayout::kMatrix && rank != 1)) return false;
  if (rank == 3) {
    matrix->batch = tensor.sizes[0];
    matrix->strides[0] = tensor.strides[0];
  }
  if (lies != PairLayout::kRow) {
    matrix->rows = tensor.sizes[lies == PairLayout::kColumn ? 0 : rank - 2];
    matrix->strides[1] = tensor.strides[lies == PairLayout::kColumn ? 0 : rank - 2];
  }
  if (lies != PairLayout::kColumn) {
    matrix->columns = tensor.sizes[rank - 1];
    matrix->strides[2] = tensor.strides[rank - 1];
  }
  return true;
}

struct ProductForm {
  const char *left = "self", *right = "mat2";
  PairLayout left_layout = PairLayout::kMatrix, right_layout = PairLayout::kMatrix;
  bool adds = false, sums_batch = false;
};

Status product(OpNode& node, PlanBuilder& plan, const ProductForm& form) {
  const auto left = node.tensor(form.left), right = node.tensor(form.right), to = node.result(0);
  if (!left || !right || !to) return unsupported("without a result");
  const bool floats = ir::is_float(left->dtype);
  for (const OpTensor* const one : {&*left, &*right, &*to}) {
    if (ir::is_float(one->dtype) != floats || ir::is_complex(one->dtype)) return unsupported("of these dtypes");
  }
  PairMatrix a, b;
  if (!read(*left, form.left_layout, &a) || !read(*right, form.right_layout, &b) || a.columns != b.rows ||
      a.batch != b.batch || left->dtype != right->dtype) {
    return unsupported("of sizes that do not fit");
  }
  std::vector<int64_t> sizes;  // The result has these sizes.
  if (!form.sums_batch && std::max(left->sizes.size(), right->sizes.size()) == 3) sizes.push_back(a.batch);
  if (form.left_layout != PairLayout::kRow) sizes.push_back(a.rows);
  if (form.right_layout != PairLayout::kColumn) sizes.push_back(b.columns);
  if (to->sizes != sizes) return unsupported("into another size");
  PairMatmulArguments arguments{.batch = a.batch,
                                .rows = a.rows,
                                .columns = b.columns,
                                .inner = a.columns,
                                .sums_batch = form.sums_batch ? 1 : 0,
                                .dtype = static_cast<i64>(left->dtype),
                                .out_dtype = static_cast<i64>(to->dtype)};
  std::ranges::copy(a.strides, arguments.left_strides);
  std::ranges::copy(b.strides, arguments.right_strides);
  std::optional<OpTensor> added;
  if (form.adds) {
    arguments.alpha = node.integer("alpha", 1);
    arguments.beta = node.integer("beta", 1);
    arguments.real_alpha = node.number("alpha", 1);
    arguments.real_beta = node.number("beta", 1);
    if (floats ? arguments.real_beta != 0 : arguments.beta != 0) added = node.tensor("self");
  }
  if (added) {  // Broadcast to the result's dims, which are the last of batch, rows and columns.
    if (ir::is_float(added->dtype) != floats || added->sizes.size() > to->sizes.size()) {
      return unsupported("with what is added");
    }
    const size_t first = form.right_layout == PairLayout::kColumn ? 1 : 3 - to->sizes.size();
    const size_t missing = to->sizes.size() - added->sizes.size();
    for (size_t d = 0; d < added->sizes.size(); ++d) {
      arguments.added_strides[first + missing + d] = added->sizes[d] == 1 ? 0 : added->strides[d];
    }
    arguments.added_dtype = static_cast<i64>(added->dtype);
    const int64_t all[] = {form.sums_batch ? 1 : a.batch, a.rows, b.columns};
    if (!plan.is_inside(added->location, ir::item_size(added->dtype), all, arguments.added_strides)) {
      return unsupported("with what is added");
    }
  }
  plan.launch(KernelFile::kPair, floats ? "pair_matmul_float" : "pair_matmul_int", arguments, blocks_for(to->count()))
      .at(&PairMatmulArguments::left, left->location)
      .at(&PairMatmulArguments::right, right->location)
      .at(&PairMatmulArguments::added, added ? added->location : Location())
      .at(&PairMatmulArguments::out, plan.output(*to));
  return {};
}

Status inner_product(OpNode& node, PlanBuilder& plan, const char* right) {
  return product(
      node, plan,
      {.left = "self", .right = right, .left_layout = PairLayout::kRow, .right_layout = PairLayout::kColumn});
}
// -- Products of three tensors ----------------------------------------------------------------------------------------

// Marks the dims in a list of dims.
std::vector<bool> listed_dims(OpNode& node, std::string_view name, size_t rank) {
  std::vector<bool> found(rank);
  for (const int64_t dim : node.integers(name)) {
    const size_t index = node.dim(dim, rank);
    if (index < rank) found[index] = true;
  }
  return found;
}

// -- distances --------------------------------------------------------------------------------------------------------

Distance distance_of(double p) {
  return p == 0          ? Distance::kZero
         : p == 1        ? Distance::kL1
         : p == 2        ? Distance::kL2
         : std::isinf(p) ? Distance::kInfinite
                         : Distance::kPower;
}

// Contiguous matrices, expanded to the batch dims `batch`.
Location in_batch(PlanBuilder& plan, const OpTensor& tensor, std::span<const int64_t> batch) {
  std::vector<int64_t> sizes(batch.begin(), batch.end());
  sizes.insert(sizes.end(), tensor.sizes.end() - 2, tensor.sizes.end());
  return plan.expanded(tensor, tensor.dtype, sizes);
}

}  // namespace

Status pair_plans::matrix_product(OpNode& node, PlanBuilder& plan) { return product(node, plan, {}); }
Status pair_plans::added_product(OpNode& node, PlanBuilder& plan) {
  return product(node, plan, {.left = "mat1", .right = "mat2", .adds = true});
}
Status pair_plans::added_batch(OpNode& node, PlanBuilder& plan) {
  return product(node, plan, {.left = "batch1", .right = "batch2", .adds = true});
}
Status pair_plans::summed_batch(OpNode& node, PlanBuilder& plan) {
  return product(node, plan, {.left = "batch1", .right = "batch2", .adds = true, .sums_batch = true});
}
Status pair_plans::vector_product(OpNode& node, PlanBuilder& plan) {
  return product(node, plan, {.left = "self", .right = "vec", .right_layout = PairLayout::kColumn});
}
Status pair_plans::added_vector_product(OpNode& node, PlanBuilder& plan) {
  return product(node, plan, {.left = "mat", .right = "vec", .right_layout = PairLayout::kColumn, .adds = true});
}
Status pair_plans::outer_product(OpNode& node, PlanBuilder& plan) {
  return product(node, plan,
                 {.left = "vec1",
                  .right = "vec2",
                  .left_layout = PairLayout::kColumn,
                  .right_layout = PairLayout::kRow,
                  .adds = true});
}
Status pair_plans::dot(OpNode& node, PlanBuilder& plan) { return inner_product(node, plan, "tensor"); }
Status pair_plans::vdot(OpNode& node, PlanBuilder& plan) { return inner_product(node, plan, "other"); }

// _trilinear: each operand gets dims of size 1; then they are multiplied and summed over some dims.
Status pair_plans::product_of_three(OpNode& node, PlanBuilder& plan) {
  constexpr std::string_view kOperands[] = {"i1", "i2", "i3"}, kNewDims[] = {"expand1", "expand2", "expand3"};
  const auto to = node.result(0), first = node.tensor("i1");
  if (!to || !first || ir::is_complex(to->dtype)) return unsupported("of these dtypes");
  const size_t rank = first->sizes.size() + node.integers("expand1").size();
  if (rank > kTripleRank) return unsupported("of so many dims");
  TripleArguments arguments{.count = to->count(),
                            .rank = static_cast<i64>(rank),
                            .dtype = static_cast<i64>(first->dtype),
                            .out_dtype = static_cast<i64>(to->dtype)};
  // The order of dims in the arguments: those of the result come first.
  const std::vector<bool> summed = listed_dims(node, "sumdim", rank);
  std::vector<size_t> positions(rank);
  arguments.result_rank = std::ranges::count(summed, false);
  auto kept = size_t{0}, behind = static_cast<size_t>(arguments.result_rank);
  for (size_t d = 0; d < rank; ++d) positions[d] = summed[d] ? behind++ : kept++;
  std::ranges::fill(arguments.sizes, 1);
  i64* const strides[] = {arguments.a_strides, arguments.b_strides, arguments.c_strides};
  Location operands[3];
  for (size_t i = 0; i < 3; ++i) {
    const auto operand = node.tensor(kOperands[i]);
    if (!operand || operand->dtype != first->dtype) return unsupported("of two dtypes");
    const std::vector<bool> is_new = listed_dims(node, kNewDims[i], rank);
    if (operand->sizes.size() + static_cast<size_t>(std::ranges::count(is_new, true)) != rank) {
      return unsupported("of sizes that do not fit");
    }
    operands[i] = operand->location;
    for (size_t d = 0, own = 0; d < rank; ++d) {
      if (is_new[d]) continue;
      const int64_t size = operand->sizes[own], stride = operand->strides[own];
      ++own;
      if (size == 1) continue;
      i64& known = arguments.sizes[positions[d]];
      if (known != 1 && known != size) return unsupported("of sizes that do not fit");
      known = size;
      strides[i][positions[d]] = stride;
    }
  }
  const std::span<const i64> all(arguments.sizes, rank);
  const auto first_summed = static_cast<size_t>(arguments.result_rank);
  arguments.terms = count_of(all.subspan(first_summed));
  const bool fits = to->count() == count_of(all.first(first_summed)) && is_kernel_dtype(first->dtype) &&
                    ir::is_float(first->dtype) == ir::is_float(to->dtype);
  if (!fits) return unsupported("into another size or dtype");
  plan.launch(KernelFile::kPair, ir::is_float(to->dtype) ? "pair_triple_float" : "pair_triple_int", arguments,
              blocks_for(arguments.count))
      .at(&TripleArguments::a, operands[0])
      .at(&TripleArguments::b, operands[1])
      .at(&TripleArguments::c, operands[2])
      .at(&TripleArguments::out, plan.output(*to));
  return {};
}

Status pair_plans::cdist(OpNode& node, PlanBuilder& plan) {
  const auto left = node.tensor("x1"), right = node.tensor("x2"), to = node.result(0);
  const auto grad = node.tensor("grad"), made = node.tensor("cdist");
  const bool backward = grad.has_value();
  if (!left || !right || !to || (backward && !made)) return unsupported("without a result");
  const std::vector<int64_t>& sizes = backward ? made->sizes : to->sizes;  // [..., rows, others]
  if (sizes.size() < 2 || left->sizes.size() < 2 || right->sizes.size() < 2) return unsupported("of no matrices");
  const std::span<const int64_t> batch(sizes.data(), sizes.size() - 2);
  DistanceArguments arguments{.rows = left->sizes[left->sizes.size() - 2],
                              .others = right->sizes[right->sizes.size() - 2],
                              .length = left->sizes.back(),
                              .dtype = static_cast<i64>(left->dtype),
                              .how = distance_of(node.number("p", 2)),
                              .p = node.number("p", 2)};
  for (const int64_t size : batch) arguments.batch *= size;
  if (left->dtype != right->dtype || to->dtype != left->dtype || !ir::is_float(left->dtype)) {
    return unsupported("of two dtypes");
  }
  const int64_t of_gradient = count_of(std::vector<int64_t>{arguments.batch, arguments.rows, arguments.length});
  const bool fits = sizes[sizes.size() - 2] == arguments.rows && sizes.back() == arguments.others &&
                    right->sizes.back() == arguments.length &&
                    (!backward || (grad->sizes == sizes && to->count() == of_gradient));
  if (!fits) return unsupported("of other sizes");
  const Location of_left = in_batch(plan, *left, batch), of_right = in_batch(plan, *right, batch);
  const Location grads = backward ? plan.packed(*grad, left->dtype) : Location();
  const Location lengths = backward ? plan.packed(*made, left->dtype) : Location();
  plan.launch(KernelFile::kPair, backward ? "pair_distance_backward" : "pair_distance", arguments,
              blocks_for(to->count()))
      .at(&DistanceArguments::left, of_left)
      .at(&DistanceArguments::right, of_right)
      .at(&DistanceArguments::grad, grads)
      .at(&DistanceArguments::distance, lengths)
      .at(&DistanceArguments::out, plan.output(*to));
  return {};
}

// Distances between each row of a matrix and the rows after it.
Status pair_plans::pdist(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), grad = node.tensor("grad"), made = node.tensor("pdist");
  const bool backward = grad.has_value();
  if (!self || (backward && !made) || self->sizes.size() != 2 || !ir::is_float(self->dtype)) {
    return unsupported("of other dims or dtypes");
  }
  const double p = node.number("p", 2);
  const int64_t rows = self->sizes[0];
  if (rows >= int64_t{1} << 31) return unsupported("of so many rows");
  const int64_t pairs = rows * (rows - 1) / 2;
  if (backward && (grad->count() != pairs || made->count() != pairs)) return unsupported("of other sizes");
  const DistanceArguments arguments{.rows = rows,
                                    .others = rows,
                                    .length = self->sizes[1],
                                    .dtype = static_cast<i64>(self->dtype),
                                    .is_triangle = 1,
                                    .how = distance_of(p),
                                    .p = p};
  const Location in = plan.packed(*self), grads = backward ? plan.packed(*grad, self->dtype) : Location(),
                 lengths = backward ? plan.packed(*made, self->dtype) : Location();
  const char* const kernel = backward ? "pair_distance_backward" : "pair_distance";
  const std::vector<int64_t> sizes = backward ? self->sizes : std::vector<int64_t>{pairs};
  const int64_t blocks = blocks_for(backward ? self->count() : rows * rows);
  return make_result(plan, self->dtype, sizes, [=](std::vector<OpStep>* steps, Location to) {
    LaunchBuilder(steps, KernelFile::kPair, kernel, arguments, blocks)
        .at(&DistanceArguments::left, in)
        .at(&DistanceArguments::right, in)
        .at(&DistanceArguments::grad, grads)
        .at(&DistanceArguments::distance, lengths)
        .at(&DistanceArguments::out, to);
  });
}

}  // namespace torch_remote::worker::cuda
