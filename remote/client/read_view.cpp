#include "remote/client/read_view.h"

#include <cstring>

namespace torch_remote::remote {
namespace {

// Copies the view's elements from dim `dim` on, packed. Returns the end of the written bytes.
std::byte* gather_from(const ReadView& view, const std::byte* from, size_t dim, std::byte* to) {
  if (dim == view.sizes.size()) {
    std::memcpy(to, from, view.item_size);
    return to + view.item_size;
  }
  for (int64_t i = 0; i < view.sizes[dim]; ++i) {
    to = gather_from(view, from + i * view.strides[dim] * view.item_size, dim + 1, to);
  }
  return to;
}

}  // namespace

bool measure(const ReadView& view, uint64_t* packed, uint64_t* end) {
  *packed = view.item_size;
  __int128 last = view.offset;
  bool first_is_inside = view.offset >= 0;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] < 0 || __builtin_mul_overflow(*packed, static_cast<uint64_t>(view.sizes[i]), packed))
      return false;
    first_is_inside = first_is_inside && view.strides[i] >= 0;
    last += static_cast<__int128>(view.sizes[i] - 1) * view.strides[i];
  }
  // UINT64_MAX is larger than any buffer that is read speculatively.
  const __int128 bytes = (last + 1) * view.item_size;
  *end = first_is_inside && bytes >= 0 && bytes < INT64_MAX ? static_cast<uint64_t>(bytes) : UINT64_MAX;
  return true;
}

void copy_packed(const ReadView& view, const std::byte* from, std::byte* to) { gather_from(view, from, 0, to); }

bool is_contiguous(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

Status check_size(const Frame& reply, uint64_t expected) {
  const size_t came = reply.attachment ? reply.attachment->bytes().size() : 0;
  if (came == expected) return {};
  if (reply.refused_bytes != 0) {
    return {ErrorCode::kOutOfMemory, "remote: this process is out of memory. It has none left for the " +
                                         std::to_string(reply.refused_bytes) + " bytes of a tensor to read"};
  }
  return Status::internal("remote: the worker sent " + std::to_string(came) + " bytes of a tensor of " +
                          std::to_string(expected));
}

}  // namespace torch_remote::remote
