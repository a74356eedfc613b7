#include "worker/targets/aten/operation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

#include "ir/philox.h"
#include "worker/targets/aten/checks/schema.h"

namespace torch_remote::worker::aten {
namespace {

using ir::Arg;
using ir::ArgTag;

double to_double(int64_t bits) { return std::bit_cast<double>(bits); }

const c10::Type& without_optional(const c10::Type& type) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional ? *optional->getElementType() : type;
}

// The value of a number for an argument of this type (a scalar type, or a list's element type).
c10::IValue number(const Arg& arg, const c10::Type& type, const int64_t* symbols) {
  switch (arg.tag) {
    case ArgTag::kInt:
      if (type.kind() == c10::TypeKind::FloatType) return static_cast<double>(symbols[arg.a]);
      if (type.kind() == c10::TypeKind::BoolType) return symbols[arg.a] != 0;
      return symbols[arg.a];
    case ArgTag::kBool:
      if (type.kind() == c10::TypeKind::BoolType || type.kind() == c10::TypeKind::NumberType)
        return symbols[arg.a] != 0;
      return symbols[arg.a];
    case ArgTag::kFloat:
      return to_double(symbols[arg.a]);
    default:
      return c10::complex<double>(to_double(symbols[arg.a]), to_double(symbols[arg.a + 1]));
  }
}

c10::IValue number_list(const Arg& arg, const c10::Type& element, const int64_t* symbols) {
  const auto fill = [&](auto list) {
    list.reserve(arg.items.size());
    for (const Arg& item : arg.items) {
      using T = typename decltype(list)::value_type;
      list.push_back(number(item, element, symbols).to<T>());
    }
    return c10::IValue(std::move(list));
  };
  switch (element.kind()) {
    case c10::TypeKind::FloatType:
      return fill(c10::List<double>());
    case c10::TypeKind::BoolType:
      return fill(c10::List<bool>());
    case c10::TypeKind::NumberType: {
      c10::impl::GenericList list(c10::NumberType::get());
      for (const Arg& item : arg.items) list.push_back(number(item, element, symbols));
      return list;
    }
    default:
      return fill(c10::List<int64_t>());
  }
}

bool is_number(ArgTag tag) {
  return tag == ArgTag::kInt || tag == ArgTag::kFloat || tag == ArgTag::kBool || tag == ArgTag::kComplex;
}

// Whether a number with this tag is valid for an argument of this type.
bool fits(ArgTag tag, const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return tag == ArgTag::kInt || tag == ArgTag::kBool;
    case c10::TypeKind::FloatType:
      return tag == ArgTag::kFloat || tag == ArgTag::kInt;
    case c10::TypeKind::BoolType:
      return tag == ArgTag::kBool || tag == ArgTag::kInt;
    case c10::TypeKind::NumberType:
      return is_number(tag);
    default:
      return false;
  }
}

bool is_tensor(const Arg& arg) {
  return arg.tag == ArgTag::kView || arg.tag == ArgTag::kScalarTensor || arg.tag == ArgTag::kNone;
}

void collect_symbols(const Arg& arg, std::vector<ir::Sym>& symbols) {
  if (arg.tag == ArgTag::kList) {
    for (const Arg& item : arg.items) collect_symbols(item, symbols);
    return;
  }
  symbols.push_back(arg.a);
  if (arg.tag == ArgTag::kComplex) symbols.push_back(arg.a + 1);
}

void refuse_harmful(const c10::OperatorHandle& op, std::string_view name) {
  const char* why = refusal_reason(name);
  if (op.hasTag(at::Tag::inplace_view)) why = "changes what a tensor is instead of its elements";
  TORCH_CHECK_NOT_IMPLEMENTED(why == nullptr, "remote: the worker does not run '", name, "': it ", why);
}

// Seeds the default generator for one call and restores its state afterwards, because the process may be the user's.
// Other sessions of the process wait meanwhile; otherwise they would change the seed and restore the wrong state. The
// generator's own mutex cannot be held for so long, because torch's kernel locks it.
class SeededDefaultGenerator {
 public:
  explicit SeededDefaultGenerator(uint64_t seed) : call_(mutex()), generator_(at::detail::getDefaultCPUGenerator()) {
    std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~SeededDefaultGenerator() {
    std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  const std::lock_guard<std::mutex> call_;
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace

// The value of an argument that the record does not carry (device, layout, pin_memory) or that is None. Without a
// device, torch would create new tensors on the CPU.
c10::IValue Operation::absent(const c10::Argument& argument) const {
  const bool optional = argument.type()->kind() == c10::TypeKind::OptionalType;
  if (without_optional(*argument.type()).kind() == c10::TypeKind::DeviceObjType && (!optional || target_.is_gpu())) {
    return target_.device;
  }
  if (optional) return {};
  if (argument.type()->kind() == c10::TypeKind::TensorType) return at::Tensor();
  if (argument.default_value()) return *argument.default_value();
  if (argument.real_type()->kind() == c10::TypeKind::LayoutType) return static_cast<int64_t>(at::kStrided);
  TORCH_CHECK_TYPE(false, "remote: the program gives no value for argument '", argument.name(), "'");
}

Operation::Operation(const ir::Node& node, const std::function<at::Tensor(const Arg&)>& tensor, const ir::Graph& graph,
                     const Target& target)
    : target_(target), functional_(find_operator(ir::op_desc(node.opcode).name)), op_(functional_) {
  const std::string_view name = ir::op_desc(node.opcode).name;
  has_kernel_ = functional_.hasComputedKernelForDispatchKey(target.key);
  if (has_kernel_) refuse_harmful(functional_, name);  // call_kernel reports a missing kernel
  const c10::FunctionSchema& schema = functional_.schema();
  const auto& arguments = schema.arguments();
  // A random op without a Generator argument has its seed after the schema's arguments.
  const bool extra = node.args.size() == arguments.size() + 1 && node.args.back().tag == ArgTag::kGenerator;
  TORCH_CHECK_TYPE((extra || node.args.size() == arguments.size()) && node.results.size() == schema.returns().size(),
                   "remote: the program has ", node.args.size(), " arguments and ", node.results.size(),
                   " results for ", schema);
  arguments_.reserve(arguments.size() + node.results.size());
  for (size_t i = 0; i < arguments.size(); ++i) add_argument(node.args[i], arguments[i], tensor);
  if (extra) {
    random_ = true;
    seed_symbol_ = node.args.back().a;
  }

  bool any_dynamic = false;
  ir::for_each_result_view(node, [&](uint32_t view) { any_dynamic |= graph.views[view].dynamic; });
  const bool no_results = std::all_of(node.results.begin(), node.results.end(),
                                      [](const Arg& result) { return result.tag == ArgTag::kNone; });
  bool all_views = true;
  for (size_t i = 0; i < node.results.size(); ++i) {
    const Arg& result = node.results[i];
    const auto kind = schema.returns()[i].type()->kind();
    TORCH_CHECK_TYPE(result.tag == ArgTag::kNone ||
                         (result.tag == ArgTag::kView && kind == c10::TypeKind::TensorType) ||
                         (result.tag == ArgTag::kList && kind == c10::TypeKind::ListType),
                     "remote: the program has the wrong kind of result ", i, " for ", schema);
    all_views = all_views && result.tag == ArgTag::kView && !any_dynamic;
  }

  if (!target.is_gpu()) {
    if (!any_dynamic) special_ = find_special(node, graph);  // it writes results of known sizes
    if (!special_) casts_ = Casts::find(node, graph);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(can_run_on_gpu(name), "remote: the worker does not run '", name,
                                "' with torch's kernels for GPUs");
  }
  guard_ = find_guard(name);
  if (special_) {
    mode_ = Mode::kSpecial;
    for (const Arg& result : node.results) {
      if (result.tag != ArgTag::kList) results_.push_back(result.tag == ArgTag::kView ? tensor(result) : at::Tensor());
      for (const Arg& item : result.items) {
        results_.push_back(item.tag == ArgTag::kView ? tensor(item) : at::Tensor());
      }
    }
  } else if (no_results && !(ir::op_desc(node.opcode).flags & ir::kOpHostResult)) {
    mode_ = Mode::kEffect;
    if (!target.is_gpu()) hazard_ = hazard_of(node, graph);
  } else {
    mode_ = Mode::kFunctional;
    // Ops that write more than their schema says (running statistics) must not be called twice. Some of their out
    // variants also fail on layouts that the functional overload supports.
    const bool hidden = ir::op_desc(node.opcode).flags & ir::kOpHiddenMutation;
    const auto out = all_views && !hidden && !casts_ ? find_out_variant(functional_, target.key) : std::nullopt;
    if (out) {
      mode_ = Mode::kOut;
      op_ = *out;
      for (const Arg& result : node.results) arguments_.emplace_back(tensor(result));
    }
  }
}

void Operation::add_argument(const Arg& arg, const c10::Argument& argument,
                             const std::function<at::Tensor(const Arg&)>& tensor) {
  const bool optional = argument.type()->kind() == c10::TypeKind::OptionalType;
  const c10::Type& type = without_optional(*argument.type());
  const auto* list = type.castRaw<c10::ListType>();
  const auto check = [&](bool good) {
    TORCH_CHECK_TYPE(good, "remote: the program has the wrong kind of value for argument '", argument.name(),
                     "' of type ", argument.type()->str());
  };
  const auto add_number = [&] {
    Number number{static_cast<uint32_t>(arguments_.size()), &arg, {}, {}};
    collect_symbols(arg, number.symbols);
    numbers_.push_back(std::move(number));
    arguments_.emplace_back();
  };
  switch (arg.tag) {
    case ArgTag::kNone:
      arguments_.push_back(absent(argument));
      return;
    case ArgTag::kView:
    case ArgTag::kScalarTensor:
      check(type.kind() == c10::TypeKind::TensorType);
      arguments_.emplace_back(tensor(arg));
      return;
    case ArgTag::kInt:
    case ArgTag::kFloat:
    case ArgTag::kBool:
    case ArgTag::kComplex:
      check(fits(arg.tag, type));
      add_number();
      return;
    case ArgTag::kString:
      check(type.kind() == c10::TypeKind::StringType);
      arguments_.emplace_back(arg.text);
      return;
    case ArgTag::kDType:
    case ArgTag::kMemoryFormat: {
      const auto wanted = arg.tag == ArgTag::kDType ? c10::TypeKind::ScalarTypeType : c10::TypeKind::MemoryFormatType;
      check(without_optional(*argument.real_type()).kind() == wanted || type.kind() == wanted);
      check(arg.tag == ArgTag::kDType || arg.a < static_cast<uint32_t>(c10::MemoryFormat::NumOptions));
      arguments_.emplace_back(static_cast<int64_t>(arg.a));
      return;
    }
    case ArgTag::kGenerator:
      check(type.kind() == c10::TypeKind::GeneratorType && optional);
      random_ = has_generator_argument_ = true;
      seed_symbol_ = arg.a;
      generator_ = at::detail::createCPUGenerator();
      arguments_.emplace_back(generator_);
      return;
    case ArgTag::kList: {
      check(list != nullptr);
      const c10::Type& element = *list->getElementType();
      if (element.kind() == c10::TypeKind::TensorType) {
        c10::List<at::Tensor> tensors;
        for (const Arg& item : arg.items) {
          check(is_tensor(item));
          tensors.push_back(item.tag == ArgTag::kNone ? at::Tensor() : tensor(item));
        }
        arguments_.emplace_back(std::move(tensors));
      } else if (element.kind() == c10::TypeKind::OptionalType) {
        check(without_optional(element).kind() == c10::TypeKind::TensorType);
        c10::List<std::optional<at::Tensor>> tensors;
        for (const Arg& item : arg.items) {
          check(is_tensor(item));
          tensors.push_back(item.tag == ArgTag::kNone ? std::nullopt : std::optional(tensor(item)));
        }
        copied_.push_back(static_cast<uint32_t>(arguments_.size()));
        arguments_.emplace_back(std::move(tensors));
      } else {
        for (const Arg& item : arg.items) check(fits(item.tag, element));
        add_number();
      }
      return;
    }
  }
  check(false);
}

void Operation::update(const int64_t* symbols) {
  if (random_) {
    seed_ = static_cast<uint64_t>(symbols[seed_symbol_]);
    offset_ = static_cast<uint64_t>(symbols[seed_symbol_ + 1]);
  }
  const bool updated = std::exchange(updated_, false);
  for (Number& number : numbers_) {
    bool same = updated;
    number.values.resize(number.symbols.size());
    for (size_t i = 0; i < number.symbols.size(); ++i) {
      same = same && number.values[i] == symbols[number.symbols[i]];
      number.values[i] = symbols[number.symbols[i]];
    }
    if (same) continue;
    const c10::Type& type = without_optional(*functional_.schema().arguments()[number.argument].type());
    const auto* list = type.castRaw<c10::ListType>();
    arguments_[number.argument] = list ? number_list(*number.source, *list->getElementType(), symbols)
                                       : aten::number(*number.source, type, symbols);
  }
  updated_ = true;
}

void Operation::call(c10::Stack& stack) {
  if (mode_ == Mode::kSpecial) {
    if (guard_.check) [[unlikely]] {
      stack.assign(arguments_.begin(), arguments_.end());
      guard_.check(functional_.schema().name().c_str(), stack.data(), nullptr);
      special_({stack, results_, seed_, offset_});
    } else {
      special_({arguments_, results_, seed_, offset_});
    }
    return;
  }
  stack.assign(arguments_.begin(), arguments_.end());
  if (hazard_ != Hazard::kNone && may_fail(hazard_, arguments_.data())) [[unlikely]]
    return call_on_copy(stack);
  call(op_, stack);
}

// The stack holds the arguments.
void Operation::call_on_copy(c10::Stack& stack) {
  const at::Tensor self = stack[0].toTensor();
  const at::Tensor copy = self.clone();
  stack[0] = copy;
  call(op_, stack);
  self.copy_(copy);
}

void Operation::call_functional(c10::Stack& stack) {
  const auto count = static_cast<ptrdiff_t>(functional_.schema().arguments().size());
  stack.assign(arguments_.begin(), arguments_.begin() + count);
  call(functional_, stack);
}

// The stack holds the arguments.
void Operation::call(const c10::OperatorHandle& op, c10::Stack& stack) {
  if (guard_.check) [[unlikely]] {
    const size_t count = functional_.schema().arguments().size();
    guard_.check(op.schema().name().c_str(), stack.data(), stack.size() > count ? &stack[count] : nullptr);
  }
  for (const uint32_t argument : copied_) stack[argument] = stack[argument].toList().copy();
  if (casts_) {
    const c10::Stack own = stack;
    casts_->widen(stack);
    const c10::Stack widened = stack;
    call_kernel(op, stack);
    casts_->narrow(stack, own, widened);
  } else {
    call_kernel(op, stack);
  }
}

void Operation::call_kernel(const c10::OperatorHandle& op, c10::Stack& stack) {
  const c10::DispatchKeySet keys(target_.key);
  TORCH_CHECK_NOT_IMPLEMENTED(has_kernel_, "remote: the worker computes on the ", target_.is_gpu() ? "GPU" : "CPU",
                              ", for which torch has no '", op.schema().name(), "'");
  if (!random_) {
    op.redispatchBoxed(keys, &stack);
    return;
  }
  const uint64_t seed = ir::Philox(seed_, offset_).derived_seed();
  if (has_generator_argument_) {
    generator_.set_current_seed(seed);
    op.redispatchBoxed(keys, &stack);
  } else {
    SeededDefaultGenerator guard(seed);
    op.redispatchBoxed(keys, &stack);
  }
}

void Operation::stop_using_out() {
  mode_ = Mode::kFunctional;
  op_ = functional_;
  arguments_.resize(functional_.schema().arguments().size());
}

}  // namespace torch_remote::worker::aten
