#include "frontend/ops/registration.h"

#include <ATen/TracerMode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "frontend/device/current_device.h"
#include "frontend/device/device_state.h"
#include "frontend/device/tensor.h"
#include "frontend/ops/cpu_fallback.h"
#include "frontend/ops/kernels.h"
#include "frontend/ops/unboxed_kernels.h"
#include "frontend/record/record_kernel.h"
#include "frontend/record/schemas.h"
#include "frontend/shapes/infer.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::frontend {
namespace {

using torch::jit::Stack;

// The boxed kernel of an op. If `composes(stack)` is true, it calls torch's CPU kernel, which then only calls other
// ops, on the device of their tensors. Otherwise it records the call.
template <class Composes>
class RecordKernel final : public c10::OperatorKernel {
 public:
  RecordKernel(const OpEntry* op, Composes composes) : op_(op), composes_(std::move(composes)) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    if (composes_(*stack)) return handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    record_call(*op_, *stack);
  }

 private:
  const OpEntry* op_;
  Composes composes_;
};

template <class Composes>
c10::KernelFunction boxed_kernel(const OpEntry* op, Composes composes) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<RecordKernel<Composes>>(op, std::move(composes)));
}

// Whether the worker of an operand does not compute on a CPU.
bool has_operand_off_cpu(const Stack& stack, size_t count) {
  const auto args = torch::jit::last(stack, count);
  return std::ranges::any_of(args, [](const c10::IValue& value) {
    return value.isTensor() && is_remote(value.toTensor()) && !runs_on_cpu(value.toTensor().device().index());
  });
}

c10::KernelFunction kernel_of(const c10::OperatorHandle& handle, const OpEntry* entry) {
  const size_t count = entry->arg_count;
  // torch's tracer (torch.jit.trace) records most ops when they are called, and is disabled inside them. It leaves out
  // convolution and records the op that torch's composite kernel calls. So this kernel runs the composite while the
  // tracer is enabled. A convolution that is recorded here would be missing in the traced graph, and its result would
  // be a constant.
  if (entry->desc->opcode == ir::ops::aten_convolution) {
    return boxed_kernel(entry, [](const Stack&) { return at::tracer::impl::is_dispatch_enabled(); });
  }
  // torch has a kernel for the op only on CPU. Other workers get the op's composite, as on CUDA. The composite is
  // reached through torch's CPU kernel, which checks where its operands are.
  if (entry->has(ir::kFactCpuOnly)) {
    return boxed_kernel(entry, [count](const Stack& stack) { return has_operand_off_cpu(stack, count); });
  }
  const c10::FunctionSchema& schema = handle.schema();
  // A backward op whose gradient is sparse if the argument `sparse` is set (embedding bags).
  const std::optional<int> flag = schema.argumentIndexWithName("sparse");
  if (flag && schema.returns().size() == 1 && schema.arguments()[0].name() == "grad") {
    return boxed_kernel(
        entry, [count, at = *flag](const Stack& stack) { return torch::jit::peek(stack, at, count).toBool(); });
  }
  // A factory. Its result is on the device, which has no pinned memory.
  if (const std::optional<int> pin_memory = schema.argumentIndexWithName("pin_memory")) {
    return boxed_kernel(entry, [count, at = *pin_memory](const Stack& stack) {
      const c10::IValue& pinned = torch::jit::peek(stack, at, count);
      TORCH_CHECK(!pinned.isBool() || !pinned.toBool(), "Only dense CPU tensors can be pinned");
      return false;
    });
  }
  if (std::optional<c10::KernelFunction> unboxed = unboxed_kernel(*entry)) return *std::move(unboxed);
  return boxed_kernel(entry, [](const Stack&) { return false; });
}

struct Entries {
  std::mutex mutex;  // held during registration, and during the fallback's first call of an op
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
  if (has_custom_kernel(c10::toString(name))) return false;
  // Composites keep their autograd. Composites that also have a CPU kernel have a derivative formula of their own.
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
  const ir::OpDesc* desc = opcode < ir::kFirstOpaque ? &ir::op_desc(opcode) : describe(handle);
  if (opcode < ir::kFirstOpaque && !fits(*desc, handle.schema())) desc = nullptr;
  OpEntry* entry = desc != nullptr ? &table.all.emplace_back(handle, desc) : nullptr;
  table.by_name.emplace(name, entry);
  return entry;
}

const OpEntry* entry_of(ir::Opcode opcode) {
  if (opcode == ir::kInvalidOpcode) return nullptr;
  const auto found = entries().by_name.find(std::string(ir::op_desc(opcode).name));
  return found != entries().by_name.end() ? found->second : nullptr;
}

// Whether the functional overload takes the other overload's first arguments. Then its rule can infer their results.
bool is_prefix(const OpEntry& functional, const OpEntry& other) {
  if (functional.arg_count > other.arg_count) return false;
  for (uint32_t i = 0; i < functional.arg_count; ++i) {
    if (functional.desc->args[i].name != other.desc->args[i].name) return false;
  }
  return true;
}

OpEntry* entry_of(const c10::OperatorHandle& handle) {
  std::lock_guard lock(entries().mutex);
  return make_entry(handle);
}

// The device of the first tensor of this device type, also in a list. Without any, the current device.
c10::DeviceIndex device_of_call(c10::ArrayRef<c10::IValue> args) {
  const auto remote = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && is_remote(value.toTensor());
  };
  for (const c10::IValue& arg : args) {
    if (remote(arg)) return arg.toTensor().device().index();
    if (!arg.isList()) continue;
    for (const c10::IValue& item : arg.toListRef()) {
      if (remote(item)) return item.toTensor().device().index();
    }
  }
  return current_device();
}

// Forgets an op when it is removed from the dispatcher, which invalidates the entry's handle. Notebooks remove a custom
// op and define it again, perhaps with another schema.
class RemovalListener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& handle) override {
    Entries& table = entries();
    const std::lock_guard lock(table.mutex);
    table.by_name.erase(c10::toString(handle.operator_name()));
  }
};

bool ask_worker(const OpEntry& entry, c10::DeviceIndex device) {
  const uint64_t session = session_of(device);
  if (session != 0 && entry.found_in.load(std::memory_order_relaxed) == session) return true;
  if (!worker_has(entry.handle, device)) return false;
  entry.found_in.store(session, std::memory_order_relaxed);
  return true;
}

// Handles ops that are registered later: custom ops without a kernel for this device.
void fallback(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
  const OpEntry* entry = entry_of(handle);
  if (entry == nullptr) {
    const ir::Opcode opcode = ir::find_op(c10::toString(handle.operator_name()));
    const char* why = "has an argument or result of a type that cannot be recorded";
    if (opcode < ir::kFirstOpaque) {
      why = "has other arguments in this version of torch than torch_remote knows";
    } else if (opcode != ir::kInvalidOpcode) {
      why = "was defined with another schema before in this process";
    }
    return run_on_client(handle, stack, why);
  }
  if (!ask_worker(*entry, device_of_call(torch::jit::last(*stack, entry->arg_count)))) {
    return run_on_client(handle, stack, "is registered in this process, but not in the worker's");
  }
  record_call(*entry, *stack);
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
    const bool in_table = ir::find_op(c10::toString(name)) < ir::kFirstOpaque;
    if (!wanted(*handle, in_table)) continue;
    const OpEntry* entry = make_entry(*handle);
    if (entry == nullptr) continue;
    handles->push_back(dispatcher.registerImpl(name, c10::DispatchKey::PrivateUse1, kernel_of(*handle, entry),
                                               std::nullopt, nullptr, "torch_remote"));
  }
  for (OpEntry& entry : table.all) {
    entry.per_tensor_op = entry_of(entry.desc->per_tensor_op);
    if (entry.desc->functional == entry.desc->opcode) continue;
    const OpEntry* functional = entry_of(entry.desc->functional);
    if (functional != nullptr && is_prefix(*functional, entry)) entry.functional = functional;
    if (!(entry.desc->flags & ir::kOpOut)) continue;
    // If its functional overload in the table has fewer results, look for the overload of which this op is the out
    // variant.
    if (entry.functional != nullptr && entry.functional->desc->results.size() == entry.desc->results.size()) continue;
    const std::string_view name = entry.desc->name;
    const auto sibling = table.by_name.find(std::string(name.substr(0, name.rfind('.'))));
    if (sibling != table.by_name.end() && sibling->second != nullptr && is_prefix(*sibling->second, entry)) {
      entry.functional = sibling->second;
    }
  }
  for (OpEntry& entry : table.all) {
    if (entry.functional != nullptr) entry.refused_dtypes |= entry.functional->refused_dtypes;
  }
  handles->push_back(dispatcher.addRegistrationListener(std::make_unique<RemovalListener>()));
}

const ir::OpDesc* graph_desc(const c10::OperatorHandle& handle) {
  const OpEntry* entry = entry_of(handle);
  return entry != nullptr ? entry->desc : nullptr;
}

bool is_recorded(const c10::OperatorHandle& handle) {
  return wanted(handle, ir::find_op(c10::toString(handle.operator_name())) < ir::kFirstOpaque);
}

bool worker_has_op(const c10::OperatorHandle& handle, c10::DeviceIndex device) {
  const OpEntry* entry = entry_of(handle);
  return entry != nullptr && ask_worker(*entry, device);
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
