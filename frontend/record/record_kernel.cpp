#include "frontend/record/record_kernel.h"

#include <algorithm>
#include <span>

#include "frontend/device/current_device.h"
#include "frontend/device/device_state.h"
#include "frontend/device/generator.h"
#include "frontend/device/tensor.h"
#include "frontend/record/in_place.h"
#include "frontend/record/recorder.h"
#include "frontend/record/storages.h"
#include "frontend/shapes/call_checks.h"
#include "frontend/shapes/write_checks.h"

namespace torch_remote::frontend {
namespace {

using c10::IValue;
using ir::ArgKind;
using torch::jit::Stack;

[[noreturn]] void wrong_device(const ir::OpDesc& op, const ir::ArgDesc& arg, const at::Tensor& t,
                               c10::DeviceIndex device) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but got ", arg.name, " is on ", t.device(),
              ", different from other tensors on remote:", static_cast<int>(device),
              " (when checking argument of remote '", op.name, "'); move one with .to(...)");
}

// Raises the error for a call without a tensor of the device. Such a call got here by a generator of the device.
[[noreturn]] void no_device(const OpEntry& op, const IValue* args) {
  for (uint32_t i = 0; i < op.arg_count; ++i) {
    if (!args[i].isTensor() || !args[i].toTensor().defined()) continue;
    for (uint32_t g = 0; g < op.arg_count; ++g) {
      TORCH_CHECK(!args[g].isGenerator(), "Expected a '", args[i].toTensor().device().type(),
                  "' device type for generator but found '", args[g].toGenerator().device().type(), "'");
    }
  }
  TORCH_CHECK(false, "remote: '", op.desc->name, "' was called without a tensor on the device");
}

// The device of the call: that of its first remote tensor, or of its device argument; -1 if there is neither.
c10::DeviceIndex find_device(const OpEntry& op, const IValue* args) {
  for (uint32_t i = 0; i < op.arg_count; ++i) {
    const IValue& value = args[i];
    if (value.isTensor()) {
      const at::Tensor& t = value.toTensor();
      if (t.defined() && is_remote(t)) return t.device().index();
    } else if (value.isDevice()) {
      if (value.toDevice().type() == c10::DeviceType::PrivateUse1) {
        return value.toDevice().has_index() ? checked_device(value.toDevice().index()) : current_device();
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
    if (t.device().index() != device) wrong_device(*op.desc, arg, t, device);
    return;
  }
  if (t.is_cpu() && t.dim() == 0 && op.accepts_cpu_scalars && !arg.writes) return;
  wrong_device(*op.desc, arg, t, device);
}

// index_put(self, indices, values, accumulate) with one bool mask and a number on the CPU: torch calls masked_fill_,
// which converts the number to the dtype of `self`. Does the same, and raises if that dtype cannot hold the number.
void convert_masked_number(const OpEntry& op, IValue* args) {
  if (op.arg_count < 4 || !args[2].isTensor() || args[3].toBool()) return;
  const at::Tensor &self = args[0].toTensor(), &values = args[2].toTensor();
  if (!values.is_cpu() || values.dim() != 0 || values.scalar_type() == self.scalar_type()) return;
  bool has_mask = false;
  for (const IValue& item : args[1].toListRef()) {
    if (item.isNone() || !item.toTensor().defined()) continue;
    if (has_mask || item.toTensor().scalar_type() != c10::ScalarType::Bool) return;
    has_mask = true;
  }
  if (!has_mask) return;
  check_fits(self.scalar_type(), values.item());
  args[2] = values.to(self.scalar_type());
}

constexpr uint64_t bit(c10::ScalarType dtype) { return uint64_t{1} << static_cast<int>(dtype); }

// Returns a bit mask of the dtypes in which the call may compute: those of the operands that are tensors, those of
// arguments that are dtypes, and Float and ComplexFloat for numbers of these kinds.
uint64_t check_operands(const OpEntry& op, IValue* args, c10::DeviceIndex device) {
  uint64_t dtypes = 0;
  for (uint32_t i = 0; i < op.arg_count; ++i) {
    const ir::ArgDesc& arg = op.desc->args[i];
    IValue& value = args[i];
    if (arg.role != ir::ArgRole::kOperand) {
      if (value.isDouble()) {
        dtypes |= bit(c10::ScalarType::Float);
      } else if (value.isComplexDouble()) {
        dtypes |= bit(c10::ScalarType::ComplexFloat);
      } else if (arg.kind == ir::ArgKind::kDType && value.isInt()) {
        const c10::ScalarType dtype = value.toScalarType();
        TORCH_CHECK_NOT_IMPLEMENTED(!c10::isQIntType(dtype), "remote: '", op.desc->name,
                                    "' cannot make a tensor of dtype ", dtype,
                                    ", as the device has no quantized tensors; quantize on the CPU");
        dtypes |= bit(dtype);
      }
      continue;
    }
    if (value.isTensor()) {
      check_operand(op, arg, value.toTensor(), device);
      // Resolve lazy conjugates and negatives: torch lets some ops handle them, but a trace has none.
      const at::Tensor& t = value.toTensor();
      if (t.defined()) dtypes |= bit(t.scalar_type());
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
        if (op.has(ir::kFactAcceptsCpuIndices) && t.defined() && t.is_cpu()) {
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
      if (op.has(ir::kFactAcceptsCpuIndices)) convert_masked_number(op, args);
    }
  }
  return dtypes;
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

// Replaces the arguments from `base` on by the results. Moves from `results`.
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
                                "' returns a list whose length is known only after the run; give it a meta kernel "
                                "(torch.library.register_fake)");
    if (result.kind == ir::ResultKind::kTensor && result.alias < 0) {
      storages.push_back(make_contiguous_tensor({0}, c10::ScalarType::Float, device).storage());
    }
  }
  const auto result_words =
      Recorder::get(device).record_and_wait(*op.desc, args, storages, take_random(op, args, {}, device));
  size_t next = 0;
  const auto word = [&] {
    TORCH_CHECK(next < result_words.size(), "remote: the worker's reply to '", op.desc->name, "' is too short");
    return result_words[next++];
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
        const c10::Storage& storage = storages[tensor++];
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

// The checks of every call. Returns the call's device.
c10::DeviceIndex check_call(const OpEntry& op, IValue* args) {
  const c10::DeviceIndex device = find_device(op, args);
  if (device < 0) no_device(op, args);
  const uint64_t dtypes = check_operands(op, args, device);
  check_not_forked();
  if (op.refused_dtypes & dtypes) check_kernel_dtype(op, args);
  if (op.check != nullptr) op.check(op, args);
  return device;
}

at::Tensor make_result(const ResultMeta& meta, c10::DeviceIndex device) {
  if (meta.state == ResultMeta::State::kUndefined) return {};
  return make_tensor(meta.sizes, meta.strides, meta.dtype, device);
}

}  // namespace

c10::DeviceIndex operand_device(const ir::OpDesc& op, const IValue* args) {
  const auto for_each_operand = [&](const auto& visit) {
    for (size_t i = 0; i < op.args.size(); ++i) {
      if (op.args[i].role != ir::ArgRole::kOperand) continue;
      if (args[i].isTensor()) {
        visit(op.args[i], args[i].toTensor());
      } else if (args[i].isList()) {
        for (const IValue& item : args[i].toListRef()) visit(op.args[i], item.toTensor());
      }
    }
  };
  c10::DeviceIndex device = -1;
  for_each_operand([&](const ir::ArgDesc&, const at::Tensor& t) {
    if (device < 0 && t.defined() && is_remote(t)) device = t.device().index();
  });
  for_each_operand([&](const ir::ArgDesc& arg, const at::Tensor& t) {
    if (t.defined() && (!is_remote(t) || t.device().index() != device)) wrong_device(op, arg, t, device);
  });
  return device;
}

at::Tensor record_single_result_call(const OpEntry& op, IValue* args) {
  const c10::DeviceIndex device = check_call(op, args);
  Inferred inferred;
  if (infer(op, args, inferred) == Tier::kDynamic) {
    Stack stack(args, args + op.arg_count);
    run_dynamic(op, stack, 0, device);
    return std::move(stack[0]).toTensor();
  }
  at::Tensor result = make_result(inferred.results[0], device);
  Recorder::get(device).record(*op.desc, args, result, inferred.list_lengths, take_random(op, args, inferred, device));
  return result;
}

void record_fixed_size_in_place_call(const OpEntry& op, IValue* args) {
  const c10::DeviceIndex device = check_call(op, args);
  check_in_place_call(op, args);
  Recorder::get(device).record(*op.desc, args, {}, {}, take_random(op, args, {}, device));
}

void record_call(const OpEntry& op, Stack& stack) {
  const size_t base = stack.size() - op.arg_count;
  IValue* args = &stack[base];
  const c10::DeviceIndex device = check_call(op, args);
  Inferred inferred;
  if (op.desc->flags & ir::kOpOut) {
    if (op.desc->flags & ir::kOpDynamicShape) {
      if (run_through_functional(op, stack, record_call)) return;
    } else if (((!resize_out(op, args) && !check_mutation(op, args)) || converts_result(op, args) ||
                writes_shared_elements(op, args)) &&
               run_through_functional(op, stack, record_call)) {
      return;
    }
  } else if (op.desc->flags & ir::kOpInPlace) {
    if (op.has(ir::kFactResizesSelf) && run_with_resize(op, stack, record_call)) return;
    check_in_place_call(op, args);
  }
  const auto is_new = [](const ir::ResultDesc& result) { return result.alias < 0; };
  if (!(op.desc->flags & ir::kOpOut) && std::ranges::any_of(op.desc->results, is_new)) {
    if (infer(op, args, inferred) == Tier::kDynamic) {
      run_dynamic(op, stack, base, device);
      return;
    }
  }
  c10::SmallVector<at::Tensor, 4> results;
  for (const ResultMeta& meta : inferred.results) results.push_back(make_result(meta, device));
  Recorder::get(device).record(*op.desc, args, results, inferred.list_lengths, take_random(op, args, inferred, device));
  push_results(op, stack, base, {results.data(), results.size()}, inferred.list_lengths);
}

}  // namespace torch_remote::frontend
