#include "frontend/ops/kernels.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <cstring>

#include "frontend/device/current_device.h"
#include "frontend/device/device_state.h"
#include "frontend/device/generator.h"
#include "frontend/device/tensor.h"
#include "frontend/record/direct_copy.h"
#include "frontend/record/recorder.h"
#include "frontend/record/requests.h"
#include "frontend/record/storages.h"
#include "ir/ops/composed_ops.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::frontend {
namespace {

using at::Tensor;
using c10::DeviceIndex;
using c10::IntArrayRef;
using c10::IValue;
using c10::SymIntArrayRef;

c10::DeviceIndex index_of(std::optional<c10::Device> device) {
  const bool given = device.has_value() && device->has_index();
  check_not_forked();
  return given ? checked_device(device->index()) : current_device();
}

void check_factory(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(c10::kStrided) == c10::kStrided, "remote: tensors of layout ", *layout,
                              " are not supported; use torch.strided");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

// torch.use_deterministic_algorithms(True) with torch.utils.deterministic.fill_uninitialized_memory.
bool fills_new_memory() {
  const at::Context& context = at::globalContext();
  return C10_UNLIKELY(context.deterministicAlgorithms()) && context.deterministicFillUninitializedMemory();
}

// -- factories
// ------------------------------------------------------------------------------------------------------------

Tensor empty(IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
             std::optional<c10::Device> device, std::optional<bool> pin_memory,
             std::optional<c10::MemoryFormat> memory_format) {
  check_factory(layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  Tensor tensor = make_contiguous_tensor(size, c10::dtype_or_default(dtype), index_of(device));
  const c10::MemoryFormat format = memory_format.value_or(c10::MemoryFormat::Contiguous);
  if (format != c10::MemoryFormat::Contiguous) tensor.unsafeGetTensorImpl()->empty_tensor_restride(format);
  if (fills_new_memory()) at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                     std::optional<bool> pin_memory) {
  check_factory(layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  Tensor tensor = make_tensor(size, stride, c10::dtype_or_default(dtype), index_of(device));
  if (fills_new_memory()) at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

// torch uses this op for gradients that are zero. The result is a real tensor of zeros, because ops would read a tensor
// without memory.
Tensor efficient_zero_tensor(IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                             std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  return empty(size, dtype, layout, device, pin_memory, std::nullopt).zero_();
}

// -- views: metadata
// ------------------------------------------------------------------------------------------------------

// torch.compile calls these views with fake tensors, too, whose sizes are symbols. Then torch's implementation is used.
template <typename... Lists>
bool symbolic(const Tensor& self, const Lists&... lists) {
  return self.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
         (!c10::asIntArrayRefSlowOpt(lists).has_value() || ...);
}

Tensor as_strided(const Tensor& self, SymIntArrayRef sym_size, SymIntArrayRef sym_stride,
                  std::optional<c10::SymInt> offset) {
  if (symbolic(self, sym_size, sym_stride)) {
    return at::native::as_strided_tensorimpl_meta_symint(self, sym_size, sym_stride, std::move(offset));
  }
  const IntArrayRef size = C10_AS_INTARRAYREF_SLOW(sym_size), stride = C10_AS_INTARRAYREF_SLOW(sym_stride);
  const int64_t start = offset.has_value() ? offset->guard_int(__FILE__, __LINE__) : self.storage_offset();
  at::native::checkAsStridedArgs(size, stride, start);
  at::native::checkInBoundsForStorage(size, stride, start, self.dtype(), self.storage());
  return make_view(self, size, stride, start);
}

Tensor view(const Tensor& self, SymIntArrayRef sym_size) {
  if (symbolic(self, sym_size)) return at::native::view_symint(self, sym_size);
  const IntArrayRef size = C10_AS_INTARRAYREF_SLOW(sym_size);
  const c10::DimVector inferred = at::infer_size_dv(size, self.numel());
  const auto stride = at::detail::computeStride(self.sizes(), self.strides(), inferred);
  TORCH_CHECK(
      stride.has_value(),
      "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
      "contiguous subspaces). Use .reshape(...) instead.");
  return make_view(self, inferred, *stride, self.storage_offset());
}

Tensor reshape_alias(const Tensor& self, SymIntArrayRef sym_size, SymIntArrayRef sym_stride) {
  if (symbolic(self, sym_size, sym_stride)) return at::native::_reshape_alias_symint(self, sym_size, sym_stride);
  const IntArrayRef size = C10_AS_INTARRAYREF_SLOW(sym_size), stride = C10_AS_INTARRAYREF_SLOW(sym_stride);
  return make_view(self, size, stride, self.storage_offset());
}

// The view has one more dim.
Tensor view_as_real(const Tensor& self) {
  Tensor result = at::native::view_as_real(self);
  if (!symbolic(result)) check_rank(result.sizes());
  return result;
}

// -- storages
// -------------------------------------------------------------------------------------------------------------

void resize_to_fit(c10::TensorImpl* impl) {
  if (impl->numel() == 0) return;
  const size_t needed = at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), impl->dtype().itemsize(),
                                                         static_cast<size_t>(impl->storage_offset()));
  if (needed > impl->unsafe_storage().nbytes()) resize_storage(impl->unsafe_storage(), needed);
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<c10::MemoryFormat> memory_format) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto old_nbytes = static_cast<int64_t>(impl->unsafe_storage().nbytes());
  if (!self.sizes().equals(size)) {
    at::detail::check_size_nonnegative(size);
    check_rank(size);
    impl->set_sizes_contiguous(size);
    resize_to_fit(impl);
  }
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *memory_format);
    impl->empty_tensor_restride(*memory_format);
  }
  if (fills_new_memory()) at::native::fill_resize_deterministic_(self, old_nbytes);
  // NOLINTNEXTLINE(bugprone-return-const-ref-from-parameter): torch's signature
  return self;
}

Tensor& set_storage_offset(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  check_rank(size);
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  if (stride.data() != nullptr) {
    at::native::checkAsStridedArgs(size, stride, offset);
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  }
  resize_to_fit(impl);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source) {
  const int64_t size = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_offset(self, std::move(source), 0, {size}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_empty(Tensor& self) {
  const Tensor fresh = make_contiguous_tensor({0}, self.scalar_type(), self.device().index());
  return set_storage_offset(self, fresh.storage(), 0, {0}, {});
}

bool is_set_to(const Tensor& self, const Tensor& other) {
  return is_remote(self) && is_remote(other) &&
         self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes().equals(other.sizes()) &&
         self.strides().equals(other.strides());
}

// -- copies
// ---------------------------------------------------------------------------------------------------------------

void record_copy(const Tensor& self, const Tensor& source) {
  const IValue args[] = {self, source, false};
  Recorder::get(self.device().index()).record(ir::op_desc(ir::ops::aten_copy_), args, {}, {}, std::nullopt);
}

void copy_to_device(const Tensor& self, const Tensor& source) {
  TORCH_CHECK(source.is_cpu(), "remote: copy_ from a tensor on ", source.device(),
              " is not supported; copy it to the CPU first");
  const c10::DeviceIndex device = self.device().index();
  RemoteStorage* storage = storage_of(self);
  const bool whole = self.is_contiguous() && self.storage_offset() == 0 && storage->nbytes() == self.nbytes() &&
                     self.scalar_type() == source.scalar_type() && self.sizes().equals(source.sizes());
  if (whole && !has_buffer(storage)) {
    upload_into(source, storage, device);
  } else if (whole && source.dim() > 0) {
    // The tensor is overwritten completely, so the uploaded buffer replaces the old one without a copy on the worker.
    const Tensor fresh = upload_tensor(source, device);
    move_buffer(storage_of(fresh), storage);
  } else if (source.dim() == 0) {
    record_copy(self, source);  // the value becomes a parameter
  } else {
    record_copy(self, upload_tensor(source, device));
  }
}

void copy_to_host(const Tensor& self, const Tensor& source) {
  TORCH_CHECK(self.is_cpu(), "remote: copy_ to a tensor on ", self.device(),
              " is not supported; copy it to the CPU first");
  const bool alike = self.scalar_type() == source.scalar_type() && self.sizes().equals(source.sizes()) &&
                     !self.is_conj() && !self.is_neg();
  if (alike && self.is_contiguous()) {
    read_tensor(source, self.mutable_data_ptr(), "copy to cpu");
  } else if (alike && self.strides().equals(source.strides()) && self.is_non_overlapping_and_dense()) {
    // Both have the same dense layout, so read the elements in memory order, without packing.
    read_tensor(make_view(source, {source.numel()}, {1}, source.storage_offset()), self.mutable_data_ptr(),
                "copy to cpu");
  } else {
    const Tensor packed = at::detail::empty_cpu(source.sizes(), source.scalar_type());
    read_tensor(source, packed.mutable_data_ptr(), "copy to cpu");
    self.copy_(packed);
  }
}

// Copies between devices: directly from worker to worker, or through this process if they cannot connect.
void copy_between_devices(const Tensor& self, const Tensor& source) {
  const DeviceIndex device = self.device().index();
  // If both have the same dense layout, copy the elements in memory order, without packing.
  const bool flat = self.scalar_type() == source.scalar_type() && self.sizes().equals(source.sizes()) &&
                    self.strides().equals(source.strides()) && self.is_non_overlapping_and_dense();
  const auto in_memory = [](const Tensor& t) { return make_view(t, {t.numel()}, {1}, t.storage_offset()); };
  const Tensor packed = flat ? in_memory(source) : source.contiguous();
  const Tensor fresh = make_contiguous_tensor(packed.sizes(), packed.scalar_type(), device);
  if (!copy_directly(fresh, packed)) return copy_to_device(self, source.cpu());
  RemoteStorage* storage = storage_of(self);
  const bool whole = self.storage_offset() == 0 && storage->nbytes() == fresh.nbytes() &&
                     self.scalar_type() == source.scalar_type() && self.sizes().equals(source.sizes()) &&
                     (flat || self.is_contiguous());
  if (whole && !has_buffer(storage)) {
    move_buffer(storage_of(fresh), storage);
  } else {  // an op, so that the tensor keeps its contents if the copy fails
    record_copy(flat ? in_memory(self) : self, fresh);
  }
}

Tensor& copy_(Tensor& self, const Tensor& given, bool non_blocking) {
  if (self.is_same(given)) return self;
  if (is_remote(self) && given.is_complex() && !self.is_complex()) {  // a copy to the CPU warns there
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
  }
  // A lazy conjugate or negative is resolved on the device of the bytes.
  if (is_remote(self) && self.is_conj()) {
    // The conjugate of a real number has the imaginary part -0, so real sources are conjugated, too.
    self.conj().copy_(given.is_complex() ? given.conj() : given.to(self.scalar_type()).conj(), non_blocking);
    return self;
  }
  if (is_remote(self) && self.is_neg()) {
    self._neg_view().copy_(given.neg(), non_blocking);
    return self;
  }
  const Tensor source = given.resolve_conj().resolve_neg();
  const c10::DimVector sizes = at::infer_size_dimvector(self.sizes(), source.sizes());
  TORCH_CHECK(self.sizes().equals(sizes), "output with shape ", self.sizes(), " doesn't match the broadcast shape ",
              c10::IntArrayRef(sizes));
  if (self.numel() == 0) return self;
  // A copy onto itself does nothing, even if elements overlap, as on CPU.
  if (is_remote(self) && is_remote(source) && self.is_alias_of(source) && self.sizes().equals(source.sizes()) &&
      self.strides().equals(source.strides()) && self.storage_offset() == source.storage_offset() &&
      self.scalar_type() == source.scalar_type()) {
    return self;
  }
  if (is_remote(self)) at::assert_no_internal_overlap(self);
  if (!is_remote(source)) {
    copy_to_device(self, source);
  } else if (!is_remote(self)) {
    copy_to_host(self, source);
  } else {
    at::assert_no_partial_overlap(self, given);
    if (self.device() == source.device()) {
      record_copy(self, source);
    } else {
      copy_between_devices(self, source);
    }
  }
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  Tensor written = target;
  return copy_(written, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  target.resize_(self.sizes());
  Tensor written = target;
  return copy_(written, self, false);
}

c10::Scalar local_scalar_dense(const Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  const Tensor host = at::detail::empty_cpu({}, self.scalar_type());
  read_tensor(self, host.mutable_data_ptr(), "item");
  return host.item();
}

Tensor clone_tensor(const Tensor& self, std::optional<c10::MemoryFormat> memory_format) {
  Tensor source = self;
  if (self.is_conj()) source = source.conj();
  if (self.is_neg()) source = source._neg_view();
  Tensor result = at::empty_like(source, source.options(), memory_format.value_or(c10::MemoryFormat::Preserve));
  if (source.numel() != 0) record_copy(result, source);
  if (self.is_conj()) result.conj_physical_();
  if (self.is_neg()) result.neg_();
  return result;
}

Tensor lazy_clone(const Tensor& self) { return clone_tensor(self, std::nullopt); }

// -- the rest
// -------------------------------------------------------------------------------------------------------------

// Allows `module.to("remote")` to keep its Parameter objects, as on CUDA, so that an existing optimizer keeps working.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  const auto dense = [](const Tensor& t) { return t.layout() == c10::kStrided && (t.is_cpu() || is_remote(t)); };
  return self.key_set() == from.key_set() || (dense(self) && dense(from));
}

void record_stream(Tensor&, c10::Stream) {}  // all streams have one order

const Tensor& as_strided_(const Tensor& self, SymIntArrayRef sym_size, SymIntArrayRef sym_stride,
                          std::optional<c10::SymInt> offset) {
  if (symbolic(self, sym_size, sym_stride)) {
    return at::native::as_strided__symint(self, sym_size, sym_stride, std::move(offset));
  }
  const IntArrayRef size = C10_AS_INTARRAYREF_SLOW(sym_size), stride = C10_AS_INTARRAYREF_SLOW(sym_stride);
  const int64_t start = offset.has_value() ? offset->guard_int(__FILE__, __LINE__) : self.storage_offset();
  at::native::checkAsStridedArgs(size, stride, start);
  at::native::checkInBoundsForStorage(size, stride, start, self.dtype(), self.storage());
  check_rank(size);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, start);
  // NOLINTNEXTLINE(bugprone-return-const-ref-from-parameter): torch's signature
  return self;
}

}  // namespace

bool has_custom_kernel(std::string_view name) {
  const ir::ComposedOp* op = ir::find_composed(name);
  return op != nullptr && op->implemented_by_client;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_efficientzerotensor", &efficient_zero_tensor);
  library.impl("as_strided", &as_strided);
  library.impl("as_strided_", &as_strided_);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", &view_as_real);
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("resize_", &resize_);
  library.impl("set_.source_Storage", &set_storage);
  library.impl("set_.source_Storage_storage_offset", &set_storage_offset);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_", &set_empty);
  library.impl("is_set_to", &is_set_to);
  library.impl("copy_", &copy_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("clone", &clone_tensor);
  library.impl("_lazy_clone", &lazy_clone);
  library.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  library.impl("record_stream", &record_stream);
}

}  // namespace torch_remote::frontend
