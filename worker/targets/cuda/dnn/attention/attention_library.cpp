#include "worker/targets/cuda/dnn/attention/attention_library.h"

#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "worker/targets/cuda/dnn/cudnn_descriptors.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr uint64_t kPieceAlignment = 256;

uint64_t padded(uint64_t bytes) { return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment; }

// Bytes that a call needs in addition to the plan's workspace: row sums (delta), and the gradient of queries in f32.
uint64_t delta_bytes(const AttentionProblem& problem) {
  if (problem.pass == AttentionPass::kForward) return 0;
  return padded(static_cast<uint64_t>(problem.batch * problem.heads * problem.queries) * sizeof(float));
}
uint64_t sum_bytes(const AttentionProblem& problem) {
  if (problem.pass == AttentionPass::kForward || !accumulates_query_gradient(problem)) return 0;
  return padded(static_cast<uint64_t>(problem.batch * problem.heads * problem.queries * problem.size) * sizeof(float));
}

}  // namespace

AttentionLibrary::AttentionLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options)
    : DeferredPlans(std::move(gpu), memory, std::move(options), "attention") {}

Status AttentionLibrary::open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                              std::unique_ptr<AttentionLibrary>* opened) {
  std::unique_ptr<AttentionLibrary> library(new AttentionLibrary(std::move(gpu), memory, std::move(options)));
  const size_t version = library->table().get_version();
  if (version < kOldest) {
    return {ErrorCode::kUnsupported, "cudnn: attention needs cuDNN 9.18 or later, but this is " +
                                         std::to_string(version) + "; update it: pip install -U nvidia-cudnn-cu13"};
  }
  Status status = library->begin("attention");
  if (status.ok()) *opened = std::move(library);
  return status;
}

Status AttentionLibrary::describe(const AttentionProblem& problem, dnn::Handle handle,
                                  std::vector<dnn::Descriptor>* made, dnn::Descriptor* graph) const {
  return describe_attention(table(), handle, problem, made, graph);
}

// `memory` holds the plan's workspace, padded, then delta, then kQuerySum.
Status AttentionLibrary::call(const AttentionProblem& problem, const dnn::Plan& plan, const AttentionPointers& pointers,
                              DevicePointer memory, Stream stream) const {
  static constexpr float kMasked = -std::numeric_limits<float>::infinity(), kOne = 1;
  std::vector<int64_t> ids;
  std::vector<DevicePointer> addresses;
  const auto add = [&](AttentionId id, DevicePointer address) {
    ids.push_back(static_cast<int64_t>(id));
    addresses.push_back(address);
  };
  const auto number = [](const float& value) { return reinterpret_cast<DevicePointer>(&value); };
  add(AttentionId::kQuery, pointers.query);
  add(AttentionId::kKey, pointers.key);
  add(AttentionId::kValue, pointers.value);
  add(AttentionId::kOut, pointers.out);
  add(AttentionId::kLogSumExp, pointers.logsumexp);
  add(AttentionId::kScale, number(pointers.scale));
  if (problem.has_bias()) add(AttentionId::kBias, pointers.bias);
  if (problem.causal) add(AttentionId::kMasked, number(kMasked));
  if (problem.pass == AttentionPass::kBackward) {
    const DevicePointer delta = memory + padded(plan.workspace);
    add(AttentionId::kGrad, pointers.grad);
    add(AttentionId::kGradQuery, pointers.grad_query);
    add(AttentionId::kGradKey, pointers.grad_key);
    add(AttentionId::kGradValue, pointers.grad_value);
    add(AttentionId::kOne, number(kOne));
    add(AttentionId::kDelta, delta);
    if (accumulates_query_gradient(problem)) add(AttentionId::kQuerySum, delta + delta_bytes(problem));
  }
  return dnn::execute(table(), handle(), plan.plan, ids, addresses, plan.workspace == 0 ? 0 : memory, stream);
}

Status AttentionLibrary::run(const Prepared& prepared, const AttentionPointers& pointers) {
  const AttentionProblem& problem = prepared->problem();
  return run_plan(
      prepared,
      {pointers.query, pointers.key, pointers.value, pointers.out, pointers.logsumexp, pointers.bias, pointers.grad,
       pointers.grad_query, pointers.grad_key, pointers.grad_value, std::bit_cast<uint32_t>(pointers.scale)},
      delta_bytes(problem) + sum_bytes(problem),
      [this, prepared, pointers](const dnn::Plan& plan, DevicePointer workspace, Stream stream) {
        return call(prepared->problem(), plan, pointers, workspace, stream);
      });
}

}  // namespace torch_remote::worker::cuda
