
#include "worker/targets/cuda/kernels/grid_arguments.h"
#include "worker/targets/cuda/ops/index_points.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Images sampled at the points of a grid (grid_sampler), and the gradients.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

constexpr size_t kSpace = 3;

// [batch, channels, space...] in the kernels' form. The address is filled in later.
ImageView view_of(const OpTensor& image, size_t space, i64* sizes) {
  ImageView view;
  view.strides[0] = image.strides[0];
  view.strides[1] = image.strides[1];
  for (size_t d = 0; d < space; ++d) {
    view.strides[2 + kSpace - space + d] = image.strides[2 + d];
    sizes[kSpace - space + d] = image.sizes[2 + d];
  }
  return view;
}

// Reads the arguments of both passes; `out` is the samples, or their gradient.
Status read(OpNode& node, const OpTensor& in, const OpTensor& grid, const OpTensor& out, GridArguments* f) {
  const size_t rank = in.sizes.size(), space = rank - 2;
  if (rank < 4 || rank > 5 || grid.sizes.size() != rank || out.sizes.size() != rank)
    return unsupported("of other dims");
  if (!ir::is_float(in.dtype) || grid.dtype != in.dtype || out.dtype != in.dtype) return unsupported("of two dtypes");
  bool fits = out.sizes[0] == in.sizes[0] && out.sizes[1] == in.sizes[1] && grid.sizes[0] == in.sizes[0] &&
              grid.sizes.back() == static_cast<int64_t>(space);
  for (size_t d = 0; d < space; ++d) fits = fits && grid.sizes[1 + d] == out.sizes[2 + d];
  if (!fits) return unsupported("of sizes that do not match");
  f->space = static_cast<i64>(space);
  f->in = view_of(in, space, f->in_sizes);
  f->out = view_of(out, space, f->out_sizes);
  f->batch = in.sizes[0];
  f->channels = in.sizes[1];
  f->grid_strides[0] = grid.strides[0];
  for (size_t d = 0; d < space; ++d) f->grid_strides[1 + kSpace - space + d] = grid.strides[1 + d];
  f->grid_strides[4] = grid.strides[rank - 1];
  f->dtype = static_cast<i64>(in.dtype);
  f->interpolation = static_cast<GridInterpolation>(node.integer("interpolation_mode"));
  f->padding = static_cast<GridPadding>(node.integer("padding_mode"));
  f->align_corners = node.flag("align_corners") ? 1 : 0;
  if (f->interpolation > GridInterpolation::kCubic || f->padding > GridPadding::kReflection) return unsupported("so");
  const i64 each = f->interpolation == GridInterpolation::kCubic     ? 4
                   : f->interpolation == GridInterpolation::kNearest ? 1
                                                                     : 2;
  for (size_t d = 0; d < space; ++d) f->taps *= each;
  return {};
}

// The gradient of the image. Elements that several grid points sample accumulate in the order of these points.
Status spread(PlanBuilder& plan, GridArguments f, const OpTensor& grid, const OpTensor& grad, const OpTensor& to) {
  const i64 points = f.out_sizes[0] * f.out_sizes[1] * f.out_sizes[2];
  const i64 space = f.in_sizes[0] * f.in_sizes[1] * f.in_sizes[2];
  // [batch, channels, space], in f32 for half types, so that sums are rounded less.
  const OpTensor sums = plan.scratch_tensor(to.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32, to.sizes);
  plan.zero(sums.location, sums.nbytes());
  f.value_dtype = static_cast<i64>(sums.dtype);
  const OpTensor positions = plan.scratch_tensor(DType::kInt64, {f.batch, points * f.taps});
  const auto count = static_cast<uint64_t>(positions.count() * f.channels);
  const Location values = plan.scratch(count * ir::item_size(sums.dtype));
  plan.launch(KernelFile::kGrid, "grid_spread", f, blocks_for(f.batch * points))
      .at_word([](const GridArguments& words) { return &words.out.address; }, grad.location)
      .at(&GridArguments::grid, grid.location)
      .at(&GridArguments::positions, positions.location)
      .at(&GridArguments::values, values);
  OpTensor flat = sums;
  flat.sizes = {f.batch, f.channels, space};
  flat.strides = packed_strides(flat.sizes);
  IndexedPoints all(plan, flat);
  all.add_dim(f.batch, flat.strides[0], positions.strides[0] * f.channels);
  all.add_dim(positions.sizes[1], 0, f.channels);
  all.add_dim(f.channels, space, 1);
  all.add_index(positions, 2, 0, 2);
  all.skip(-1);
  const Status status = all.apply(values, 2, {.combine = Combine::kSum});
  plan.copy(sums, to);
  return status;
}

}  // namespace

Status grid_plans::forward(OpNode& node, PlanBuilder& plan) {
  const auto in = node.tensor("input"), grid = node.tensor("grid"), to = node.result(0);
  if (!in || !grid || !to) return unsupported("without a result");
  GridArguments f;
  if (Status status = read(node, *in, *grid, *to, &f); !status.ok()) return status;
  plan.launch(KernelFile::kGrid, "grid_forward", f, blocks_for(to->count()))
      .at_word([](const GridArguments& words) { return &words.in.address; }, in->location)
      .at_word([](const GridArguments& words) { return &words.out.address; }, to->location)
      .at(&GridArguments::grid, grid->location);
  return {};
}

Status grid_plans::backward(OpNode& node, PlanBuilder& plan) {
  const auto grad = node.tensor("grad_output"), in = node.tensor("input"), grid = node.tensor("grid");
  const auto to_image = node.result(0), to_grid = node.result(1);
  if (!grad || !in || !grid) return unsupported("without operands");
  GridArguments f;
  if (Status status = read(node, *in, *grid, *grad, &f); !status.ok()) return status;
  if (to_image && to_image->sizes == in->sizes) {
    if (Status status = spread(plan, f, *grid, *grad, *to_image); !status.ok()) return status;
  }
  if (!to_grid) return {};
  if (to_grid->sizes != grid->sizes || to_grid->dtype != grid->dtype) return unsupported("into another grid");
  plan.launch(KernelFile::kGrid, "grid_backward", f,
              blocks_for(f.batch * f.out_sizes[0] * f.out_sizes[1] * f.out_sizes[2]))
      .at_word([](const GridArguments& words) { return &words.in.address; }, in->location)
      .at_word([](const GridArguments& words) { return &words.out.address; }, grad->location)
      .at(&GridArguments::grid, grid->location)
      .at(&GridArguments::grad_grid, plan.output(*to_grid));
  return {};
}

}  // namespace torch_remote::worker::cuda
