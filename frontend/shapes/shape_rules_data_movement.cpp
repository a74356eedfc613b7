#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>

#include "frontend/shapes/shape_rules.h"
#include "ir/ops/op_table_generated.h"

// Rules of ops that move elements: concatenation, selection, copies of views, padding, cumulative sums.
namespace torch_remote::frontend {
namespace {

using c10::IntArrayRef;
using c10::IValue;
using c10::ScalarType;

bool all_contiguous_same(c10::ArrayRef<IValue> tensors) {
  const ScalarType dtype = tensors[0].toTensor().scalar_type();
  for (const IValue& item : tensors) {
    const at::Tensor& t = item.toTensor();
    if (!t.is_contiguous() || t.scalar_type() != dtype || !is_remote(t)) return false;
  }
  return true;
}

bool cat(const OpEntry& op, const IValue* args, Inferred& out) {
  const auto tensors = args[0].toListRef();
  if (tensors.empty() || !all_contiguous_same(tensors)) return false;
  const at::Tensor& first = tensors[0].toTensor();
  const int64_t rank = first.dim();
  int64_t dim = args[1].toInt();
  if (rank == 0 || dim < -rank || dim >= rank) return false;
  if (dim < 0) dim += rank;
  c10::DimVector sizes(first.sizes().begin(), first.sizes().end());
  if (rank >= 4 && !is_only_contiguous(first)) return false;
  for (const IValue& item : tensors.slice(1)) {
    const at::Tensor& t = item.toTensor();
    if (t.dim() != rank) return false;
    for (int64_t i = 0; i < rank; ++i) {
      if (i != dim && t.size(i) != sizes[i]) return false;
    }
    sizes[dim] += t.size(dim);
  }
  out.add(sizes, first.scalar_type());
  return true;
}

bool stack(const OpEntry& op, const IValue* args, Inferred& out) {
  const auto tensors = args[0].toListRef();
  if (tensors.empty() || !all_contiguous_same(tensors)) return false;
  const at::Tensor& first = tensors[0].toTensor();
  const int64_t rank = first.dim() + 1;
  int64_t dim = args[1].toInt();
  if (dim < -rank || dim >= rank) return false;
  if (rank >= 4) {  // with dims of size 1, contiguous may count as channels-last
    for (const int64_t size : first.sizes()) {
      if (size <= 1) return false;
    }
  }
  if (dim < 0) dim += rank;
  for (const IValue& item : tensors.slice(1)) {
    if (!item.toTensor().sizes().equals(first.sizes())) return false;
  }
  c10::DimVector sizes(first.sizes().begin(), first.sizes().end());
  sizes.insert(sizes.begin() + dim, static_cast<int64_t>(tensors.size()));
  out.add(sizes, first.scalar_type());
  return true;
}

bool index_select(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  const at::Tensor& index = args[2].toTensor();
  const int64_t rank = self.dim();
  int64_t dim = args[1].toInt();
  if (!is_remote(self) || !is_remote(index) || rank == 0 || index.dim() > 1 || dim < -rank || dim >= rank) return false;
  if (index.scalar_type() != ScalarType::Long && index.scalar_type() != ScalarType::Int) return false;
  c10::DimVector sizes(self.sizes().begin(), self.sizes().end());
  sizes[dim < 0 ? dim + rank : dim] = index.numel();
  out.add(sizes, self.scalar_type());
  return true;
}

// select_backward(grad, input_sizes, dim, index), slice_backward, diagonal_backward
bool view_backward(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& grad = args[0].toTensor();
  if (!is_remote(grad)) return false;
  out.add(int_list(args[1]), grad.scalar_type());
  return true;
}

bool cumulative(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  const int64_t rank = std::max<int64_t>(self.dim(), 1);
  if (!is_remote(self) || !self.is_contiguous() || op.dim < 0 || op.desc->results.size() != 1) return false;
  const int64_t dim = args[op.dim].toInt();
  if (dim < -rank || dim >= rank) return false;
  ScalarType dtype = self.scalar_type();
  if (c10::isIntegralType(dtype, true)) dtype = ScalarType::Long;
  out.add(self.sizes(), dtype_arg(op, args, dtype));
  return true;
}

// view_copy(self, size): CPU reshapes if no view is possible.
bool view_copy(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  if (!is_remote(self)) return false;
  out.add(at::infer_size_dv(int_list(args[1]), self.numel()), self.scalar_type());
  return true;
}

// roll(self, shifts, dims): CPU concatenates two parts for each dim, and the result takes their memory format.
bool roll(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  const auto shifts = int_list(args[1]), dims = int_list(args[2]);
  if (!is_remote(self)) return false;
  if (dims.empty() && shifts.size() == 1) {
    out.add(self.sizes(), self.scalar_type());
    return true;
  }
  if (dims.size() != shifts.size() || dims.empty()) return false;
  if (self.numel() == 0) return like_first(op, args, out);  // and dims are not checked
  const int64_t rank = self.dim();
  at::Tensor rolled = self;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < -rank || dims[i] >= rank) return false;
    const int64_t dim = dims[i] < 0 ? dims[i] + rank : dims[i];
    const int64_t size = self.size(dim);
    const int64_t first = ((size - shifts[i]) % size + size) % size;
    const auto format_of_part = [&](int64_t part) {
      c10::DimVector sizes(self.sizes().begin(), self.sizes().end());
      sizes[dim] = part;
      return make_view(rolled, sizes, rolled.strides(), 0).suggest_memory_format();
    };
    const c10::MemoryFormat format =
        format_of_part(size - first) == format_of_part(first) ? format_of_part(first) : c10::MemoryFormat::Contiguous;
    out.results.clear();
    const ResultMeta& result = out.add(self.sizes(), format, self.scalar_type());
    rolled = make_view(rolled, result.sizes, result.strides, 0);
  }
  return true;
}

// constant_pad_nd(self, pad, value)
bool pad(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  if (!is_remote(self) || !is_only_contiguous(self)) return false;
  const auto amounts = int_list(args[1]);
  const int64_t rank = self.dim();
  if (amounts.size() % 2 != 0 || static_cast<int64_t>(amounts.size()) > 2 * rank) return false;
  c10::DimVector sizes(self.sizes().begin(), self.sizes().end());
  bool grows = false;
  for (size_t i = 0; i < amounts.size() / 2; ++i) {
    int64_t& size = sizes[static_cast<size_t>(rank) - 1 - i];
    const int64_t before = amounts[2 * i], behind = amounts[2 * i + 1];
    const int64_t kept = size + std::min<int64_t>(before, 0) + std::min<int64_t>(behind, 0);
    size += before + behind;
    grows |= before > 0 || behind > 0;
    if (size < 0 || kept < 0) return false;
  }
  if (grows) {
    out.add(sizes, self.scalar_type());
  } else {  // the result is a clone of a narrowed view
    const at::Tensor narrowed = make_view(self, sizes, self.strides(), 0);
    if (narrowed.is_non_overlapping_and_dense()) {
      out.add(sizes, self.strides(), self.scalar_type());
    } else {
      out.add(sizes, at::infer_dense_strides(sizes, self.strides()), self.scalar_type());
    }
  }
  return true;
}

}  // namespace

std::span<const NamedShapeRule> data_movement_rules() {
  using enum ir::ShapeFunction;
  static constexpr NamedShapeRule kRules[] = {
      {kCat, cat},
      {kStack, stack},
      {kIndexSelect, index_select},
      {kViewBackward, view_backward},
      {kCumulative, cumulative},
      {kViewCopy, view_copy},
      {kRoll, roll},
      {kPad, pad},
  };
  return kRules;
}

}  // namespace torch_remote::frontend
