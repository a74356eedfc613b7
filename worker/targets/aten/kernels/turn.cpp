#include "worker/targets/aten/kernels/turn.h"

#include <algorithm>
#include <cstdint>

#include "worker/targets/aten/kernels/parallel.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace torch_remote::worker::aten {
namespace {

constexpr int64_t kTurnedPlaces = 16;  // positions transposed at once: with 4-byte elements, a cache line in each plane
constexpr int64_t kTurnedGrain = 16384;   // number of elements that is worth a thread
constexpr int64_t kTurnedChannels = 256;  // channels per block: its cache lines stay in the L1 cache

// Channels x positions of one image.
template <typename T>
struct TurnedBlock {
  const T* from;
  T* to;
  int64_t from_channel, from_place, to_channel, to_place;  // strides, in elements
};

template <typename T>
void turn_elements(const TurnedBlock<T>& b, int64_t channel, int64_t channels, int64_t place, int64_t places) {
  for (int64_t c = channel; c < channel + channels; ++c) {
    for (int64_t p = place; p < place + places; ++p) {
      b.to[c * b.to_channel + p * b.to_place] = b.from[c * b.from_channel + p * b.from_place];
    }
  }
}

template <typename T>
void turn_block(const TurnedBlock<T>& b, int64_t channels, int64_t places) {
  turn_elements(b, 0, channels, 0, places);
}

#if defined(__SSE2__)
// Transposes four rows of four elements.
inline void transpose_four(const float* from, int64_t from_apart, float* to, int64_t to_apart) {
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_apart);
  __m128 c = _mm_loadu_ps(from + 2 * from_apart), d = _mm_loadu_ps(from + 3 * from_apart);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + to_apart, b);
  _mm_storeu_ps(to + 2 * to_apart, c);
  _mm_storeu_ps(to + 3 * to_apart, d);
}

template <>
void turn_block(const TurnedBlock<float>& b, int64_t channels, int64_t places) {
  const int64_t most_channels = channels / 4 * 4, most_places = places / 4 * 4;
  const bool to_last = b.to_channel == 1;
  for (int64_t c = 0; c < most_channels; c += 4) {
    for (int64_t p = 0; p < most_places; p += 4) {
      const float* const from = b.from + c * b.from_channel + p * b.from_place;
      float* const to = b.to + c * b.to_channel + p * b.to_place;
      if (to_last) {
        transpose_four(from, b.from_channel, to, b.to_place);
      } else {
        transpose_four(from, b.from_place, to, b.to_channel);
      }
    }
  }
  turn_elements(b, most_channels, channels - most_channels, 0, places);
  turn_elements(b, 0, most_channels, most_places, places - most_places);
}
#endif

template <typename T>
void turn(const at::Tensor& from, const ImageLayout& source, const at::Tensor& to, const ImageLayout& target) {
  const int64_t blocks = (source.places + kTurnedPlaces - 1) / kTurnedPlaces;
  const int64_t grain = std::max<int64_t>(1, kTurnedGrain / (kTurnedPlaces * source.channels));
  const T* const first = static_cast<const T*>(from.const_data_ptr());
  T* const made = static_cast<T*>(to.mutable_data_ptr());
  in_parallel(from.size(0) * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / blocks, place = i % blocks * kTurnedPlaces;
      const int64_t places = std::min(kTurnedPlaces, source.places - place);
      for (int64_t c = 0; c < source.channels; c += kTurnedChannels) {
        const TurnedBlock<T> block{first + image * from.stride(0) + c * source.channel_step + place * source.place_step,
                                   made + image * to.stride(0) + c * target.channel_step + place * target.place_step,
                                   source.channel_step,
                                   source.place_step,
                                   target.channel_step,
                                   target.place_step};
        turn_block(block, std::min(kTurnedChannels, source.channels - c), places);
      }
    }
  });
}

}  // namespace

bool find_image_layout(const at::Tensor& image, ImageLayout* layout) {
  if (image.layout() != c10::kStrided || image.dim() < 3 || image.dim() > 5 || image.numel() == 0) return false;
  ImageLayout found{.channels = image.size(1), .places = 1, .channel_step = image.stride(1)};
  // Positions form one dim if each spatial dim's stride is the extent of the next inner dim.
  for (int64_t d = image.dim(); d-- > 2;) {
    if (image.size(d) == 1) continue;
    if (found.places == 1) {
      found.place_step = image.stride(d);
    } else if (image.stride(d) != found.place_step * found.places) {
      return false;
    }
    found.places *= image.size(d);
  }
  if (found.channels == 1 || found.places == 1) return false;
  const bool plain = found.place_step == 1 && found.channel_step >= found.places;
  const bool last = found.channel_step == 1 && found.place_step >= found.channels;
  if (plain == last) return false;
  *layout = found;
  return true;
}

bool are_turned(const at::Tensor& a, const at::Tensor& b) {
  ImageLayout one, other;
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && !a.is_conj() && !b.is_conj() && !a.is_neg() &&
         !b.is_neg() && find_image_layout(a, &one) && find_image_layout(b, &other) && one.last() != other.last();
}

bool copy_turned(const at::Tensor& from, const at::Tensor& to) {
  if (!are_turned(from, to)) return false;
  ImageLayout source, target;
  find_image_layout(from, &source);
  find_image_layout(to, &target);
  switch (from.element_size()) {
    case 2:
      turn<uint16_t>(from, source, to, target);
      return true;
    case 4:
      turn<float>(from, source, to, target);
      return true;
    case 8:
      turn<uint64_t>(from, source, to, target);
      return true;
    default:
      return false;
  }
}

}  // namespace torch_remote::worker::aten
