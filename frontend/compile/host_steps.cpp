#include "frontend/compile/host_steps.h"

#include <ATen/ScalarOps.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <bit>

#include "frontend/compile/fx.h"
#include "frontend/compile/graph_builder.h"
#include "frontend/compile/graph_ops.h"

namespace torch_remote::frontend {
namespace {

namespace py = pybind11;
using Given = HostStep::Given;

c10::IValue number(const Given& given, int64_t word) {
  switch (given.kind) {
    case Given::Kind::kFloat:
      return std::bit_cast<double>(word);
    case Given::Kind::kBool:
      return word != 0;
    default:
      return word;
  }
}

bool is_tensor(const c10::Argument& argument) { return argument.type()->isSubtypeOf(*c10::OptionalType::ofTensor()); }

// A number in a tensor's place, as Python's binding makes it.
c10::IValue as_tensor(const c10::IValue& value) {
  at::Tensor tensor = c10::scalar_to_tensor(value.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Where the value of an argument that is a node comes from.
Given given_by(GraphBuilder& builder, py::handle node) {
  Given given;
  const Value& value = builder.value_of(node);
  given.symbol = value.symbol;
  switch (value.kind) {
    case Value::Kind::kInt:
      given.kind = Given::Kind::kInt;
      return given;
    case Value::Kind::kFloat:
      given.kind = Given::Kind::kFloat;
      return given;
    case Value::Kind::kBool:
      given.kind = Given::Kind::kBool;
      return given;
    case Value::Kind::kNumber:
      given.symbol = ir::kNoSym;
      if (const auto index = builder.input_index(node)) {
        given.index = *index;
        return given;
      }
      break;
    case Value::Kind::kTensor:
      if (!value.host) break;
      given.kind = Given::Kind::kStep;
      given.index = host_step(builder, node);
      return given;
    default:
      break;
  }
  refuse("it needs what no step on the CPU makes");
}

}  // namespace

uint32_t host_step(GraphBuilder& builder, py::handle node) {
  const auto known = builder.host_steps.find(node.ptr());
  if (known != builder.host_steps.end()) return known->second;
  const GraphOp& op = graph_op(node.attr(names().target));
  if (!op.handle) refuse(op.why_not);
  HostStep step{*op.handle, {}, {}};
  std::vector<py::object> arguments = op.arguments(node.attr(names().args), node.attr(names().kwargs));
  if (step.op.operator_name().name == "prims::convert_element_type") {  // the same in C++
    step.op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_to_copy", "");
    const py::object none = py::none();
    arguments = {arguments[0], arguments[1], none, none, none, py::bool_(false), none};
  }
  const auto& schema = step.op.schema().arguments();
  step.arguments.resize(schema.size());
  for (size_t i = 0; i < schema.size(); ++i) {
    const py::object& argument = arguments[i];
    if (!argument) refuse("argument '" + schema[i].name() + "' is missing");
    if (is_fx_node(argument)) {
      const auto constant = builder.host_constants.find(argument.ptr());
      if (constant != builder.host_constants.end()) {
        step.arguments[i] = constant->second;
        continue;
      }
      step.given.push_back(given_by(builder, argument));
      step.given.back().argument = static_cast<uint32_t>(i);
      continue;
    }
    try {
      if (is_tensor(schema[i]) && !argument.is_none()) {
        step.arguments[i] = as_tensor(torch::jit::toIValue(argument, c10::NumberType::get()));
      } else {
        step.arguments[i] = torch::jit::toIValue(argument, schema[i].real_type());
      }
    } catch (const std::exception&) {  // a list with nodes in it
      refuse("argument '" + schema[i].name() + "' is none that a step on the CPU takes");
    }
  }
  auto& steps = builder.spec->host_steps;
  steps.push_back(std::move(step));
  return builder.host_steps[node.ptr()] = static_cast<uint32_t>(steps.size() - 1);
}

std::vector<at::Tensor> run_host_steps(const std::vector<HostStep>& steps,
                                       const std::function<at::Tensor(uint32_t)>& input,
                                       const std::vector<int64_t>& values) {
  std::vector<at::Tensor> made;
  made.reserve(steps.size());
  for (const HostStep& step : steps) {
    torch::jit::Stack stack = step.arguments;
    for (const Given& given : step.given) {
      c10::IValue& argument = stack[given.argument];
      if (given.kind == Given::Kind::kInput) {
        argument = input(given.index);
      } else if (given.kind == Given::Kind::kStep) {
        argument = made[given.index];
      } else {
        argument = number(given, values[given.symbol]);
        if (is_tensor(step.op.schema().arguments()[given.argument])) argument = as_tensor(argument);
      }
    }
    step.op.callBoxed(stack);
    made.push_back(stack.at(0).toTensor());
  }
  return made;
}

}  // namespace torch_remote::frontend
