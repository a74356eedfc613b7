#include "frontend/compile/lowering.h"

#include <ATen/ops/_local_scalar_dense_native.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_symnode.h>

#include "frontend/compile/compiled_graph_builder.h"
#include "frontend/compile/fx.h"
#include "frontend/compile/graph_ops.h"
#include "frontend/ops/registration.h"
#include "ir/number_kinds.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::frontend {
namespace {

namespace py = pybind11;
using ir::Arg;
using ir::ArgKind;
using ir::ArgTag;
using ir::ExprKind;
using ir::kNoSym;
using ir::Sym;
using Kind = GraphOp::Kind;

Arg number(ArgTag tag, Sym symbol) {
  Arg arg;
  arg.tag = tag;
  arg.a = symbol;
  return arg;
}

}  // namespace

struct Lowering::State {
  State(c10::DeviceIndex device, bool trust_ranges)
      : device(device), builder(device, trust_ranges), symbols(builder.symbols()) {}

  // -- arguments ------------------------------------------------------------------------------------------------------

  Arg operand(py::handle value, bool writes) {
    Arg arg;
    if (value.is_none()) return arg;
    if (!is_fx_node(value)) {  // a number
      ArgTag tag = ArgTag::kNone;
      const Sym symbol = builder.number_symbol(value, tag);
      return scalar_tensor(symbol, tag);
    }
    const Value& v = builder.value_of(value);
    switch (v.kind) {
      case Value::Kind::kNone:
        return arg;
      case Value::Kind::kTensor:
        only_host_operands &= v.computed_on_cpu;
        if (writes && (v.conj || v.neg)) throw_unsupported("a lazy conjugate or negative is written");
        arg.tag = ArgTag::kView;
        arg.a = resolved(Value(v));
        return arg;
      case Value::Kind::kNumber:
        arg.tag = ArgTag::kScalarTensor;
        arg.a = v.symbol;
        arg.b = static_cast<uint32_t>(v.dtype);
        if (writes) throw_unsupported("a tensor on the CPU is written");
        return arg;
      case Value::Kind::kInt:
        return scalar_tensor(v.symbol, ArgTag::kInt);
      case Value::Kind::kFloat:
        return scalar_tensor(v.symbol, ArgTag::kFloat);
      case Value::Kind::kBool:
        return scalar_tensor(v.symbol, ArgTag::kBool);
      case Value::Kind::kRandomState:
        throw_unsupported("expected a tensor, got the state of a generator");
      case Value::Kind::kList:
        break;
    }
    throw_unsupported("expected a tensor, got a list");
  }

  // The view of a tensor after its lazy conjugate or negative is resolved: programs have no lazy tensors.
  uint32_t resolved(const Value& value) {
    uint32_t view = value.view;
    if (value.conj) view = applied("aten::conj_physical.out", view);
    if (value.neg) view = applied("aten::neg.out", view);
    return view;
  }

  // Returns the contiguous result of a unary op, which the op writes as its `out`. It is no result of the node, because
  // canonicalize expects that nodes with equal operands have results with equal strides. The op may choose others.
  uint32_t applied(std::string_view op, uint32_t from) {
    const ir::View view = builder.graph().views[from];
    Geometry g{view.sizes, std::vector<Sym>(view.sizes.size())};
    Sym stride = symbols.constant(1);
    for (size_t d = g.sizes.size(); d-- > 0;) {
      g.strides[d] = stride;
      stride = symbols.expr(ExprKind::kMul, stride, g.sizes[d]);
    }
    const uint32_t result = builder.fresh_view(static_cast<c10::ScalarType>(view.dtype), g);
    std::vector<Arg> args = {number(ArgTag::kView, from), number(ArgTag::kView, result)};
    builder.add_node(ir::op_desc(ir::find_op(op)), std::move(args), fx_node);
    return result;
  }

  static Arg scalar_tensor(Sym symbol, ArgTag tag) {
    const ir::DType dtype = tag == ArgTag::kInt     ? ir::DType::kInt64
                            : tag == ArgTag::kFloat ? ir::DType::kFloat64
                            : tag == ArgTag::kBool  ? ir::DType::kBool
                                                    : ir::DType::kComplex128;
    Arg arg = number(ArgTag::kScalarTensor, symbol);
    arg.b = static_cast<uint32_t>(dtype) | 1u << 8;  // a wrapped number
    return arg;
  }

  Arg convert(const ir::ArgDesc& desc, py::handle value) {
    Arg arg;
    if (desc.role == ir::ArgRole::kClientOnly) return arg;
    if (desc.role == ir::ArgRole::kRandom) {
      if (value && !value.is_none()) throw_unsupported("it gets a generator as an argument");
      arg.tag = ArgTag::kGenerator;
      arg.a = replayed_state;
      if (replayed_state == kNoSym) {
        arg.a = symbols.new_param();
        symbols.new_param();
      }
      return arg;
    }
    if (!value) throw_unsupported("argument '" + std::string(desc.name) + "' is missing");
    if (value.is_none() && desc.kind != ArgKind::kTensor) return arg;
    switch (desc.kind) {
      case ArgKind::kTensor:
      case ArgKind::kOptionalTensor:
        return operand(value, desc.writes);
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList:
        arg.tag = ArgTag::kList;
        if (is_fx_node(value)) {
          const Value v = builder.value_of(value);
          if (v.kind != Value::Kind::kList) throw_unsupported("expected a list, got a tensor");
          for (const Value& item : v.items) {
            if (item.kind != Value::Kind::kTensor) throw_unsupported("a list contains something other than tensors");
            only_host_operands &= item.computed_on_cpu;
            arg.items.push_back(number(ArgTag::kView, resolved(item)));
          }
          return arg;
        }
        for (const py::handle item : value) arg.items.push_back(operand(item, desc.writes));
        return arg;
      case ArgKind::kString:
      case ArgKind::kOptionalString:
        arg.tag = ArgTag::kString;
        arg.text = py::cast<std::string>(value);
        return arg;
      case ArgKind::kDType:
        if (!THPDtype_Check(value.ptr())) throw_unsupported("an argument is not a dtype");
        return number(ArgTag::kDType, static_cast<uint32_t>(reinterpret_cast<THPDtype*>(value.ptr())->scalar_type));
      case ArgKind::kMemoryFormat:
        if (!THPMemoryFormat_Check(value.ptr())) throw_unsupported("an argument is not a memory format");
        return number(ArgTag::kMemoryFormat,
                      static_cast<uint32_t>(reinterpret_cast<THPMemoryFormat*>(value.ptr())->memory_format));
      default:
        break;
    }
    if (ir::is_number_list(desc.kind)) {
      arg.tag = ArgTag::kList;
      if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value)) {
        arg.items.push_back(checked_number(desc, value));  // torch accepts a single int for int[1]
        return arg;
      }
      for (const py::handle item : value) arg.items.push_back(checked_number(desc, item));
      return arg;
    }
    return checked_number(desc, value);
  }

  Arg checked_number(const ir::ArgDesc& desc, py::handle value) {
    ArgTag tag = ir::number_tag(desc.kind);
    const Sym symbol = builder.number_symbol(value, tag);
    if (desc.role == ir::ArgRole::kStructural && !builder.graph().is_constant(symbol)) {
      const std::optional<int64_t> guarded = builder.guarded_value(value);
      if (!guarded)
        throw_unsupported("argument '" + std::string(desc.name) +
                          "' must be a constant of the program, but its value is known only at the call");
      return number(tag, symbols.constant(*guarded));
    }
    return number(tag, symbol);
  }

  // -- nodes ----------------------------------------------------------------------------------------------------------

  std::vector<Arg> convert_all(const ir::OpDesc& desc, const std::vector<py::object>& given) {
    std::vector<Arg> args;
    args.reserve(desc.args.size());
    for (size_t i = 0; i < desc.args.size(); ++i) {
      args.push_back(convert(desc.args[i], i < given.size() ? py::handle(given[i]) : py::handle()));
    }
    return args;
  }

  // Draws a random op's seed and offset at each call.
  void draw(const ir::OpDesc& desc, const std::vector<Arg>& args, std::vector<Sym> counts) {
    if (!(desc.flags & ir::kOpRandom) || replayed_state != kNoSym) return;
    GraphRandom random{kNoSym, std::move(counts)};
    for (const Arg& arg : args) {
      if (arg.tag == ArgTag::kGenerator) random.seed = arg.a;
      if (arg.tag == ArgTag::kView) {
        Sym count = symbols.constant(1);
        for (const Sym size : builder.graph().views[arg.a].sizes) count = symbols.expr(ExprKind::kMul, count, size);
        random.elements.push_back(count);
      }
    }
    builder.add_random(std::move(random));
  }

  // Refuses masks as indices: the number of elements that they select depends on data, unlike in the example value.
  void check_no_mask(const std::vector<Arg>& args) const {
    for (const Arg& arg : args) {
      for (const Arg& index : arg.items) {
        if (index.tag != ArgTag::kView) continue;
        const ir::DType dtype = builder.graph().views[index.a].dtype;
        if (dtype == ir::DType::kBool || dtype == ir::DType::kUInt8) throw_unsupported("its results depend on data");
      }
    }
  }

  Value record(py::handle fx, py::handle val, const ir::OpDesc& desc, const std::vector<py::object>& given) {
    only_host_operands = true;
    std::vector<Arg> args = convert_all(desc, given);
    if (desc.opcode == ir::ops::aten_index_Tensor) check_no_mask(args);
    const bool host = only_host_operands && !(desc.flags & (ir::kOpRandom | ir::kOpInPlace | ir::kOpOut));
    const bool several = desc.results.size() != 1;
    if (several && !desc.results.empty() && !py::isinstance<py::tuple>(val) && !py::isinstance<py::list>(val)) {
      throw_unsupported("its example value is not a tuple");
    }
    Value value;
    std::vector<Arg> results(desc.results.size());
    std::vector<Sym> counts;
    const Arg* mask = result_mask(desc, args);
    for (size_t i = 0; i < desc.results.size(); ++i) {
      const ir::ResultDesc& result = desc.results[i];
      Value one;
      if (mask != nullptr && i < mask->items.size() && mask->items[i].a == symbols.constant(0)) {
        // this result is not wanted
      } else if (i > 0 && is_batch_norm_eval(desc, args)) {
        // In eval mode the CPU op returns no statistics, although the example value has some. No result depends on
        // them.
        one = builder.fresh(val[py::int_(i)]);
      } else if (result.alias >= 0) {
        one.kind = Value::Kind::kTensor;
        if (args[result.alias].tag != ArgTag::kView)
          throw_unsupported("it returns an argument that is not a tensor of the device");
        one.view = args[result.alias].a;
      } else {
        const py::object its = several ? py::object(val[py::int_(i)]) : py::reinterpret_borrow<py::object>(val);
        if (result.kind == ir::ResultKind::kTensorList) {
          one.kind = Value::Kind::kList;
          results[i].tag = ArgTag::kList;
          for (const py::handle item : its) {
            one.items.push_back(builder.fresh(item, host));
            results[i].items.push_back(result_arg(one.items.back()));
          }
        } else {
          one = builder.fresh(its, host);
          results[i] = result_arg(one);
          if (one.kind == Value::Kind::kTensor && (desc.flags & ir::kOpRandom)) counts.push_back(builder.elements(its));
        }
      }
      if (several) {
        value.items.push_back(std::move(one));
      } else {
        value = std::move(one);
      }
    }
    if (several) value.kind = Value::Kind::kList;
    draw(desc, args, std::move(counts));
    builder.add_node(desc, std::move(args), fx).results = std::move(results);
    return value;
  }

  // The argument of a backward op that says which results are wanted, or null.
  static const Arg* result_mask(const ir::OpDesc& desc, const std::vector<Arg>& args) {
    for (size_t i = 0; i < args.size(); ++i) {
      if (desc.args[i].kind == ArgKind::kBoolList && desc.args[i].name.ends_with("put_mask")) return &args[i];
    }
    return nullptr;
  }

  // Whether the op is batch norm in eval mode.
  bool is_batch_norm_eval(const ir::OpDesc& desc, const std::vector<Arg>& args) {
    if (!desc.name.starts_with("aten::_native_batch_norm") && desc.name != "aten::native_batch_norm") return false;
    for (size_t i = 0; i < args.size(); ++i) {
      if (desc.args[i].name == "training") return args[i].a == symbols.constant(0);
    }
    return desc.name.find("no_training") != std::string_view::npos;
  }

  static Arg result_arg(const Value& value) {
    return value.kind == Value::Kind::kTensor ? number(ArgTag::kView, value.view) : Arg();
  }

  // New memory that an op fills, in place or as its `out`. `given` are the node's arguments.
  Value fill(py::handle fx, py::handle val, const GraphOp& op, const std::vector<py::object>& given) {
    const ir::OpDesc& desc = *op.desc;
    only_host_operands = true;
    std::vector<Arg> args;
    size_t filled = 0, next = 0;
    for (size_t i = 0; i < desc.args.size(); ++i) {
      if (desc.args[i].writes) {
        filled = i;
        args.emplace_back();
        continue;
      }
      const bool last = next == op.mapped_arguments.size();
      const GraphOp::MappedArgument from = last ? GraphOp::MappedArgument() : op.mapped_arguments[next++];
      args.push_back(convert(desc.args[i], mapped_argument(from, given)));
    }
    const bool host = only_host_operands && !(desc.flags & ir::kOpRandom);
    Value value;
    if (desc.args[filled].kind == ArgKind::kTensorList) {
      value.kind = Value::Kind::kList;
      args[filled].tag = ArgTag::kList;
      for (const py::handle item : val) {
        value.items.push_back(builder.fresh(item, host));
        args[filled].items.push_back(result_arg(value.items.back()));
      }
    } else {
      value = builder.fresh(val, host);
      args[filled] = result_arg(value);
    }
    draw(desc, args, {});
    builder.add_node(desc, std::move(args), fx);
    return value;
  }

  py::handle mapped_argument(const GraphOp::MappedArgument& from, const std::vector<py::object>& given) {
    return from.index ? py::handle(given[*from.index]) : py::handle(from.constant);
  }

  // A node of another op, which computes the first results. `given` are the node's arguments.
  Value other(py::handle fx, py::handle val, const GraphOp& op, const std::vector<py::object>& given) {
    if (op.zero && given[*op.zero].cast<double>() != 0) {
      throw_unsupported("its argument '" + op.schema[*op.zero].name.cast<std::string>() + "' is not 0");
    }
    std::vector<py::object> taken;
    taken.reserve(op.mapped_arguments.size());
    for (const GraphOp::MappedArgument& from : op.mapped_arguments) {
      taken.push_back(py::reinterpret_borrow<py::object>(mapped_argument(from, given)));
    }
    std::vector<Arg> args = convert_all(*op.desc, taken);
    Value value;
    value.kind = Value::Kind::kList;
    std::vector<Arg> results;
    for (const py::handle its : py::reinterpret_borrow<py::tuple>(val)) {
      Value one;
      if (torch::is_symint(its) || PyLong_Check(its.ptr())) {
        ArgTag tag = ArgTag::kInt;
        one.kind = Value::Kind::kInt;
        one.symbol = builder.number_symbol(its, tag);
      } else {
        one = builder.fresh(its);
      }
      if (results.size() < op.desc->results.size()) results.push_back(result_arg(one));
      value.items.push_back(std::move(one));
    }
    builder.add_node(*op.desc, std::move(args), fx).results = std::move(results);
    return value;
  }

  Value lower(py::handle fx) {
    fx_node = fx;
    replayed_state = kNoSym;
    const py::object target = fx.attr(names().target);
    const py::tuple args = fx.attr(names().args);
    if (target.is(names().getitem)) {
      const Value& list = builder.value_of(args[0]);
      if (list.kind != Value::Kind::kList || !PyLong_Check(py::object(args[1]).ptr()))
        throw_unsupported("it indexes something other than a list");
      const auto index = py::cast<int64_t>(args[1]);
      if (index < 0 || index >= static_cast<int64_t>(list.items.size())) throw_unsupported("its index is out of range");
      return Value(list.items[static_cast<size_t>(index)]);
    }
    py::object val = meta_entry(fx, names().val);
    if (target.is(names().run_and_save_rng_state)) return run_and_save(fx, val, args);
    if (target.is(names().run_with_rng_state)) {
      replayed_state = random_state(args[0]);
      return call(fx, args[1], args[py::slice(2, py::len(args), 1)], std::move(val));
    }
    return call(fx, target, args, std::move(val));
  }

  // -- replayed random numbers, for torch.utils.checkpoint

  // An op together with the generator state that its random numbers start from.
  Value run_and_save(py::handle fx, py::handle val, const py::tuple& args) {
    if (!val) throw_unsupported("it has no example value");
    const size_t before = builder.randoms().size();
    Value made = call(fx, args[0], args[py::slice(1, py::len(args), 1)], val[py::int_(1)]);
    if (builder.randoms().size() != before + 1) throw_unsupported("it does not draw random numbers exactly once");
    Value state;
    state.kind = Value::Kind::kRandomState;
    state.symbol = builder.randoms().back().seed;
    Value both;
    both.kind = Value::Kind::kList;
    both.items = {std::move(state), std::move(made)};
    return both;
  }

  Sym random_state(py::handle node) {
    const Value* known = builder.find_value(node);
    const Value& state = known == nullptr ? builder.make_input(node, true) : *known;
    if (state.kind != Value::Kind::kRandomState) throw_unsupported("it takes random numbers from elsewhere");
    return state.symbol;
  }

  // `target` called with these arguments and fx's keyword arguments; `val` is its example value.
  Value call(py::handle fx, py::handle target, const py::tuple& args, py::object val) {
    const GraphOp& op = graph_op(target);
    if (op.kind == Kind::kUnsupported) throw_unsupported(op.why_not);
    if (op.custom) {
      const auto handle = op.handle();
      if (!handle) throw_unsupported("its library was destroyed");
      if (!worker_has_op(*handle, device)) throw_unsupported("the worker does not have it");
    }
    if (!val) {
      if (op.kind != Kind::kRecord || !op.desc->results.empty()) throw_unsupported("it has no example value");
      val = py::none();
    }
    const std::vector<py::object> given = op.arguments(args, fx.attr(names().kwargs));
    switch (op.kind) {
      case Kind::kView: {
        if (!is_fx_node(given[0])) throw_unsupported("it is a view of something other than a node");
        const Value base = builder.value_of(given[0]);
        if (base.kind != Value::Kind::kTensor || base.computed_on_cpu)
          throw_unsupported("it is a view of something other than a tensor of the device");
        return builder.view_of(base, val);
      }
      case Kind::kEmpty:
        return builder.fresh(val);
      case Kind::kFill:
        return fill(fx, val, op, given);
      case Kind::kReplaced:
        return other(fx, val, op, given);
      default:
        return record(fx, val, *op.desc, given);
    }
  }

  const c10::DeviceIndex device;
  CompiledGraphBuilder builder;
  Symbols& symbols;                 // of the builder
  py::handle fx_node;               // the node being lowered
  bool only_host_operands = false;  // no argument of the node is a tensor of the device
  Sym replayed_state = kNoSym;      // parameters of the seed and position to use instead of new ones
  std::string why_not;
};

Lowering::Lowering(c10::DeviceIndex device, bool trust_ranges)
    : state_(std::make_unique<State>(device, trust_ranges)) {}
Lowering::~Lowering() = default;

void Lowering::offer(py::object node, bool determines_size) { state_->builder.offer(std::move(node), determines_size); }

bool Lowering::add(const py::object& node) {
  // If the node is refused, inputs that it added stay, but the node and its results are removed.
  CompiledGraphBuilder& builder = state_->builder;
  const CompiledGraphBuilder::Size before = builder.size();
  try {
    builder.remember(node, state_->lower(node));
    return true;
  } catch (const UnsupportedNode& refused) {
    state_->why_not = refused.why;
    builder.cut_to(before);
    return false;
  }
}

const std::string& Lowering::why_not() const { return state_->why_not; }

bool Lowering::is_host(py::handle node) const {
  const Value* value = state_->builder.find_value(node);
  while (value != nullptr && value->kind == Value::Kind::kList && !value->items.empty()) value = &value->items[0];
  return value != nullptr && value->computed_on_cpu;
}

bool Lowering::returns(py::handle node) {
  try {
    (void)state_->builder.value_of(node);  // an offered node becomes an input
    return !is_host(node);
  } catch (const UnsupportedNode&) {
    return false;
  }
}

void Lowering::constant(const py::object& node, const at::Tensor& tensor) {
  CompiledGraphBuilder& builder = state_->builder;
  Value value;
  value.kind = Value::Kind::kNumber;
  value.dtype = tensor.scalar_type();
  const c10::Scalar number = at::native::_local_scalar_dense_cpu(tensor);  // works under any dispatch mode
  if (number.isComplex()) {
    value.symbol = builder.complex_constant(py::cast(number.toComplexDouble()));
  } else if (number.isFloatingPoint()) {
    value.symbol = builder.float_constant(number.toDouble());
  } else {
    value.symbol = builder.symbols().constant(number.to<int64_t>());
  }
  builder.remember(node, std::move(value));
}

size_t Lowering::size() const { return state_->builder.size().nodes; }
py::list Lowering::inputs() const { return state_->builder.input_nodes(); }

std::unique_ptr<CompiledGraphSpec> Lowering::finish(const py::list& outputs) {
  try {
    for (const py::handle object : outputs) state_->builder.add_output(object);
  } catch (const UnsupportedNode& refused) {
    TORCH_CHECK(false, "remote: a compiled graph's result cannot be returned: ", refused.why);
  }
  return state_->builder.finish();
}

}  // namespace torch_remote::frontend
