#include "worker/targets/cpu/compiled/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "ir/number.h"
#include "ir/ops/op_table_generated.h"
#include "worker/targets/cpu/compiled/gemm_shape.h"
#include "worker/targets/cpu/compiled/scratch.h"
#include "worker/targets/cpu/loops/host.h"

namespace torch_remote::worker::kernels {
namespace {

using ir::Arg;
using ir::ArgTag;

// Fewer multiplications than this take less time than waking a thread.
constexpr double kTiny = 1 << 18;
// With fewer tasks than this, the keys are split into pieces of at least this many keys, to give threads work.
constexpr int64_t kFewTasks = 8, kLeastPiece = 512;

std::optional<AttentionType> type_of(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::kFloat32:
      return AttentionType::kFloat;
    case ir::DType::kBFloat16:
      return AttentionType::kBFloat16;
    case ir::DType::kFloat16:
      return AttentionType::kHalf;
    case ir::DType::kBool:
      return AttentionType::kBool;
    default:
      return std::nullopt;
  }
}

// A view with its sizes and strides in this run.
struct Bound {
  const ir::View& view;
  std::vector<int64_t> sizes, strides;
};

}  // namespace

const AttentionLoops* attention_loops(std::string_view target) { return loops_for(target, kAttentionLevels); }

namespace {

// Reads a node's arguments into a call. Each function returns whether the loops support them.
class Binder {
 public:
  Binder(const ir::Graph& graph, std::span<const int64_t> values, AttentionCall* call,
         std::vector<TensorLocation>* places)
      : graph_(graph), values_(values), call_(call), places_(places) {}

  bool forward(const ir::Node& node) {
    const auto& args = node.args;
    return operands(args[0], args[1], args[2]) && options(args[3], args[4], args[5]) &&
           rows(node.results[0], call_->value_size, &AttentionCall::out) &&
           (node.results[1].tag == ArgTag::kNone || statistics(node.results[1]));
  }

  bool backward(const ir::Node& node) {
    const auto& args = node.args;
    const auto wanted = [&](const Arg& result, auto bind) { return result.tag == ArgTag::kNone || bind(result); };
    return operands(args[1], args[2], args[3]) && options(args[6], args[7], args[8]) &&
           rows(args[0], call_->value_size, &AttentionCall::grad) &&
           rows(args[4], call_->value_size, &AttentionCall::out) && statistics(args[5]) &&
           wanted(node.results[0],
                  [&](const Arg& result) { return rows(result, call_->size, &AttentionCall::grad_query); }) &&
           wanted(node.results[1],
                  [&](const Arg& result) { return keys(result, call_->size, &AttentionCall::grad_key); }) &&
           wanted(node.results[2],
                  [&](const Arg& result) { return keys(result, call_->value_size, &AttentionCall::grad_value); });
  }

 private:
  bool operands(const Arg& query, const Arg& key, const Arg& value) {
    const std::optional<Bound> q = view_of(query), k = view_of(key), v = view_of(value);
    if (!q || !k || !v || q->sizes.size() != 4 || k->sizes.size() != 4 || v->sizes.size() != 4) return false;
    for (const Bound* tensor : {&*q, &*k, &*v}) {
      if (std::ranges::count(tensor->sizes, 0) != 0) return false;
    }
    const std::optional<AttentionType> type = type_of(q->view.dtype);
    if (!type || *type == AttentionType::kBool || q->sizes[1] % k->sizes[1] != 0) return false;
    dtype_ = q->view.dtype;
    call_->type = *type;
    call_->batch = q->sizes[0];
    call_->heads = k->sizes[1];
    call_->shared = q->sizes[1] / k->sizes[1];
    call_->queries = q->sizes[2];
    call_->keys = k->sizes[2];
    call_->size = q->sizes[3];
    call_->value_size = v->sizes[3];
    return rows(query, call_->size, &AttentionCall::query) && keys(key, call_->size, &AttentionCall::key) &&
           keys(value, call_->value_size, &AttentionCall::value);
  }

  bool options(const Arg& bias, const Arg& causal, const Arg& scale) {
    if (causal.tag != ArgTag::kBool || (scale.tag != ArgTag::kNone && scale.tag != ArgTag::kFloat)) return false;
    call_->causal = values_[causal.a] != 0;
    const double natural = 1 / std::sqrt(static_cast<double>(call_->size));
    call_->scale = static_cast<float>(ir::number_of(scale, values_).value_or(natural));
    return bias.tag == ArgTag::kNone || bind_bias(bias);
  }

  int64_t query_heads() const { return call_->heads * call_->shared; }
  bool rows(const Arg& arg, int64_t size, AttentionTensor AttentionCall::* tensor) {
    return bind(arg, dtype_, {call_->batch, query_heads(), call_->queries, size}, tensor);
  }
  bool keys(const Arg& arg, int64_t size, AttentionTensor AttentionCall::* tensor) {
    return bind(arg, dtype_, {call_->batch, call_->heads, call_->keys, size}, tensor);
  }
  bool statistics(const Arg& arg) {
    return bind(arg, ir::DType::kFloat32, {call_->batch, query_heads(), call_->queries}, &AttentionCall::logsumexp);
  }

  // The bias is broadcast along its dims of size 1 and along missing leading dims.
  bool bind_bias(const Arg& arg) {
    const std::optional<Bound> bias = view_of(arg);
    if (!bias || bias->sizes.size() > 4) return false;
    const std::optional<AttentionType> type = type_of(bias->view.dtype);
    if (!type || (*type != AttentionType::kBool && *type != call_->type)) return false;
    call_->bias_type = *type;
    const std::array<int64_t, 4> sizes = {call_->batch, query_heads(), call_->queries, call_->keys};
    const size_t missing = 4 - bias->sizes.size();
    for (size_t d = missing; d < 4; ++d) {
      const int64_t size = bias->sizes[d - missing];
      if (size != sizes[d] && size != 1) return false;
      call_->bias.strides[d] = size == 1 ? 0 : bias->strides[d - missing];
    }
    note(bias->view, &AttentionCall::bias);
    return true;
  }

  std::optional<Bound> view_of(const Arg& arg) const {
    if (arg.tag != ArgTag::kView || graph_.views[arg.a].dynamic) return std::nullopt;
    Bound found{graph_.views[arg.a], {}, {}};
    for (const ir::Sym size : found.view.sizes) found.sizes.push_back(values_[size]);
    for (const ir::Sym stride : found.view.strides) found.strides.push_back(values_[stride]);
    return found;
  }

  bool bind(const Arg& arg, ir::DType dtype, const std::vector<int64_t>& sizes,
            AttentionTensor AttentionCall::* tensor) {
    const std::optional<Bound> found = view_of(arg);
    if (!found || found->view.dtype != dtype || found->sizes != sizes) return false;
    std::ranges::copy(found->strides, (call_->*tensor).strides);
    note(found->view, tensor);
    return true;
  }

  void note(const ir::View& view, AttentionTensor AttentionCall::* tensor) {
    const auto item = static_cast<int64_t>(ir::item_size(view.dtype));
    places_->push_back({view.buffer, values_[view.offset] * item, tensor});
  }

  const ir::Graph& graph_;
  const std::span<const int64_t> values_;
  AttentionCall* call_;
  std::vector<TensorLocation>* places_;
  ir::DType dtype_ = ir::DType::kFloat32;  // of the query
};

}  // namespace

std::unique_ptr<Attention> Attention::bind(const ir::Graph& graph, const ir::Node& node,
                                           std::span<const int64_t> values, const AttentionLoops& loops) {
  std::unique_ptr<Attention> made(new Attention(loops));
  made->forward_ = node.opcode == ir::ops::remote_attention;
  if (!made->forward_ && node.opcode != ir::ops::remote_attention_backward) return nullptr;
  Binder binder(graph, values, &made->call_, &made->places_);
  if (made->forward_ ? !binder.forward(node) : !binder.backward(node)) return nullptr;
  made->split();
  return made;
}

void Attention::split() {
  const int64_t rows = call_.shared * call_.queries, heads = call_.batch * call_.heads;
  pieces_.rows = kAttentionRows;
  pieces_.blocks = (rows + kAttentionRows - 1) / kAttentionRows;
  pieces_.keys = call_.keys;
  if (const int64_t tasks = heads * pieces_.blocks; tasks < kFewTasks) {
    const int64_t wanted = std::max((call_.keys * tasks + kFewTasks - 1) / kFewTasks, kLeastPiece);
    pieces_.keys = (wanted + kAttentionKeys - 1) / kAttentionKeys * kAttentionKeys;
  }
  pieces_.count = (call_.keys + pieces_.keys - 1) / pieces_.keys;
  multiplications_ = static_cast<double>(heads) * static_cast<double>(rows) * static_cast<double>(call_.keys) *
                     static_cast<double>(call_.size + call_.value_size);
  tiny_ = multiplications_ < kTiny;
}

double Attention::points() const {
  const int64_t rows = std::max<int64_t>(1, call_.shared * call_.queries);
  return gemm_points(multiplications_ / static_cast<double>(rows), rows);
}

size_t Attention::scratch() const {
  if (!forward_) return loops_.backward_scratch(call_);
  const int64_t tasks = call_.batch * call_.heads * pieces_.blocks * pieces_.count;
  const int64_t partials = pieces_.count == 1 ? 0 : tasks * loops_.partial(call_);
  return loops_.forward_scratch(call_) + static_cast<size_t>(partials) * sizeof(float);
}

void Attention::run(std::span<const tr_buffer> buffers, const ParallelFor& parallel) {
  AttentionCall call = call_;
  for (const TensorLocation& place : places_) {
    (call.*place.tensor).data = static_cast<std::byte*>(buffers[place.buffer].data) + place.offset;
  }
  forward_ ? run_forward(call, parallel) : run_backward(call, parallel);
}

namespace {

std::byte* thread_scratch(size_t bytes) {
  thread_local Scratch scratch;
  return scratch.get(bytes);
}

template <typename Body>
void deal(int64_t count, const ParallelFor& parallel, const Body& body) {
  if (!parallel || count == 1) return body(0, count);
  parallel(count, 1, body);
}

}  // namespace

void Attention::run_forward(const AttentionCall& call, const ParallelFor& parallel) const {
  const ParallelFor& threads = tiny_ ? ParallelFor() : parallel;
  const int64_t tasks = call.batch * call.heads * pieces_.blocks, partial = loops_.partial(call);
  const size_t bytes = loops_.forward_scratch(call);
  std::vector<float> partials(pieces_.count == 1 ? 0 : static_cast<size_t>(tasks * pieces_.count * partial));
  const auto partial_of = [&](int64_t task) { return partials.empty() ? nullptr : partials.data() + task * partial; };
  deal(tasks * pieces_.count, threads, [&](int64_t begin, int64_t end) {
    std::byte* memory = thread_scratch(bytes);
    for (int64_t task = begin; task < end; ++task) loops_.forward(call, pieces_, task, memory, partial_of(task));
  });
  if (partials.empty()) return;
  deal(tasks, threads, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      loops_.join(call, pieces_, task, partial_of(task * pieces_.count));
    }
  });
}

void Attention::run_backward(const AttentionCall& call, const ParallelFor& parallel) const {
  const size_t bytes = loops_.backward_scratch(call);
  deal(call.batch * call.heads, tiny_ ? ParallelFor() : parallel, [&](int64_t begin, int64_t end) {
    std::byte* memory = thread_scratch(bytes);
    for (int64_t task = begin; task < end; ++task) loops_.backward(call, task, memory);
  });
}

}  // namespace torch_remote::worker::kernels
