#include "worker/targets/aten/kernels/images/images.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/aten/kernels/images/layout_conversion.h"
#include "worker/targets/aten/kernels/parallel.h"

namespace torch_remote::worker::aten {
namespace {

using at::Tensor;

// Smaller calls are left to torch.
constexpr int64_t kLeastElements = 4096;

// -- cat --------------------------------------------------------------------------------------------------------------

// (tensors, dim)
std::vector<Tensor> join_images(std::span<const c10::IValue> arguments, const Tensor& result) {
  const c10::List<Tensor> parts = arguments[0].toTensorList();
  if (result.numel() < kLeastElements || !result.is_non_overlapping_and_dense()) return {};
  const int64_t dim = arguments[1].toInt() < 0 ? arguments[1].toInt() + result.dim() : arguments[1].toInt();
  if (dim < 0 || dim >= result.dim()) return {};
  bool any_differs = false;
  const Tensor made = at::empty_strided(result.sizes(), result.strides(), result.options());
  std::vector<Tensor> slices;
  int64_t begin = 0;
  for (const Tensor& part : parts) {
    // torch skips empty tensors, even those with one dim
    if (part.dim() != made.dim() || part.scalar_type() != made.scalar_type()) return {};
    if (part.size(dim) > made.size(dim) - begin) return {};
    slices.push_back(made.narrow(dim, begin, part.size(dim)));
    if (part.sizes() != slices.back().sizes()) return {};
    begin += part.size(dim);
    any_differs |= layouts_differ(part, slices.back());
  }
  if (!any_differs || begin != made.size(dim)) return {};
  for (size_t i = 0; i < slices.size(); ++i) {
    if (!copy_converting_layout(parts[i], slices[i])) slices[i].copy_(parts[i]);
  }
  return {made};
}

// -- group norm -------------------------------------------------------------------------------------------------------

// A block has at most this many elements, so that its second pass finds them in the L1 cache.
constexpr int64_t kNormedElements = 8192;

// The sum of a group's values in a block of positions, and the sum of squared differences from the block's mean.
struct Moments {
  double sum = 0, squares = 0;
};

// sums[c] = the sum of values[position * channels + c] over all positions
TR_FOR_EACH_CPU void add_positions(const float* __restrict values, int64_t positions, int64_t channels,
                                   float* __restrict sums) {
  for (int64_t c = 0; c < channels; ++c) sums[c] = 0;
  for (int64_t p = 0; p < positions; ++p) {
    const float* __restrict row = values + p * channels;
    for (int64_t c = 0; c < channels; ++c) sums[c] += row[c];
  }
}

// sums[c] = the sum of differences from means[c]; squares[c] = the sum of their squares.
TR_FOR_EACH_CPU void add_differences(const float* __restrict values, int64_t positions, int64_t channels,
                                     const float* __restrict means, float* __restrict sums, float* __restrict squares) {
  for (int64_t c = 0; c < channels; ++c) sums[c] = squares[c] = 0;
  for (int64_t p = 0; p < positions; ++p) {
    const float* __restrict row = values + p * channels;
    for (int64_t c = 0; c < channels; ++c) {
      const float off = row[c] - means[c];
      sums[c] += off;
      squares[c] += off * off;
    }
  }
}

TR_FOR_EACH_CPU void scale_positions(const float* __restrict values, int64_t positions, int64_t channels,
                                     const float* __restrict means, const float* __restrict scales,
                                     const float* __restrict shifts, float* __restrict made) {
  for (int64_t p = 0; p < positions; ++p) {
    const float* __restrict row = values + p * channels;
    for (int64_t c = 0; c < channels; ++c) made[p * channels + c] = (row[c] - means[c]) * scales[c] + shifts[c];
  }
}

// Writes one image's block: a pair per group. Uses the corrected two-pass algorithm (Chan, Golub, LeVeque, "Algorithms
// for computing the sample variance", 1983).
void find_moments(const float* values, int64_t positions, int64_t channels, int64_t groups, std::vector<float>& scratch,
                  Moments* moments) {
  const int64_t each = channels / groups;
  const auto count = static_cast<double>(positions * each);
  scratch.resize(static_cast<size_t>(3 * channels));
  float *const sums = scratch.data(), *const squares = sums + channels, *const means = squares + channels;
  const auto total = [&](const float* of, int64_t g) {
    double sum = 0;
    for (int64_t c = g * each; c < (g + 1) * each; ++c) sum += static_cast<double>(of[c]);
    return sum;
  };
  add_positions(values, positions, channels, sums);
  for (int64_t g = 0; g < groups; ++g) std::fill_n(means + g * each, each, static_cast<float>(total(sums, g) / count));
  add_differences(values, positions, channels, means, sums, squares);
  for (int64_t g = 0; g < groups; ++g) {
    const double off = total(sums, g);
    moments[g] = {off + count * static_cast<double>(means[g * each]), total(squares, g) - off * off / count};
  }
}

// (input, weight, bias, N, C, HxW, group, eps) -> (result, mean, rstd). The blocks depend on sizes alone, so the bits
// do not depend on the number of threads.
std::vector<Tensor> normalize_groups(std::span<const c10::IValue> arguments) {
  const Tensor& input = arguments[0].toTensor();
  ImageLayout layout;
  if (input.scalar_type() != at::kFloat || !find_image_layout(input, &layout) || !layout.is_channels_last() ||
      layout.position_stride != layout.channels || input.numel() < kLeastElements ||
      !input.is_non_overlapping_and_dense()) {
    return {};
  }
  const int64_t images = input.size(0), channels = layout.channels, positions = layout.positions;
  const int64_t groups = arguments[6].toInt();
  const double eps = arguments[7].toDouble();
  if (arguments[3].toInt() != images || arguments[4].toInt() != channels || arguments[5].toInt() != positions ||
      groups < 1 || channels % groups != 0) {
    return {};
  }
  const int64_t each = channels / groups;
  const auto factors = [&](size_t i) -> std::optional<const float*> {
    if (!arguments[i].isTensor() || !arguments[i].toTensor().defined()) return nullptr;
    const Tensor& tensor = arguments[i].toTensor();
    if (tensor.scalar_type() != at::kFloat || !tensor.is_contiguous() || tensor.numel() != channels)
      return std::nullopt;
    return tensor.const_data_ptr<float>();
  };
  const auto weight = factors(1), bias = factors(2);
  if (!weight || !bias) return {};

  const Tensor made = at::empty_strided(input.sizes(), input.strides(), input.options());
  const Tensor mean = at::empty({images, groups}, input.options()), rstd = at::empty({images, groups}, input.options());
  const float* const from = input.const_data_ptr<float>();
  float* const to = made.mutable_data_ptr<float>();
  float *const means = mean.mutable_data_ptr<float>(), *const rstds = rstd.mutable_data_ptr<float>();
  const int64_t size = std::clamp<int64_t>(kNormedElements / channels, 1, positions),
                blocks = (positions + size - 1) / size;
  const auto positions_of = [&](int64_t block) { return std::min(size, positions - block * size); };

  std::vector<Moments> moments(static_cast<size_t>(images * blocks * groups));
  run_parallel(images * blocks, 2, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i / blocks * positions + i % blocks * size;
      find_moments(from + first * channels, positions_of(i % blocks), channels, groups, scratch,
                   moments.data() + i * groups);
    }
  });
  // Per channel: the number to subtract, the factor, and the number to add.
  std::vector<float> centers(static_cast<size_t>(images * channels)), scales(centers.size()), shifts(centers.size());
  for (int64_t n = 0; n < images; ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      const auto count = static_cast<double>(positions * each);
      double sum = 0, squares = 0;
      for (int64_t b = 0; b < blocks; ++b) sum += moments[(n * blocks + b) * groups + g].sum;
      const double average = sum / count;
      for (int64_t b = 0; b < blocks; ++b) {
        const Moments& block = moments[(n * blocks + b) * groups + g];
        const auto elements = static_cast<double>(positions_of(b) * each);
        const double off = block.sum / elements - average;
        squares += block.squares + elements * off * off;
      }
      // Rounding errors of a constant image may give a negative sum.
      const double variance = squares < 0 ? 0 : squares / count, inverse = 1 / std::sqrt(variance + eps);
      means[n * groups + g] = static_cast<float>(average);
      rstds[n * groups + g] = static_cast<float>(inverse);
      for (int64_t c = g * each; c < (g + 1) * each; ++c) {
        const double weighted = inverse * (*weight != nullptr ? static_cast<double>((*weight)[c]) : 1);
        const auto center = static_cast<float>(average);
        const double rest = (average - static_cast<double>(center)) * weighted;
        centers[n * channels + c] = center;
        scales[n * channels + c] = static_cast<float>(weighted);
        shifts[n * channels + c] = static_cast<float>((*bias != nullptr ? static_cast<double>((*bias)[c]) : 0) - rest);
      }
    }
  }
  run_parallel(images * blocks, 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / blocks, first = n * positions + i % blocks * size;
      scale_positions(from + first * channels, positions_of(i % blocks), channels, centers.data() + n * channels,
                      scales.data() + n * channels, shifts.data() + n * channels, to + first * channels);
    }
  });
  return {made, mean, rstd};
}

}  // namespace

bool may_use_image_kernels(const ir::Node& node) {
  return (node.opcode == ir::ops::aten_cat || node.opcode == ir::ops::aten_native_group_norm) &&
         node.results[0].tag == ir::ArgTag::kView;
}

std::vector<Tensor> run_image_kernel(const ir::Node& node, std::span<const c10::IValue> arguments,
                                     const Tensor& result) {
  return node.opcode == ir::ops::aten_cat ? join_images(arguments, result) : normalize_groups(arguments);
}

}  // namespace torch_remote::worker::aten
