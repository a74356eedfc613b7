#include "frontend/record/trace_encoder.h"

#include <algorithm>
#include <span>
#include <utility>

namespace torch_remote::frontend {

uint32_t TraceEncoder::find_local(const Numbers& numbers, const void* object) {
  const auto found = numbers.find(object);
  return found != numbers.end() ? found->second : kNone;
}

bool TraceEncoder::enter_local(const void* object, const TraceSlot& slot, uint32_t number, Numbers& local) {
  const bool of_another = std::ranges::any_of(shared_.all, [&](const TraceEncoder* other) {
    return other != this && other->epoch_ == slot.epoch && !other->trace_.empty();
  });
  if (!of_another) return false;
  local[object] = number;
  has_local_indices_ = true;
  return true;
}

void TraceEncoder::check_not_lost(const RemoteStorage* storage) {
  raised_lost_ = shared_.is_lost(storage);
  if (raised_lost_) raise_lost();
}

void raise_lost() {
  TORCH_CHECK(
      false,
      "remote: this tensor's contents were lost with the worker that held them, or torch.remote.cancel() dropped "
      "the ops that compute them; overwrite it (copy_, zero_, load_state_dict) or make it again, after "
      "torch.remote.restart() if the worker was lost");
}

std::vector<RemoteStorage*> TraceEncoder::forget_overwritten(const ir::OpDesc& op, const c10::IValue* args) const {
  std::vector<RemoteStorage*> overwritten, read;
  for (size_t i = 0; i < op.args.size(); ++i) {
    if (op.args[i].role != ir::ArgRole::kOperand) continue;
    const auto visit = [&](const c10::IValue& value) {
      if (!value.isTensor() || !value.toTensor().defined() || !is_remote(value.toTensor())) return;
      const at::Tensor& tensor = value.toTensor();
      RemoteStorage* storage = storage_of(tensor);
      const bool whole = op.args[i].overwrites && shared_.is_lost(storage) && tensor.storage_offset() == 0 &&
                         tensor.is_non_overlapping_and_dense() && tensor.nbytes() == storage->nbytes();
      (whole ? overwritten : read).push_back(storage);
    };
    if (args[i].isList()) {
      for (const c10::IValue& item : args[i].toListRef()) visit(item);
    } else {
      visit(args[i]);
    }
  }
  std::erase_if(overwritten, [&](RemoteStorage* storage) { return std::ranges::find(read, storage) != read.end(); });
  for (RemoteStorage* storage : overwritten) storage->id = 0;
  return overwritten;
}

void TraceEncoder::encode_view(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  RemoteStorage* storage = storage_of(tensor);
  const auto dtype = static_cast<ir::DType>(c10::typeMetaToScalarType(impl->dtype()));
  const auto sizes = span_of(impl->sizes());
  const auto strides = span_of(impl->strides());
  const int64_t offset = impl->storage_offset();
  TraceSlot& slot = view_slot(impl, storage);
  uint32_t buffer = storage->buffer.index, view = slot.index;
  bool known = storage->buffer.epoch == epoch_, seen = slot.epoch == epoch_;
  if (has_local_indices_) [[unlikely]] {
    if (!known) known = (buffer = find_local(local_buffers_, storage)) != kNone;
    if (!seen) seen = (view = find_local(local_views_, impl)) != kNone;
  }
  known = known && !encoding_join_;
  if (known && seen && trace_.views[view].buffer == buffer &&
      trace_.view_matches(view, dtype, sizes, strides, offset)) {
    trace_.use_view(view);
    return;
  }
  if (known) {
    view = trace_.new_view(buffer, dtype, sizes, strides, offset);
  } else {
    check_not_lost(storage);
    enter_buffer(storage);
    view = trace_.new_buffer_view(storage->id, storage, storage->nbytes(), dtype, sizes, strides, offset);
  }
  enter(impl, slot, view, local_views_);
}

namespace {

// Whether this is an integer from 2^63 on, which only uint64 represents.
bool exceeds_int64(const c10::Scalar& number) { return number.type() == c10::ScalarType::UInt64; }

// The dtype of a tensor of the device; Undefined for any other value.
c10::ScalarType remote_dtype(const c10::IValue& value) {
  const bool remote = value.isTensor() && value.toTensor().defined() && is_remote(value.toTensor());
  return remote ? value.toTensor().scalar_type() : c10::ScalarType::Undefined;
}

}  // namespace

void TraceEncoder::encode_operand(const at::Tensor& tensor, const c10::IValue& first) {
  if (!tensor.defined()) {
    trace_.word(ir::kAbsent);
    return;
  }
  if (is_remote(tensor)) {
    encode_view(tensor);
    return;
  }
  // The value of a 0-dim CPU tensor is a parameter. The caller has refused all other CPU tensors.
  const c10::ScalarType dtype = tensor.scalar_type();
  const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  const uint32_t kind = ir::kScalarOperand | static_cast<uint32_t>(dtype) << 8 | wrapped;
  if (dtype == c10::ScalarType::Double) {
    trace_.word(kind);
    trace_.param(*static_cast<const double*>(tensor.const_data_ptr()));
  } else if (dtype == c10::ScalarType::Long) {
    trace_.word(kind);
    trace_.param(*static_cast<const int64_t*>(tensor.const_data_ptr()));
  } else {
    const c10::Scalar number = tensor.item();
    if (exceeds_int64(number)) return encode_large_operand(number, wrapped, first);
    trace_.word(kind);
    encode_scalar(number);
  }
}

// With a float tensor, torch computes in its dtype, so the number becomes a float. With a tensor of integers, torch
// wraps the number around, so its bits are those of an int64.
void TraceEncoder::encode_large_operand(const c10::Scalar& number, bool wrapped, const c10::IValue& first) {
  const c10::ScalarType dtype = remote_dtype(first);
  const auto add_kind = [&](c10::ScalarType type, bool is_wrapped) {
    trace_.word(ir::kScalarOperand | static_cast<uint32_t>(type) << 8 | static_cast<uint32_t>(is_wrapped));
  };
  if (c10::isFloatingType(dtype)) {
    add_kind(c10::ScalarType::Double, true);
    trace_.param(number.toDouble());
  } else if (c10::isIntegralType(dtype, /*includeBool=*/false)) {
    add_kind(wrapped ? c10::ScalarType::Long : c10::ScalarType::UInt64, wrapped);
    trace_.param(static_cast<int64_t>(number.toUInt64()));
  } else {
    encode_scalar(number);  // raises
  }
}

void TraceEncoder::encode_scalar(const c10::Scalar& scalar) {
  if (scalar.isComplex()) {
    trace_.param(scalar.toComplexDouble().real());
    trace_.param(scalar.toComplexDouble().imag());
  } else if (scalar.isFloatingPoint()) {
    trace_.param(scalar.toDouble());
  } else {
    trace_.param(scalar.to<int64_t>());
  }
}

// The op converts the number to the dtype of its first argument, if that is a tensor.
void TraceEncoder::encode_large_scalar(const c10::Scalar& number, const c10::IValue& first) {
  const c10::ScalarType dtype = remote_dtype(first);
  if (dtype == c10::ScalarType::UInt64) {  // an int64 of the same bits wraps around to it
    trace_.word(static_cast<uint32_t>(ir::ScalarTag::kInt));
    trace_.param(static_cast<int64_t>(number.toUInt64()));
  } else if (c10::isFloatingType(dtype)) {
    trace_.word(static_cast<uint32_t>(ir::ScalarTag::kFloat));
    trace_.param(number.toDouble());
  } else {
    encode_scalar(number);  // raises
  }
}

namespace {

ir::ScalarTag scalar_tag(const c10::IValue& value) {
  if (value.isNone()) return ir::ScalarTag::kAbsent;
  if (value.isDouble()) return ir::ScalarTag::kFloat;
  if (value.isBool()) return ir::ScalarTag::kBool;
  if (value.isInt()) return ir::ScalarTag::kInt;
  const c10::Scalar scalar = value.toScalar();
  if (scalar.isComplex()) return ir::ScalarTag::kComplex;
  if (scalar.isFloatingPoint()) return ir::ScalarTag::kFloat;
  if (scalar.isBoolean()) return ir::ScalarTag::kBool;
  return ir::ScalarTag::kInt;
}

int64_t to_int(const c10::IValue& value) {
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool();
  return value.toSymInt().guard_int(__FILE__, __LINE__);
}

double to_double(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  return value.toSymFloat().guard_float(__FILE__, __LINE__);
}

}  // namespace

void TraceEncoder::encode_value(const ir::ArgDesc& arg, const c10::IValue& value, const c10::IValue& first) {
  using enum ir::ArgKind;
  switch (arg.kind) {
    case kOptionalInt:
    case kOptionalBool:
      trace_.word(!value.isNone());
      if (value.isNone()) return;
      [[fallthrough]];
    case kInt:
    case kBool:
      trace_.param(to_int(value));
      return;
    case kOptionalFloat:
      trace_.word(!value.isNone());
      if (value.isNone()) return;
      [[fallthrough]];
    case kFloat:
      trace_.param(to_double(value));
      return;
    case kScalar:
    case kOptionalScalar:
      if (value.isInt()) {
        trace_.word(static_cast<uint32_t>(ir::ScalarTag::kInt));
        trace_.param(value.toInt());
      } else if (value.isDouble()) {
        trace_.word(static_cast<uint32_t>(ir::ScalarTag::kFloat));
        trace_.param(value.toDouble());
      } else if (value.isNone()) {
        trace_.word(static_cast<uint32_t>(ir::ScalarTag::kAbsent));
      } else if (const c10::Scalar number = value.toScalar(); exceeds_int64(number)) {
        encode_large_scalar(number, first);
      } else {
        trace_.word(static_cast<uint32_t>(scalar_tag(value)));
        encode_scalar(number);
      }
      return;
    case kIntList:
    case kOptionalIntList:
    case kBoolList:
    case kFloatList:
    case kOptionalFloatList:
    case kScalarList: {
      if (value.isNone()) {
        trace_.word(ir::kAbsent);
        return;
      }
      const auto items = value.toListRef();
      trace_.word(static_cast<uint32_t>(items.size()));
      for (const c10::IValue& item : items) {
        if (arg.kind == kScalarList) {
          trace_.word(static_cast<uint32_t>(scalar_tag(item)));
          encode_scalar(item.toScalar());
        } else if (arg.kind == kFloatList || arg.kind == kOptionalFloatList) {
          trace_.param(to_double(item));
        } else {
          trace_.param(to_int(item));
        }
      }
      return;
    }
    default:
      encode_structural(arg, value);
  }
}

void TraceEncoder::encode_structural(const ir::ArgDesc& arg, const c10::IValue& value) {
  using enum ir::ArgKind;
  if (value.isNone() && arg.kind != kScalar && arg.kind != kOptionalScalar) {
    trace_.word(ir::kAbsent);
    return;
  }
  switch (arg.kind) {
    case kInt:
    case kOptionalInt:
    case kBool:
    case kOptionalBool:
      trace_.structural_int(to_int(value));
      return;
    case kFloat:
    case kOptionalFloat:
      trace_.structural_float(to_double(value));
      return;
    case kIntList:
    case kOptionalIntList:
    case kBoolList: {
      const auto items = value.toListRef();
      trace_.word(static_cast<uint32_t>(items.size()));
      for (const c10::IValue& item : items) trace_.structural_int(to_int(item));
      return;
    }
    case kFloatList:
    case kOptionalFloatList: {
      const auto items = value.toListRef();
      trace_.word(static_cast<uint32_t>(items.size()));
      for (const c10::IValue& item : items) trace_.structural_float(to_double(item));
      return;
    }
    case kScalar:
    case kOptionalScalar: {
      const ir::ScalarTag tag = scalar_tag(value);
      trace_.word(static_cast<uint32_t>(tag));
      if (tag == ir::ScalarTag::kAbsent) return;
      const c10::Scalar scalar = value.toScalar();
      if (tag == ir::ScalarTag::kComplex) {
        trace_.structural_float(scalar.toComplexDouble().real());
        trace_.structural_float(scalar.toComplexDouble().imag());
      } else if (tag == ir::ScalarTag::kFloat) {
        trace_.structural_float(scalar.toDouble());
      } else {
        const uint64_t bits = static_cast<uint64_t>(scalar.to<int64_t>());
        trace_.word(static_cast<uint32_t>(bits));
        trace_.word(static_cast<uint32_t>(bits >> 32));
      }
      return;
    }
    case kString:
    case kOptionalString:
      trace_.word(ir::intern_string(value.toStringRef()));
      return;
    case kDType:
    case kMemoryFormat:
      trace_.word(static_cast<uint32_t>(value.toInt()));
      return;
    default:
      TORCH_INTERNAL_ASSERT(false, "remote: argument '", arg.name, "' cannot be recorded");
  }
}

void TraceEncoder::encode(const ir::OpDesc& op, const c10::IValue* args, std::optional<RandomState> random) {
  const c10::IValue* const first = args;  // exists wherever it is read
  for (const ir::ArgDesc& arg : op.args) {
    switch (arg.role) {
      case ir::ArgRole::kClientOnly:
        break;
      case ir::ArgRole::kRandom:
        TORCH_INTERNAL_ASSERT(random.has_value());
        trace_.param(static_cast<int64_t>(random->seed));
        trace_.param(static_cast<int64_t>(random->offset));
        break;
      case ir::ArgRole::kOperand:
        if (arg.kind == ir::ArgKind::kTensor || arg.kind == ir::ArgKind::kOptionalTensor) {
          if (args->isNone()) {
            trace_.word(ir::kAbsent);
          } else {
            encode_operand(args->toTensor(), *first);
          }
        } else if (args->isNone()) {
          trace_.word(ir::kAbsent);
        } else {
          const auto items = args->toListRef();
          trace_.word(static_cast<uint32_t>(items.size()));
          for (const c10::IValue& item : items) {
            if (item.isNone()) {
              trace_.word(ir::kAbsent);
            } else {
              encode_operand(item.toTensor(), *first);
            }
          }
        }
        break;
      case ir::ArgRole::kStructural:
        encode_structural(arg, *args);
        break;
      case ir::ArgRole::kValue:
        encode_value(arg, *args, *first);
        break;
    }
    ++args;
  }
}

void TraceEncoder::begin(const ir::OpDesc& op, const c10::IValue* args, const ir::SourceRef& source,
                         std::optional<RandomState> random) {
  const size_t buffers = trace_.buffers.size();
  const size_t views = trace_.views.size();
  trace_.begin_record(op.opcode, source);
  try {
    encode(op, args, random);
  } catch (...) {
    // Drop the record, and with a new epoch all indices that it assigned. Then assign those of the remaining buffers
    // again.
    trace_.rollback_record(buffers, views);
    next_epoch();
    for (size_t i = 0; i < trace_.buffers.size(); ++i) {
      if (trace_.buffers[i].owner == nullptr) continue;
      auto* storage = static_cast<RemoteStorage*>(trace_.buffers[i].owner);
      enter(storage, storage->buffer, static_cast<uint32_t>(i), local_buffers_);
    }
    if (!std::exchange(raised_lost_, false)) throw;
    const std::vector<RemoteStorage*> overwritten = forget_overwritten(op, args);
    if (overwritten.empty()) throw;
    try {
      begin(op, args, source, random);
    } catch (...) {  // the call has another error, too
      for (RemoteStorage* storage : overwritten) storage->id = RemoteStorage::kLost;
      throw;
    }
  }
}

bool TraceEncoder::concatenates_many_inputs(const ir::OpDesc& op, const c10::IValue* args) const {
  constexpr size_t kMany = 4;
  if (op.args[0].kind != ir::ArgKind::kTensorList || !(op.flags & ir::kOpPure)) return false;
  const auto items = args[0].toListRef();
  return items.size() >= kMany && std::all_of(items.begin(), items.end(), [&](const c10::IValue& item) {
           if (!item.toTensor().defined() || !is_remote(item.toTensor())) return false;
           const RemoteStorage* storage = storage_of(item.toTensor());
           return storage->id != 0 && (!contains(storage) || !trace_.buffers[find_buffer(storage)].fresh);
         });
}

void TraceEncoder::append(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<at::Tensor> results,
                          c10::ArrayRef<uint32_t> list_lengths, const ir::SourceRef& source,
                          std::optional<RandomState> random, bool joins) {
  encoding_join_ = joins;
  begin(op, args, source, random);
  encoding_join_ = false;
  const at::Tensor* result = results.data();
  const uint32_t* length = list_lengths.data();
  for (const ir::ResultDesc& desc : op.results) {
    if (desc.alias >= 0) continue;
    uint32_t count = 1;
    if (desc.kind == ir::ResultKind::kTensorList) trace_.word(count = *length++);
    for (; count > 0; --count, ++result) {
      if (!result->defined()) {
        trace_.word(ir::kAbsent);
      } else {
        encode_view(*result);
      }
    }
  }
  trace_.end_record();
}

void TraceEncoder::append_dynamic(const ir::OpDesc& op, const c10::IValue* args, c10::ArrayRef<c10::Storage> results,
                                  const ir::SourceRef& source, std::optional<RandomState> random) {
  encoding_join_ = false;
  begin(op, args, source, random);
  for (const c10::Storage& storage : results) {
    auto* remote = static_cast<RemoteStorage*>(storage.unsafeGetStorageImpl());
    enter_buffer(remote);
    trace_.new_dynamic_result(remote);
  }
  trace_.end_record();
}

bool TraceEncoder::forget_storage(RemoteStorage* storage) {
  const uint32_t number = find_buffer(storage);
  if (number == kNone) return false;
  ir::TraceBuffer& buffer = trace_.buffers[number];
  buffer.owner = nullptr;
  buffer.died_at_record = static_cast<uint32_t>(trace_.records.size());
  if (has_local_indices_) local_buffers_.erase(storage);
  return true;
}

void TraceEncoder::swap_buffers(RemoteStorage* a, RemoteStorage* b) {
  std::swap(a->id, b->id);
  std::swap(a->session, b->session);
  const uint32_t of_a = find_buffer(a), of_b = find_buffer(b);
  const auto give = [&](RemoteStorage* storage, uint32_t buffer) {
    storage->stock_impl = nullptr;
    local_buffers_.erase(storage);
    storage->buffer = {};
    if (buffer == kNone) return;
    storage->buffer = {epoch_, buffer};
    trace_.buffers[buffer].owner = storage;
  };
  give(a, of_b);
  give(b, of_a);
}

}  // namespace torch_remote::frontend
