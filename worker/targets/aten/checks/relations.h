#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

// The functions that ir/ops/relations.toml uses and documents. They take tensors and lists of tensors as IValues; an
// undefined tensor has no dims.
namespace torch_remote::worker::aten::relations {

using c10::IValue;

bool defined(const IValue& value);
int64_t dim(const IValue& tensor);
int64_t size(const IValue& tensor, int64_t dim);  // a negative dim counts from the end; -1 if the dim does not exist
int64_t numel(const IValue& tensor);
int64_t count(const IValue& list);
int64_t product(const IValue& list);
int64_t item(const IValue& list, int64_t index);

bool same(const IValue& a, const IValue& b);
bool same_leading_sizes(const IValue& a, int64_t without_a, const IValue& b, int64_t without_b);
bool same_dtype(const IValue& a, const IValue& b);
bool in_range(const IValue& tensor, int64_t size);
bool labels(const IValue& tensor, int64_t size, int64_t ignored);
bool pivots_in_range(const IValue& tensor, int64_t size);
bool finite(const IValue& tensor);
bool not_lowest(const IValue& tensor);
bool fits(const IValue& tensor, const IValue& sizes, const IValue& strides);
bool all_same_sizes(const IValue& list);
bool dense(const IValue& list);
bool batched(const IValue& tensor);
bool each_has(const IValue& list, int64_t elements);
bool below_2_31(const IValue& list);

// These functions change an argument.
void pack(IValue& tensor);
void pack_rows(IValue& tensor);
void pack_format(IValue& tensor);
bool wrap(IValue& dims, int64_t rank);

// Whether elements of the tensor may share memory: it spans fewer elements than it has.
bool shares_memory(c10::IntArrayRef sizes, c10::IntArrayRef strides);
inline bool shares_memory(const at::Tensor& tensor) { return shares_memory(tensor.sizes(), tensor.strides()); }

}  // namespace torch_remote::worker::aten::relations
