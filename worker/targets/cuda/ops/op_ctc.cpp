#include <algorithm>
#include <cstring>
#include <utility>

#include "worker/targets/cuda/kernels/ctc_arguments.h"
#include "worker/targets/cuda/ops/op_plan.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// CTC loss (ctc_loss) and its gradient.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

// The lengths from the call or from a tensor, as contiguous i64.
Location lengths_of(OpPlanner& planner, std::string_view name, int64_t batch) {
  if (const auto tensor = planner.tensor(name)) return planner.packed(*tensor, DType::kInt64);
  std::vector<int64_t> lengths = planner.integers(name);
  lengths.resize(static_cast<size_t>(batch));
  const Location location = planner.scratch(8 * static_cast<uint64_t>(batch));
  planner.upload({location, [lengths = std::move(lengths)](std::span<const int64_t>) {
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
Status read(OpPlanner& planner, const OpTensor& scores, const OpTensor& alpha, Read* made) {
  const auto targets = planner.tensor("targets");
  if (!targets || scores.sizes.size() != 3 || alpha.sizes.size() != 3 || targets->sizes.empty() ||
      targets->sizes.size() > 2 || !ir::is_float(scores.dtype) || alpha.dtype != scores.dtype) {
    return unsupported("of other dims");
  }
  CtcArguments& arguments = made->arguments;
  std::ranges::copy(scores.strides, arguments.score_strides);
  arguments.target_stride = targets->sizes.size() == 2 ? targets->sizes[1] : 0;
  arguments.time = scores.sizes[0];
  arguments.batch = scores.sizes[1];
  arguments.classes = scores.sizes[2];
  arguments.states = alpha.sizes[2];
  arguments.blank = planner.integer("blank");
  arguments.zero_infinity = planner.flag("zero_infinity") ? 1 : 0;
  arguments.dtype = static_cast<i64>(scores.dtype);
  made->targets = planner.packed(*targets, DType::kInt64);
  made->score_lengths = lengths_of(planner, "input_lengths", arguments.batch);
  made->target_lengths = lengths_of(planner, "target_lengths", arguments.batch);
  return {};
}

}  // namespace

Status ctc_plans::forward(OpPlanner& planner) {
  const auto scores = planner.tensor("log_probs"), loss = planner.result(0), alpha = planner.result(1);
  if (!scores || !loss || !alpha) return unsupported("without a result");
  Read given;
  if (Status status = read(planner, *scores, *alpha, &given); !status.ok()) return status;
  planner.launch(KernelFile::kCtc, "ctc_forward", given.arguments, given.arguments.batch)
      .at(&CtcArguments::scores, scores->location)
      .at(&CtcArguments::targets, given.targets)
      .at(&CtcArguments::score_lengths, given.score_lengths)
      .at(&CtcArguments::target_lengths, given.target_lengths)
      .at(&CtcArguments::loss, planner.output(*loss))
      .at(&CtcArguments::alpha, planner.output(*alpha));
  return {};
}

Status ctc_plans::backward(OpPlanner& planner) {
  const auto grad = planner.tensor("grad"), scores = planner.tensor("log_probs"),
             loss = planner.tensor("neg_log_likelihood"), alpha = planner.tensor("log_alpha");
  if (!grad || !scores || !loss || !alpha) return unsupported("without a result");
  if (grad->sizes.size() > 1 || grad->dtype != scores->dtype) return unsupported("of other dims");
  Read given;
  if (Status status = read(planner, *scores, *alpha, &given); !status.ok()) return status;
  CtcArguments& arguments = given.arguments;
  arguments.grad_stride = grad->sizes.empty() || grad->sizes[0] == 1 ? 0 : grad->strides[0];
  const Location beta = planner.scratch(8 * static_cast<uint64_t>(2 * arguments.batch * arguments.states));
  const Location of_loss = planner.packed(*loss), of_alpha = planner.packed(*alpha);
  const auto launch = [=, from = scores->location, of_grad = grad->location](std::vector<OpStep>* steps, Location out) {
    OpPlanner::add_launch(steps, KernelFile::kCtc, "ctc_backward", given.arguments, given.arguments.batch)
        .at(&CtcArguments::scores, from)
        .at(&CtcArguments::targets, given.targets)
        .at(&CtcArguments::score_lengths, given.score_lengths)
        .at(&CtcArguments::target_lengths, given.target_lengths)
        .at(&CtcArguments::loss, of_loss)
        .at(&CtcArguments::alpha, of_alpha)
        .at(&CtcArguments::grad, of_grad)
        .at(&CtcArguments::beta, beta)
        .at(&CtcArguments::out, out);
  };
  return make_result(planner, scores->dtype, scores->sizes, launch);
}

}  // namespace torch_remote::worker::cuda
