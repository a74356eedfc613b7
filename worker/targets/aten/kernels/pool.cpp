#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "worker/targets/aten/kernels/images/layout_conversion.h"
#include "worker/targets/aten/kernels/parallel.h"
#include "worker/targets/aten/kernels/special_generated.h"

// Max pooling without indices. It takes the maximum along rows first and then along columns. So a window costs
// kernel height + width comparisons, each for many windows at once. As in torch's kernel, the first of equal values
// (zeros of both signs) counts, and NaN propagates.
namespace torch_remote::worker::aten {
namespace {

struct Dim {
  int64_t input, output, kernel, stride, padding, dilation;

  // The outputs whose window has a k-th input inside of the image: [first, last).
  int64_t first(int64_t k) const { return std::max<int64_t>(0, ceil_div(padding - k * dilation, stride)); }
  int64_t last(int64_t k) const { return std::min(output, ceil_div(input + padding - k * dilation, stride)); }
  int64_t at(int64_t out, int64_t k) const { return out * stride - padding + k * dilation; }

  // Whether torch accepts these numbers and gives this output. If so, no position of a window overflows.
  bool is_valid(bool ceil) const {
    constexpr int64_t kMost = int64_t{1} << 31;
    if (std::min({input, kernel, stride, dilation}) < 1 || std::max({kernel, stride, dilation}) >= kMost) return false;
    if (padding < 0 || padding > kernel / 2) return false;
    const int64_t reach = input + 2 * padding - dilation * (kernel - 1) - 1 + (ceil ? stride - 1 : 0);
    if (reach < 0) return false;
    const int64_t last = reach / stride;
    return output == (ceil && last * stride >= input + padding ? last : last + 1);
  }

 private:
  static int64_t ceil_div(int64_t a, int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }
};

// Compares elements of a dtype: is_larger says whether `value` replaces `old`.
template <typename T>
struct Floats {
  using Element = T;
  static constexpr T kLowest = -std::numeric_limits<T>::infinity();
  __attribute__((always_inline)) static bool is_larger(T value, T old) { return value > old || value != value; }
};

// Compares half types by their bits: as signed integers they are ordered once the order of negative numbers is
// reversed.
template <uint16_t infinity>
struct Halves {
  using Element = uint16_t;
  static constexpr uint16_t kLowest = infinity | 0x8000;
  static constexpr uint16_t kMagnitude = 0x7FFF;
  __attribute__((always_inline)) static bool is_larger(uint16_t value, uint16_t old) {
    const bool zeros = ((value | old) & kMagnitude) == 0;
    return (order(value) > order(old) && !zeros && !is_nan(old)) || is_nan(value);
  }

 private:
  __attribute__((always_inline)) static bool is_nan(uint16_t bits) { return (bits & kMagnitude) > infinity; }
  __attribute__((always_inline)) static int16_t order(uint16_t bits) {
    const auto number = static_cast<int16_t>(bits);
    return static_cast<int16_t>(number ^ ((number >> 15) & kMagnitude));
  }
};
using Float16 = Halves<0x7C00>;
using BFloat16 = Halves<0x7F80>;

// largest[i] = max(largest[i], values[i * stride])
template <typename O, int64_t stride>
__attribute__((always_inline)) inline void take_larger(typename O::Element* __restrict largest,
                                                       const typename O::Element* __restrict values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto value = values[i * stride], old = largest[i];
    largest[i] = O::is_larger(value, old) ? value : old;
  }
}
template <typename O>
__attribute__((always_inline)) inline void take_larger(typename O::Element* __restrict largest,
                                                       const typename O::Element* __restrict values, int64_t count,
                                                       int64_t stride) {
  for (int64_t i = 0; i < count; ++i) {
    const auto value = values[i * stride], old = largest[i];
    largest[i] = O::is_larger(value, old) ? value : old;
  }
}

// Pools one plane. `rows`: scratch memory of shape [input height, output width].
template <typename O, typename T = typename O::Element>
__attribute__((always_inline)) inline void plane_of(const T* input, T* output, T* rows, const Dim& height,
                                                    const Dim& width) {
  std::fill(rows, rows + height.input * width.output, O::kLowest);
  for (int64_t y = 0; y < height.input; ++y) {
    T* row = rows + y * width.output;
    const T* from = input + y * width.input;
    for (int64_t k = 0; k < width.kernel; ++k) {
      const int64_t first = width.first(k), count = width.last(k) - first;
      if (count <= 0) continue;
      const T* values = from + width.at(first, k);
      if (width.stride == 1) {
        take_larger<O, 1>(row + first, values, count);
      } else if (width.stride == 2) {
        take_larger<O, 2>(row + first, values, count);
      } else {
        take_larger<O>(row + first, values, count, width.stride);
      }
    }
  }
  std::fill(output, output + height.output * width.output, O::kLowest);
  for (int64_t k = 0; k < height.kernel; ++k) {
    for (int64_t y = height.first(k); y < height.last(k); ++y) {
      take_larger<O, 1>(output + y * width.output, rows + height.at(y, k) * width.output, width.output);
    }
  }
}

// Computes one row of results, for channels-last images.
template <typename O, typename T = typename O::Element>
__attribute__((always_inline)) inline void row_of(const T* image, T* output, int64_t y, int64_t channels,
                                                  const Dim& height, const Dim& width) {
  std::fill(output, output + width.output * channels, O::kLowest);
  for (int64_t j = 0; j < height.kernel; ++j) {
    const int64_t row = height.at(y, j);
    if (row < 0 || row >= height.input) continue;
    for (int64_t x = 0; x < width.output; ++x) {
      for (int64_t k = 0; k < width.kernel; ++k) {
        const int64_t column = width.at(x, k);
        if (column < 0 || column >= width.input) continue;
        take_larger<O, 1>(output + x * channels, image + (row * width.input + column) * channels, channels);
      }
    }
  }
}

// Templates cannot have target_clones, hence a macro.
#define TR_POOL(O)                                                                                                     \
  TR_FOR_EACH_CPU void pool_plane(O, const O::Element* input, O::Element* output, O::Element* rows, const Dim& height, \
                                  const Dim& width) {                                                                  \
    plane_of<O>(input, output, rows, height, width);                                                                   \
  }                                                                                                                    \
  TR_FOR_EACH_CPU void pool_row(O, const O::Element* image, O::Element* output, int64_t y, int64_t channels,           \
                                const Dim& height, const Dim& width) {                                                 \
    row_of<O>(image, output, y, channels, height, width);                                                              \
  }
TR_POOL(Floats<float>)
TR_POOL(Floats<double>)
TR_POOL(Float16)
TR_POOL(BFloat16)
#undef TR_POOL

// A single number applies to both dims; an empty list (of strides) means the kernel's.
std::array<int64_t, 2> pair(const c10::IValue& value, const std::array<int64_t, 2>& otherwise) {
  const auto list = value.toIntVector();
  if (list.empty()) return otherwise;
  return {list[0], list.size() == 1 ? list[0] : list[1]};
}

struct Window {
  Dim height, width;
};

// (self, kernel_size, stride, padding, dilation, ceil_mode) -> (values, indices). Returns nothing if the arguments and
// the result do not fit together. Torch then reports why.
std::optional<Window> find_window(const SpecialCall& call) {
  const at::Tensor &self = call.args[0].toTensor(), &result = call.results[0];
  const int64_t rank = self.dim();
  if (rank > 4 || result.dim() != rank || result.scalar_type() != self.scalar_type() ||
      self.sizes().slice(0, rank - 2) != result.sizes().slice(0, rank - 2)) {
    return std::nullopt;
  }
  const auto kernel = pair(call.args[1], {}), stride = pair(call.args[2], kernel);
  const auto padding = pair(call.args[3], {}), dilation = pair(call.args[4], {});
  const auto dim = [&](int64_t i) {
    return Dim{self.size(i - 2), result.size(i - 2), kernel[i], stride[i], padding[i], dilation[i]};
  };
  const Window window{dim(0), dim(1)};
  const bool ceil = call.args[5].toBool();
  return window.height.is_valid(ceil) && window.width.is_valid(ceil) ? std::optional(window) : std::nullopt;
}

// `last`: both tensors are channels last; otherwise both are contiguous (NCHW).
template <typename O>
void pool(const at::Tensor& self, const at::Tensor& values, const Window& window, bool last) {
  const Dim &height = window.height, &width = window.width;
  const int64_t in = height.input * width.input, out = height.output * width.output;
  if (values.numel() == 0) return;
  using T = typename O::Element;
  const T* const from = static_cast<const T*>(self.const_data_ptr());
  T* const to = static_cast<T*>(values.mutable_data_ptr());
  if (last) {
    const int64_t channels = values.size(1), row = width.output * channels;
    run_parallel(values.size(0) * height.output, std::max<int64_t>(1, 32768 / row), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* const image = from + i / height.output * in * channels;
        pool_row(O(), image, to + i * row, i % height.output, channels, height, width);
      }
    });
    return;
  }
  run_parallel(values.numel() / out, std::max<int64_t>(1, 32768 / std::max(in, out)), [&](int64_t begin, int64_t end) {
    std::vector<T> rows(static_cast<size_t>(height.input * width.output));
    for (int64_t i = begin; i < end; ++i) {
      pool_plane(O(), from + i * in, to + i * out, rows.data(), height, width);
    }
  });
}

template <typename O>
void run_pool(const SpecialCall& call) {
  const at::Tensor &self = call.args[0].toTensor(), &result = call.results[0];
  constexpr auto kLast = c10::MemoryFormat::ChannelsLast;
  const std::optional<Window> window = find_window(call);
  const bool plain = self.is_contiguous(), last = !plain && self.dim() == 4 && self.is_contiguous(kLast);
  const auto format = plain ? c10::MemoryFormat::Contiguous : kLast;
  if (window && (plain || last) && result.is_contiguous(format)) return pool<O>(self, result, *window, last);
  if (window && (plain || last)) {
    // Pools in the input's layout, then converts the layout of the result, which is smaller.
    const at::Tensor values = at::empty(result.sizes(), result.options(), format);
    if (layouts_differ(values, result)) {
      pool<O>(self, values, *window, last);
      copy_converting_layout(values, result);
      return;
    }
  }
  at::Tensor out = result, indices = call.results[1];
  at::max_pool2d_with_indices_out(out, indices, self, call.args[1].toIntVector(), call.args[2].toIntVector(),
                                  call.args[3].toIntVector(), call.args[4].toIntVector(), call.args[5].toBool());
}

}  // namespace

// For floating-point tensors whose indices are unused: computes the values alone, bit for bit as torch does.
Special pool_kernels::max_pool2d(const ir::Node& node, const ir::Graph& graph) {
  if (node.args[0].tag != ir::ArgTag::kView || node.results[0].tag != ir::ArgTag::kView ||
      node.results[1].tag != ir::ArgTag::kView || graph.views[node.args[0].a].sizes.size() < 3) {
    return nullptr;
  }
  const uint32_t indices = graph.views[node.results[1].a].buffer;
  if (graph.buffers[indices].survives) return nullptr;
  bool read = false;
  for (const ir::Node& other : graph.nodes) {
    if (&other == &node) continue;
    ir::for_each_view(other, [&](uint32_t view, bool) { read |= graph.views[view].buffer == indices; });
  }
  if (read) return nullptr;
  switch (graph.views[node.args[0].a].dtype) {
    case ir::DType::kFloat64:
      return run_pool<Floats<double>>;
    case ir::DType::kFloat32:
      return run_pool<Floats<float>>;
    case ir::DType::kFloat16:
      return run_pool<Float16>;
    case ir::DType::kBFloat16:
      return run_pool<BFloat16>;
    default:
      return nullptr;
  }
}

}  // namespace torch_remote::worker::aten
