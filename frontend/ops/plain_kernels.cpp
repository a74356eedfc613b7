#include "frontend/ops/plain_kernels.h"

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

IValue lend(const Tensor& tensor) { return IValue(c10::MaybeOwnedTraits<Tensor>::createBorrow(tensor)); }
template <class T>
IValue lend(const T& value) {
  return IValue(value);
}

// The arguments of a call. Tensors are borrowed from the caller.
template <size_t count>
class Lent {
 public:
  template <class... Args>
  explicit Lent(const Args&... args) : values_{lend(args)...} {}
  ~Lent() {
    for (IValue& value : values_) {
      if (value.isTensor()) c10::MaybeOwnedTraits<IValue>::destroyBorrow(value);
    }
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

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
class PlainKernel final : public c10::OperatorKernel {
 public:
  explicit PlainKernel(const OpEntry* op) : op_(op) {}
  Tensor operator()(Args... args) {
    if ((is_lazy(args) || ...)) return call_boxed(*op_, args...);
    Lent<sizeof...(Args)> lent(args...);
    return record_plain_call(*op_, lent.data());
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
    Lent<sizeof...(Args) + 1> lent(self, args...);
    record_plain_in_place_call(*op_, lent.data());
    return self;
  }

 private:
  const OpEntry* op_;
};

template <class... Args>
c10::KernelFunction plain(const OpEntry& op) {
  using Kernel = PlainKernel<Args...>;
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

std::optional<c10::KernelFunction> plain_kernel(const OpEntry& op) {
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
  if (arguments == "T") return plain<T>(op);
  if (arguments == "TT") return plain<T, T>(op);
  if (arguments == "TTT") return plain<T, T, T>(op);
  if (arguments == "Ts") return plain<T, S>(op);
  if (arguments == "TTs") return plain<T, T, S>(op);
  if (arguments == "Tss") return plain<T, S, S>(op);
  if (arguments == "TTss") return plain<T, T, S, S>(op);
  if (arguments == "TTTs") return plain<T, T, T, S>(op);
  if (arguments == "TTTss") return plain<T, T, T, S, S>(op);
  if (arguments == "Tib") return plain<T, int64_t, bool>(op);
  return std::nullopt;
}

}  // namespace torch_remote::frontend
