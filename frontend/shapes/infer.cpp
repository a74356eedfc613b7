#include "frontend/shapes/infer.h"

#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "frontend/shapes/call_checks.h"
#include "frontend/shapes/metas/structured_metas.h"
#include "frontend/shapes/shape_rules.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::frontend {
namespace {

constexpr size_t kMostSignatures = 4096;

using c10::IValue;
using ir::ArgKind;

c10::Storage meta_storage(size_t nbytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(nbytes)),
      c10::DataPtr(nullptr, c10::Device(c10::kMeta)), c10::GetAllocator(c10::kMeta), true));
}

at::Tensor meta_over(const at::Tensor& tensor, c10::Storage storage) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::Meta),
                                                   tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return at::Tensor(std::move(impl));
}

// Applies `convert` to each remote tensor in a value.
template <typename F>
IValue map_tensors(const IValue& value, F&& convert) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    return t.defined() && is_remote(t) ? IValue(convert(t)) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const IValue& item : value.toListRef()) {
      const at::Tensor& t = item.toTensor();
      list.push_back(t.defined() && is_remote(t) ? convert(t) : t);
    }
    return list;
  }
  if (value.isList()) {
    const auto items = value.toListRef();
    bool any = false;
    for (const IValue& item : items) any |= item.isTensor();
    if (!any) return value;
    c10::List<std::optional<at::Tensor>> list;
    for (const IValue& item : items) {
      if (item.isNone()) {
        list.push_back(std::nullopt);
      } else {
        const at::Tensor& t = item.toTensor();
        list.push_back(t.defined() && is_remote(t) ? convert(t) : t);
      }
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == c10::DeviceType::PrivateUse1) return c10::Device(c10::kMeta);
  return value;
}

void check_strided(const at::Tensor& result) {
  TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided && !c10::isQIntType(result.scalar_type()),
                              "remote: the device has no tensors of layout ", result.layout(), " and dtype ",
                              result.scalar_type(), "; make them on the CPU");
}

void add_result(const at::Tensor& t, Inferred& out) {
  if (!t.defined()) {
    out.add_undefined();
  } else {
    check_strided(t);
    out.add(t.sizes(), t.strides(), t.scalar_type());
  }
}

// Reads the results of a meta call off the stack.
void take_results(const ir::OpDesc& desc, const torch::jit::Stack& stack, Inferred& out) {
  for (size_t i = 0; i < desc.results.size(); ++i) {
    if (desc.results[i].alias >= 0) continue;
    const IValue& value = stack[stack.size() - desc.results.size() + i];
    if (desc.results[i].kind == ir::ResultKind::kTensorList) {
      const auto items = value.toListRef();
      out.list_lengths.push_back(static_cast<uint32_t>(items.size()));
      for (const IValue& item : items) add_result(item.toTensor(), out);
    } else {
      add_result(value.toTensor(), out);
    }
  }
}

// Reads the results of a meta call off the stack, with the strides of the op's kernel.
void take_results(const OpEntry& op, const IValue* args, const torch::jit::Stack& stack, Inferred& out) {
  take_results(*op.desc, stack, out);
  if (op.structured == nullptr && op.desc->shape_rule == ir::ShapeRule::kPointwise &&
      op.desc->shape_function != ir::ShapeFunction::kWhere) {
    c10::SmallVector<const at::Tensor*, 4> operands;
    for (uint32_t i = 0; i < op.arg_count; ++i) {
      if (op.desc->args[i].kind == ArgKind::kTensor) operands.push_back(&args[i].toTensor());
    }
    if (!operands.empty()) broadcast_result(operands, out.results[0], op.has(ir::kFactWrapsNumber));
  }
  if (op.desc->memory_format_from < 0 || out.results[0].state != ResultMeta::State::kDefined) return;
  const ResultMeta result = std::move(out.results[0]);
  Inferred laid_out;
  laid_out.add(result.sizes, args[op.desc->memory_format_from].toTensor().suggest_memory_format(), result.dtype);
  out.results[0] = std::move(laid_out.results[0]);
}

void append(std::string& key, const void* data, size_t size) { key.append(static_cast<const char*>(data), size); }

template <typename T>
void append(std::string& key, const T& value) {
  append(key, &value, sizeof value);
}

void append_tensor(std::string& key, const at::Tensor& t) {
  key.push_back(t.defined() ? (is_remote(t) ? 'T' : 'C') : 'U');
  if (!t.defined()) return;
  append(key, t.scalar_type());
  append(key, t.dim());
  append(key, t.sizes().data(), t.dim() * 8);
  append(key, t.strides().data(), t.dim() * 8);
  key.push_back(t.unsafeGetTensorImpl()->is_wrapped_number() ? 1 : 0);
}

// Returns false if a value cannot be part of a signature.
bool append_value(std::string& key, const IValue& value) {
  if (value.isTensor()) {
    append_tensor(key, value.toTensor());
  } else if (value.isNone()) {
    key.push_back('N');
  } else if (value.isInt()) {
    key.push_back('i');
    append(key, value.toInt());
  } else if (value.isDouble()) {
    key.push_back('d');
    append(key, value.toDouble());
  } else if (value.isBool()) {
    key.push_back(value.toBool() ? '1' : '0');
  } else if (value.isComplexDouble()) {
    key.push_back('c');
    append(key, value.toComplexDouble());
  } else if (value.isString()) {
    key.push_back('s');
    append(key, value.toStringRef().size());
    key += value.toStringRef();
  } else if (value.isDevice()) {
    key.push_back('D');
    key += value.toDevice().str();
  } else if (value.isList()) {
    const auto items = value.toListRef();
    key.push_back('[');
    append(key, items.size());
    for (const IValue& item : items) {
      if (!append_value(key, item)) return false;
    }
  } else if (value.isGenerator()) {
    key.push_back('G');
  } else {
    return false;
  }
  return true;
}

void call_meta(const OpEntry& op, const IValue* args, torch::jit::Stack& stack) {
  stack.clear();
  for (size_t i = 0; i < op.arg_count; ++i) {
    if (args[i].isGenerator()) {
      stack.emplace_back();
    } else {
      stack.push_back(map_tensors(args[i], [](const at::Tensor& t) { return meta_like(t); }));
    }
  }
}

// CPU kernels first convert operands to one dtype. The converted copies are dense, which may change the result's
// strides; torch's meta ignores that. Not inlined into `infer`, where it would slow calls that return earlier (by 0.03
// of 0.29 us).
[[gnu::cold, gnu::noinline]] void convert_operands(const OpEntry& op, torch::jit::Stack& stack) {
  if (op.desc->family != ir::Family::kPointwise) return;
  at::native::ResultTypeState state = {};
  bool lie_apart = false;
  for (const IValue& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& t = value.toTensor();
    state = at::native::update_result_type_state(t, state);
    lie_apart |= !t.is_non_overlapping_and_dense();
  }
  if (!lie_apart) return;
  const c10::ScalarType common = at::native::result_type(state);
  for (const IValue& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& t = value.toTensor();
    if (!t.is_meta() || t.scalar_type() == common || t.is_non_overlapping_and_dense()) continue;
    t.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), at::infer_dense_strides(t.sizes(), t.strides()));
  }
}

// Whether the error says that there is no meta. Other kernels raise this type of error for dtypes that they do not
// support.
bool is_missing_meta(const c10::NotImplementedError& error) {
  const std::string_view message = error.what_without_backtrace();
  return message.find("Meta") != message.npos || message.find("meta") != message.npos;
}

// Whether a Python meta says that it is not implemented, or does not accept the arguments of its overload.
bool is_missing_meta(const py::error_already_set& error) {
  const py::gil_scoped_acquire gil;
  return error.matches(PyExc_NotImplementedError) || error.matches(PyExc_TypeError);
}

bool has_bool_index(const IValue& indices) {
  for (const IValue& item : indices.toListRef()) {
    if (item.isNone() || !item.toTensor().defined()) continue;
    const c10::ScalarType dtype = item.toTensor().scalar_type();
    if (dtype == c10::ScalarType::Bool || dtype == c10::ScalarType::Byte) return true;
  }
  return false;
}

}  // namespace

bool is_masked_fill(const OpEntry& op) {
  return op.desc->opcode == ir::ops::aten_masked_fill__Scalar || op.desc->opcode == ir::ops::aten_masked_fill__Tensor;
}

at::Tensor meta_like(const at::Tensor& tensor) { return meta_over(tensor, meta_storage(tensor.storage().nbytes())); }

OpEntry::OpEntry(c10::OperatorHandle operator_handle, const ir::OpDesc* op_desc)
    : handle(std::move(operator_handle)), desc(op_desc) {
  const c10::FunctionSchema& schema = handle.schema();
  arg_count = static_cast<uint32_t>(schema.arguments().size());
  rule = find_shape_rule(desc->shape_function);
  refused_dtypes = find_refused_dtypes(desc->name);
  if (const CallCheckRow* row = find_call_check(*desc)) {
    (row->when == CheckWhen::kAlways ? check : check_without_shape_function) = row->check;
  }
  structured = find_custom_meta(desc->opcode);
  if (structured == nullptr) structured = find_structured_meta(handle.operator_name());
  dynamic = desc->flags & (ir::kOpDynamicShape | ir::kOpHostResult);
  accepts_cpu_scalars = has(ir::kFactAcceptsCpuScalars) || desc->family == ir::Family::kOpaque;
  fills = (desc->flags & ir::kOpInPlace) && desc->args[0].overwrites && desc->args[0].kind == ArgKind::kTensor;
  one_tensor =
      desc->results.size() == 1 && desc->results[0].kind == ir::ResultKind::kTensor && desc->results[0].alias < 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    if (name == "dim") dim = static_cast<int>(i);
    if (name == "keepdim") keepdim = static_cast<int>(i);
    if (name == "dtype" || name == "out_dtype") dtype = static_cast<int>(i);
    if (name == "output_size" && dynamic) size_argument = static_cast<int>(i);
  }
}

bool single_arguments(const OpEntry& op, const IValue* args, size_t i, torch::jit::Stack& single) {
  if (op.per_tensor_op == nullptr) return false;
  single.clear();
  for (uint32_t a = 0; a < op.per_tensor_op->arg_count; ++a) {
    if (a >= op.arg_count) {
      const auto& standard = op.per_tensor_op->handle.schema().arguments()[a].default_value();
      if (!standard.has_value()) return false;
      single.push_back(*standard);
    } else if (args[a].isList()) {
      const auto items = args[a].toListRef();
      if (i >= items.size()) return false;
      single.push_back(items[i]);
    } else {
      single.push_back(args[a]);
    }
  }
  return true;
}

namespace {

// Infers the results of a multi-tensor op, tensor by tensor.
bool infer_singly(const OpEntry& op, const IValue* args, Inferred& out) {
  size_t count = 0;
  for (uint32_t a = 0; a < op.arg_count; ++a) {
    if (!args[a].isList()) continue;
    if (count != 0 && args[a].toListRef().size() != count) return false;
    count = args[a].toListRef().size();
  }
  torch::jit::Stack single;
  Inferred results;
  for (size_t i = 0; i < count; ++i) {
    Inferred one;
    if (!single_arguments(op, args, i, single)) return false;
    check_single_call(op, single.data());
    if (infer(*op.per_tensor_op, single.data(), one) == Tier::kDynamic || one.results.size() != 1) {
      return false;
    }
    results.results.push_back(std::move(one.results[0]));
  }
  results.list_lengths.push_back(static_cast<uint32_t>(count));
  out = std::move(results);
  return true;
}

}  // namespace

// Whether to call torch's structured meta of the op without the dispatcher. It is wrong for some calls without
// elements.
static bool calls_structured(const OpEntry& op, const IValue* args) {
  if (op.structured == nullptr) return false;
  if (!op.has(ir::kFactMetaWrongIfEmpty)) return true;
  return std::none_of(args, args + op.arg_count,
                      [](const IValue& arg) { return arg.isTensor() && arg.toTensor().numel() == 0; });
}

Tier infer(const OpEntry& op, const IValue* args, Inferred& out) {
  if (op.dynamic && (op.size_argument < 0 || args[op.size_argument].isNone())) return Tier::kDynamic;
  if (op.has(ir::kFactAcceptsCpuIndices) && op.desc->results.size() == 1 && op.desc->results[0].alias < 0 &&
      op.desc->args.size() == 2 && has_bool_index(args[1])) {
    return Tier::kDynamic;  // an index with a mask
  }
  if (op.rule != nullptr) {
    if (op.rule(op, args, out)) return Tier::kRule;
    out.results.clear();
    out.list_lengths.clear();
  }
  if (op.check_without_shape_function != nullptr) op.check_without_shape_function(op, args);
  if (op.per_tensor_op != nullptr && infer_singly(op, args, out)) return Tier::kRule;
  torch::jit::Stack stack;
  if (calls_structured(op, args)) {
    call_meta(op, args, stack);
    convert_operands(op, stack);
    op.structured->callBoxed(op.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    take_results(op, args, stack, out);
    return Tier::kStructured;
  }
  std::string key(1, static_cast<char>(c10::get_default_dtype_as_scalartype()));  // results of integers may have it
  bool memorable = true;
  for (size_t i = 0; i < op.arg_count && memorable; ++i) memorable = append_value(key, args[i]);
  if (memorable) {
    std::lock_guard lock(op.memo_mutex);
    const auto found = op.memo.find(key);
    if (found != op.memo.end()) {
      out = found->second;
      return Tier::kMetaKey;
    }
  }
  op.meta_calls.fetch_add(1, std::memory_order_relaxed);
  call_meta(op, args, stack);
  try {
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const c10::NotImplementedError& error) {
    if (!is_missing_meta(error)) throw;
    return Tier::kDynamic;
  } catch (const py::error_already_set& error) {
    if (!is_missing_meta(error)) throw;
    return Tier::kDynamic;
  }
  take_results(op, args, stack, out);
  if (memorable) {
    std::lock_guard lock(op.memo_mutex);
    if (op.memo.size() >= kMostSignatures) op.memo.clear();
    op.memo.emplace(std::move(key), out);
  }
  return Tier::kMetaKey;
}

namespace {

// Adds to the key which arguments share storages, and their offsets: in-place ops refuse some overlaps.
void append_aliasing(std::string& key, const IValue* args, uint32_t count) {
  std::vector<const c10::StorageImpl*> storages;
  const auto add = [&](const IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined() || !is_remote(value.toTensor())) return;
    const at::Tensor& t = value.toTensor();
    const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
    auto found = std::find(storages.begin(), storages.end(), storage);
    append(key, static_cast<uint32_t>(found - storages.begin()));
    if (found == storages.end()) storages.push_back(storage);
    append(key, t.storage_offset());
  };
  for (uint32_t i = 0; i < count; ++i) {
    add(args[i]);
    if (args[i].isList()) {
      for (const IValue& item : args[i].toListRef()) add(item);
    }
  }
}

}  // namespace

bool check_mutation(const OpEntry& op, const IValue* args) {
  if (op.check_without_shape_function != nullptr) op.check_without_shape_function(op, args);
  std::string key;
  bool memorable = true;
  for (size_t i = 0; i < op.arg_count && memorable; ++i) memorable = append_value(key, args[i]);
  append_aliasing(key, args, op.arg_count);
  if (memorable) {
    std::lock_guard lock(op.memo_mutex);
    if (op.memo.contains(key)) return true;
  }
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages;
  std::vector<std::pair<at::Tensor, at::Tensor>> mirrors;  // real, meta
  const auto mirror = [&](const at::Tensor& t) {
    const c10::StorageImpl* real = t.storage().unsafeGetStorageImpl();
    for (const auto& [known, meta] : mirrors) {
      if (known.is_same(t)) return meta;
    }
    for (const auto& [known, storage] : storages) {
      if (known == real) return mirrors.emplace_back(t, meta_over(t, storage)).second;
    }
    storages.emplace_back(real, meta_storage(t.storage().nbytes()));
    return mirrors.emplace_back(t, meta_over(t, storages.back().second)).second;
  };
  torch::jit::Stack stack;
  for (size_t i = 0; i < op.arg_count; ++i) {
    const bool number = is_masked_fill(op) && args[i].isTensor() && args[i].toTensor().is_cpu();
    if (number) {  // torch's meta expects the number on the mask's device
      stack.emplace_back(at::empty({}, args[i].toTensor().options().device(c10::kMeta)));
    } else {
      stack.push_back(args[i].isGenerator() ? IValue() : map_tensors(args[i], mirror));
    }
  }
  const bool structured = calls_structured(op, args);
  try {
    if (structured) {
      op.structured->callBoxed(op.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    } else {
      op.meta_calls.fetch_add(1, std::memory_order_relaxed);
      op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    }
  } catch (const c10::NotImplementedError& error) {
    if (structured || !is_missing_meta(error)) throw;
    return false;
  } catch (const py::error_already_set& error) {
    if (!is_missing_meta(error)) throw;
    return false;
  }
  bool changed = false;
  for (auto& [real, meta] : mirrors) {
    if (real.sizes().equals(meta.sizes()) && real.strides().equals(meta.strides())) continue;
    changed = true;
    real.resize_(meta.sizes());
    if (!real.strides().equals(meta.strides())) real.as_strided_(meta.sizes(), meta.strides());
  }
  if (changed || !memorable) return true;
  std::lock_guard lock(op.memo_mutex);
  if (op.memo.size() >= kMostSignatures) op.memo.clear();
  op.memo.emplace(std::move(key), Inferred{});
  return true;
}

}  // namespace torch_remote::frontend
