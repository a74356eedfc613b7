#include "worker/targets/cuda/ops/op_reduce.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/op_lowered.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Reductions without an expansion, as other ops that have one: of complex numbers, of lists, of several results.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;
using Results = std::vector<std::optional<OpTensor>>;

int64_t dim_of(int64_t dim, size_t rank) { return dim < 0 ? dim + static_cast<int64_t>(rank) : dim; }

// The dims of `self` that are reduced.
std::vector<int64_t> reduced_dims(OpNode& node, const OpTensor& self, const OpTensor& to) {
  const size_t rank = self.sizes.size();
  std::vector<int64_t> dims;
  const ir::Arg* const given = node.argument("dim");
  if (rank == 0) return dims;
  if (given != nullptr && given->tag != ir::ArgTag::kList) {
    dims = {dim_of(node.integer("dim"), rank)};
  } else if (given != nullptr) {
    for (const int64_t dim : node.integers("dim")) dims.push_back(dim_of(dim, rank));
  }
  // An empty list means all dims, except for ops that then keep all dims.
  const bool keeps_all = given != nullptr && to.sizes == self.sizes;
  if (dims.empty() && !keeps_all) {
    for (size_t d = 0; d < rank; ++d) dims.push_back(static_cast<int64_t>(d));
  }
  return dims;
}

// A result with the rank of `self`: its reduced dims have size 1. If the result has other dims than those left, it
// stays as it is, and no kernel reduces to it.
OpTensor with_kept_dims(const OpTensor& to, const OpTensor& self, const std::vector<int64_t>& dims) {
  if (to.sizes.size() == self.sizes.size()) return to;
  OpTensor kept = to;
  kept.sizes.clear();
  kept.strides.clear();
  size_t next = 0;
  for (size_t d = 0; d < self.sizes.size(); ++d) {
    const bool is_reduced = std::ranges::find(dims, static_cast<int64_t>(d)) != dims.end();
    if (!is_reduced && (next == to.sizes.size() || to.sizes[next] != self.sizes[d])) return to;
    kept.sizes.push_back(is_reduced ? 1 : self.sizes[d]);
    kept.strides.push_back(is_reduced ? 1 : to.strides[next++]);
  }
  return next == to.sizes.size() ? kept : to;
}

Status sum_over(PlanBuilder& plan, const OpTensor& self, const std::vector<int64_t>& dims, const OpTensor& to) {
  return plan_op(plan, ir::ops::aten_sum_dim_IntList, {self, dims, true}, {with_kept_dims(to, self, dims)});
}

std::vector<int64_t> all_dims(const OpTensor& tensor) {
  std::vector<int64_t> dims(tensor.sizes.size());
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = static_cast<int64_t>(d);
  return dims;
}

// The number that is subtracted from the number of elements.
double correction_of(OpNode& node) {
  if (node.has("unbiased")) return node.flag("unbiased") ? 1 : 0;
  return node.number("correction", 1);
}

// -- Complex numbers --------------------------------------------------------------------------------------------------

// A tensor without dims, as one with a dim of size 1.
OpTensor with_dims(OpTensor tensor) {
  if (tensor.sizes.empty()) tensor.sizes = tensor.strides = {1};
  return tensor;
}

// The variance of complex numbers is the sum of the variances of both parts.
Status combine_variances(OpNode& node, PlanBuilder& plan, bool is_root) {
  const auto self = node.tensor("self"), to = node.result(0), mean = node.result(1);
  if (!self || !to || self->dtype == DType::kComplex32) return unsupported("of these dtypes");
  const OpTensor from = with_dims(*self);
  const std::vector<int64_t> dims = reduced_dims(node, from, *to);
  const OpTensor parts = parts_of(from);
  OpTensor both = with_kept_dims(*to, from, dims);
  std::vector<int64_t> sizes = both.sizes;
  sizes.push_back(2);
  const OpTensor each = plan.scratch_tensor(parts.dtype, std::move(sizes));
  Results results = {each};
  if (mean) results.emplace_back(with_kept_dims(parts_of(*mean), parts, dims));
  const ir::Opcode opcode = mean ? ir::ops::aten_var_mean_correction : ir::ops::aten_var_correction;
  Status status = plan_op(plan, opcode, {parts, dims, correction_of(node), true}, results);
  if (!status.ok()) return status;
  const std::vector<int64_t> last = {static_cast<int64_t>(each.sizes.size()) - 1};
  both.sizes.push_back(1);
  both.strides.push_back(1);
  if (!is_root) return sum_over(plan, each, last, both);
  const OpTensor sum = plan.scratch_tensor(both.dtype, both.sizes);
  status = sum_over(plan, each, last, sum);
  return status.ok() ? plan_op(plan, ir::ops::aten_sqrt, {sum}, {both}) : status;
}

}  // namespace

// -- the ops ----------------------------------------------------------------------------------------------------------

Status reduce_plans::both_extremes(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), least = node.result(0), most = node.result(1);
  if (!self || !least || !most) return unsupported("without results");
  const std::vector<int64_t> dims = reduced_dims(node, *self, *least);
  Status status = plan_op(plan, ir::ops::aten_amin, {*self, dims, true}, {with_kept_dims(*least, *self, dims)});
  if (!status.ok()) return status;
  return plan_op(plan, ir::ops::aten_amax, {*self, dims, true}, {with_kept_dims(*most, *self, dims)});
}

Status reduce_plans::truths(OpNode& node, PlanBuilder& plan, ir::Opcode opcode) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to) return unsupported("without a result");
  return plan_op(plan, opcode, {*self}, {to});
}

// Variances and standard deviations with an argument `unbiased`.
Status reduce_plans::variance(OpNode& node, PlanBuilder& plan, ir::Opcode opcode) {
  const auto self = node.tensor("self"), to = node.result(0), mean = node.result(1);
  if (!self || !to) return unsupported("without a result");
  const std::vector<int64_t> dims = reduced_dims(node, *self, *to);
  Results results = {with_kept_dims(*to, *self, dims)};
  if (mean) results.emplace_back(with_kept_dims(*mean, *self, dims));
  return plan_op(plan, opcode, {*self, dims, correction_of(node), true}, results);
}

Status reduce_plans::norm(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to) return unsupported("without a result");
  return norm_over(plan, *self, reduced_dims(node, *self, *to), node.number("p", 2), *to);
}

Status reduce_plans::norms(OpNode& node, PlanBuilder& plan) {
  const ir::Arg* const list = node.argument("self");
  if (list == nullptr || list->tag != ir::ArgTag::kList) return unsupported("without a list");
  for (size_t i = 0; i < list->items.size(); ++i) {
    if (list->items[i].tag != ir::ArgTag::kView) return unsupported("of numbers");
    const OpTensor self = node.tensor_of(list->items[i].a);
    const std::optional<OpTensor> to = node.listed_result(0, i);
    if (!to) continue;
    if (Status status = norm_over(plan, self, all_dims(self), node.number("ord", 2), *to); !status.ok()) {
      return status;
    }
  }
  return {};
}

// The sum of a matrix's diagonal.
Status reduce_plans::trace(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || self->sizes.size() != 2) return unsupported("of no matrix");
  OpTensor diagonal = *self;
  diagonal.sizes = {std::min(self->sizes[0], self->sizes[1])};
  diagonal.strides = {self->strides[0] + self->strides[1]};
  if (ir::is_complex(to->dtype)) return sum_over(plan, parts_of(diagonal), {0}, parts_of(*to));
  return sum_over(plan, diagonal, {0}, *to);
}

// Softmax whose rows are 0 where all elements are -inf.
Status reduce_plans::safe_softmax(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || !ir::is_float(to->dtype)) return unsupported("without a result");
  const auto dim = static_cast<int64_t>(node.dim(node.integer("dim"), std::max<size_t>(self->sizes.size(), 1)));
  const std::vector<int64_t> dims = {dim};
  const OpTensor from = plan.packed_tensor(*self, to->dtype);
  const OpTensor unsafe = plan.scratch_tensor(to->dtype, to->sizes);
  std::vector<int64_t> sizes = self->sizes;
  if (!sizes.empty()) sizes[static_cast<size_t>(dims[0])] = 1;
  const OpTensor most = plan.scratch_tensor(to->dtype, sizes), is_empty = plan.scratch_tensor(DType::kBool, sizes);
  Status status = plan_op(plan, ir::ops::aten__softmax, {from, dims[0], false}, {unsafe});
  if (status.ok()) status = plan_op(plan, ir::ops::aten_amax, {from, dims, true}, {most});
  if (status.ok()) {
    status = plan_op(plan, ir::ops::aten_eq_Scalar, {most, -std::numeric_limits<double>::infinity()}, {is_empty});
  }
  if (!status.ok()) return status;
  const OpTensor zero = plan.scratch_tensor(to->dtype, {});
  plan.zero(zero.location, zero.nbytes());
  return plan_op(plan, ir::ops::aten_where_self, {is_empty, zero, unsafe}, {to});
}

// Reports an error with the given message if the number is 0.
Status reduce_plans::assert_async(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self");
  if (!self) return unsupported("without operands");
  if (self->count() != 1) {
    return {ErrorCode::kOpFailed,
            self->count() == 0 ? "Boolean value of Tensor with no values is ambiguous"
                               : "Boolean value of Tensor with more than one value is ambiguous",
            "RuntimeError"};
  }
  const ir::Arg* words = node.argument("assert_msg");
  plan.add_operand(-1, words != nullptr ? words->text : "Expected Tensor with single nonzero value, but got zero");
  const Location number = plan.scratch(8);
  if (Status status = count_nonzero(plan, *self, number); !status.ok()) return status;
  plan.launch(KernelFile::kFill, "assert_nonzero", AssertArguments{}, 1, 1)
      .at(&AssertArguments::number, number)
      .failure([](const AssertArguments& given) { return &given.failure; });
  return {};
}

Status count_nonzero(PlanBuilder& plan, const OpTensor& tensor, Location out) {
  const OpTensor from = ir::is_complex(tensor.dtype) ? plan.packed_tensor(tensor, DType::kBool) : tensor;
  OpTensor count;
  count.location = out;
  count.dtype = DType::kInt64;
  return plan_op(plan, ir::ops::aten_count_nonzero, {from}, {count});
}

// The two parts are one more dim, which is kept.
Status reduce_plans::parts(OpNode& node, PlanBuilder& plan, ir::Opcode opcode) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || !ir::is_complex(to->dtype) || to->dtype == DType::kComplex32)
    return unsupported("of these dtypes");
  OpTensor from = with_dims(*self);
  if (self->dtype != to->dtype) from = plan.packed_tensor(from, to->dtype);
  const std::vector<int64_t> dims = reduced_dims(node, from, *to);
  const OpTensor parts = parts_of(from);
  return plan_op(plan, opcode, {parts, dims, true}, {with_kept_dims(parts_of(*to), parts, dims)});
}

Status reduce_plans::variance_of_parts(OpNode& node, PlanBuilder& plan) {
  return combine_variances(node, plan, /*is_root=*/false);
}
Status reduce_plans::std_of_parts(OpNode& node, PlanBuilder& plan) {
  return combine_variances(node, plan, /*is_root=*/true);
}

Status norm_over(PlanBuilder& plan, const OpTensor& from, const std::vector<int64_t>& dims, double p,
                 const OpTensor& to) {
  const OpTensor real = ir::is_complex(from.dtype) ? plan.absolute_values(from) : from;
  return plan_op(plan, ir::ops::aten_linalg_vector_norm, {real, p, dims, true}, {with_kept_dims(to, from, dims)});
}

Status reduce_all(PlanBuilder& plan, ReduceAll how, const OpTensor& from, const OpTensor& to) {
  constexpr ir::Opcode kHow[] = {ir::ops::aten_sum_dim_IntList, ir::ops::aten_mean_dim, ir::ops::aten_amax,
                                 ir::ops::aten_amin};
  OpTensor made = to;
  made.dtype = from.dtype;
  made.strides = packed_strides(made.sizes);
  if (from.dtype != to.dtype) made.location = plan.scratch(made.nbytes());
  const std::vector<int64_t> dims = all_dims(from);
  Status status = plan_op(plan, kHow[static_cast<size_t>(how)], {from, dims, true}, {with_kept_dims(made, from, dims)});
  if (status.ok() && from.dtype != to.dtype) plan.copy(made, to);
  return status;
}

}  // namespace torch_remote::worker::cuda
