#include "frontend/registration.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/result_type.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <deque>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "frontend/cpu_fallback.h"
#include "frontend/generator.h"
#include "frontend/infer.h"
#include "frontend/kernels.h"
#include "frontend/recorder.h"
#include "frontend/tensor.h"

namespace torch_remote::frontend {
namespace {

using c10::IValue;
using ir::ArgKind;
using torch::jit::Stack;

// -- schemas
// ------------------------------------------------------------------------------------------------------------

ArgKind kind_of(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.real_type() ? argument.real_type() : argument.type();
  const auto kind_of_plain = [](const c10::Type& t) {
    switch (t.kind()) {
      case c10::TypeKind::TensorType:
        return ArgKind::kTensor;
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return ArgKind::kInt;
      case c10::TypeKind::FloatType:
      case c10::TypeKind::SymFloatType:
        return ArgKind::kFloat;
      case c10::TypeKind::BoolType:
      case c10::TypeKind::SymBoolType:
        return ArgKind::kBool;
      case c10::TypeKind::NumberType:
        return ArgKind::kScalar;
      case c10::TypeKind::StringType:
        return ArgKind::kString;
      case c10::TypeKind::ScalarTypeType:
        return ArgKind::kDType;
      case c10::TypeKind::LayoutType:
        return ArgKind::kLayout;
      case c10::TypeKind::DeviceObjType:
        return ArgKind::kDevice;
      case c10::TypeKind::MemoryFormatType:
        return ArgKind::kMemoryFormat;
      case c10::TypeKind::GeneratorType:
        return ArgKind::kGenerator;
      default:
        return ArgKind::kUnsupported;
    }
  };
  bool optional = false;
  c10::TypePtr inner = type;
  if (const auto* opt = inner->castRaw<c10::OptionalType>()) {
    optional = true;
    inner = opt->getElementType();
  }
  if (const auto* list = inner->castRaw<c10::ListType>()) {
    c10::TypePtr element = list->getElementType();
    if (const auto* opt = element->castRaw<c10::OptionalType>()) {
      return opt->getElementType()->kind() == c10::TypeKind::TensorType && !optional ? ArgKind::kOptionalTensorList
                                                                                     : ArgKind::kUnsupported;
    }
    switch (kind_of_plain(*element)) {
      case ArgKind::kTensor:
        return optional ? ArgKind::kUnsupported : ArgKind::kTensorList;
      case ArgKind::kInt:
        return optional ? ArgKind::kOptionalIntList : ArgKind::kIntList;
      case ArgKind::kFloat:
        return optional ? ArgKind::kOptionalFloatList : ArgKind::kFloatList;
      case ArgKind::kBool:
        return optional ? ArgKind::kUnsupported : ArgKind::kBoolList;
      case ArgKind::kScalar:
        return optional ? ArgKind::kUnsupported : ArgKind::kScalarList;
      default:
        return ArgKind::kUnsupported;
    }
  }
  const ArgKind plain = kind_of_plain(*inner);
  if (!optional) return plain;
  switch (plain) {
    case ArgKind::kTensor:
      return ArgKind::kOptionalTensor;
    case ArgKind::kInt:
      return ArgKind::kOptionalInt;
    case ArgKind::kFloat:
      return ArgKind::kOptionalFloat;
    case ArgKind::kBool:
      return ArgKind::kOptionalBool;
    case ArgKind::kScalar:
      return ArgKind::kOptionalScalar;
    case ArgKind::kString:
      return ArgKind::kOptionalString;
    default:
      return plain;  // dtype, layout, device, memory format, generator: one kind, given or not
  }
}

bool is_view_schema(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

// An OpDesc for an op outside the table; null if the schema has something that cannot be recorded.
const ir::OpDesc* describe(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  const std::string name = c10::toString(handle.operator_name());
  std::vector<ir::OpaqueArg> args;
  uint32_t flags = 0;
  bool writes = false, has_generator = false;
  for (const c10::Argument& argument : schema.arguments()) {
    const ArgKind kind = kind_of(argument);
    if (kind == ArgKind::kUnsupported) return nullptr;
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    writes |= written;
    has_generator |= kind == ArgKind::kGenerator;
    if (written && argument.is_out()) flags |= ir::kOpOut;
    args.push_back({argument.name(), kind, written, argument.kwarg_only()});
  }
  std::vector<ir::ResultDesc> results;
  for (const c10::Argument& result : schema.returns()) {
    ir::ResultDesc desc{ir::ResultKind::kTensor, -1};
    switch (result.type()->kind()) {
      case c10::TypeKind::TensorType:
        break;
      case c10::TypeKind::ListType:
        desc.kind = ir::ResultKind::kTensorList;
        break;
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        desc.kind = ir::ResultKind::kInt;
        break;
      case c10::TypeKind::FloatType:
        desc.kind = ir::ResultKind::kFloat;
        break;
      case c10::TypeKind::BoolType:
        desc.kind = ir::ResultKind::kBool;
        break;
      case c10::TypeKind::NumberType:
        desc.kind = ir::ResultKind::kScalar;
        break;
      default:
        return nullptr;
    }
    if (desc.kind > ir::ResultKind::kTensorList) flags |= ir::kOpHostResult;
    if (result.alias_info() != nullptr) {
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info != nullptr && info->beforeSets() == result.alias_info()->beforeSets())
          desc.alias = static_cast<int8_t>(i);
      }
    }
    results.push_back(desc);
  }
  if (writes && !(flags & ir::kOpOut)) flags |= ir::kOpInPlace;
  if (handle.hasTag(at::Tag::dynamic_output_shape)) flags |= ir::kOpDynamicShape;
  if (handle.hasTag(at::Tag::nondeterministic_seeded) || has_generator) {
    flags |= ir::kOpRandom;
    if (!has_generator) args.push_back({"generator", ArgKind::kGenerator});
  }
  return &ir::op_desc(ir::register_opaque(name, args, results, flags));
}

// -- the kernel
// ---------------------------------------------------------------------------------------------------------

[[noreturn]] void wrong_device(const OpEntry& op, const ir::ArgDesc& arg, const at::Tensor& t,
                               c10::DeviceIndex device) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but remote: '", op.desc->name, "' got '", arg.name,
              "' on ", t.device(), " and others on remote:", static_cast<int>(device), "; move one with .to(...)");
}

// Device of the call: that of its first remote tensor, or of its device argument; -1: none.
c10::DeviceIndex find_device(const OpEntry& op, const IValue* args) {
  for (uint32_t i = 0; i < op.arg_count; ++i) {
    const IValue& value = args[i];
    if (value.isTensor()) {
      const at::Tensor& t = value.toTensor();
      if (t.defined() && is_remote(t)) return t.device().index();
    } else if (value.isDevice()) {
      if (value.toDevice().type() == c10::DeviceType::PrivateUse1) {
        return value.toDevice().has_index() ? value.toDevice().index() : 0;
      }
    } else if (value.isList() && op.desc->args[i].role == ir::ArgRole::kOperand) {
      for (const IValue& item : value.toListRef()) {
        if (item.isTensor() && item.toTensor().defined() && is_remote(item.toTensor())) {
          return item.toTensor().device().index();
        }
      }
    }
  }
  return -1;
}

void check_operand(const OpEntry& op, const ir::ArgDesc& arg, const at::Tensor& t, c10::DeviceIndex device) {
  if (!t.defined()) return;
  if (is_remote(t)) {
    if (t.device().index() != device) wrong_device(op, arg, t, device);
    return;
  }
  if (t.is_cpu() && t.dim() == 0 && op.scalars_allowed && !arg.writes) return;
  wrong_device(op, arg, t, device);
}

void check_operands(const OpEntry& op, IValue* args, c10::DeviceIndex device) {
  for (uint32_t i = 0; i < op.arg_count; ++i) {
    const ir::ArgDesc& arg = op.desc->args[i];
    if (arg.role != ir::ArgRole::kOperand) continue;
    IValue& value = args[i];
    if (value.isTensor()) {
      check_operand(op, arg, value.toTensor(), device);
      // Lazy conjugates and negatives reach the ops that torch lets handle them: nothing is lazy in a trace.
      const at::Tensor& t = value.toTensor();
      if (t.defined() && (t.is_conj() || t.is_neg())) {
        TORCH_CHECK_NOT_IMPLEMENTED(!arg.writes, "remote: '", op.desc->name, "' cannot write to '", arg.name,
                                    "', a lazy conjugate or negative; call .resolve_conj() or .resolve_neg() first");
        value = t.resolve_conj().resolve_neg();
      }
    } else if (value.isList()) {
      const auto items = value.toListRef();
      bool upload = false;
      for (const IValue& item : items) {
        if (item.isNone()) continue;
        const at::Tensor& t = item.toTensor();
        if (op.uploads_allowed && t.defined() && t.is_cpu()) {
          upload = true;
        } else {
          check_operand(op, arg, t, device);
        }
      }
      if (upload) {  // indices on the CPU
        c10::List<std::optional<at::Tensor>> list;
        for (const IValue& item : items) {
          if (item.isNone()) {
            list.push_back(std::nullopt);
          } else {
            const at::Tensor& t = item.toTensor();
            list.push_back(t.defined() && t.is_cpu() ? upload_tensor(t, device) : t);
          }
        }
        value = list;
      }
    }
  }
}

std::optional<RandomState> take_random(const OpEntry& op, const IValue* args, const Inferred& inferred,
                                       c10::DeviceIndex device) {
  if (!(op.desc->flags & ir::kOpRandom)) return std::nullopt;
  int64_t elements = 1;
  for (const ResultMeta& result : inferred.results) {
    elements = std::max(elements, c10::multiply_integers(result.sizes));
  }
  std::optional<at::Generator> generator;
  for (uint32_t i = 0; i < op.arg_count; ++i) {
    if (args[i].isTensor() && args[i].toTensor().defined()) elements = std::max(elements, args[i].toTensor().numel());
    if (args[i].isGenerator()) generator = args[i].toGenerator();
  }
  const at::Generator& chosen = generator.has_value() && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(chosen.device().type() == c10::DeviceType::PrivateUse1,
              "Expected a 'remote' device type for generator but found '", chosen.device().type(),
              "'; make one with torch.Generator(device=\"remote\")");
  return chosen.get<RemoteGenerator>()->take(elements);
}

// Replaces the arguments, from `base` on, by the results; takes the tensors.
void push_results(const OpEntry& op, Stack& stack, size_t base, std::span<at::Tensor> results,
                  c10::ArrayRef<uint32_t> list_lengths) {
  if (op.one_tensor) {
    stack.resize(base);
    stack.emplace_back(std::move(results[0]));
    return;
  }
  c10::SmallVector<IValue, 4> values;
  at::Tensor* result = results.data();
  const uint32_t* length = list_lengths.data();
  for (const ir::ResultDesc& desc : op.desc->results) {
    if (desc.alias >= 0) {
      values.push_back(stack[base + desc.alias]);
    } else if (desc.kind == ir::ResultKind::kTensorList) {
      c10::List<at::Tensor> list;
      list.reserve(*length);
      for (uint32_t i = *length++; i > 0; --i) list.push_back(std::move(*result++));
      values.push_back(std::move(list));
    } else {
      values.push_back(std::move(*result++));
    }
  }
  stack.resize(base);
  for (IValue& value : values) stack.push_back(std::move(value));
}

void run_dynamic(const OpEntry& op, Stack& stack, size_t base, c10::DeviceIndex device) {
  const IValue* args = &stack[base];
  c10::SmallVector<c10::Storage, 2> storages;
  for (const ir::ResultDesc& result : op.desc->results) {
    TORCH_CHECK_NOT_IMPLEMENTED(result.kind != ir::ResultKind::kTensorList, "remote: '", op.desc->name,
                                "' returns a list whose length only the run can tell; give it a meta kernel "
                                "(torch.library.register_fake)");
    if (result.kind == ir::ResultKind::kTensor && result.alias < 0) {
      storages.push_back(make_contiguous_tensor({0}, c10::ScalarType::Float, device).storage());
    }
  }
  const auto words = Recorder::get(device).record_and_wait(*op.desc, args, storages, take_random(op, args, {}, device));
  size_t next = 0;
  const auto word = [&] {
    TORCH_CHECK(next < words.size(), "remote: the worker's reply to '", op.desc->name, "' is too short");
    return words[next++];
  };
  c10::SmallVector<IValue, 4> values;
  size_t tensor = 0;
  for (const ir::ResultDesc& result : op.desc->results) {
    if (result.alias >= 0) {
      values.push_back(stack[base + result.alias]);
      continue;
    }
    switch (result.kind) {
      case ir::ResultKind::kTensor: {
        const c10::Storage storage = storages[tensor++];
        const int64_t dtype = word();
        if (dtype < 0) {
          values.push_back(at::Tensor());
          break;
        }
        c10::DimVector sizes(static_cast<size_t>(word()));
        c10::DimVector strides(sizes.size());
        for (int64_t& size : sizes) size = word();
        for (int64_t& stride : strides) stride = word();
        values.push_back(adopt_storage(storage, sizes, strides, static_cast<c10::ScalarType>(dtype)));
        break;
      }
      case ir::ResultKind::kBool:
        values.push_back(word() != 0);
        break;
      case ir::ResultKind::kInt:
        values.push_back(word());
        break;
      case ir::ResultKind::kFloat: {
        const int64_t bits = word();
        double value;
        std::memcpy(&value, &bits, 8);
        values.push_back(value);
        break;
      }
      case ir::ResultKind::kScalar: {
        const auto tag = static_cast<ir::ScalarTag>(word());
        const int64_t bits = word();
        double value;
        std::memcpy(&value, &bits, 8);
        if (tag == ir::ScalarTag::kComplex) {
          const int64_t imaginary_bits = word();
          double imaginary;
          std::memcpy(&imaginary, &imaginary_bits, 8);
          values.push_back(c10::complex<double>(value, imaginary));
          break;
        }
        values.push_back(tag == ir::ScalarTag::kFloat  ? IValue(value)
                         : tag == ir::ScalarTag::kBool ? IValue(bits != 0)
                                                       : IValue(bits));
        break;
      }
      case ir::ResultKind::kTensorList:
        break;  // refused above
    }
  }
  stack.resize(base);
  for (IValue& value : values) stack.push_back(std::move(value));
}

// What TensorIterator checks of an in-place op.
void check_in_place(const at::Tensor& self, const ResultMeta& result) {
  TORCH_CHECK(self.sizes().equals(result.sizes), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", c10::IntArrayRef(result.sizes));
  TORCH_CHECK(c10::canCast(result.dtype, self.scalar_type()), "result type ", result.dtype,
              " can't be cast to the desired output type ", self.scalar_type());
}

void run_in_place(const OpEntry& op, const IValue* args);

// True for the usual: one of tensors of floats, sizes alike, that share no memory. Nothing can be wrong with it.
bool is_plain_foreach(const OpEntry& op, const IValue* args, size_t i, const at::Tensor& self) {
  if (self.scalar_type() != c10::ScalarType::Float || !self.is_non_overlapping_and_dense()) return false;
  for (uint32_t a = 1; a < op.arg_count; ++a) {
    const ArgKind kind = op.desc->args[a].kind;
    if (kind == ArgKind::kScalar && args[a].toScalar().isComplex()) return false;
    if (kind == ArgKind::kScalarList && args[a].toListRef()[i].toScalar().isComplex()) return false;
    if (kind != ArgKind::kTensor && kind != ArgKind::kTensorList) continue;
    const bool list = kind == ArgKind::kTensorList;
    const at::Tensor& other = list ? args[a].toListRef()[i].toTensor() : args[a].toTensor();
    if (other.scalar_type() != c10::ScalarType::Float) return false;
    if (list ? !other.sizes().equals(self.sizes()) : other.dim() > 0) return false;
    if (other.storage().is_alias_of(self.storage()) && !other.is_same(self)) return false;
  }
  return true;
}

// A multi-tensor op, in-place: elsewhere it is a composite of in-place ops, which check dtypes and overlaps and count
// versions.
void check_foreach(const OpEntry& op, const IValue* args) {
  const auto written = args[0].toListRef();
  for (uint32_t a = 1; a < op.arg_count; ++a) {
    if (args[a].isList() && args[a].toListRef().size() != written.size()) {
      check_mutation(op, args);  // raises
      return;
    }
  }
  Stack single;
  for (size_t i = 0; i < written.size(); ++i) {
    const at::Tensor& self = written[i].toTensor();
    if (!is_plain_foreach(op, args, i, self) && single_arguments(op, args, i, single)) {
      run_in_place(*op.single, single.data());
    }
    auto* impl = self.unsafeGetTensorImpl();
    if (!impl->is_inference()) impl->bump_version();
  }
}

// Raises if the dtype cannot hold the number.
void check_fits(c10::ScalarType dtype, const c10::Scalar& number) {
  AT_DISPATCH_V2(dtype, "fill_", AT_WRAP([&] { (void)number.to<scalar_t>(); }), AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX),
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), AT_EXPAND(AT_FLOAT8_TYPES), at::kComplexHalf, at::kHalf,
                 at::kBFloat16, at::kBool);
}

// masked_fill_ as scripts use it: a mask of bools that fits, and a number. False: ask torch. Raises if the dtype cannot
// hold the number.
bool is_plain_masked_fill(const IValue* args) {
  const at::Tensor& self = args[0].toTensor();
  const at::Tensor& mask = args[1].toTensor();
  if (!args[2].isScalar() || !is_remote(mask) || mask.scalar_type() != c10::ScalarType::Bool ||
      !self.is_non_overlapping_and_dense() || !at::is_expandable_to(mask.sizes(), self.sizes()) ||
      self.storage().is_alias_of(mask.storage())) {
    return false;
  }
  check_fits(self.scalar_type(), args[2].toScalar());
  return true;
}

// index_put_ with operands that do not overlap: torch's meta function checks no more than the dtypes.
bool is_plain_index_put(const IValue* args) {
  const at::Tensor& self = args[0].toTensor();
  const at::Tensor& values = args[2].toTensor();
  const auto apart = [&](const at::Tensor& t) { return !is_remote(t) || !self.storage().is_alias_of(t.storage()); };
  if (values.scalar_type() != self.scalar_type() || !apart(values) || !self.is_non_overlapping_and_dense())
    return false;
  for (const IValue& index : args[1].toListRef()) {
    if (!index.isNone() && index.toTensor().defined() && !apart(index.toTensor())) return false;
  }
  return true;
}

// What CPU does by copying `self` to itself, and so without looking at it.
bool is_copied(const OpEntry& op, const at::Tensor& self) {
  if (op.desc->name == "aten::nan_to_num_") return c10::isIntegralType(self.scalar_type(), true);
  return op.desc->name == "aten::conj_physical_" && !self.is_complex();
}

void run_in_place(const OpEntry& op, const IValue* args) {
  if (!args[0].isTensor()) {
    if (op.bumps_versions) check_foreach(op, args);
    return;
  }
  const at::Tensor& self = args[0].toTensor();
  const OpEntry* functional = op.functional;
  const bool pointwise = op.desc->family == ir::Family::kPointwise && functional != nullptr;
  if ((pointwise || op.fills) && !op.overlaps && !self.is_non_overlapping_and_dense() && !is_copied(op, self)) {
    at::assert_no_internal_overlap(self);
  }
  if (op.overlaps && op.arg_count == 2) {  // fill_
    if (args[1].isScalar()) check_fits(self.scalar_type(), args[1].toScalar());
    TORCH_CHECK(!args[1].isTensor() || args[1].toTensor().dim() == 0,
                "fill_ only supports 0-dimension value tensor but got tensor with ", args[1].toTensor().dim(),
                " dimensions.");
  }
  if (op.fills || (op.masked_fill && is_plain_masked_fill(args)) || (op.index_put && is_plain_index_put(args))) {
    return;
  }
  Inferred inferred;
  if (!pointwise || functional->rule == nullptr || !functional->rule(*functional, args, inferred) ||
      inferred.results.size() != 1) {
    check_mutation(op, args);
    return;
  }
  check_in_place(self, inferred.results[0]);
  for (uint32_t i = 1; i < op.arg_count; ++i) {
    if (args[i].isTensor() && args[i].toTensor().defined() && is_remote(args[i].toTensor())) {
      at::assert_no_partial_overlap(self, args[i].toTensor());
    }
  }
}

// An out overload whose functional one has a rule of ours: what torch's meta may not know. False if there is none.
bool resize_out(const OpEntry& op, const IValue* args) {
  const OpEntry* functional = op.functional;
  Inferred inferred;
  if (functional == nullptr || functional->rule == nullptr || op.structured != nullptr ||
      op.desc->family == ir::Family::kPointwise || !functional->rule(*functional, args, inferred) ||
      inferred.results.size() != op.arg_count - functional->arg_count) {
    return false;
  }
  for (size_t i = 0; i < inferred.results.size(); ++i) {
    const ResultMeta& result = inferred.results[i];
    const IValue& out = args[functional->arg_count + i];
    if (!out.isTensor() || result.state != ResultMeta::State::kDefined) return false;
  }
  for (size_t i = 0; i < inferred.results.size(); ++i) {
    const ResultMeta& result = inferred.results[i];
    const at::Tensor& out = args[functional->arg_count + i].toTensor();
    TORCH_CHECK(c10::canCast(result.dtype, out.scalar_type()), "result type ", result.dtype,
                " can't be cast to the desired output type ", out.scalar_type());
    at::native::resize_output(out, result.sizes);
  }
  return true;
}

void run(const OpEntry& op, Stack& stack);

// An out overload whose shapes cannot be told beforehand: the functional one, and a copy. False if there is none.
bool run_through_functional(const OpEntry& op, Stack& stack) {
  if (op.functional == nullptr) return false;
  const size_t base = stack.size() - op.arg_count;
  Stack inner(stack.begin() + static_cast<ptrdiff_t>(base),
              stack.begin() + static_cast<ptrdiff_t>(base + op.functional->arg_count));
  run(*op.functional, inner);
  c10::SmallVector<IValue, 4> outs;
  for (uint32_t i = op.functional->arg_count; i < op.arg_count; ++i) outs.push_back(stack[base + i]);
  TORCH_CHECK(inner.size() == outs.size(), "remote: '", op.desc->name,
              "' cannot be recorded; use the overload without out=");
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::Tensor& result = inner[i].toTensor();
    const at::Tensor& out = outs[i].toTensor();
    TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), "result type ", result.scalar_type(),
                " can't be cast to the desired output type ", out.scalar_type());
    at::native::resize_output(out, result.sizes());
    out.copy_(result);
  }
  stack.resize(base);
  for (IValue& out : outs) stack.push_back(std::move(out));
  return true;
}

// An in-place op that gives `self` the size of the functional overload's result: that one, and a copy. False if the
// size stays.
bool run_with_resize(const OpEntry& op, Stack& stack) {
  const size_t base = stack.size() - op.arg_count;
  Inferred inferred;
  if (op.functional == nullptr || infer(*op.functional, &stack[base], inferred) == Tier::kDynamic) return false;
  const at::Tensor self = stack[base].toTensor();
  if (inferred.results.size() != 1 || self.sizes().equals(inferred.results[0].sizes)) return false;
  Stack inner(stack.begin() + static_cast<ptrdiff_t>(base), stack.end());
  run(*op.functional, inner);
  self.resize_(inner[0].toTensor().sizes());
  self.copy_(inner[0].toTensor());
  stack.resize(base);
  stack.push_back(self);
  return true;
}

void run(const OpEntry& op, Stack& stack) {
  const size_t base = stack.size() - op.arg_count;
  IValue* args = &stack[base];
  const c10::DeviceIndex device = find_device(op, args);
  TORCH_CHECK(device >= 0, "remote: '", op.desc->name, "' was called without a tensor on the device");
  check_operands(op, args, device);
  check_not_forked();

  Inferred inferred;
  if (op.desc->flags & ir::kOpOut) {
    if (op.desc->flags & ir::kOpDynamicShape) {
      if (run_through_functional(op, stack)) return;
    } else if (!resize_out(op, args) && !check_mutation(op, args) && run_through_functional(op, stack)) {
      return;
    }
  } else if (op.desc->flags & ir::kOpInPlace) {
    if (op.resizes && run_with_resize(op, stack)) return;
    run_in_place(op, args);
  } else if (!op.desc->results.empty()) {
    if (infer(op, args, inferred) == Tier::kDynamic) {
      run_dynamic(op, stack, base, device);
      return;
    }
  }
  c10::SmallVector<at::Tensor, 4> results;
  for (const ResultMeta& result : inferred.results) {
    if (result.state == ResultMeta::State::kUndefined) {
      results.emplace_back();
    } else {
      results.push_back(make_tensor(result.sizes, result.strides, result.dtype, device));
    }
  }
  Recorder::get(device).record(*op.desc, args, results, inferred.list_lengths, take_random(op, args, inferred, device));
  push_results(op, stack, base, {results.data(), results.size()}, inferred.list_lengths);
}

class RecordKernel final : public c10::OperatorKernel {
 public:
  explicit RecordKernel(const OpEntry* op) : op_(op) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) { run(*op_, *stack); }

 private:
  const OpEntry* op_;
};

// -- which ops
// ------------------------------------------------------------------------------------------------------------

struct Entries {
  std::mutex mutex;  // registration, and the fallback's first call of an op
  std::deque<OpEntry> all;
  std::unordered_map<std::string, OpEntry*> by_name;
};

Entries& entries() {
  static auto* table = new Entries;
  return *table;
}

bool wanted(const c10::OperatorHandle& handle, bool in_table) {
  if (!handle.hasSchema()) return false;
  const auto& name = handle.operator_name();
  if (name.name.rfind("aten::", 0) != 0) return false;
  if (is_own_kernel(c10::toString(name))) return false;
  // Composites keep their autograd; those for which CPU has a kernel, too, have a formula of their own.
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !handle.hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
    return false;
  }
  if (is_view_schema(handle.schema())) return false;
  if (in_table) return true;
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) return false;
  return true;
}

OpEntry* make_entry(const c10::OperatorHandle& handle) {
  const std::string name = c10::toString(handle.operator_name());
  Entries& table = entries();
  const auto found = table.by_name.find(name);
  if (found != table.by_name.end()) return found->second;
  const ir::Opcode opcode = ir::find_op(name);
  const ir::OpDesc* desc = opcode != ir::kInvalidOpcode ? &ir::op_desc(opcode) : describe(handle);
  OpEntry* entry = desc != nullptr ? &table.all.emplace_back(handle, desc) : nullptr;
  table.by_name.emplace(name, entry);
  return entry;
}

// What CPU calls for each tensor of a multi-tensor op ("_foreach_add_.List": "add_.Tensor"); null if there is none.
const OpEntry* find_single(const OpEntry& op) {
  constexpr std::string_view kPrefix = "aten::_foreach_";
  const std::string_view name = op.desc->name;
  if (!name.starts_with(kPrefix)) return nullptr;
  const size_t dot = name.find('.');
  std::string base = "aten::" + std::string(name.substr(kPrefix.size(), dot - kPrefix.size()));
  const std::string_view suffix = dot == name.npos ? std::string_view() : name.substr(dot + 1);
  if (suffix.starts_with("Scalar")) {
    if (base.starts_with("aten::minimum")) base.replace(6, 7, "clamp_max");
    if (base.starts_with("aten::maximum")) base.replace(6, 7, "clamp_min");
  }
  for (const char* overload : {".Tensor", ".Scalar", ".Tensor_Tensor", ".Tensor_Scalar", ""}) {
    const auto found = entries().by_name.find(base + overload);
    if (found == entries().by_name.end() || found->second == nullptr) continue;
    const OpEntry& single = *found->second;
    bool fits = single.desc->results.size() == 1;
    for (uint32_t a = 0; a < op.arg_count && fits; ++a) {
      ArgKind kind = op.desc->args[a].kind;
      if (kind == ArgKind::kTensorList) kind = ArgKind::kTensor;
      if (kind == ArgKind::kScalarList) kind = ArgKind::kScalar;
      fits = a < single.arg_count && single.desc->args[a].kind == kind;
    }
    if (fits) return &single;
  }
  return nullptr;
}

// True if the functional overload takes the other one's first arguments: then it can be inferred with them.
bool is_prefix(const OpEntry& functional, const OpEntry& other) {
  if (functional.arg_count > other.arg_count) return false;
  for (uint32_t i = 0; i < functional.arg_count; ++i) {
    if (functional.desc->args[i].name != other.desc->args[i].name) return false;
  }
  return true;
}

// Ops registered later: custom ops without a kernel for this device.
void fallback(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
  OpEntry* entry;
  {
    std::lock_guard lock(entries().mutex);
    entry = make_entry(handle);
  }
  if (entry == nullptr) {
    return run_on_client(handle, stack, "has an argument or result of a type that cannot be recorded");
  }
  OpEntry::Known known = entry->worker_has.load(std::memory_order_relaxed);
  if (known == OpEntry::Known::kNotAsked) {
    known = worker_has(handle) ? OpEntry::Known::kYes : OpEntry::Known::kNo;
    entry->worker_has.store(known, std::memory_order_relaxed);
  }
  if (known == OpEntry::Known::kNo) {
    return run_on_client(handle, stack, "is registered in this process, but not in the worker's");
  }
  run(*entry, *stack);
}

}  // namespace

void register_ops() {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  static auto* handles = new std::deque<c10::RegistrationHandleRAII>;
  Entries& table = entries();
  std::lock_guard lock(table.mutex);
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto handle = dispatcher.findSchema(name);
    if (!handle) continue;
    const bool in_table = ir::find_op(c10::toString(name)) != ir::kInvalidOpcode;
    if (!wanted(*handle, in_table)) continue;
    const OpEntry* entry = make_entry(*handle);
    if (entry == nullptr) continue;
    handles->push_back(
        dispatcher.registerImpl(name, c10::DispatchKey::PrivateUse1,
                                c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<RecordKernel>(entry)),
                                std::nullopt, nullptr, "torch_remote"));
  }
  for (OpEntry& entry : table.all) {
    entry.single = find_single(entry);
    if (entry.desc->functional == entry.desc->opcode) continue;
    const auto found = table.by_name.find(std::string(ir::op_desc(entry.desc->functional).name));
    if (found != table.by_name.end() && is_prefix(*found->second, entry)) entry.functional = found->second;
    if (!(entry.desc->flags & ir::kOpOut)) continue;
    // One that also writes to its arguments is another op's out overload than the table's functional one.
    if (entry.functional != nullptr && entry.functional->desc->results.size() == entry.desc->results.size()) continue;
    const std::string_view name = entry.desc->name;
    const auto sibling = table.by_name.find(std::string(name.substr(0, name.rfind('.'))));
    if (sibling != table.by_name.end() && sibling->second != nullptr && is_prefix(*sibling->second, entry)) {
      entry.functional = sibling->second;
    }
  }
}

std::vector<std::pair<std::string, uint64_t>> meta_key_calls() {
  std::vector<std::pair<std::string, uint64_t>> calls;
  std::lock_guard lock(entries().mutex);
  for (const OpEntry& entry : entries().all) {
    const uint64_t count = entry.meta_calls.load(std::memory_order_relaxed);
    if (count != 0) calls.emplace_back(entry.desc->name, count);
  }
  return calls;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, library) {
  library.fallback(torch::autograd::basicAutogradNotImplementedFallback());
}

}  // namespace torch_remote::frontend
