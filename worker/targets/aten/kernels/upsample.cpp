#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/upsample_nearest2d_backward.h>

#include <algorithm>
#include <cstring>

#include "worker/targets/aten/kernels/parallel.h"
#include "worker/targets/aten/kernels/special_generated.h"

// Nearest-neighbor upsampling of float32 images, and its gradient: computes images that become twice as high and wide
// here, in torch's order of additions. Faster than torch's loops, which compute the source position of each element.
namespace torch_remote::worker::aten {
namespace {

// Writes each element of a row twice.
TR_FOR_EACH_CPU void double_row(const float* __restrict from, int64_t width, float* __restrict to) {
  for (int64_t x = 0; x < width; ++x) to[2 * x] = to[2 * x + 1] = from[x];
}

// Adds four elements of two rows. The sum begins with 0 like torch's, which matters for zeros of both signs.
TR_FOR_EACH_CPU void add_rows(const float* __restrict above, const float* __restrict below, int64_t width,
                              float* __restrict to) {
  for (int64_t x = 0; x < width; ++x) {
    to[x] = (((0.0f + above[2 * x]) + above[2 * x + 1]) + below[2 * x]) + below[2 * x + 1];
  }
}

// Number of rows of the small image that is worth a thread.
int64_t grain_of(int64_t width) { return std::max<int64_t>(1, 8192 / width); }

bool is_twice(const at::Tensor& small, const at::Tensor& large) {
  return small.numel() > 0 && small.size(0) == large.size(0) && small.size(1) == large.size(1) &&
         2 * small.size(2) == large.size(2) && 2 * small.size(3) == large.size(3);
}

// Whether planes are contiguous; a slice of an image's channels has such planes, too.
bool has_planes(const at::Tensor& image) { return image.stride(3) == 1 && image.stride(2) == image.size(3); }

// Row i, counted over all images and channels.
const float* row_of(const at::Tensor& image, int64_t i) {
  const int64_t height = image.size(2), channels = image.size(1), plane = i / height;
  return image.const_data_ptr<float>() + plane / channels * image.stride(0) + plane % channels * image.stride(1) +
         i % height * image.size(3);
}

// Out variants may write wrong values when the result's layout is not the one that the op would choose itself.
bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  constexpr auto kLast = at::MemoryFormat::ChannelsLast;
  return (a.is_contiguous() && b.is_contiguous()) || (a.is_contiguous(kLast) && b.is_contiguous(kLast));
}

// (self, output_size, scales_h, scales_w)
void run_upsample(const SpecialCall& call) {
  const at::Tensor &self = call.args[0].toTensor(), &result = call.results[0];
  if (!is_twice(self, result) || !has_planes(self) || !result.is_contiguous()) {
    const auto size = call.args[1].toIntVector();
    const auto height = call.args[2].toOptional<double>(), width = call.args[3].toOptional<double>();
    at::Tensor out = result;
    if (lie_alike(self, out)) {
      at::upsample_nearest2d_out(out, self, size, height, width);
    } else {
      out.copy_(at::upsample_nearest2d(self, size, height, width));
    }
    return;
  }
  const int64_t width = self.size(3);
  float* const to = result.mutable_data_ptr<float>();
  run_parallel(self.numel() / width, grain_of(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const upper = to + row * 4 * width;
      double_row(row_of(self, row), width, upper);
      std::memcpy(upper + 2 * width, upper, static_cast<size_t>(2 * width) * sizeof(float));
    }
  });
}

// (grad_output, output_size, input_size, scales_h, scales_w)
void run_upsample_backward(const SpecialCall& call) {
  const at::Tensor &grad = call.args[0].toTensor(), &result = call.results[0];
  if (!is_twice(result, grad) || !has_planes(grad) || !result.is_contiguous()) {
    const auto size = call.args[1].toIntVector(), input = call.args[2].toIntVector();
    const auto height = call.args[3].toOptional<double>(), width = call.args[4].toOptional<double>();
    at::Tensor out = result;
    if (lie_alike(grad, out)) {
      at::upsample_nearest2d_backward_out(out, grad, size, input, height, width);
    } else {
      out.copy_(at::upsample_nearest2d_backward(grad, size, input, height, width));
    }
    return;
  }
  const int64_t width = result.size(3);
  float* const to = result.mutable_data_ptr<float>();
  run_parallel(result.numel() / width, grain_of(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const above = row_of(grad, 2 * row);
      add_rows(above, above + 2 * width, width, to + row * width);
    }
  });
}

bool is_of_images(const ir::Node& node, const ir::Graph& graph) {
  const auto is_image = [&](const ir::Arg& arg) {
    return arg.tag == ir::ArgTag::kView && graph.views[arg.a].dtype == ir::DType::kFloat32 &&
           graph.views[arg.a].sizes.size() == 4 && !graph.views[arg.a].dynamic;
  };
  return is_image(node.args[0]) && is_image(node.results[0]);
}

}  // namespace

Special upsample_kernels::nearest2d(const ir::Node& node, const ir::Graph& graph) {
  return is_of_images(node, graph) ? run_upsample : nullptr;
}

Special upsample_kernels::nearest2d_backward(const ir::Node& node, const ir::Graph& graph) {
  return is_of_images(node, graph) ? run_upsample_backward : nullptr;
}

}  // namespace torch_remote::worker::aten
