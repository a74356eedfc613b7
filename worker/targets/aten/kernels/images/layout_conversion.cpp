#include "worker/targets/aten/kernels/images/layout_conversion.h"

#include <algorithm>
#include <cstdint>

#include "worker/targets/aten/kernels/parallel.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace torch_remote::worker::aten {
namespace {

constexpr int64_t kBlockPositions =
    16;  // positions transposed at once: with 4-byte elements, a cache line in each plane
constexpr int64_t kConversionGrain = 16384;  // number of elements that is worth a thread
constexpr int64_t kBlockChannels = 256;      // channels per block: its cache lines stay in the L1 cache

// Channels x positions of one image.
template <typename T>
struct LayoutBlock {
  const T* from;
  T* to;
  int64_t from_channel, from_position, to_channel, to_position;  // strides, in elements
};

template <typename T>
void convert_elements(const LayoutBlock<T>& b, int64_t channel, int64_t channels, int64_t position, int64_t positions) {
  for (int64_t c = channel; c < channel + channels; ++c) {
    for (int64_t p = position; p < position + positions; ++p) {
      b.to[c * b.to_channel + p * b.to_position] = b.from[c * b.from_channel + p * b.from_position];
    }
  }
}

template <typename T>
void convert_block(const LayoutBlock<T>& b, int64_t channels, int64_t positions) {
  convert_elements(b, 0, channels, 0, positions);
}

#if defined(__SSE2__)
// Transposes four rows of four elements.
inline void transpose_four(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_stride);
  __m128 c = _mm_loadu_ps(from + 2 * from_stride), d = _mm_loadu_ps(from + 3 * from_stride);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + to_stride, b);
  _mm_storeu_ps(to + 2 * to_stride, c);
  _mm_storeu_ps(to + 3 * to_stride, d);
}

template <>
void convert_block(const LayoutBlock<float>& b, int64_t channels, int64_t positions) {
  const int64_t most_channels = channels / 4 * 4, most_positions = positions / 4 * 4;
  const bool to_last = b.to_channel == 1;
  for (int64_t c = 0; c < most_channels; c += 4) {
    for (int64_t p = 0; p < most_positions; p += 4) {
      const float* const from = b.from + c * b.from_channel + p * b.from_position;
      float* const to = b.to + c * b.to_channel + p * b.to_position;
      if (to_last) {
        transpose_four(from, b.from_channel, to, b.to_position);
      } else {
        transpose_four(from, b.from_position, to, b.to_channel);
      }
    }
  }
  convert_elements(b, most_channels, channels - most_channels, 0, positions);
  convert_elements(b, 0, most_channels, most_positions, positions - most_positions);
}
#endif

template <typename T>
void convert_image(const at::Tensor& from, const ImageLayout& source, const at::Tensor& to, const ImageLayout& target) {
  const int64_t blocks = (source.positions + kBlockPositions - 1) / kBlockPositions;
  const int64_t grain = std::max<int64_t>(1, kConversionGrain / (kBlockPositions * source.channels));
  const T* const first = static_cast<const T*>(from.const_data_ptr());
  T* const made = static_cast<T*>(to.mutable_data_ptr());
  run_parallel(from.size(0) * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / blocks, position = i % blocks * kBlockPositions;
      const int64_t positions = std::min(kBlockPositions, source.positions - position);
      for (int64_t c = 0; c < source.channels; c += kBlockChannels) {
        const LayoutBlock<T> block{
            first + image * from.stride(0) + c * source.channel_stride + position * source.position_stride,
            made + image * to.stride(0) + c * target.channel_stride + position * target.position_stride,
            source.channel_stride,
            source.position_stride,
            target.channel_stride,
            target.position_stride};
        convert_block(block, std::min(kBlockChannels, source.channels - c), positions);
      }
    }
  });
}

}  // namespace

bool find_image_layout(const at::Tensor& image, ImageLayout* layout) {
  if (image.layout() != c10::kStrided || image.dim() < 3 || image.dim() > 5 || image.numel() == 0) return false;
  ImageLayout found{.channels = image.size(1), .positions = 1, .channel_stride = image.stride(1)};
  // Positions form one dim if each spatial dim's stride is the extent of the next inner dim.
  for (int64_t d = image.dim(); d-- > 2;) {
    if (image.size(d) == 1) continue;
    if (found.positions == 1) {
      found.position_stride = image.stride(d);
    } else if (image.stride(d) != found.position_stride * found.positions) {
      return false;
    }
    found.positions *= image.size(d);
  }
  if (found.channels == 1 || found.positions == 1) return false;
  const bool plain = found.position_stride == 1 && found.channel_stride >= found.positions;
  const bool last = found.channel_stride == 1 && found.position_stride >= found.channels;
  if (plain == last) return false;
  *layout = found;
  return true;
}

bool layouts_differ(const at::Tensor& a, const at::Tensor& b) {
  ImageLayout one, other;
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && !a.is_conj() && !b.is_conj() && !a.is_neg() &&
         !b.is_neg() && find_image_layout(a, &one) && find_image_layout(b, &other) &&
         one.is_channels_last() != other.is_channels_last();
}

bool copy_converting_layout(const at::Tensor& from, const at::Tensor& to) {
  if (!layouts_differ(from, to)) return false;
  ImageLayout source, target;
  find_image_layout(from, &source);
  find_image_layout(to, &target);
  switch (from.element_size()) {
    case 2:
      convert_image<uint16_t>(from, source, to, target);
      return true;
    case 4:
      convert_image<float>(from, source, to, target);
      return true;
    case 8:
      convert_image<uint64_t>(from, source, to, target);
      return true;
    default:
      return false;
  }
}

}  // namespace torch_remote::worker::aten
