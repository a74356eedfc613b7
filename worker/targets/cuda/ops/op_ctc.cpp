#include <algorithm>
#include <cstring>
#include <utility>

#include "worker/targets/cuda/kernels/ctc_arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// CTC loss (ctc_loss) and its gradient.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

// The lengths from the call or from a tensor, as contiguous i64.
Location lengths_of(OpNode& node, PlanBuilder& plan, std::string_view name, int64_t batch) {
  if (const auto tensor = node.tensor(name)) {
    node.require(tensor->count() == batch);
    return plan.packed(*tensor, DType::kInt64);
  }
  std::vector<int64_t> lengths = node.integers(name);
  node.require(static_cast<int64_t>(lengths.size()) == batch);
  const Location location = plan.scratch(8 * static_cast<uint64_t>(batch));
  plan.upload({location, [lengths = std::move(lengths)](std::span<const int64_t>) {
                 std::vector<std::byte> bytes(8 * lengths.size());
                 std::memcpy(bytes.data(), lengths.data(), bytes.size());
                 return bytes;
               }});
  return location;
}

// The arguments of both passes. Scores are [time, batch, classes], alpha is [batch, time, states].
struct Read {
  CtcArguments arguments;
  Location targets, score_lengths, target_lengths;
};
Status read(OpNode& node, PlanBuilder& plan, const OpTensor& scores, const OpTensor& loss, const OpTensor& alpha,
            Read* made) {
  const auto targets = node.tensor("targets");
  if (!targets || scores.sizes.size() != 3 || alpha.sizes.size() != 3 || targets->sizes.empty() ||
      targets->sizes.size() > 2 || !ir::is_float(scores.dtype) || alpha.dtype != scores.dtype) {
    return unsupported("of other dims");
  }
  const int64_t blank = node.integer("blank");
  const bool fits = alpha.sizes[0] == scores.sizes[1] && alpha.sizes[1] == scores.sizes[0] && alpha.sizes[2] > 0 &&
                    (targets->sizes.size() == 1 || targets->sizes[0] == scores.sizes[1]) && blank >= 0 &&
                    blank < scores.sizes[2] && is_of(loss, scores.dtype, scores.sizes[1]);
  if (!fits) return unsupported("of sizes that do not match");
  CtcArguments& arguments = made->arguments;
  std::ranges::copy(scores.strides, arguments.score_strides);
  arguments.target_stride = targets->sizes.size() == 2 ? targets->sizes[1] : 0;
  arguments.time = scores.sizes[0];
  arguments.batch = scores.sizes[1];
  arguments.classes = scores.sizes[2];
  arguments.states = alpha.sizes[2];
  arguments.blank = blank;
  arguments.targets_count = targets->count();
  arguments.zero_infinity = node.flag("zero_infinity") ? 1 : 0;
  arguments.dtype = static_cast<i64>(scores.dtype);
  plan.add_operand(-1);
  made->targets = plan.packed(*targets, DType::kInt64);
  made->score_lengths = lengths_of(node, plan, "input_lengths", arguments.batch);
  made->target_lengths = lengths_of(node, plan, "target_lengths", arguments.batch);
  return {};
}

}  // namespace

Status ctc_plans::forward(OpNode& node, PlanBuilder& plan) {
  const auto scores = node.tensor("log_probs"), loss = node.result(0), alpha = node.result(1);
  if (!scores || !loss || !alpha) return unsupported("without a result");
  Read given;
  if (Status status = read(node, plan, *scores, *loss, *alpha, &given); !status.ok()) return status;
  plan.launch(KernelFile::kCtc, "ctc_forward", given.arguments, given.arguments.batch)
      .at(&CtcArguments::scores, scores->location)
      .at(&CtcArguments::targets, given.targets)
      .at(&CtcArguments::score_lengths, given.score_lengths)
      .at(&CtcArguments::target_lengths, given.target_lengths)
      .at(&CtcArguments::loss, plan.output(*loss))
      .at(&CtcArguments::alpha, plan.output(*alpha))
      .failure([](const CtcArguments& words) { return &words.failure; });
  return {};
}

Status ctc_plans::backward(OpNode& node, PlanBuilder& plan) {
  const auto grad = node.tensor("grad"), scores = node.tensor("log_probs"), loss = node.tensor("neg_log_likelihood"),
             alpha = node.tensor("log_alpha");
  if (!grad || !scores || !loss || !alpha) return unsupported("without a result");
  if (grad->sizes.size() > 1 || grad->dtype != scores->dtype) return unsupported("of other dims");
  if (scores->sizes.size() != 3 || (grad->count() != 1 && grad->count() != scores->sizes[1])) {
    return unsupported("of sizes that do not match");
  }
  Read given;
  if (Status status = read(node, plan, *scores, *loss, *alpha, &given); !status.ok()) return status;
  CtcArguments& arguments = given.arguments;
  arguments.grad_stride = grad->sizes.empty() || grad->sizes[0] == 1 ? 0 : grad->strides[0];
  const Location beta = plan.scratch(8 * static_cast<uint64_t>(2 * arguments.batch * arguments.states));
  const Location of_loss = plan.packed(*loss), of_alpha = plan.packed(*alpha);
  const auto launch = [=, from = scores->location, of_grad = grad->location](std::vector<OpStep>* steps, Location out) {
    LaunchBuilder(steps, KernelFile::kCtc, "ctc_backward", given.arguments, given.arguments.batch)
        .at(&CtcArguments::scores, from)
        .at(&CtcArguments::targets, given.targets)
        .at(&CtcArguments::score_lengths, given.score_lengths)
        .at(&CtcArguments::target_lengths, given.target_lengths)
        .at(&CtcArguments::loss, of_loss)
        .at(&CtcArguments::alpha, of_alpha)
        .at(&CtcArguments::grad, of_grad)
        .at(&CtcArguments::beta, beta)
        .at(&CtcArguments::out, out)
        .failure([](const CtcArguments& words) { return &words.failure; });
  };
  return make_result(plan, scores->dtype, scores->sizes, launch);
}

}  // namespace torch_remote::worker::cuda
