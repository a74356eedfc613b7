#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/image_arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Pooling, resampling and padding of images, and their gradients.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

constexpr int kSpace = 3;

// The number of space dims of an op: 2 for "avg_pool2d".
int space_of(const OpNode& node) {
  const std::string_view op = node.op();
  for (const auto& [name, dims] : {std::pair{"1d", 1}, {"2d", 2}, {"3d", 3}}) {
    if (op.find(name) != std::string_view::npos) return dims;
  }
  return 0;
}

// An image in the kernels' form. The address is filled in later. read_image returns false if the tensor has other dims.
struct Image {
  ImageView view;
  i64 batch = 1, channels = 1;
  i64 sizes[kSpace] = {1, 1, 1};
};
bool read_image(const OpTensor& tensor, int space, Image* image) {
  const size_t rank = tensor.sizes.size(), dims = static_cast<size_t>(space);
  if (dims == 0 || (rank != dims + 1 && rank != dims + 2)) return false;
  const size_t channel = rank - dims - 1;
  if (channel == 1) {
    image->batch = tensor.sizes[0];
    image->view.strides[0] = tensor.strides[0];
  }
  image->channels = tensor.sizes[channel];
  image->view.strides[1] = tensor.strides[channel];
  for (size_t d = 0; d < dims; ++d) {
    image->sizes[kSpace - dims + d] = tensor.sizes[channel + 1 + d];
    image->view.strides[2 + kSpace - dims + d] = tensor.strides[channel + 1 + d];
  }
  return true;
}

// Lists of windows have numbers below this, so that no product with a size overflows.
constexpr int64_t kMaxNumber = int64_t{1} << 31;

// Reads a list argument into the last `space` entries. An empty argument leaves the defaults.
bool read_list(OpNode& node, std::string_view name, int space, i64* list) {
  std::vector<int64_t> given = node.integers(name);
  const auto dims = static_cast<size_t>(space);
  if (given.size() == 1) given.resize(dims, given[0]);
  if (given.empty()) return true;
  if (given.size() != dims) return false;
  std::ranges::copy(given, list + (kSpace - space));
  return std::ranges::all_of(given, [](int64_t number) { return number > -kMaxNumber && number < kMaxNumber; });
}

bool all_positive(std::span<const i64> numbers) {
  return std::ranges::all_of(numbers, [](i64 number) { return number > 0; });
}

// --- pooling ---------------------------------------------------------------------------------------------------------

// `most`: maximum pooling, else average pooling.
Status pool(OpNode& node, PlanBuilder& plan, bool most) {
  const int space = space_of(node);
  const auto self = node.tensor("self"), grad = node.tensor("grad_output");
  const auto result = node.result(0);
  const bool backward = grad.has_value(), adaptive = !node.has("kernel_size");
  auto positions = backward ? node.tensor("indices") : node.result(1);
  const auto& large = backward ? result : self;
  const auto& small = backward ? grad : result;
  if (!large || !small || (most && backward && !positions)) return unsupported("without operands");
  if (!ir::is_float(small->dtype) || large->dtype != small->dtype) return unsupported("of integers");
  Image of_large, of_small, of_places;
  if (!read_image(*large, space, &of_large) || !read_image(*small, space, &of_small))
    return unsupported("of such dims");
  PoolArguments arguments{.large = of_large.view,
                          .small = of_small.view,
                          .batch = of_large.batch,
                          .channels = of_large.channels,
                          .adaptive = adaptive ? 1 : 0,
                          .dtype = static_cast<i64>(small->dtype)};
  std::ranges::copy(of_large.sizes, arguments.large_sizes);
  std::ranges::copy(of_small.sizes, arguments.small_sizes);
  bool fits = of_small.batch == of_large.batch && of_small.channels == of_large.channels;
  for (const i64 size : of_large.sizes) fits = fits && size < kMaxNumber;
  for (const i64 size : of_small.sizes) fits = fits && size < kMaxNumber;
  if (!fits) return unsupported("of sizes that do not match");
  if (most && positions) {
    if (!read_image(*positions, space, &of_places)) return unsupported("of such dims");
    if (positions->dtype != DType::kInt64 || positions->sizes != small->sizes) return unsupported("with such indices");
    arguments.positions = of_places.view;
  }
  if (!adaptive) {
    bool good = read_list(node, "kernel_size", space, arguments.kernel);
    std::ranges::copy(arguments.kernel, arguments.stride);
    good = good && read_list(node, "stride", space, arguments.stride) &&
           read_list(node, "padding", space, arguments.padding) &&
           read_list(node, "dilation", space, arguments.dilation);
    if (!good) return unsupported("with lists of another length than the dims");
    if (!all_positive(arguments.kernel) || !all_positive(arguments.stride) || !all_positive(arguments.dilation)) {
      return unsupported("with such windows");
    }
    arguments.counts_padding = node.flag("count_include_pad") ? 1 : 0;
    arguments.divisor = node.integer("divisor_override");
  }
  const char* const kernel =
      most ? (backward ? "image_max_backward" : "image_max") : (backward ? "image_mean_backward" : "image_mean");
  plan.launch(KernelFile::kImage, kernel, arguments, blocks_for(result->count()))
      .at_word([](const PoolArguments& made) { return &made.large.address; }, large->location)
      .at_word([](const PoolArguments& made) { return &made.small.address; }, small->location)
      .at_word([](const PoolArguments& made) { return &made.positions.address; },
               most && positions ? positions->location : Location{});
  return {};
}

// --- resampling ------------------------------------------------------------------------------------------------------

Status resample_floats(OpNode& node, PlanBuilder& plan, ResampleArguments arguments, bool backward, const OpTensor& in,
                       const OpTensor& out) {
  const int space = space_of(node);
  Image of_in, of_out;
  if (!read_image(in, space, &of_in) || !read_image(out, space, &of_out)) return unsupported("of such dims");
  if (of_in.batch != of_out.batch || of_in.channels != of_out.channels || !all_positive(of_in.sizes)) {
    return unsupported("of sizes that do not match");
  }
  if (!is_kernel_dtype(in.dtype)) return unsupported("of these dtypes");
  arguments.in = of_in.view;
  arguments.out = of_out.view;
  arguments.batch = of_in.batch;
  arguments.channels = of_in.channels;
  std::ranges::copy(of_in.sizes, arguments.in_sizes);
  std::ranges::copy(of_out.sizes, arguments.out_sizes);
  arguments.dtype = static_cast<i64>(in.dtype);
  constexpr std::array<std::string_view, kSpace> kNames = {"scales_d", "scales_h", "scales_w"};
  for (int d = kSpace - space; d < kSpace; ++d) {
    const i64 from = of_in.sizes[d], to = of_out.sizes[d];
    double scale = to != 0 ? static_cast<double>(from) / static_cast<double>(to) : 1;
    const std::string_view name = space == 1 ? std::string_view("scales") : kNames[static_cast<size_t>(d)];
    const double wanted = node.number(name);
    const bool same = arguments.how == Resample::kNearest && (to == from || to == 2 * from);
    if (arguments.align_corners != 0) {
      scale = to > 1 ? static_cast<double>(from - 1) / static_cast<double>(to - 1) : 0;
    } else if (node.has(name) && wanted > 0 && !same) {
      scale = 1 / wanted;
    }
    arguments.scales[d] = scale;
  }
  const bool filters = arguments.how == Resample::kTriangle || arguments.how == Resample::kCubicFilter;
  const char* const kernel = filters ? (backward ? "image_filter_backward" : "image_filter")
                                     : (backward ? "image_resample_backward" : "image_resample");
  plan.launch(KernelFile::kImage, kernel, arguments, blocks_for((backward ? in : out).count()))
      .at_word([](const ResampleArguments& made) { return &made.in.address; }, in.location)
      .at_word([](const ResampleArguments& made) { return &made.out.address; }, out.location);
  return {};
}

// A view of half of each element: the real or imaginary part of a complex number, the low or high bits of an i64.
OpTensor half_of(const OpTensor& tensor, DType dtype, bool second) {
  OpTensor half = tensor;
  half.dtype = dtype;
  for (int64_t& stride : half.strides) stride *= 2;
  if (second) half.location.offset += ir::item_size(dtype);
  return half;
}

// Resamples integers that are only selected, as f64, which represents all of them exactly.
Status resample_integers(OpNode& node, PlanBuilder& plan, const ResampleArguments& arguments, const OpTensor& in,
                         const OpTensor& out) {
  const OpTensor from = plan.scratch_tensor(DType::kFloat64, in.sizes),
                 to = plan.scratch_tensor(DType::kFloat64, out.sizes);
  plan.copy(in, from);
  if (Status status = resample_floats(node, plan, arguments, false, from, to); !status.ok()) return status;
  plan.copy(to, out);
  return {};
}

// A node with a gradient of the output is a backward pass.
Status resample_any(OpNode& node, PlanBuilder& plan, const ResampleArguments& arguments) {
  const auto grad = node.tensor("grad_output"), given = grad ? grad : node.tensor("self"), result = node.result(0);
  const bool backward = grad.has_value();
  if (!given || !result) return unsupported("without operands");
  if (given->dtype != result->dtype) return unsupported("of two dtypes");
  const OpTensor &in = backward ? *result : *given, &out = backward ? *given : *result;
  const DType dtype = result->dtype;
  if (ir::is_float(dtype)) return resample_floats(node, plan, arguments, backward, in, out);
  const bool pads = arguments.how == Resample::kReflect || arguments.how == Resample::kReplicate;
  const bool picks = pads || arguments.how == Resample::kNearest || arguments.how == Resample::kNearestExact;
  if (!picks || (backward && !ir::is_complex(dtype))) return unsupported("of integers");
  if (!ir::is_complex(dtype) && dtype != DType::kInt64) return resample_integers(node, plan, arguments, in, out);
  const DType part = dtype == DType::kInt64 ? DType::kInt32 : part_of(dtype);
  for (const bool second : {false, true}) {
    const OpTensor from = half_of(in, part, second), to = half_of(out, part, second);
    Status status = dtype == DType::kInt64 ? resample_integers(node, plan, arguments, from, to)
                                           : resample_floats(node, plan, arguments, backward, from, to);
    if (!status.ok()) return status;
  }
  return {};
}

// --- ops that only move elements -------------------------------------------------------------------------------------

// The dims of an image; the last two are space.
struct Dims {
  std::vector<int64_t> sizes, strides;
  void add(int64_t size, int64_t stride) {
    sizes.push_back(size);
    strides.push_back(stride);
  }
};
OpTensor as(const OpTensor& tensor, const Dims& dims) {
  OpTensor made = tensor;
  made.sizes = dims.sizes;
  made.strides = dims.strides;
  return made;
}

constexpr size_t kWindowDims = 2;
constexpr int64_t kMaxTaps = 1 << 16;  // Positions in a window at most.
struct WindowLists {
  std::vector<int64_t> kernel, dilation, padding, stride;
};
bool read_windows(OpNode& node, WindowLists* lists) {
  for (const auto& [name, list] : {std::pair("kernel_size", &lists->kernel),
                                   {"dilation", &lists->dilation},
                                   {"padding", &lists->padding},
                                   {"stride", &lists->stride}}) {
    *list = node.integers(name);
    if (list->size() == 1) list->resize(kWindowDims, (*list)[0]);
    if (list->size() != kWindowDims) return false;
    const int64_t least = list == &lists->padding ? 0 : 1;
    for (const int64_t number : *list) {
      if (number < least || number >= kMaxNumber) return false;
    }
  }
  return lists->kernel[0] * lists->kernel[1] <= kMaxTaps;
}
int64_t count_windows(const WindowLists& lists, size_t d, int64_t size) {
  return (size + 2 * lists.padding[d] - lists.dilation[d] * (lists.kernel[d] - 1) - 1) / lists.stride[d] + 1;
}

// col2im: adds each window's elements to the image.
Status fold_floats(PlanBuilder& plan, const WindowLists& lists, const OpTensor& columns, const OpTensor& to) {
  FoldArguments arguments{.dtype = static_cast<i64>(to.dtype)};
  Image image;
  const size_t rank = columns.sizes.size();
  if (!is_kernel_dtype(to.dtype)) return unsupported("of these dtypes");
  if (!read_image(to, kWindowDims, &image) || rank + 1 != to.sizes.size()) return unsupported("of such dims");
  arguments.image = image.view;
  arguments.batch = image.batch;
  arguments.channels = image.channels;
  std::ranges::copy(image.sizes, arguments.sizes);
  if (rank == 3) arguments.column_strides[0] = columns.strides[0];
  arguments.column_strides[1] = columns.strides[rank - 2];
  arguments.column_strides[2] = columns.strides[rank - 1];
  for (size_t d = 0; d < kWindowDims; ++d) arguments.windows[d] = count_windows(lists, d, image.sizes[d + 1]);
  const int64_t taps = lists.kernel[0] * lists.kernel[1];
  const bool fits = all_positive(arguments.windows) && image.batch == (rank == 3 ? columns.sizes[0] : 1) &&
                    columns.sizes[rank - 2] == count_of(std::vector<int64_t>{image.channels, taps}) &&
                    columns.sizes[rank - 1] == count_of(arguments.windows);
  if (!fits) return unsupported("of sizes that do not match");
  std::ranges::copy(lists.kernel, arguments.kernel);
  std::ranges::copy(lists.stride, arguments.stride);
  std::ranges::copy(lists.padding, arguments.padding);
  std::ranges::copy(lists.dilation, arguments.dilation);
  plan.launch(KernelFile::kImage, "image_fold", arguments, blocks_for(to.count()))
      .at_word([](const FoldArguments& made) { return &made.image.address; }, to.location)
      .at(&FoldArguments::columns, columns.location);
  return {};
}

}  // namespace

Status image_plans::max(OpNode& node, PlanBuilder& plan) { return pool(node, plan, true); }
Status image_plans::mean(OpNode& node, PlanBuilder& plan) { return pool(node, plan, false); }

Status image_plans::resample(OpNode& node, PlanBuilder& plan, Resample how) {
  return resample_any(node, plan, {.how = how, .align_corners = node.flag("align_corners") ? 1 : 0});
}

// Reads pairs of numbers, the last dim first.
Status image_plans::pad(OpNode& node, PlanBuilder& plan, Resample how) {
  ResampleArguments arguments{.how = how};
  const std::vector<int64_t> padding = node.integers("padding");
  for (size_t i = 0; i + 1 < padding.size() && i / 2 < kSpace; i += 2)
    arguments.before[kSpace - 1 - i / 2] = padding[i];
  return resample_any(node, plan, arguments);
}

// Rearranges [channels * factor^2, rows, columns] to [channels, rows * factor, columns * factor], or back.
Status image_plans::shuffle_pixels(OpNode& node, PlanBuilder& plan) {
  const bool into_space = node.has("upscale_factor");
  const auto self = node.tensor("self"), result = node.result(0);
  const int64_t factor = node.integer(into_space ? "upscale_factor" : "downscale_factor");
  if (!self || !result || self->sizes.size() < 3 || factor < 1) return unsupported("of such dims");
  if (result->sizes.size() != self->sizes.size() || factor >= kMaxNumber) return unsupported("of such dims");
  const OpTensor &deep = into_space ? *self : *result, &wide = into_space ? *result : *self;
  const size_t rank = wide.sizes.size(), c = rank - 3;
  Dims of_deep, of_wide;
  for (size_t d = 0; d < c; ++d) {
    of_deep.add(deep.sizes[d], deep.strides[d]);
    of_wide.add(wide.sizes[d], wide.strides[d]);
  }
  of_deep.add(wide.sizes[c], deep.strides[c] * factor * factor);
  of_wide.add(wide.sizes[c], wide.strides[c]);
  for (size_t d = 1; d <= 2; ++d) {  // Rows, then columns: first of the deep image, then within a square.
    of_deep.add(deep.sizes[c + d], deep.strides[c + d]);
    of_wide.add(deep.sizes[c + d], wide.strides[c + d] * factor);
    of_deep.add(factor, deep.strides[c] * (d == 1 ? factor : 1));
    of_wide.add(factor, wide.strides[c + d]);
  }
  plan.copy(as(into_space ? deep : wide, into_space ? of_deep : of_wide),
            as(into_space ? wide : deep, into_space ? of_wide : of_deep));
  return {};
}

Status image_plans::shuffle_channels(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), result = node.result(0);
  const int64_t groups = node.integer("groups");
  if (!self || !result || self->sizes.size() < 3 || groups < 1 || result->sizes.size() != self->sizes.size()) {
    return unsupported("of such dims");
  }
  if (self->sizes[1] % groups != 0) return unsupported("of channels that groups do not divide");
  Dims from, to;
  const int64_t each = self->sizes[1] / groups;
  from.add(self->sizes[0], self->strides[0]);
  to.add(self->sizes[0], result->strides[0]);
  from.add(groups, self->strides[1] * each);
  to.add(groups, result->strides[1]);
  from.add(each, self->strides[1]);
  to.add(each, result->strides[1] * groups);
  for (size_t d = 2; d < self->sizes.size(); ++d) {
    from.add(self->sizes[d], self->strides[d]);
    to.add(self->sizes[d], result->strides[d]);
  }
  plan.copy(as(*self, from), as(*result, to));
  return {};
}

// im2col: windows of an image as columns. For each position in a window there is a row with the elements of all
// windows.
Status image_plans::im2col(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), result = node.result(0);
  WindowLists lists;
  if (!read_windows(node, &lists)) return unsupported("with lists of another length than the dims");
  const auto& [kernel, dilation, padding, stride] = lists;
  if (!self || !result || self->sizes.size() < 3 || self->sizes.size() != result->sizes.size() + 1) {
    return unsupported("of such dims");
  }
  const size_t c = self->sizes.size() - 3;  // There may be a batch dim before it.
  const OpTensor all = plan.output_tensor(*result);
  plan.zero(all.location, all.nbytes());
  int64_t windows[kWindowDims];
  for (size_t d = 0; d < kWindowDims; ++d) {
    const int64_t size = self->sizes[c + 1 + d];
    windows[d] = count_windows(lists, d, size);
  }
  if (!all_positive(windows)) return unsupported("without windows");
  const int64_t columns = windows[0] * windows[1];
  for (int64_t tap = 0; tap < kernel[0] * kernel[1]; ++tap) {
    const int64_t at[kWindowDims] = {tap / kernel[1], tap % kernel[1]};
    OpTensor from = *self, to = all;
    to.sizes = from.sizes;
    to.strides.resize(c);
    to.strides.insert(to.strides.end(), {kernel[0] * kernel[1] * columns, windows[1], 1});
    int64_t from_offset = 0, to_offset = tap * columns;
    for (size_t d = 0; d < kWindowDims; ++d) {  // Only windows whose element at this position is inside the image.
      const int64_t begin = at[d] * dilation[d] - padding[d], size = self->sizes[c + 1 + d];
      const int64_t first = begin >= 0 ? 0 : (-begin + stride[d] - 1) / stride[d];
      const int64_t end = begin >= size ? 0 : std::min(windows[d], (size - begin - 1) / stride[d] + 1);
      from.sizes[c + 1 + d] = to.sizes[c + 1 + d] = std::max<int64_t>(end - first, 0);
      from.strides[c + 1 + d] = self->strides[c + 1 + d] * stride[d];
      from_offset += (begin + first * stride[d]) * self->strides[c + 1 + d];
      to_offset += first * to.strides[c + 1 + d];
    }
    if (from.count() == 0) continue;
    from.location.offset += static_cast<uint64_t>(from_offset) * ir::item_size(from.dtype);
    to.location.offset += static_cast<uint64_t>(to_offset) * ir::item_size(to.dtype);
    plan.copy(from, to);
  }
  return {};
}

Status image_plans::col2im(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), result = node.result(0);
  WindowLists lists;
  if (!read_windows(node, &lists)) return unsupported("with lists of another length than the dims");
  if (!self || !result || self->sizes.size() < 2) return unsupported("of such dims");
  const DType dtype = result->dtype;
  if (self->dtype != dtype) return unsupported("of two dtypes");
  if (ir::is_complex(dtype)) {
    const DType part = part_of(dtype);
    for (const bool second : {false, true}) {
      Status status = fold_floats(plan, lists, half_of(*self, part, second), half_of(*result, part, second));
      if (!status.ok()) return status;
    }
    return {};
  }
  if (ir::is_float(dtype)) return fold_floats(plan, lists, *self, *result);
  if (dtype != DType::kBool) return unsupported("of integers");
  // For bools, whether any window has a true element.
  const OpTensor from = plan.packed_tensor(*self, DType::kFloat32),
                 to = plan.scratch_tensor(DType::kFloat32, result->sizes);
  if (Status status = fold_floats(plan, lists, from, to); !status.ok()) return status;
  plan.copy(to, *result);
  return {};
}

}  // namespace torch_remote::worker::cuda
