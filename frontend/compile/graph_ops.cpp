#include "frontend/compile/graph_ops.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontend/compile/fx.h"
#include "frontend/ops/registration.h"
#include "frontend/record/schemas.h"
#include "ir/ops/composed_ops.h"

namespace torch_remote::frontend {
namespace {

namespace py = pybind11;
using Kind = GraphOp::Kind;

size_t place_of(std::string_view name, const c10::FunctionSchema& schema) {
  return static_cast<size_t>(schema.argumentIndexWithName(std::string(name)).value());
}

// The arguments of the other op: some of the node's own arguments, and constants.
std::vector<GraphOp::MappedArgument> mapped_arguments(const ir::ComposedOp& composed,
                                                      const c10::FunctionSchema& schema) {
  std::vector<GraphOp::MappedArgument> all;
  for (const ir::ComposedArgument& argument : composed.arguments) {
    GraphOp::MappedArgument& one = all.emplace_back();
    if (!argument.name.empty()) {
      one.index = place_of(argument.name, schema);
    } else if (argument.kind == ir::ArgKind::kBool) {
      one.constant = py::bool_(argument.constant != 0);
    } else if (argument.kind == ir::ArgKind::kInt) {
      one.constant = py::int_(static_cast<int64_t>(argument.constant));
    } else {
      one.constant = py::float_(argument.constant);
    }
  }
  return all;
}

// Returns false if the op is recorded as it is, or not at all.
bool classify_composed(const ir::ComposedOp& composed, const c10::OperatorHandle& handle, GraphOp& op) {
  switch (composed.kind) {
    case ir::ComposedKind::kNothing:
    case ir::ComposedKind::kRecord:
      return false;
    case ir::ComposedKind::kEmpty:
      op.kind = Kind::kEmpty;
      return true;
    case ir::ComposedKind::kView:
      op.kind = Kind::kView;
      return true;
    case ir::ComposedKind::kFill:
      op.kind = Kind::kFill;
      op.mapped_arguments = mapped_arguments(composed, handle.schema());
      break;
    case ir::ComposedKind::kOther:
      op.kind = Kind::kReplaced;
      op.mapped_arguments = mapped_arguments(composed, handle.schema());
      if (!composed.zero_argument.empty()) op.zero = place_of(composed.zero_argument, handle.schema());
      break;
  }
  op.desc = &ir::op_desc(composed.op);
  return true;
}

void classify(const c10::OperatorHandle& handle, const std::string& name, GraphOp& op) {
  const ir::ComposedOp* composed = ir::find_composed(name);
  if (composed != nullptr && classify_composed(*composed, handle, op)) return;
  if (is_view_schema(handle.schema())) {
    op.kind = Kind::kView;
    return;
  }
  const bool torchs = name.starts_with("aten::");
  op.why_not = "the recorder handles this op in a special way";
  if (composed != nullptr && composed->implemented_by_client && composed->kind != ir::ComposedKind::kRecord) return;
  op.why_not = "an argument or a result has a type that a program cannot represent";
  const ir::OpDesc* desc = graph_desc(handle);
  if (desc == nullptr) return;
  op.why_not = "its results depend on data";
  if (desc->flags & (ir::kOpDynamicShape | ir::kOpHostResult)) return;
  op.why_not = "torch composes it from other ops, whose random numbers would differ";
  if (torchs && (desc->flags & ir::kOpRandom) && !is_recorded(handle)) return;
  op.kind = Kind::kRecord;
  op.custom = !torchs;
  op.desc = desc;
}

// The default as FX nodes hold it: a dtype object where the schema has its number.
py::object default_of(const c10::Argument& argument) {
  const auto& value = argument.default_value();
  if (!value) return {};
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (type->kind() == c10::TypeKind::ScalarTypeType && value->isInt()) {
    return py::reinterpret_borrow<py::object>(
        reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<c10::ScalarType>(value->toInt()))));
  }
  return torch::jit::toPyObject(*value);
}

}  // namespace

std::optional<c10::OperatorHandle> GraphOp::handle() const {
  return name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
}

std::vector<py::object> GraphOp::arguments(const py::tuple& args, const py::dict& kwargs) const {
  std::vector<py::object> all(schema.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < args.size()) {
      all[i] = args[i];
    } else if (PyObject* given = kwargs.size() == 0 ? nullptr : lookup(kwargs, schema[i].name)) {
      all[i] = py::reinterpret_borrow<py::object>(given);
    } else {
      all[i] = schema[i].default_value;
    }
  }
  return all;
}

bool is_program_op(py::handle target, c10::DeviceIndex device) {
  const GraphOp& op = graph_op(target);
  if (op.kind != Kind::kRecord || !op.custom) return op.kind == Kind::kRecord;
  const auto handle = op.handle();
  return handle && worker_has_op(*handle, device);
}

bool is_single_op(py::handle target) {
  const GraphOp& op = graph_op(target);
  if (op.kind != Kind::kRecord || (op.desc->flags & ir::kOpHiddenMutation)) return false;
  const auto handle = op.handle();
  return handle && is_recorded(*handle);
}

const GraphOp& graph_op(py::handle target) {
  static auto* known = new std::unordered_map<PyObject*, GraphOp>;
  const auto found = known->find(target.ptr());
  if (found != known->end()) return found->second;
  GraphOp op;
  op.why_not = "it is not an operator of the dispatcher";
  static const py::object overload = py::module_::import("torch._ops").attr("OpOverload");
  if (py::isinstance(target, overload)) {
    const auto name = py::cast<std::string>(target.attr("_name"));
    const size_t dot = name.find('.', name.find("::"));
    const auto handle = c10::Dispatcher::singleton().findSchema(
        {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
    if (handle) {
      op.name = handle->operator_name();
      for (const c10::Argument& argument : handle->schema().arguments()) {
        op.schema.push_back({py::str(argument.name()), default_of(argument)});
      }
      classify(*handle, name, op);
    }
  }
  Py_INCREF(target.ptr());  // keeps it alive, so that its address stays unique
  return known->emplace(target.ptr(), std::move(op)).first->second;
}

}  // namespace torch_remote::frontend
