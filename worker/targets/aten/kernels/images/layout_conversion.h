#pragma once

#include <ATen/core/Tensor.h>

// Images have the dims image, channel, and one to three spatial dims. They are contiguous (NCHW), with one plane per
// channel, or channels last, with the channels of a position next to each other. Torch copies between these layouts
// element by element.
namespace torch_remote::worker::aten {

// An image's layout: the strides of channels and of positions, in elements.
struct ImageLayout {
  int64_t channels = 0, positions = 0;              // per image
  int64_t channel_stride = 0, position_stride = 0;  // one of them is 1
  bool is_channels_last() const { return channel_stride == 1; }
};

// Returns false if the image has neither layout, or both, as with one channel.
bool find_image_layout(const at::Tensor& image, ImageLayout* layout);

// Whether both are images of the same sizes and dtype, one contiguous (NCHW) and the other channels last.
bool layouts_differ(const at::Tensor& a, const at::Tensor& b);

// Does to.copy_(from) if layouts_differ(from, to); otherwise returns false and does nothing. Their memory must not
// overlap.
bool copy_converting_layout(const at::Tensor& from, const at::Tensor& to);

}  // namespace torch_remote::worker::aten
