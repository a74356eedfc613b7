#include "worker/targets/cuda/dnn/attention/attention_graph.h"

#include <optional>

#include "worker/targets/cuda/dnn/cudnn_descriptors.h"

namespace torch_remote::worker::cuda {
namespace {

using dnn::Attribute;
using dnn::AttributeType;
using dnn::Descriptor;
using dnn::DescriptorType;
using dnn::PointwiseMode;
using dnn::ReductionMode;
using dnn::Type;
using Sizes = std::array<int64_t, 4>;
using Strides = AttentionProblem::Strides;

constexpr int64_t kFirstIntermediate = 32;

Sizes packed(const Sizes& sizes) { return packed_heads(sizes[1], sizes[2], sizes[3]); }
// Swaps the last two dims.
Sizes transposed(const Sizes& sizes) { return {sizes[0], sizes[1], sizes[3], sizes[2]}; }

// Builds one graph's operations in order.
class GraphBuilder {
 public:
  GraphBuilder(const dnn::Table& table, const AttentionProblem& problem, std::vector<Descriptor>* made)
      : builder_(table, made), problem_(problem) {}

  void add_forward();
  void add_backward();
  Status finish(dnn::Handle handle, Descriptor* graph) {
    *graph = builder_.graph(handle, operations_);
    return builder_.status();
  }

 private:
  struct Tensor {
    Descriptor descriptor = nullptr;
    Sizes sizes = {};
  };

  Tensor tensor(int64_t id, const Sizes& sizes, const Strides& strides, Type type, std::optional<Attribute> flag = {}) {
    return {builder_.tensor(id, type, {sizes.begin(), sizes.end()}, {strides.begin(), strides.end()}, flag), sizes};
  }
  Tensor given(AttentionId id, const Sizes& sizes, const Strides& strides) {
    return tensor(static_cast<int64_t>(id), sizes, strides, problem_.type);
  }
  Tensor of_floats(AttentionId id, const Sizes& sizes) {
    return tensor(static_cast<int64_t>(id), sizes, packed(sizes), Type::kFloat32);
  }
  Tensor number(AttentionId id) {
    return tensor(static_cast<int64_t>(id), {1, 1, 1, 1}, {1, 1, 1, 1}, Type::kFloat32, Attribute::kTensorIsNumber);
  }
  // An intermediate tensor between two operations, without memory.
  Tensor intermediate(const Sizes& sizes, Type type = Type::kFloat32) {
    return intermediate(sizes, packed(sizes), type);
  }
  Tensor intermediate(const Sizes& sizes, const Strides& strides, Type type) {
    return tensor(next_++, sizes, strides, type, Attribute::kTensorIsVirtual);
  }

  void multiply(const Tensor& left, const Tensor& right, const Tensor& result) {
    builder_.make(DescriptorType::kMatmul)
        .set_one(Attribute::kMatmulPrecision, AttributeType::kDataType, Type::kFloat32);
    const Descriptor how = builder_.finish();
    builder_.make(DescriptorType::kMatmulOperation)
        .set_one(Attribute::kMatmulLeft, AttributeType::kDescriptor, left.descriptor)
        .set_one(Attribute::kMatmulRight, AttributeType::kDescriptor, right.descriptor)
        .set_one(Attribute::kMatmulResult, AttributeType::kDescriptor, result.descriptor)
        .set_one(Attribute::kMatmulDescriptor, AttributeType::kDescriptor, how);
    operations_.push_back(builder_.finish());
  }
  struct Operands {
    Tensor left, right = {}, third = {};
  };
  void each(PointwiseMode mode, const Operands& operands, const Tensor& result, Type precision = Type::kFloat32,
            int64_t axis = 0) {
    builder_.make(DescriptorType::kPointwise)
        .set_one(Attribute::kPointwiseMode, AttributeType::kPointwiseMode, mode)
        .set_one(Attribute::kPointwisePrecision, AttributeType::kDataType, precision);
    if (mode == PointwiseMode::kIndex) builder_.set_one(Attribute::kPointwiseAxis, AttributeType::kInt64, axis);
    const Descriptor how = builder_.finish();
    builder_.make(DescriptorType::kPointwiseOperation)
        .set_one(Attribute::kPointwiseOperation, AttributeType::kDescriptor, how)
        .set_one(Attribute::kPointwiseLeft, AttributeType::kDescriptor, operands.left.descriptor)
        .set_one(Attribute::kPointwiseResult, AttributeType::kDescriptor, result.descriptor);
    if (operands.right.descriptor != nullptr)
      builder_.set_one(Attribute::kPointwiseRight, AttributeType::kDescriptor, operands.right.descriptor);
    if (operands.third.descriptor != nullptr)
      builder_.set_one(Attribute::kPointwiseThird, AttributeType::kDescriptor, operands.third.descriptor);
    operations_.push_back(builder_.finish());
  }
  void reduce(ReductionMode mode, const Tensor& from, const Tensor& to) {
    builder_.make(DescriptorType::kReduction)
        .set_one(Attribute::kReductionMode, AttributeType::kReductionMode, mode)
        .set_one(Attribute::kReductionPrecision, AttributeType::kDataType, Type::kFloat32);
    const Descriptor how = builder_.finish();
    builder_.make(DescriptorType::kReductionOperation)
        .set_one(Attribute::kReductionFrom, AttributeType::kDescriptor, from.descriptor)
        .set_one(Attribute::kReductionTo, AttributeType::kDescriptor, to.descriptor)
        .set_one(Attribute::kReductionDescriptor, AttributeType::kDescriptor, how);
    operations_.push_back(builder_.finish());
  }
  void reshape(const Tensor& from, const Tensor& to) {
    builder_.make(DescriptorType::kReshapeOperation)
        .set_one(Attribute::kReshapeFrom, AttributeType::kDescriptor, from.descriptor)
        .set_one(Attribute::kReshapeTo, AttributeType::kDescriptor, to.descriptor);
    operations_.push_back(builder_.finish());
  }
  // Writes to a new tensor with the sizes of the left operand.
  Tensor each(PointwiseMode mode, const Operands& operands) {
    const Tensor made = intermediate(operands.left.sizes);
    each(mode, operands, made);
    return made;
  }

  Sizes queries_of(int64_t elements) const { return {problem_.batch, problem_.heads, problem_.queries, elements}; }
  Sizes keys_of(int64_t elements) const { return {problem_.batch, problem_.key_heads, problem_.keys, elements}; }

  Tensor add_scores(const Tensor& query, const Tensor& keys_transposed, const Tensor& scale);
  Tensor add_causal(const Tensor& scores);
  void add_keys_gradient(const Tensor& rows, const Tensor& other, const Tensor& result);

  dnn::Builder builder_;
  const AttentionProblem& problem_;
  std::vector<Descriptor> operations_;
  int64_t next_ = kFirstIntermediate;
};

// query * key^T * scale + bias
GraphBuilder::Tensor GraphBuilder::add_scores(const Tensor& query, const Tensor& keys_transposed, const Tensor& scale) {
  const Tensor products = intermediate(queries_of(problem_.keys));
  multiply(query, keys_transposed, products);
  Tensor scores = each(PointwiseMode::kMultiply, {products, scale});
  if (!problem_.has_bias()) return scores;
  const Sizes sizes = {problem_.bias_batch, problem_.bias_heads, problem_.queries, problem_.keys};
  const int64_t head = problem_.queries * problem_.bias_row;
  const Tensor bias = given(AttentionId::kBias, sizes, {problem_.bias_heads * head, head, problem_.bias_row, 1});
  return each(PointwiseMode::kAdd, {scores, bias});
}

GraphBuilder::Tensor GraphBuilder::add_causal(const Tensor& scores) {
  const Tensor row = intermediate(scores.sizes, Type::kInt32), column = intermediate(scores.sizes, Type::kInt32),
               seen = intermediate(scores.sizes, Type::kBool);
  each(PointwiseMode::kIndex, {scores}, row, Type::kFloat32, 2);
  each(PointwiseMode::kIndex, {scores}, column, Type::kFloat32, 3);
  each(PointwiseMode::kGreaterEqual, {row, column}, seen, Type::kBool);
  return each(PointwiseMode::kSelect, {scores, number(AttentionId::kMasked), seen});
}

void GraphBuilder::add_forward() {
  const AttentionProblem& p = problem_;
  const Tensor query = given(AttentionId::kQuery, queries_of(p.size), p.query),
               key = given(AttentionId::kKey, transposed(keys_of(p.size)), transposed(p.key)),
               value = given(AttentionId::kValue, keys_of(p.value_size), p.value),
               out = given(AttentionId::kOut, queries_of(p.value_size), p.out);
  Tensor scores = add_scores(query, key, number(AttentionId::kScale));
  if (p.causal) scores = add_causal(scores);
  const Tensor most = intermediate(queries_of(1)), sum = intermediate(queries_of(1));
  reduce(ReductionMode::kMax, scores, most);
  const Tensor powers = each(PointwiseMode::kExp, {each(PointwiseMode::kSubtract, {scores, most})});
  reduce(ReductionMode::kAdd, powers, sum);
  const Tensor log = each(PointwiseMode::kLog, {sum});
  each(PointwiseMode::kAdd, {most, log}, of_floats(AttentionId::kLogSumExp, queries_of(1)));
  const Tensor weights = intermediate(scores.sizes, p.type);
  each(PointwiseMode::kDivide, {powers, sum}, weights);
  multiply(weights, value, out);
}

// The gradient of keys or values: `rows` [queries, keys] transposed, times `other`. Sums over the heads that share
// keys.
void GraphBuilder::add_keys_gradient(const Tensor& rows, const Tensor& other, const Tensor& result) {
  const Sizes sizes = transposed(rows.sizes);
  const Tensor columns =
      intermediate(sizes, {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], 1, sizes[2]}, problem_.type);
  reshape(rows, columns);
  if (problem_.heads == problem_.key_heads) {
    multiply(columns, other, result);
    return;
  }
  const Tensor all = intermediate({problem_.batch, problem_.heads, problem_.keys, other.sizes[3]}, problem_.type);
  multiply(columns, other, all);
  reduce(ReductionMode::kAdd, all, result);
}

void GraphBuilder::add_backward() {
  const AttentionProblem& p = problem_;
  const Tensor query = given(AttentionId::kQuery, queries_of(p.size), p.query),
               key = given(AttentionId::kKey, transposed(keys_of(p.size)), transposed(p.key)),
               value = given(AttentionId::kValue, transposed(keys_of(p.value_size)), transposed(p.value)),
               out = given(AttentionId::kOut, queries_of(p.value_size), p.out),
               grad = given(AttentionId::kGrad, queries_of(p.value_size), p.grad), scale = number(AttentionId::kScale);
  // delta: for each row, the sum of gradient times output.
  const Tensor sum = intermediate(queries_of(1)), delta = of_floats(AttentionId::kDelta, queries_of(1));
  reduce(ReductionMode::kAdd, each(PointwiseMode::kMultiply, {grad, out}), sum);
  each(PointwiseMode::kMultiply, {sum, number(AttentionId::kOne)}, delta);
  // Recomputes the attention weights.
  Tensor scores = add_scores(query, key, scale);
  scores = each(PointwiseMode::kSubtract, {scores, of_floats(AttentionId::kLogSumExp, queries_of(1))});
  if (p.causal) scores = add_causal(scores);
  const Tensor weights = each(PointwiseMode::kExp, {scores});
  add_keys_gradient(weights, grad, given(AttentionId::kGradValue, keys_of(p.value_size), p.grad_value));
  // The gradient of the scores, times the scale.
  const Tensor products = intermediate(weights.sizes);
  multiply(grad, value, products);
  const Tensor of_scores =
      each(PointwiseMode::kMultiply,
           {each(PointwiseMode::kMultiply, {each(PointwiseMode::kSubtract, {products, delta}), weights}), scale});
  add_keys_gradient(of_scores, query, given(AttentionId::kGradKey, keys_of(p.size), p.grad_key));
  const Tensor keys = intermediate(keys_of(p.size), p.key, p.type);
  reshape(key, keys);
  const Tensor result = given(AttentionId::kGradQuery, queries_of(p.size), p.grad_query);
  if (!accumulates_query_gradient(p)) {
    multiply(of_scores, keys, result);
    return;
  }
  const Tensor accumulator = of_floats(AttentionId::kQuerySum, queries_of(p.size));
  multiply(of_scores, keys, accumulator);
  each(PointwiseMode::kIdentity, {accumulator}, result);
}

}  // namespace

AttentionProblem::Strides packed_heads(int64_t heads, int64_t rows, int64_t elements) {
  return {heads * rows * elements, rows * elements, elements, 1};
}

std::string AttentionProblem::key_of() const {
  std::string text = std::to_string(static_cast<int>(pass)) + "t" + std::to_string(static_cast<int>(type)) +
                     (causal ? "c" : "") + (deterministic ? "d" : "");
  for (const int64_t number :
       {batch, heads, key_heads, queries, keys, size, value_size, bias_batch, bias_heads, bias_row}) {
    text += ":" + std::to_string(number);
  }
  for (const Strides* strides : {&query, &key, &value, &out, &grad, &grad_query, &grad_key, &grad_value}) {
    text += ":";
    for (const int64_t stride : *strides) text += std::to_string(stride) + ",";
  }
  return text;
}

bool accumulates_query_gradient(const AttentionProblem& problem) { return !problem.deterministic; }

Status describe_attention(const dnn::Table& table, dnn::Handle handle, const AttentionProblem& problem,
                          std::vector<dnn::Descriptor>* made, dnn::Descriptor* graph) {
  GraphBuilder maker(table, problem, made);
  if (problem.pass == AttentionPass::kForward) {
    maker.add_forward();
  } else {
    maker.add_backward();
  }
  return maker.finish(handle, graph);
}

}  // namespace torch_remote::worker::cuda
