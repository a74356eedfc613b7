// Rules of linear algebra, Fourier transforms and histograms: ops whose CPU results have unusual strides.
#include <algorithm>

#include "frontend/shapes/shape_rules.h"

namespace torch_remote::frontend {
namespace {

using c10::DimVector;
using c10::IntArrayRef;
using c10::IValue;
using c10::ScalarType;

// -- Fourier transforms ----------------------------------------------------------------------------------------------

// Sizes and strides of a transform's result, as MKL leaves them. The other dims come first, in the order of the input's
// strides, then the transformed dims in the given order.
void add_transformed(IntArrayRef strides, IntArrayRef sizes, const DimVector& dims, ScalarType dtype, Inferred& out) {
  const auto rank = static_cast<int64_t>(sizes.size());
  DimVector order;
  for (int64_t d = 0; d < rank; ++d) order.push_back(d);
  const auto others = std::partition(order.begin(), order.end(),
                                     [&](int64_t d) { return std::find(dims.begin(), dims.end(), d) == dims.end(); });
  std::sort(order.begin(), others, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  std::copy(dims.begin(), dims.end(), others);
  ResultMeta& result = out.add(sizes, dtype);
  int64_t next = 1;
  for (int64_t i = rank - 1; i >= 0; --i) {
    result.strides[order[i]] = next;
    next *= std::max<int64_t>(sizes[order[i]], 1);
  }
}

DimVector by_stride(const at::Tensor& self, DimVector dims, size_t count) {
  std::sort(dims.begin(), dims.begin() + static_cast<ptrdiff_t>(count),
            [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); });
  return dims;
}

// Returns false unless these are distinct dims of the tensor.
bool take_dims(const at::Tensor& self, const IValue& value, DimVector& dims) {
  dims = int_list(value);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0 || dims[i] >= self.dim()) return false;
    if (std::find(dims.begin(), dims.begin() + static_cast<ptrdiff_t>(i), dims[i]) !=
        dims.begin() + static_cast<ptrdiff_t>(i)) {
      return false;
    }
  }
  return !dims.empty() && self.numel() > 0;
}

bool is_single_or_double(ScalarType t) { return t == ScalarType::Float || t == ScalarType::Double; }

// _fft_c2c(self, dim, normalization, forward)
bool fft_c2c(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  DimVector dims;
  if (!self.is_complex() || !is_single_or_double(c10::toRealValueType(self.scalar_type())) ||
      !take_dims(self, args[1], dims)) {
    return false;
  }
  add_transformed(self.strides(), self.sizes(), by_stride(self, dims, dims.size()), self.scalar_type(), out);
  return true;
}

// _fft_r2c(self, dim, normalization, onesided)
bool fft_r2c(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  DimVector dims;
  if (!is_single_or_double(self.scalar_type()) || !take_dims(self, args[1], dims)) return false;
  DimVector sizes(self.sizes().begin(), self.sizes().end());
  if (args[3].toBool()) sizes[dims.back()] = sizes[dims.back()] / 2 + 1;
  add_transformed(self.strides(), sizes, by_stride(self, dims, dims.size() - 1), c10::toComplexType(self.scalar_type()),
                  out);
  return true;
}

// _fft_c2r(self, dim, normalization, last_dim_size): complex to complex over all dims but the last, then the last dim.
bool fft_c2r(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  const int64_t last = args[3].toInt();
  DimVector dims;
  if (last < 1 || !self.is_complex() || !is_single_or_double(c10::toRealValueType(self.scalar_type())) ||
      !take_dims(self, args[1], dims)) {
    return false;
  }
  DimVector strides(self.strides().begin(), self.strides().end());
  if (dims.size() > 1) {
    const DimVector first(dims.begin(), dims.end() - 1);
    Inferred halfway;
    add_transformed(strides, self.sizes(), by_stride(self, first, first.size()), self.scalar_type(), halfway);
    strides = halfway.results[0].strides;
  }
  DimVector sizes(self.sizes().begin(), self.sizes().end());
  sizes[dims.back()] = last;
  add_transformed(strides, sizes, DimVector{dims.back()}, c10::toRealValueType(self.scalar_type()), out);
  return true;
}

// -- the rest --------------------------------------------------------------------------------------------------------

// linalg_eig(self) -> values, vectors. LAPACK returns the vectors in column-major order.
bool linalg_eig(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  const int64_t rank = self.dim();
  if (rank < 2 || self.size(-1) != self.size(-2) || !is_single_or_double(c10::toRealValueType(self.scalar_type()))) {
    return false;
  }
  const ScalarType dtype = c10::toComplexType(c10::toRealValueType(self.scalar_type()));
  out.add(self.sizes().slice(0, rank - 1), dtype);
  ResultMeta& vectors = out.add(self.sizes(), dtype);
  std::swap(vectors.strides[rank - 2], vectors.strides[rank - 1]);
  return true;
}

// _histogramdd_bin_edges(self, bins, range, weight, density): for each dim, one more edge than bins.
bool histogram_edges(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  const DimVector bins = int_list(args[1]);
  TORCH_CHECK(self.dim() >= 2, "torch.histogramdd: input tensor should have at least 2 dimensions");
  const int64_t dims = self.size(-1);
  TORCH_CHECK(static_cast<int64_t>(bins.size()) == dims,
              "histogramdd: The size of bins must be equal to the innermost dimension of the input.");
  if (!args[2].isNone()) {
    const auto range = args[2].toDoubleVector();
    TORCH_CHECK(static_cast<int64_t>(range.size()) == 2 * dims, "torch.histogramdd: for a ", dims,
                "-dimensional histogram range should have ", 2 * dims, " elements, but got ", range.size());
    for (int64_t i = 0; i < dims; ++i) {
      TORCH_CHECK(range[2 * i] <= range[2 * i + 1], "torch.histogramdd: min should not exceed max, but got min ",
                  range[2 * i], " max ", range[2 * i + 1], " for dimension ", i);
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(is_single_or_double(self.scalar_type()), "\"histogramdd\" not implemented for '",
                              self.scalar_type(), "'");
  out.list_lengths.push_back(static_cast<uint32_t>(bins.size()));
  for (const int64_t count : bins) {
    if (count < 0) return false;
    out.add({count + 1}, self.scalar_type());
  }
  return true;
}

}  // namespace

std::span<const NamedShapeRule> linalg_rules() {
  using enum ir::ShapeFunction;
  static constexpr NamedShapeRule kRules[] = {
      {kFftC2c, fft_c2c},
      {kFftR2c, fft_r2c},
      {kFftC2r, fft_c2r},
      {kLinalgEig, linalg_eig},
      {kHistogramEdges, histogram_edges},
  };
  return kRules;
}

}  // namespace torch_remote::frontend
