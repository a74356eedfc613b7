#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/norm_arguments.h"
#include "worker/targets/cuda/ops/op_plan.h"

// Gradients of group norm with several groups, which compiled kernels do not support. Also layer norm and batch norm in
// forms that compiled kernels lack: dims of size 1, mixed layouts, an expanded gradient.
namespace torch_remote::worker::cuda {
namespace {

// Without elements, means are 0 and the reciprocals of standard deviations are NaN.
Status empty_group_norm(OpPlanner& planner) {
  const auto mean = planner.result(1), rstd = planner.result(2);
  if (mean) planner.zero(planner.output(*mean), mean->nbytes());
  if (!rstd) return {};
  planner
      .launch(KernelFile::kFill, "fill_bits",
              FillArguments{.count = rstd->count(),
                            .item = ir::item_size(rstd->dtype),
                            .bits = float_bits(std::numeric_limits<double>::quiet_NaN(), rstd->dtype)},
              blocks_for(rstd->count()))
      .at(&FillArguments::out, planner.output(*rstd));
  return {};
}

// Group norm in which each channel is a group, with one element per channel or strided elements. It is executed as
// batch norm of a single image that has the channels of all images. (Other forms are compiled.)
Status group_norm(OpPlanner& planner) {
  const auto input = planner.tensor("input");
  if (!input) return unsupported("without operands");
  if (input->count() == 0) return empty_group_norm(planner);
  const int64_t images = planner.integer("N"), channels = planner.integer("C");
  const auto to = planner.result(0), mean = planner.result(1), rstd = planner.result(2);
  if (!to || planner.integer("group") != channels) return unsupported("of such an image");
  // The tensor repeated for each image.
  const auto repeated = [&](std::optional<OpTensor> tensor) {
    if (!tensor) return Location();
    tensor->sizes.insert(tensor->sizes.begin(), images);
    tensor->strides.insert(tensor->strides.begin(), 0);
    return planner.packed(*tensor);
  };
  const auto weight = planner.tensor("weight"), bias = planner.tensor("bias");
  if (weight && bias && weight->dtype != bias->dtype) return unsupported("of two dtypes");
  const auto& statistics = mean ? mean : rstd;
  const auto& of = weight ? weight : bias;
  const BatchNormArguments arguments{.batch = 1,
                                     .channels = images * channels,
                                     .space = planner.integer("HxW"),
                                     .dtype = static_cast<i64>(input->dtype),
                                     .weight_dtype = of ? static_cast<i64>(of->dtype) : 0,
                                     .stat_dtype = statistics ? static_cast<i64>(statistics->dtype) : 0,
                                     .trains = 1,
                                     .epsilon = planner.number("eps")};
  const Location from = planner.packed(*input), weights = repeated(weight), biases = repeated(bias);
  planner.launch(KernelFile::kNorm, "batch_norm", arguments, std::min(arguments.channels, kMaxBlocks))
      .at(&BatchNormArguments::input, from)
      .at(&BatchNormArguments::weight, weights)
      .at(&BatchNormArguments::bias, biases)
      .at(&BatchNormArguments::out, planner.output(*to))
      .at(&BatchNormArguments::mean, mean ? planner.output(*mean) : Location())
      .at(&BatchNormArguments::rstd, rstd ? planner.output(*rstd) : Location());
  return {};
}

Status group_norm_backward(OpPlanner& planner) {
  const auto grad = planner.tensor("grad_out"), input = planner.tensor("input"), mean = planner.tensor("mean"),
             rstd = planner.tensor("rstd"), weight = planner.tensor("weight");
  if (!grad || !input || !mean || !rstd) return unsupported("without operands");
  // Unused gradients have no view.
  const auto grad_input = planner.result(0), grad_weight = planner.result(1), grad_bias = planner.result(2);
  const int64_t groups = planner.integer("group"), channels = planner.integer("C");
  const auto& of_weights = grad_weight ? grad_weight : grad_bias;
  if (!ir::is_float(input->dtype) || grad->dtype != input->dtype || mean->dtype != rstd->dtype || groups <= 0) {
    return unsupported("of such dtypes");
  }
  GroupNormArguments arguments{.batch = planner.integer("N"),
                               .groups = groups,
                               .channels = channels / groups,
                               .space = planner.integer("HxW"),
                               .dtype = static_cast<i64>(input->dtype),
                               .stat_dtype = static_cast<i64>(mean->dtype)};
  if (weight) arguments.weight_dtype = static_cast<i64>(weight->dtype);
  if (of_weights) arguments.grad_weight_dtype = static_cast<i64>(of_weights->dtype);
  const int64_t rows = arguments.batch * channels;
  const Location sums = planner.scratch(static_cast<uint64_t>(rows) * 16);
  const Location from = planner.packed(*grad), of = planner.packed(*input), means = planner.packed(*mean),
                 deviations = planner.packed(*rstd);
  const Location weights = weight ? planner.packed(*weight) : Location();
  const Location to = grad_input ? planner.output(*grad_input) : Location(),
                 to_weight = grad_weight ? planner.output(*grad_weight) : Location(),
                 to_bias = grad_bias ? planner.output(*grad_bias) : Location();
  const auto launch = [&](const char* kernel, int64_t grid) {
    planner.launch(KernelFile::kNorm, kernel, arguments, std::min(grid, kMaxBlocks))
        .at(&GroupNormArguments::grad, from)
        .at(&GroupNormArguments::input, of)
        .at(&GroupNormArguments::mean, means)
        .at(&GroupNormArguments::rstd, deviations)
        .at(&GroupNormArguments::weight, weights)
        .at(&GroupNormArguments::sums, sums)
        .at(&GroupNormArguments::grad_input, to)
        .at(&GroupNormArguments::grad_weight, to_weight)
        .at(&GroupNormArguments::grad_bias, to_bias);
  };
  launch("group_norm_sums", rows);
  if (grad_input) launch("group_norm_input", arguments.batch * groups);
  if (of_weights) launch("group_norm_weights", blocks_for(channels));
  return {};
}

Status layer_norm_backward(OpPlanner& planner) {
  const auto grad = planner.tensor("grad_out"), input = planner.tensor("input"), mean = planner.tensor("mean"),
             rstd = planner.tensor("rstd"), weight = planner.tensor("weight");
  const size_t dims = planner.integers("normalized_shape").size();
  if (!grad || !input || !mean || !rstd || dims > input->sizes.size()) return unsupported("without operands");
  const auto grad_input = planner.result(0), grad_weight = planner.result(1), grad_bias = planner.result(2);
  const auto& of_weights = grad_weight ? grad_weight : grad_bias;
  if (!ir::is_float(input->dtype) || grad->dtype != input->dtype || mean->dtype != rstd->dtype ||
      (weight && of_weights && weight->dtype != of_weights->dtype)) {
    return unsupported("of such dtypes");
  }
  LayerNormGradientArguments arguments{
      .rows = 1, .length = 1, .dtype = static_cast<i64>(input->dtype), .stat_dtype = static_cast<i64>(mean->dtype)};
  const size_t before = input->sizes.size() - dims;
  for (size_t d = 0; d < input->sizes.size(); ++d) (d < before ? arguments.rows : arguments.length) *= input->sizes[d];
  if (const auto& of = weight ? weight : of_weights) arguments.weight_dtype = static_cast<i64>(of->dtype);
  const int64_t across = (arguments.length + 255) / 256;
  arguments.parts = std::clamp<int64_t>(arguments.rows / 16, 1, std::max<int64_t>(1, 512 / across));
  const Location sums =
      of_weights ? planner.scratch(static_cast<uint64_t>(arguments.parts * arguments.length) * 16) : Location();
  const Location from = planner.packed(*grad), of = planner.packed(*input), means = planner.packed(*mean),
                 deviations = planner.packed(*rstd), weights = weight ? planner.packed(*weight) : Location();
  const Location to = grad_input ? planner.output(*grad_input) : Location(),
                 to_weight = grad_weight ? planner.output(*grad_weight) : Location(),
                 to_bias = grad_bias ? planner.output(*grad_bias) : Location();
  const auto launch = [&](const char* kernel, int64_t grid) {
    planner.launch(KernelFile::kNorm, kernel, arguments, std::min(grid, kMaxBlocks))
        .at(&LayerNormGradientArguments::grad, from)
        .at(&LayerNormGradientArguments::input, of)
        .at(&LayerNormGradientArguments::mean, means)
        .at(&LayerNormGradientArguments::rstd, deviations)
        .at(&LayerNormGradientArguments::weight, weights)
        .at(&LayerNormGradientArguments::sums, sums)
        .at(&LayerNormGradientArguments::grad_input, to)
        .at(&LayerNormGradientArguments::grad_weight, to_weight)
        .at(&LayerNormGradientArguments::grad_bias, to_bias);
  };
  if (grad_input) launch("layer_norm_input", arguments.rows);
  if (of_weights) {
    launch("layer_norm_parts", across * arguments.parts);
    launch("layer_norm_weights", blocks_for(arguments.length));
  }
  return {};
}

// Running statistics, which the kernel updates: the tensor itself, or a contiguous copy.
struct Running {
  std::optional<OpTensor> tensor;
  Location location;

  // Copies the updated statistics back, after the kernel.
  void copy_back(OpPlanner& planner) const {
    if (!tensor || tensor->is_packed()) return;
    OpTensor changed = *tensor;
    changed.location = location;
    changed.strides = packed_strides(changed.sizes);
    planner.copy(changed, *tensor);
  }
};

bool find_running(OpPlanner& planner, std::string_view name, Running* running, BatchNormArguments* arguments) {
  running->tensor = planner.tensor(name);
  if (!running->tensor) return true;
  if (!ir::is_float(running->tensor->dtype)) return false;
  running->location = planner.packed(*running->tensor);
  arguments->running_dtype = static_cast<i64>(running->tensor->dtype);
  return true;
}

// Names of arguments that differ between ops.
struct NormNames {
  std::string_view trains = "training", rstd = "save_invstd";
};

Status batch_norm(OpPlanner& planner, bool backward, bool always_trains = false, const NormNames& names = {}) {
  const auto input = planner.tensor("input"), weight = planner.tensor("weight"), bias = planner.tensor("bias");
  const auto grad = planner.tensor("grad_out");
  if (!input || input->sizes.size() < 2 || !ir::is_float(input->dtype) || (backward && !grad)) {
    return unsupported("of such dims");
  }
  BatchNormArguments arguments{.batch = input->sizes[0],
                               .channels = input->sizes[1],
                               .dtype = static_cast<i64>(input->dtype),
                               .epsilon = planner.number("eps")};
  for (size_t d = 2; d < input->sizes.size(); ++d) arguments.space *= input->sizes[d];
  arguments.trains = planner.flag(names.trains, always_trains) ? 1 : 0;
  arguments.momentum = planner.number("momentum");
  if (const auto& of = weight ? weight : bias) arguments.weight_dtype = static_cast<i64>(of->dtype);
  if (weight && bias && weight->dtype != bias->dtype) return unsupported("of two dtypes");
  Running running_mean, running_var;
  if (!find_running(planner, "running_mean", &running_mean, &arguments) ||
      !find_running(planner, "running_var", &running_var, &arguments)) {
    return unsupported("with such statistics");
  }
  if (arguments.trains == 0 && (!running_mean.tensor || !running_var.tensor)) {
    return unsupported("without statistics");
  }
  const auto packed = [&](const std::optional<OpTensor>& from) { return from ? planner.packed(*from) : Location(); };
  const auto output = [&](const std::optional<OpTensor>& made) {
    return made && made->count() != 0 ? planner.output(*made) : Location();
  };
  const auto mean = backward ? planner.tensor("save_mean") : planner.result(1),
             rstd = backward ? planner.tensor(names.rstd) : planner.result(2);
  if (mean) arguments.stat_dtype = static_cast<i64>(mean->dtype);
  const Location from = planner.packed(*input), weights = packed(weight), biases = packed(bias);
  const int64_t grid = std::min(arguments.channels, kMaxBlocks);
  if (!backward) {
    const auto to = planner.result(0);
    if (!to) return unsupported("without a result");
    planner.launch(KernelFile::kNorm, "batch_norm", arguments, grid)
        .at(&BatchNormArguments::input, from)
        .at(&BatchNormArguments::weight, weights)
        .at(&BatchNormArguments::bias, biases)
        .at(&BatchNormArguments::running_mean, running_mean.location)
        .at(&BatchNormArguments::running_var, running_var.location)
        .at(&BatchNormArguments::out, planner.output(*to))
        .at(&BatchNormArguments::mean, output(mean))
        .at(&BatchNormArguments::rstd, output(rstd));
    if (arguments.trains != 0) {
      running_mean.copy_back(planner);
      running_var.copy_back(planner);
    }
    return {};
  }
  if (arguments.trains != 0 && (!mean || !rstd)) return unsupported("without statistics");
  const auto grad_weight = planner.result(1), grad_bias = planner.result(2);
  if (const auto& of = grad_weight ? grad_weight : grad_bias) {
    if (weight && weight->dtype != of->dtype) return unsupported("of two dtypes");
    arguments.weight_dtype = static_cast<i64>(of->dtype);
  }
  const Location grads = planner.packed(*grad, input->dtype);
  const Location means = arguments.trains != 0 ? packed(mean) : Location(),
                 deviations = arguments.trains != 0 ? packed(rstd) : Location();
  planner.launch(KernelFile::kNorm, "batch_norm_backward", arguments, grid)
      .at(&BatchNormArguments::input, from)
      .at(&BatchNormArguments::weight, weights)
      .at(&BatchNormArguments::running_mean, running_mean.location)
      .at(&BatchNormArguments::running_var, running_var.location)
      .at(&BatchNormArguments::mean, means)
      .at(&BatchNormArguments::rstd, deviations)
      .at(&BatchNormArguments::grad, grads)
      .at(&BatchNormArguments::grad_input, output(planner.result(0)))
      .at(&BatchNormArguments::grad_weight, output(grad_weight))
      .at(&BatchNormArguments::grad_bias, output(grad_bias));
  return {};
}
Status batch_norm(OpPlanner& planner) { return batch_norm(planner, false); }
Status batch_norm_training(OpPlanner& planner) { return batch_norm(planner, false, true); }
Status batch_norm_backward(OpPlanner& planner) { return batch_norm(planner, true, false, {.trains = "train"}); }
// For _batch_norm_with_update.
Status updated_batch_norm_backward(OpPlanner& planner) {
  return batch_norm(planner, true, false, {.trains = "update", .rstd = "save_var"});
}

constexpr NamedPlan kNormPlans[] = {{"native_group_norm", group_norm},
                                    {"native_group_norm_backward", group_norm_backward},
                                    {"native_layer_norm_backward", layer_norm_backward},
                                    {"native_batch_norm", batch_norm},
                                    {"_native_batch_norm_legit", batch_norm},
                                    {"_batch_norm_with_update", batch_norm_training},
                                    {"_native_batch_norm_legit_no_training", batch_norm},
                                    {"native_batch_norm_backward", batch_norm_backward},
                                    {"batch_norm_backward", updated_batch_norm_backward}};

}  // namespace

std::span<const NamedPlan> norm_plans() { return kNormPlans; }

}  // namespace torch_remote::worker::cuda
