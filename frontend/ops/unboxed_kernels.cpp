#include "frontend/ops/unboxed_kernels.h"

#include <ATen/core/function_schema.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "frontend/record/record_kernel.h"

namespace torch_remote::frontend {
namespace {

using at::Scalar;
using at::Tensor;
using c10::IValue;

bool is_lazy(const Tensor& tensor) { return tensor.defined() && (tensor.is_conj() || tensor.is_neg()); }
template <class T>
bool is_lazy(const T&) {
  return false;
}

IValue borrow(const Tensor& tensor) { return IValue(c10::MaybeOwnedTraits<Tensor>::createBorrow(tensor)); }
template <class T>
IValue borrow(const T& value) {
  return IValue(value);
}

// The arguments of a call. Tensors are borrowed from the caller.
template <size_t count>
class BorrowedArguments {
 public:
  template <class... Args>
  explicit BorrowedArguments(const Args&... args) : values_{borrow(args)...} {}
  ~BorrowedArguments() {
    for (IValue& value : values_) {
      if (value.isTensor()) c10::MaybeOwnedTraits<IValue>::destroyBorrow(value);
    }
  }
  BorrowedArguments(const BorrowedArguments&) = delete;
  BorrowedArguments& operator=(const BorrowedArguments&) = delete;

  IValue* data() { return values_.data(); }

 private:
  std::array<IValue, count> values_;
};

// Copies the operands to a stack, because record_call may replace them.
template <class... Args>
Tensor call_boxed(const OpEntry& op, const Args&... args) {
  torch::jit::Stack stack{IValue(args)...};
  record_call(op, stack);
  return std::move(stack[0]).toTensor();
}

template <class... Args>
class UnboxedKernel final : public c10::OperatorKernel {
 public:
  explicit UnboxedKernel(const OpEntry* op) : op_(op) {}
  Tensor operator()(Args... args) {
    if ((is_lazy(args) || ...)) return call_boxed(*op_, args...);
    BorrowedArguments<sizeof...(Args)> borrowed(args...);
    return record_single_result_call(*op_, borrowed.data());
  }

 private:
  const OpEntry* op_;
};

template <class... Args>
class PlainInPlaceKernel final : public c10::OperatorKernel {
 public:
  explicit PlainInPlaceKernel(const OpEntry* op) : op_(op) {}
  Tensor& operator()(Tensor& self, Args... args) {
    if (is_lazy(self) || (is_lazy(args) || ...)) {
      call_boxed(*op_, self, args...);
      return self;
    }
    BorrowedArguments<sizeof...(Args) + 1> borrowed(self, args...);
    record_fixed_size_in_place_call(*op_, borrowed.data());
    return self;
  }

 private:
  const OpEntry* op_;
};

template <class... Args>
c10::KernelFunction make_unboxed(const OpEntry& op) {
  using Kernel = UnboxedKernel<Args...>;
  return c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::make_unique<Kernel>(&op));
}

template <class... Args>
c10::KernelFunction in_place(const OpEntry& op) {
  using Kernel = PlainInPlaceKernel<Args...>;
  return c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::make_unique<Kernel>(&op));
}

// The kinds of a schema's arguments; "TTs" means two tensors and a number. Empty if there are arguments of other kinds.
std::string arguments_of(const c10::FunctionSchema& schema) {
  std::string all;
  for (const c10::Argument& argument : schema.arguments()) {
    switch (argument.real_type()->kind()) {
      case c10::TypeKind::TensorType:
        all += 'T';
        break;
      case c10::TypeKind::NumberType:
        all += 's';
        break;
      case c10::TypeKind::BoolType:
        all += 'b';
        break;
      case c10::TypeKind::IntType:
        all += 'i';
        break;
      default:
        return "";
    }
  }
  return all;
}

}  // namespace

std::optional<c10::KernelFunction> unboxed_kernel(const OpEntry& op) {
  using T = const Tensor&;
  using S = const Scalar&;
  const std::string arguments = arguments_of(op.handle.schema());
  if (op.dynamic || (op.desc->flags & ir::kOpOut) != 0) return std::nullopt;
  if ((op.desc->flags & ir::kOpInPlace) != 0) {
    const c10::FunctionSchema& schema = op.handle.schema();
    const auto* written = schema.arguments().empty() ? nullptr : schema.arguments()[0].alias_info();
    const bool returns_self = schema.returns().size() == 1 && op.desc->results.size() == 1 &&
                              op.desc->results[0].alias == 0 && written != nullptr && written->isWrite();
    if (!returns_self || op.has(ir::kFactResizesSelf)) return std::nullopt;
    if (arguments == "T") return in_place<>(op);
    if (arguments == "TT") return in_place<T>(op);
    if (arguments == "Ts") return in_place<S>(op);
    if (arguments == "TTs") return in_place<T, S>(op);
    if (arguments == "TTTs") return in_place<T, T, S>(op);
    return std::nullopt;
  }
  if (!op.one_tensor || op.handle.schema().returns().size() != 1) return std::nullopt;
  if (arguments == "T") return make_unboxed<T>(op);
  if (arguments == "TT") return make_unboxed<T, T>(op);
  if (arguments == "TTT") return make_unboxed<T, T, T>(op);
  if (arguments == "Ts") return make_unboxed<T, S>(op);
  if (arguments == "TTs") return make_unboxed<T, T, S>(op);
  if (arguments == "Tss") return make_unboxed<T, S, S>(op);
  if (arguments == "TTss") return make_unboxed<T, T, S, S>(op);
  if (arguments == "TTTs") return make_unboxed<T, T, T, S>(op);
  if (arguments == "TTTss") return make_unboxed<T, T, T, S, S>(op);
  if (arguments == "Tib") return make_unboxed<T, int64_t, bool>(op);
  return std::nullopt;
}

}  // namespace torch_remote::frontend
