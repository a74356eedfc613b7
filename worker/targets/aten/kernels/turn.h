#pragma once

#include <ATen/core/Tensor.h>

// Images (image, channel, and one to three dims of places) lie plain, a plane for each channel, or channels last, the
// channels of a place side by side. torch copies from one to the other element by element.
namespace torch_remote::worker::aten {

// How an image lies: steps from a channel to the next one and from a place to the next one, in elements.
struct ImageLayout {
  int64_t channels = 0, places = 0;          // of an image
  int64_t channel_step = 0, place_step = 0;  // one of them is 1
  bool last() const { return channel_step == 1; }
};

// False: it lies in neither way, or in both, as with one channel.
bool find_image_layout(const at::Tensor& image, ImageLayout* layout);

// Both are images, of the same sizes and dtype, and one of them lies plain and the other one channels last.
bool are_turned(const at::Tensor& a, const at::Tensor& b);

// to.copy_(from) if they are; false, and nothing was done, if not. The memory of both must not overlap.
bool copy_turned(const at::Tensor& from, const at::Tensor& to);

}  // namespace torch_remote::worker::aten
