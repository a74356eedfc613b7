#include "worker/aten/pool.h"

#include <ATen/ops/max_pool2d_with_indices.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "worker/aten/parallel.h"

// Max pooling without indices: along rows first, then across them, so that a window costs kernel height + width
// comparisons, and each is done for many windows at once. Of equal values (zeros of both signs) the first counts, as in
// torch's kernel, and a NaN stays.
namespace torch_remote::worker::aten {
namespace {

struct Dim {
  int64_t input, output, kernel, stride, padding, dilation;

  // The outputs whose k-th input exists: [first, last).
  int64_t first(int64_t k) const { return std::max<int64_t>(0, ceil_div(padding - k * dilation, stride)); }
  int64_t last(int64_t k) const { return std::min(output, ceil_div(input + padding - k * dilation, stride)); }
  int64_t at(int64_t out, int64_t k) const { return out * stride - padding + k * dilation; }

 private:
  static int64_t ceil_div(int64_t a, int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }
};

#if defined(__x86_64__) && defined(__GLIBC__)
#define TR_FOR_EACH_CPU __attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default")))
#else
#define TR_FOR_EACH_CPU
#endif

// largest[i] = max(largest[i], values[i * stride])
template <int64_t stride>
__attribute__((always_inline)) inline void take_larger(float* __restrict largest, const float* __restrict values,
                                                       int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = values[i * stride], old = largest[i];
    largest[i] = value > old || value != value ? value : old;
  }
}
__attribute__((always_inline)) inline void take_larger(float* __restrict largest, const float* __restrict values,
                                                       int64_t count, int64_t stride) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = values[i * stride], old = largest[i];
    largest[i] = value > old || value != value ? value : old;
  }
}

// One plane. `rows`: [input height, output width] to work in.
TR_FOR_EACH_CPU void pool_plane(const float* input, float* output, float* rows, const Dim& height, const Dim& width) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  std::fill(rows, rows + height.input * width.output, kLowest);
  for (int64_t y = 0; y < height.input; ++y) {
    float* row = rows + y * width.output;
    const float* from = input + y * width.input;
    for (int64_t k = 0; k < width.kernel; ++k) {
      const int64_t first = width.first(k), count = width.last(k) - first;
      if (count <= 0) continue;
      const float* values = from + width.at(first, k);
      if (width.stride == 1) {
        take_larger<1>(row + first, values, count);
      } else if (width.stride == 2) {
        take_larger<2>(row + first, values, count);
      } else {
        take_larger(row + first, values, count, width.stride);
      }
    }
  }
  std::fill(output, output + height.output * width.output, kLowest);
  for (int64_t k = 0; k < height.kernel; ++k) {
    for (int64_t y = height.first(k); y < height.last(k); ++y) {
      take_larger<1>(output + y * width.output, rows + height.at(y, k) * width.output, width.output);
    }
  }
}

// One row of results, of images whose channels are neighbours.
TR_FOR_EACH_CPU void pool_row(const float* image, float* output, int64_t y, int64_t channels, const Dim& height,
                              const Dim& width) {
  std::fill(output, output + width.output * channels, -std::numeric_limits<float>::infinity());
  for (int64_t j = 0; j < height.kernel; ++j) {
    const int64_t row = height.at(y, j);
    if (row < 0 || row >= height.input) continue;
    for (int64_t x = 0; x < width.output; ++x) {
      for (int64_t k = 0; k < width.kernel; ++k) {
        const int64_t column = width.at(x, k);
        if (column < 0 || column >= width.input) continue;
        take_larger<1>(output + x * channels, image + (row * width.input + column) * channels, channels);
      }
    }
  }
}

// One number is for both dims; none at all (of strides) is the kernel's.
std::array<int64_t, 2> pair(const c10::IValue& value, const std::array<int64_t, 2>& otherwise) {
  const auto list = value.toIntVector();
  if (list.empty()) return otherwise;
  return {list[0], list.size() == 1 ? list[0] : list[1]};
}

// (self, kernel_size, stride, padding, dilation, ceil_mode) -> (values, indices)
void run(const SpecialCall& call) {
  const at::Tensor &self = call.args[0].toTensor(), &values = call.results[0];
  constexpr auto kLast = c10::MemoryFormat::ChannelsLast;
  const bool plain = self.is_contiguous() && values.is_contiguous();
  const bool last = !plain && self.dim() == 4 && self.is_contiguous(kLast) && values.is_contiguous(kLast);
  if (!plain && !last) {
    at::Tensor out = values, indices = call.results[1];
    at::max_pool2d_with_indices_out(out, indices, self, call.args[1].toIntVector(), call.args[2].toIntVector(),
                                    call.args[3].toIntVector(), call.args[4].toIntVector(), call.args[5].toBool());
    return;
  }
  const auto kernel = pair(call.args[1], {}), stride = pair(call.args[2], kernel);
  const auto padding = pair(call.args[3], {}), dilation = pair(call.args[4], {});
  const auto dim = [&](int64_t i) {
    return Dim{self.size(i - 2), values.size(i - 2), kernel[i], stride[i], padding[i], dilation[i]};
  };
  const Dim height = dim(0), width = dim(1);
  const int64_t in = height.input * width.input, out = height.output * width.output;
  if (values.numel() == 0) return;
  const float* const from = self.const_data_ptr<float>();
  float* const to = values.mutable_data_ptr<float>();
  if (last) {
    const int64_t channels = values.size(1), row = width.output * channels;
    in_parallel(values.size(0) * height.output, std::max<int64_t>(1, 32768 / row), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float* const image = from + i / height.output * in * channels;
        pool_row(image, to + i * row, i % height.output, channels, height, width);
      }
    });
    return;
  }
  in_parallel(values.numel() / out, std::max<int64_t>(1, 32768 / std::max(in, out)), [&](int64_t begin, int64_t end) {
    std::vector<float> rows(static_cast<size_t>(height.input * width.output));
    for (int64_t i = begin; i < end; ++i) {
      pool_plane(from + i * in, to + i * out, rows.data(), height, width);
    }
  });
}

}  // namespace

Special find_pool(const ir::Node& node, const ir::Graph& graph) {
  static const ir::Opcode opcode = ir::find_op("aten::max_pool2d_with_indices");
  if (node.opcode != opcode || node.args[0].tag != ir::ArgTag::kView || node.results[0].tag != ir::ArgTag::kView ||
      node.results[1].tag != ir::ArgTag::kView || graph.views[node.args[0].a].dtype != ir::DType::kFloat32 ||
      graph.views[node.args[0].a].sizes.size() < 3) {
    return nullptr;
  }
  const uint32_t indices = graph.views[node.results[1].a].buffer;
  if (graph.buffers[indices].survives) return nullptr;
  bool read = false;
  for (const ir::Node& other : graph.nodes) {
    if (&other == &node) continue;
    ir::for_each_view(other, [&](uint32_t view, bool) { read |= graph.views[view].buffer == indices; });
  }
  return read ? nullptr : run;
}

}  // namespace torch_remote::worker::aten
