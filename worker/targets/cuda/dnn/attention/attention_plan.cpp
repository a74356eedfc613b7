#include "worker/targets/cuda/dnn/attention/attention_plan.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <vector>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {
namespace {

using ir::DType;
using Strides = AttentionProblem::Strides;

constexpr int64_t kAlignedElements = 8;

Strides packed(const OpTensor& tensor) { return packed_heads(tensor.sizes[1], tensor.sizes[2], tensor.sizes[3]); }

// Whether cuDNN can read the tensor in place, and with which strides. Strides of dims of size 1 do not matter.
bool has_layout(const OpTensor& tensor, Strides* strides) {
  *strides = packed(tensor);
  for (size_t d = 0; d < 4; ++d) {
    if (tensor.sizes[d] == 1) continue;
    (*strides)[d] = tensor.strides[d];
    const bool good =
        d == 3 ? tensor.strides[d] == 1 : tensor.strides[d] > 0 && tensor.strides[d] % kAlignedElements == 0;
    if (!good) return false;
  }
  return tensor.location.offset % dnn::kAlignment == 0;
}

class AttentionPlanner {
 public:
  AttentionPlanner(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, AttentionPlan* plan,
                   std::vector<ir::Sym>* symbols)
      : node_(graph, node, values, symbols), builder_(node_, &plan->steps), plan_(*plan) {}

  Status forward();
  Status backward();
  Status finish() { return builder_.finish(); }

 private:
  Status find();
  Location read(const OpTensor& tensor, Strides* strides);
  Location write(const std::optional<OpTensor>& tensor, const OpTensor& like, Strides* strides);
  static bool is_like(const std::optional<OpTensor>& tensor, const OpTensor& like) {
    return !tensor || (tensor->dtype == like.dtype && tensor->sizes == like.sizes);
  }
  bool has_logsumexp(const std::optional<OpTensor>& tensor) const {
    const std::vector<int64_t> sizes = {plan_.problem.batch, plan_.problem.heads, plan_.problem.queries};
    return !tensor || (tensor->dtype == DType::kFloat32 && tensor->sizes == sizes);
  }
  void add_bias(const OpTensor& bias);
  int64_t rows() const { return plan_.problem.batch * plan_.problem.heads * plan_.problem.queries; }
  const char* kernel(const char* of_f16, const char* of_bf16) const {
    return plan_.problem.type == dnn::Type::kFloat16 ? of_f16 : of_bf16;
  }

  OpNode node_;
  PlanBuilder builder_;
  AttentionPlan& plan_;
  std::optional<OpTensor> query_, key_, value_;
  Location has_keys_;  // With a bias: for each of its rows, whether it attends to any key; one byte each.
};

// Reads the operands that both passes have.
Status AttentionPlanner::find() {
  // Read before any refusal: the node depends on these numbers even if another runner executes it.
  AttentionProblem& problem = plan_.problem;
  problem.causal = node_.flag("is_causal");
  const bool has_scale = node_.has("scale");
  const double scale = node_.number("scale");
  query_ = node_.tensor("query");
  key_ = node_.tensor("key");
  value_ = node_.tensor("value");
  if (!query_ || !key_ || !value_) return unsupported("without operands");
  for (const auto* tensor : {&*query_, &*key_, &*value_}) {
    if (tensor->sizes.size() != 4) return unsupported("of other than 4 dims");
    if (tensor->count() == 0) return unsupported("without elements");
    if (tensor->sizes[3] % kAlignedElements != 0) return unsupported("of heads whose size is not a multiple of 8");
  }
  const OpTensor &query = *query_, &key = *key_, &value = *value_;
  const bool fits = query.sizes[0] == key.sizes[0] && key.sizes[0] == value.sizes[0] &&
                    key.sizes[1] == value.sizes[1] && key.sizes[2] == value.sizes[2] &&
                    query.sizes[3] == key.sizes[3] && query.sizes[1] % key.sizes[1] == 0;
  if (!fits) return unsupported("of sizes that do not match");
  const bool is_half = query.dtype == DType::kFloat16 || query.dtype == DType::kBFloat16;
  if (!is_half || key.dtype != query.dtype || value.dtype != query.dtype) return unsupported("of these dtypes");
  if (query.sizes[2] < kMinQueries) return unsupported("of so few queries");
  problem.type = *dnn::type_of(query.dtype);
  problem.batch = query.sizes[0];
  problem.heads = query.sizes[1];
  problem.key_heads = key.sizes[1];
  problem.queries = query.sizes[2];
  problem.keys = key.sizes[2];
  problem.size = query.sizes[3];
  problem.value_size = value.sizes[3];
  plan_.scale = static_cast<float>(has_scale ? scale : 1 / std::sqrt(static_cast<double>(problem.size)));
  // The engines take the maximum of scores before they scale it, which needs a positive scale.
  if (!(plan_.scale > 0) || !std::isfinite(plan_.scale)) return unsupported("with such a scale");
  plan_.query = read(query, &problem.query);
  plan_.key = read(key, &problem.key);
  plan_.value = read(value, &problem.value);
  const std::optional<OpTensor> bias = node_.tensor("bias");
  if (!bias) return {};
  if (bias->dtype != DType::kBool && bias->dtype != query.dtype) return unsupported("with a bias of another dtype");
  if (bias->sizes.size() < 2 || bias->sizes.size() > 4) return unsupported("with a bias of other than 2 to 4 dims");
  const int64_t wanted[] = {problem.batch, problem.heads, problem.queries, problem.keys};
  for (size_t d = 0; d < bias->sizes.size(); ++d) {
    const int64_t size = bias->sizes[d];
    if (size != 1 && size != wanted[4 - bias->sizes.size() + d]) return unsupported("with a bias of another size");
  }
  add_bias(*bias);
  return {};
}

Location AttentionPlanner::read(const OpTensor& tensor, Strides* strides) {
  if (has_layout(tensor, strides)) return tensor.location;
  const OpTensor made = builder_.copy_of(tensor, tensor.dtype, tensor.sizes);
  *strides = packed(made);
  return made.location;
}

// Uses scratch memory if the result is not wanted or cannot be written in place.
Location AttentionPlanner::write(const std::optional<OpTensor>& tensor, const OpTensor& like, Strides* strides) {
  OpTensor made = like;
  made.strides = packed_strides(like.sizes);
  const bool fits = tensor && has_layout(*tensor, strides);
  const Location location = tensor ? builder_.output(*tensor, made, fits) : builder_.scratch(made.nbytes());
  if (!tensor || location.buffer != tensor->location.buffer) *strides = packed(made);
  return location;
}

// Makes the bias that cuDNN accepts: of the queries' dtype, with rows at multiples of 16 bytes, and with all elements
// stored. Masked keys get a score far below all others. Rows that attend to no key are handled after the call.
void AttentionPlanner::add_bias(const OpTensor& given) {
  AttentionProblem& problem = plan_.problem;
  AttentionBiasArguments call;
  OpTensor bias = given;
  bias.sizes.insert(bias.sizes.begin(), 4 - given.sizes.size(), 1);
  bias.strides.insert(bias.strides.begin(), 4 - given.sizes.size(), 0);
  problem.bias_batch = bias.sizes[0];
  problem.bias_heads = bias.sizes[1];
  problem.bias_row = (problem.keys + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
  for (size_t d = 0; d < 4; ++d) call.strides[d] = bias.sizes[d] == 1 ? 0 : bias.strides[d];
  call.batch = problem.bias_batch;
  call.heads = problem.bias_heads;
  call.queries = problem.queries;
  call.keys = problem.keys;
  call.row = problem.bias_row;
  call.is_mask = given.dtype == DType::kBool ? 1 : 0;
  call.causal = problem.causal ? 1 : 0;
  problem.causal = false;
  const int64_t rows = call.batch * call.heads * call.queries;
  plan_.bias = builder_.scratch(static_cast<uint64_t>(rows * call.row) * 2);
  has_keys_ = builder_.scratch(static_cast<uint64_t>(rows));
  builder_
      .launch(KernelFile::kAttention, kernel("attention_bias_f16", "attention_bias_bf16"), call,
              std::min<int64_t>((rows + 3) / 4, 1 << 20), 128)
      .at(&AttentionBiasArguments::bias, given.location)
      .at(&AttentionBiasArguments::out, plan_.bias)
      .at(&AttentionBiasArguments::has_keys, has_keys_);
}

Status AttentionPlanner::forward() {
  if (Status status = find(); !status.ok()) return status;
  AttentionProblem& problem = plan_.problem;
  problem.pass = AttentionPass::kForward;
  const std::optional<OpTensor> out = node_.result(0), logsumexp = node_.result(1);
  OpTensor like = *query_;
  like.sizes[3] = problem.value_size;
  if (!is_like(out, like) || !has_logsumexp(logsumexp)) return unsupported("into another size or dtype");
  plan_.out = write(out, like, &problem.out);
  // Contiguous, as the backward pass requires it.
  OpTensor sums{{}, DType::kFloat32, {problem.batch, problem.heads, problem.queries}, {}};
  sums.strides = packed_strides(sums.sizes);
  const bool fits = logsumexp && logsumexp->is_packed() && logsumexp->location.offset % dnn::kAlignment == 0;
  plan_.logsumexp = logsumexp ? builder_.output(*logsumexp, sums, fits) : builder_.scratch(sums.nbytes());
  plan_.before = plan_.steps.steps.size();
  if (problem.has_bias()) {
    AttentionMaskedRowsArguments call;
    call.batch = problem.batch;
    call.heads = problem.heads;
    call.queries = problem.queries;
    call.size = problem.value_size;
    call.has_keys_batch = problem.bias_batch == 1 ? 0 : problem.bias_heads * problem.queries;
    call.has_keys_head = problem.bias_heads == 1 ? 0 : problem.queries;
    std::copy(problem.out.begin(), problem.out.end(), call.out_strides);
    builder_
        .launch(KernelFile::kAttention, "attention_masked_rows", call, std::min<int64_t>((rows() + 3) / 4, 1 << 20),
                128)
        .at(&AttentionMaskedRowsArguments::has_keys, has_keys_)
        .at(&AttentionMaskedRowsArguments::out, plan_.out)
        .at(&AttentionMaskedRowsArguments::logsumexp, plan_.logsumexp);
  }
  return {};
}

Status AttentionPlanner::backward() {
  if (Status status = find(); !status.ok()) return status;
  AttentionProblem& problem = plan_.problem;
  problem.pass = AttentionPass::kBackward;
  const std::optional<OpTensor> grad = node_.tensor("grad"), out = node_.tensor("out"),
                                logsumexp = node_.tensor("logsumexp");
  if (!grad || !out || !logsumexp || logsumexp->dtype != DType::kFloat32) return unsupported("without operands");
  OpTensor like = *query_;
  like.sizes[3] = problem.value_size;
  const bool fits = is_like(grad, like) && is_like(out, like) && has_logsumexp(logsumexp) &&
                    is_like(node_.result(0), *query_) && is_like(node_.result(1), *key_) &&
                    is_like(node_.result(2), *value_);
  if (!fits) return unsupported("of sizes or dtypes that do not match");
  plan_.grad = read(*grad, &problem.grad);
  plan_.out = read(*out, &problem.out);
  plan_.logsumexp = logsumexp->location;
  if (problem.has_bias()) {  // Rows that attend to no key get weights of 0.
    plan_.logsumexp = builder_.scratch(static_cast<uint64_t>(rows()) * sizeof(float));
    AttentionSumsArguments call;
    call.batch = problem.batch;
    call.heads = problem.heads;
    call.queries = problem.queries;
    std::copy(logsumexp->strides.begin(), logsumexp->strides.end(), call.strides);
    builder_.launch(KernelFile::kAttention, "attention_sums", call, blocks_for(rows()))
        .at(&AttentionSumsArguments::logsumexp, logsumexp->location)
        .at(&AttentionSumsArguments::out, plan_.logsumexp);
  } else if (!logsumexp->is_packed() || logsumexp->location.offset % dnn::kAlignment != 0) {
    plan_.logsumexp = builder_.copy_of(*logsumexp, logsumexp->dtype, logsumexp->sizes).location;
  }
  plan_.grad_query = write(node_.result(0), *query_, &problem.grad_query);
  plan_.grad_key = write(node_.result(1), *key_, &problem.grad_key);
  plan_.grad_value = write(node_.result(2), *value_, &problem.grad_value);
  plan_.before = plan_.steps.steps.size();
  return {};
}

}  // namespace

bool is_attention_op(ir::Opcode opcode) {
  return opcode == ir::ops::remote_attention || opcode == ir::ops::remote_attention_backward;
}

bool is_attention(const ir::Graph& graph, const ir::Node& node) {
  if (!is_attention_op(node.opcode)) return false;
  std::optional<DType> dtype;
  bool good = true;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    const DType each = graph.views[view].dtype;
    good = good && !graph.views[view].dynamic;
    if (each == DType::kFloat32 || each == DType::kBool) return;  // Log-sum-exp values, and masks.
    good = good && dnn::narrow_type_of(each) && dtype.value_or(each) == each;
    dtype = each;
  });
  return good && dtype;
}

Status plan_attention(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, AttentionPlan* plan,
                      std::vector<ir::Sym>* symbols) {
  *plan = {};
  AttentionPlanner planner(graph, node, values, plan, symbols);
  Status status = graph.nodes[node].opcode == ir::ops::remote_attention ? planner.forward() : planner.backward();
  if (status.ok()) status = planner.finish();
  return status;
}

}  // namespace torch_remote::worker::cuda
