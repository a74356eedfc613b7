#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Attention and its gradients with hand-written kernels.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

// If there are fewer query rows than warps that keep a GPU busy, the keys are split into pieces of at least
// kMinPiece. The split depends only on sizes.
constexpr int64_t kEnoughWarps = 2048, kMinPiece = 128, kMaxPieces = 64;

const char* name_of(std::string_view kernel, DType dtype) {
  const struct {
    std::string_view kernel;
    const char *f32, *bf16, *f16, *f64;
  } all[] = {
      {"forward", "attention_forward_f32", "attention_forward_bf16", "attention_forward_f16", "attention_forward_f64"},
      {"join", "attention_join_f32", "attention_join_bf16", "attention_join_f16", "attention_join_f64"},
      {"delta", "attention_delta_f32", "attention_delta_bf16", "attention_delta_f16", "attention_delta_f64"},
      {"values", "attention_backward_values_f32", "attention_backward_values_bf16", "attention_backward_values_f16",
       "attention_backward_values_f64"},
      {"queries", "attention_backward_queries_f32", "attention_backward_queries_bf16", "attention_backward_queries_f16",
       "attention_backward_queries_f64"},
      {"keys", "attention_backward_keys_f32", "attention_backward_keys_bf16", "attention_backward_keys_f16",
       "attention_backward_keys_f64"}};
  for (const auto& names : all) {
    if (names.kernel != kernel) continue;
    return dtype == DType::kFloat32    ? names.f32
           : dtype == DType::kBFloat16 ? names.bf16
           : dtype == DType::kFloat16  ? names.f16
                                       : names.f64;
  }
  return nullptr;
}

// Plans both passes.
class Attention {
 public:
  explicit Attention(OpNode& node, PlanBuilder& plan) : node_(node), plan_(plan) {}

  Status find() {
    const std::optional<OpTensor> query = node_.tensor("query"), key = node_.tensor("key"),
                                  value = node_.tensor("value");
    if (!query || !key || !value || query->sizes.size() != 4 || key->sizes.size() != 4 || value->sizes.size() != 4) {
      return unsupported("of other than 4 dims");
    }
    dtype_ = query->dtype;
    const bool same = key->dtype == dtype_ && value->dtype == dtype_;
    if (!ir::is_float(dtype_) || ir::item_size(dtype_) < 2 || !same) return unsupported("of these dtypes");
    const bool fits = query->sizes[0] == key->sizes[0] && key->sizes[0] == value->sizes[0] &&
                      key->sizes[1] == value->sizes[1] && key->sizes[2] == value->sizes[2] &&
                      query->sizes[3] == key->sizes[3] && key->sizes[1] > 0 && query->sizes[1] % key->sizes[1] == 0;
    if (!fits) return unsupported("of sizes that do not go together");
    const int most = dtype_ == DType::kFloat64 ? kMaxAttentionF64 : kMaxAttention;
    if (query->sizes[3] > most || value->sizes[3] > most) {
      return unsupported("of heads of more than " + std::to_string(most) + " elements");
    }
    call_.batch = query->sizes[0];
    call_.heads = key->sizes[1];
    call_.shared = query->sizes[1] / key->sizes[1];
    call_.queries = query->sizes[2];
    call_.keys = key->sizes[2];
    call_.size = query->sizes[3];
    call_.value_size = value->sizes[3];
    call_.causal = node_.flag("is_causal") ? 1 : 0;
    call_.scale = node_.has("scale") ? node_.number("scale") : 1 / std::sqrt(static_cast<double>(call_.size));
    add(&AttentionArguments::query, call_.query_strides, *query);
    add(&AttentionArguments::key, call_.key_strides, *key);
    add(&AttentionArguments::value, call_.value_strides, *value);
    return find_bias();
  }

  Status forward() {
    if (Status status = find(); !status.ok()) return status;
    const std::optional<OpTensor> out = node_.result(0), logsumexp = node_.result(1);
    if (!out) return unsupported("without a result");
    if (!has_sizes(*out, call_.value_size) || !has_logsumexp(logsumexp))
      return unsupported("into another size or dtype");
    add(&AttentionArguments::out, call_.out_strides, *out, true);
    if (logsumexp) add_logsumexp(*logsumexp);
    const int64_t rows = call_.batch * call_.heads * call_.shared * call_.queries;
    const int64_t wanted = std::min(kEnoughWarps / std::max<int64_t>(rows, 1), kMaxPieces);
    call_.pieces = std::clamp<int64_t>(call_.keys / kMinPiece, 1, std::max<int64_t>(wanted, 1));
    call_.piece_keys = (call_.keys + call_.pieces - 1) / call_.pieces;
    if (call_.pieces > 1) {
      const uint64_t item = dtype_ == DType::kFloat64 ? 8 : 4;
      partial_ = plan_.scratch(item * static_cast<uint64_t>(rows * call_.pieces * (call_.value_size + 2)));
    }
    launch("forward", rows * call_.pieces);
    if (call_.pieces > 1) launch("join", rows);
    return {};
  }

  Status backward() {
    if (Status status = find(); !status.ok()) return status;
    const std::optional<OpTensor> grad = node_.tensor("grad"), out = node_.tensor("out"),
                                  logsumexp = node_.tensor("logsumexp");
    if (!grad || !out || !logsumexp || grad->dtype != dtype_ || out->dtype != dtype_)
      return unsupported("of these dtypes");
    if (!has_sizes(*grad, call_.value_size) || !has_sizes(*out, call_.value_size) || !has_logsumexp(logsumexp)) {
      return unsupported("of sizes that do not go together");
    }
    add(&AttentionArguments::grad, call_.grad_strides, *grad);
    add(&AttentionArguments::out, call_.out_strides, *out);
    add_logsumexp(*logsumexp);
    const std::optional<OpTensor> query = node_.result(0), key = node_.result(1), value = node_.result(2);
    const auto is_gradient = [&](const std::optional<OpTensor>& made, std::string_view of) {
      return !made || (made->dtype == dtype_ && made->sizes == node_.tensor(of)->sizes);
    };
    if (!is_gradient(query, "query") || !is_gradient(key, "key") || !is_gradient(value, "value")) {
      return unsupported("into another size or dtype");
    }
    if (query) add(&AttentionArguments::grad_query, call_.grad_query_strides, *query, true);
    if (key) add(&AttentionArguments::grad_key, call_.grad_key_strides, *key, true);
    if (value) add(&AttentionArguments::grad_value, call_.grad_value_strides, *value, true);
    const int64_t rows = call_.batch * call_.heads * call_.shared * call_.queries;
    const uint64_t item = dtype_ == DType::kFloat64 ? 8 : 4;
    delta_ = plan_.scratch(item * static_cast<uint64_t>(rows));
    launch("delta", rows);
    if (query) launch("queries", rows);
    if (key) launch("keys", call_.batch * call_.heads * call_.keys);
    if (value) launch("values", call_.batch * call_.heads * call_.keys);
    return {};
  }

 private:
  // Whether the tensor has a row of this size for each query.
  bool has_sizes(const OpTensor& tensor, int64_t size) const {
    const std::vector<int64_t> sizes = {call_.batch, call_.heads * call_.shared, call_.queries, size};
    return tensor.dtype == dtype_ && tensor.sizes == sizes;
  }
  bool has_logsumexp(const std::optional<OpTensor>& tensor) const {
    const std::vector<int64_t> sizes = {call_.batch, call_.heads * call_.shared, call_.queries};
    return !tensor || (ir::is_float(tensor->dtype) && tensor->sizes == sizes);
  }
  // Adds an operand or result. Dims of size 1 are broadcast. If a row's elements are strided, a contiguous copy is
  // used.
  void add(u64 AttentionArguments::* member, i64* strides, const OpTensor& given, bool written = false) {
    OpTensor tensor = given;
    const bool rows = member != &AttentionArguments::bias && !given.sizes.empty() && given.sizes.back() != 1;
    if (rows && given.strides.back() != 1) {
      tensor.strides = packed_strides(given.sizes);
      tensor.location = written ? plan_.output(given) : plan_.packed(given);
    }
    const size_t missing = 4 - tensor.sizes.size();
    for (size_t d = missing; d < 4; ++d) strides[d] = tensor.sizes[d - missing] == 1 ? 0 : tensor.strides[d - missing];
    locations_.push_back({member, tensor.location});
  }
  void add_logsumexp(const OpTensor& tensor) {
    for (size_t d = 0; d < 3 && d < tensor.sizes.size(); ++d) call_.logsumexp_strides[d] = tensor.strides[d];
    call_.logsumexp_dtype = static_cast<i64>(tensor.dtype);
    locations_.push_back({&AttentionArguments::logsumexp, tensor.location});
  }
  Status find_bias() {
    const std::optional<OpTensor> bias = node_.tensor("bias");
    if (!bias) return {};
    if (bias->dtype != DType::kBool && bias->dtype != dtype_) return unsupported("with a bias of another dtype");
    if (bias->sizes.size() > 4) return unsupported("with a bias of more than 4 dims");
    const int64_t wanted[] = {call_.batch, call_.heads * call_.shared, call_.queries, call_.keys};
    for (size_t d = 0; d < bias->sizes.size(); ++d) {
      const int64_t size = bias->sizes[d];
      if (size != 1 && size != wanted[4 - bias->sizes.size() + d]) return unsupported("with a bias of another size");
    }
    call_.bias_is_mask = bias->dtype == DType::kBool ? 1 : 0;
    add(&AttentionArguments::bias, call_.bias_strides, *bias);
    return {};
  }
  // `warps` warps, four in a block.
  void launch(std::string_view kernel, int64_t warps) {
    plan_
        .launch(KernelFile::kAttention, name_of(kernel, dtype_), call_, std::min<int64_t>((warps + 3) / 4, 1 << 20),
                128)
        .at_each(locations_)
        .at(&AttentionArguments::partial, partial_)
        .at(&AttentionArguments::delta, delta_);
  }

  OpNode& node_;
  PlanBuilder& plan_;
  AttentionArguments call_;
  DType dtype_ = DType::kFloat32;
  Location partial_, delta_;
  struct Member {
    u64 AttentionArguments::* member;
    Location location;
  };
  std::vector<Member> locations_;
};

}  // namespace

Status attention_plans::forward(OpNode& node, PlanBuilder& plan) { return Attention(node, plan).forward(); }
Status attention_plans::backward(OpNode& node, PlanBuilder& plan) { return Attention(node, plan).backward(); }

}  // namespace torch_remote::worker::cuda
