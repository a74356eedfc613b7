#include "worker/targets/cuda/ops/op_lowered.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "codegen/loop/scalar_math.h"
#include "codegen/lower/loops.h"
#include "codegen/lower/lower.h"
#include "ir/fusion/fusion.h"
#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/ops/interpreter/loop_encoder.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Plans ops with an expression or another expansion (ir/ops/fusion.toml). The kernels are those that compiled code is
// made of (codegen/lower); the GPU interprets them (kernels/interpret.cu). So they need no compiler, and every layout
// and dtype has a plan.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

// Adds the launches for a kernel. `locations` are those of the buffers that it names.
Status interpret(PlanBuilder& plan, codegen::Launch launch, const std::vector<Location>& locations) {
  if (Status status = codegen::take_in_loops(&launch); !status.ok()) return status;
  // Symbols that the plan's graph lacks are constants of a node that plan_op made.
  const auto is_known = [&](ir::Sym symbol) { return symbol < plan.node().values().size(); };
  for (const ir::Sym symbol : launch.depends) {
    if (is_known(symbol)) (void)plan.node().value(symbol);
  }
  for (ir::Sym& symbol : launch.scalar_symbols) {
    if (symbol != ir::kNoSym && !is_known(symbol)) symbol = ir::kNoSym;
  }
  const bool divides = std::ranges::any_of(launch.kernel.values, divides_integers);
  const bool can_fail =
      divides || std::ranges::any_of(launch.kernel.operands, [](const auto& o) { return o.indexed != 0; });
  uint32_t first_failure = 0;
  std::vector<Location> data;
  for (size_t i = 0; i < launch.operands.size(); ++i) {
    const codegen::Binding& binding = launch.operands[i];
    const codegen::Operand& operand = launch.kernel.operands[i];
    if (binding.needs_zero_fill) return unsupported("that adds at indices");
    Location at = locations[binding.buffer];
    at.offset += static_cast<uint64_t>(binding.offset) * ir::item_size(operand.dtype);
    data.push_back(at);
    if (!can_fail) continue;
    const uint32_t number = plan.add_operand(-1);
    if (i == 0) first_failure = number;
  }
  if (divides) plan.add_operand(kDivision);
  EncodedKernel encoded;
  if (Status status = encode(launch, first_failure, &encoded); !status.ok()) return status;
  const Location totals = encoded.scratch_bytes != 0 ? plan.scratch(encoded.scratch_bytes) : Location();
  const auto add = [&](const InterpretArguments& arguments) {
    const auto [grid, block] = EncodedKernel::size_of(arguments);
    plan.launch(KernelFile::kInterpret, "interpret", arguments, grid, block)
        .at_words([](const InterpretArguments& words) { return &words.data[0]; }, data)
        .at(&InterpretArguments::totals, totals)
        .parameters(&InterpretArguments::numbers, encoded.symbols)
        .failure([](const InterpretArguments& words) { return &words.failure; }, can_fail);
  };
  add(encoded.main);
  if (encoded.finish) add(*encoded.finish);
  return {};
}

Status interpret(PlanBuilder& plan, const ir::Graph& graph, uint32_t node, std::span<const int64_t> values,
                 ir::DomainKind kind, const std::vector<Location>& locations) {
  std::vector<codegen::Launch> launches;
  const ir::Group group{.first = node, .last = node};
  Status status = codegen::lower_group(graph, group, values, &launches, /*in_order=*/true, kind);
  if (!status.ok()) return status;
  for (codegen::Launch& launch : launches) {
    if (status = interpret(plan, std::move(launch), locations); !status.ok()) return status;
  }
  return {};
}

// Changes to a node whose kernels cannot be lowered as it is.
struct Form {
  ir::DomainKind kind = ir::DomainKind::kNode;
  bool contiguous = false;  // strided tensors are copied; the dims over which the node reduces are then the inner ones
  // Forms with one of these change dtypes or sizes, so they are not those of expressions.
  bool lift_args = false, lift_results = false;  // tensors without dims get a dim of size 1
  bool as_floats = false;  // integer operands are converted to the dtype of the result, if that is a float
};

// The node as one of the functional op, if the op has no expansion: an in-place or out= overload.
ir::Node functional(const ir::Node& node) {
  const ir::OpDesc& desc = ir::op_desc(node.opcode);
  if (ir::expansion_of(node.opcode) != ir::Expansion::kNone || desc.functional == node.opcode) return node;
  const ir::OpDesc& of = ir::op_desc(desc.functional);
  ir::Node made{.opcode = desc.functional, .args = node.args, .results = node.results};
  made.args.resize(of.args.size());
  made.results.resize(of.results.size());
  for (size_t i = 0; i < of.results.size() && i < desc.results.size(); ++i) {
    const int8_t alias = desc.results[i].alias;
    if (alias >= 0) made.results[i] = node.args[static_cast<size_t>(alias)];
  }
  return made;
}

// A graph of one node.
class SingleNode {
 public:
  SingleNode(PlanBuilder& plan, const Form& form) : plan_(plan), form_(form) {
    const OpNode& whole = plan.node();
    graph_.params = whole.graph().params;
    graph_.exprs = whole.graph().exprs;
    values_.assign(whole.values().begin(), whole.values().end());
  }

  void add_node(ir::Node node) {
    std::map<uint32_t, ir::Access> accesses;
    ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
      const auto [found, is_new] = accesses.emplace(view, access);
      if (!is_new && found->second != access) found->second = ir::Access::kUpdates;
    });
    std::map<uint32_t, uint32_t> names;
    for (const auto& [view, access] : accesses) {
      const OpTensor tensor = plan_.node().tensor_of(view);
      names[view] = add_view(access == ir::Access::kReads ? operand_of(node.opcode, tensor) : tensor, access);
    }
    for (ir::Arg& arg : node.args) rename(names, arg);
    for (ir::Arg& arg : node.results) rename(names, arg);
    graph_.nodes.push_back(std::move(node));
  }

  void add_node(ir::Opcode opcode, std::span<const OpArgument> args, std::span<const std::optional<OpTensor>> results) {
    ir::Node node;
    node.opcode = opcode;
    const ir::OpDesc& desc = ir::op_desc(opcode);
    for (size_t i = 0; i < args.size(); ++i) node.args.push_back(argument(args[i], desc.args[i].writes));
    node.args.resize(desc.args.size());
    for (const std::optional<OpTensor>& to : results) {
      ir::Arg& made = node.results.emplace_back();
      if (to) made = arg_of(ir::ArgTag::kView, add_view(*to, ir::Access::kCreates));
    }
    node.results.resize(desc.results.size());
    graph_.nodes.push_back(std::move(node));
  }

  Status interpret() {
    if (form_.contiguous) copy_strided();
    Status status = cuda::interpret(plan_, graph_, 0, values_, form_.kind, locations_);
    for (const auto& [from, to] : copies_) plan_.copy(from, to);
    return status;
  }

  bool has_number() const { return has_number_; }
  bool has_expression() const { return ir::expansion_of(graph_.nodes[0].opcode) == ir::Expansion::kExpression; }
  bool writes_elements() const {
    return std::ranges::any_of(operands_, [](const Operand& operand) {
      return operand.access != ir::Access::kReads && operand.tensor.count() != 0;
    });
  }

 private:
  struct Operand {
    OpTensor tensor;
    ir::Access access;
  };

  uint32_t add_view(OpTensor tensor, ir::Access access) {
    const bool is_arg = access == ir::Access::kReads;
    has_number_ |= tensor.sizes.empty();
    if (tensor.sizes.empty() && (is_arg ? form_.lift_args : form_.lift_results)) {
      tensor.sizes = {1};
      tensor.strides = {1};
    }
    const auto known = std::ranges::find(locations_, tensor.location.buffer, &Location::buffer);
    const auto buffer = static_cast<uint32_t>(known - locations_.begin());
    if (known == locations_.end()) add_buffer({tensor.location.buffer, 0});
    const auto offset = static_cast<int64_t>(tensor.location.offset / ir::item_size(tensor.dtype));
    ir::View view;
    view.buffer = buffer;
    view.dtype = tensor.dtype;
    view.offset = symbol(offset);
    for (const int64_t size : tensor.sizes) view.sizes.push_back(symbol(size));
    for (const int64_t stride : tensor.strides) view.strides.push_back(symbol(stride));
    graph_.views.push_back(std::move(view));
    operands_.push_back({std::move(tensor), access});
    return static_cast<uint32_t>(graph_.views.size() - 1);
  }

  void add_buffer(const Location& location) {
    graph_.buffers.push_back({.kind = ir::BufferKind::kInput, .survives = true});
    locations_.push_back(location);
  }

  // Whether the node reads the tensor, and writes other places of its buffer.
  bool is_overwritten(const Operand& read) const {
    return read.access == ir::Access::kReads && std::ranges::any_of(operands_, [&](const Operand& other) {
             const OpTensor &from = read.tensor, &to = other.tensor;
             return other.access != ir::Access::kReads && to.location.buffer == from.location.buffer &&
                    (to.location.offset != from.location.offset || to.strides != from.strides ||
                     to.sizes != from.sizes || to.dtype != from.dtype);
           });
  }

  // The strides of contiguous memory in which reduced dims are the inner ones.
  std::vector<int64_t> strides_in_order(const OpTensor& tensor, uint64_t reduced) const {
    std::vector<int64_t> strides(tensor.sizes.size());
    int64_t step = 1;
    for (const bool reduces : {true, false}) {
      for (size_t d = strides.size(); d-- > 0;) {
        if ((reduced >> d & 1) != (reduces ? 1 : 0)) continue;
        strides[d] = step;
        step *= std::max<int64_t>(tensor.sizes[d], 1);
      }
    }
    return strides;
  }

  void copy_strided() {
    ir::KernelForm form;
    if (!ir::find_form(graph_, graph_.nodes[0], 0, &form, form_.kind == ir::DomainKind::kNode)) return;
    const size_t rank = graph_.views[form.space].sizes.size();
    // If there are more dims than kernels have, tensors are expanded to the same sizes, and viewed as one dim.
    const bool flattens =
        rank > ir::kMaxDomainDims && form.reduced == 0 && ir::count_items(graph_.nodes[0]) == 1 &&
        std::ranges::all_of(form.parts, [](const ir::Part& part) { return part.mapping == ir::AxisMapping::kLast; });
    for (uint32_t v = 0; v < operands_.size(); ++v) {
      const auto& [tensor, access] = operands_[v];
      const bool has_all_dims = std::ranges::any_of(form.parts, [&](const ir::Part& part) {
        return part.view == v && part.mapping == ir::AxisMapping::kLast && tensor.sizes.size() == rank;
      });
      OpTensor there = tensor;
      const bool is_flattened = flattens && !tensor.sizes.empty();
      if (is_flattened) there.sizes = operands_[form.space].tensor.sizes;
      there.strides = strides_in_order(there, has_all_dims && form.channel_groups == 0 ? form.reduced : 0);
      if (!is_flattened && there.strides == tensor.strides && !is_overwritten(operands_[v])) continue;
      there.location = plan_.scratch(there.nbytes());
      if (access == ir::Access::kReads || access == ir::Access::kUpdates) plan_.copy(tensor, there);
      if (access != ir::Access::kReads) copies_.emplace_back(there, tensor);
      ir::View& view = graph_.views[v];
      if (is_flattened) {
        there.strides = {1};
        view.sizes = {symbol(there.count())};
        view.strides.resize(1);
      }
      view.buffer = static_cast<uint32_t>(graph_.buffers.size());
      view.offset = symbol(0);
      for (size_t d = 0; d < view.strides.size(); ++d) view.strides[d] = symbol(there.strides[d]);
      add_buffer(there.location);
    }
  }

  // The symbol of a constant.
  ir::Sym symbol(int64_t value) {
    const ir::Sym made = graph_.constant(value);
    values_.resize(graph_.symbols());
    values_[made] = value;
    return made;
  }

  static ir::Arg arg_of(ir::ArgTag tag, uint32_t a) {
    ir::Arg arg;
    arg.tag = tag;
    arg.a = a;
    return arg;
  }

  ir::Arg argument(const OpArgument& given, bool writes) {
    ir::Arg arg;
    if (const auto* const tensor = std::get_if<OpTensor>(&given)) {
      arg = arg_of(ir::ArgTag::kView, add_view(*tensor, writes ? ir::Access::kUpdates : ir::Access::kReads));
    } else if (const auto* const numbers = std::get_if<std::vector<int64_t>>(&given)) {
      arg.tag = ir::ArgTag::kList;
      for (const int64_t number : *numbers) arg.items.push_back(arg_of(ir::ArgTag::kInt, symbol(number)));
    } else if (const auto* const integer = std::get_if<int64_t>(&given)) {
      arg = arg_of(ir::ArgTag::kInt, symbol(*integer));
    } else if (const auto* const number = std::get_if<double>(&given)) {
      arg = arg_of(ir::ArgTag::kFloat, symbol(std::bit_cast<int64_t>(*number)));
    } else if (const auto* const flag = std::get_if<bool>(&given)) {
      arg = arg_of(ir::ArgTag::kBool, symbol(*flag ? 1 : 0));
    }
    return arg;
  }

  // The operand in a form for which there are kernels.
  OpTensor operand_of(ir::Opcode opcode, const OpTensor& tensor) {
    const ir::Expansion expansion = ir::expansion_of(opcode);
    if (ir::is_complex(tensor.dtype)) {
      // Norms use absolute values; other reductions to real results only use which elements are 0.
      if (expansion == ir::Expansion::kVectorNorm) return plan_.absolute_values(tensor);
      return plan_.packed_tensor(tensor, DType::kBool);
    }
    const bool finds = expansion == ir::Expansion::kArgMax || expansion == ir::Expansion::kArgMin;
    // The position among all elements.
    if (finds && !plan_.node().has("dim") && tensor.sizes.size() > 1) return plan_.flat(tensor);
    const std::optional<OpTensor> to = plan_.node().result(0);
    if (form_.as_floats && to && ir::is_float(to->dtype) && !ir::is_float(tensor.dtype)) {
      return plan_.packed_tensor(tensor, to->dtype);
    }
    return tensor;
  }

  static void rename(const std::map<uint32_t, uint32_t>& names, ir::Arg& arg) {
    if (arg.tag == ir::ArgTag::kView) arg.a = names.at(arg.a);
    for (ir::Arg& item : arg.items) rename(names, item);
  }

  PlanBuilder& plan_;
  const Form form_;
  ir::Graph graph_;
  std::vector<int64_t> values_;
  std::vector<Location> locations_;                    // of each buffer
  std::vector<Operand> operands_;                      // of each view
  bool has_number_ = false;                            // a tensor has no dims
  std::vector<std::pair<OpTensor, OpTensor>> copies_;  // after the kernels
};

// Plans a node in the first form whose kernels can be lowered. `add` adds the node to the graph.
template <typename Add>
Status plan_single(PlanBuilder& plan, std::span<const Form> forms, Add&& add) {
  const OpPlan before = plan.built();
  Status status;
  for (const Form& form : forms) {
    SingleNode single(plan, form);
    add(single);
    if (!single.writes_elements()) return {};
    if ((form.lift_args && !single.has_number()) || (form.as_floats && single.has_expression())) break;
    if (status = single.interpret(); status.ok()) break;
    plan.built() = before;
  }
  return status;
}
constexpr auto kByRows = ir::DomainKind::kNodeByRows;
constexpr Form kForms[] = {
    {},
    {.kind = kByRows},
    {.contiguous = true},
    {.kind = kByRows, .contiguous = true},
    {.kind = kByRows, .contiguous = true, .as_floats = true},
    {.kind = kByRows, .contiguous = true, .lift_args = true, .as_floats = true},
    {.kind = kByRows, .contiguous = true, .lift_args = true, .lift_results = true, .as_floats = true}};

// Whether the op of complex numbers is one of real numbers: see SingleNode::operand_of.
bool takes_complex(ir::Opcode opcode) {
  const ir::Expansion expansion = ir::expansion_of(opcode);
  return expansion == ir::Expansion::kVectorNorm || expansion == ir::Expansion::kAny ||
         expansion == ir::Expansion::kAll || expansion == ir::Expansion::kCountNonzero;
}

// Without elements, CPU's group norm has means of 0, and reciprocals of standard deviations that are NaN.
Status plan_empty_group_norm(OpNode& node, PlanBuilder& plan) {
  const auto mean = node.result(1), rstd = node.result(2);
  if (mean) plan.zero(plan.output(*mean), mean->nbytes());
  if (!rstd) return {};
  plan.fill(plan.output(*rstd), rstd->count(), rstd->dtype,
            float_bits(std::numeric_limits<double>::quiet_NaN(), rstd->dtype));
  return {};
}

// Whether the op is a running reduction over one position, which is a copy.
bool is_copy(OpNode& node, ir::Expansion expansion, const OpTensor& self) {
  const bool runs = expansion == ir::Expansion::kCumprod || expansion == ir::Expansion::kLogCumSumExp;
  return runs && split(self.sizes, node.integer("dim")).length == 1;
}

// Bounds that the dtype cannot represent wrap around, as in torch's kernels.
Status plan_clamp_of_integers(OpNode& node, PlanBuilder& plan, const OpTensor& self, const OpTensor& to) {
  const auto bound = [&](std::string_view name) -> OpArgument {
    if (!node.has(name)) return {};
    return codegen::wrapped(to.dtype, node.integer(name));
  };
  const OpTensor from = plan.packed_tensor(self, to.dtype);
  return plan_op(plan, ir::ops::aten_clamp, {from, bound("min"), bound("max")}, {to});
}

// Running sums of exponentials in f64: their gradient subtracts numbers that are nearly equal.
Status plan_in_doubles(OpNode& node, PlanBuilder& plan, const OpTensor& self, const OpTensor& to) {
  const OpTensor from = plan.packed_tensor(self, DType::kFloat64);
  OpTensor made = from;
  made.location = plan.scratch(made.nbytes());
  const Status status = plan_op(plan, functional(node.ir_node()).opcode, {from, node.integer("dim")}, {made});
  if (status.ok()) plan.copy(made, to);
  return status;
}

Status plan_lowered(OpNode& node, PlanBuilder& plan) {
  bool has_complex = false, makes_complex = false;
  ir::for_each_view(node.ir_node(), [&](uint32_t view, bool writes) {
    const bool is_complex = ir::is_complex(node.graph().views[view].dtype);
    has_complex |= is_complex;
    makes_complex |= is_complex && writes;
  });
  if (has_complex && (makes_complex || !takes_complex(ir::op_desc(node.ir_node().opcode).functional))) {
    return unsupported("of complex numbers");
  }
  const ir::Expansion expansion = ir::expansion_of(functional(node.ir_node()).opcode);
  const std::optional<OpTensor> self = node.tensor("self"), to = node.result(0);
  if (self && to && is_copy(node, expansion, *self)) {
    if (self->location.buffer != to->location.buffer) plan.copy(*self, *to);
    return {};
  }
  if (expansion == ir::Expansion::kLogCumSumExp && self && to && to->dtype != DType::kFloat64) {
    return plan_in_doubles(node, plan, *self, *to);
  }
  const std::optional<OpTensor> input = node.tensor("input");
  if (expansion == ir::Expansion::kGroupNorm && input && input->count() == 0) return plan_empty_group_norm(node, plan);
  if (expansion == ir::Expansion::kClamp && self && to && !ir::is_float(to->dtype)) {
    return plan_clamp_of_integers(node, plan, *self, *to);
  }
  return plan_single(plan, kForms, [&](SingleNode& single) { single.add_node(functional(node.ir_node())); });
}

constexpr NamedPlan kLoweredPlan{"expansion", plan_lowered, true, true};
constexpr NamedPlan kRunningSumPlan{"scan.running_sum", scan_plans::running_sum};
constexpr NamedPlan kNllLossBackwardPlan{"index.nll_loss_backward", index_plans::nll_loss_backward, false, true};

}  // namespace

Status plan_op(PlanBuilder& plan, ir::Opcode opcode, const std::vector<OpArgument>& args,
               const std::vector<std::optional<OpTensor>>& results) {
  return plan_single(plan, kForms, [&](SingleNode& single) { single.add_node(opcode, args, results); });
}

Status plan_as(PlanBuilder& plan, ir::Opcode opcode) {
  ir::Node node = functional(plan.node().ir_node());
  node.opcode = opcode;
  node.args.resize(ir::op_desc(opcode).args.size());
  return plan_single(plan, kForms, [&](SingleNode& single) { single.add_node(node); });
}

const NamedPlan* lowered_plan(ir::Opcode opcode) {
  const ir::Expansion own = ir::expansion_of(opcode);
  const ir::Expansion expansion = own == ir::Expansion::kNone ? ir::expansion_of(ir::op_desc(opcode).functional) : own;
  if (expansion == ir::Expansion::kCumsum) return &kRunningSumPlan;
  if (expansion == ir::Expansion::kNllLossBackward) return &kNllLossBackwardPlan;
  return expansion == ir::Expansion::kNone ? nullptr : &kLoweredPlan;
}

}  // namespace torch_remote::worker::cuda
