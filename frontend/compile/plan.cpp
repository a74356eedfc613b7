#include "frontend/compile/plan.h"

#include <ATen/ScalarOps.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <utility>

#include "frontend/compile/graph_ops.h"

namespace torch_remote::frontend {

namespace py = pybind11;

namespace {

// Converts as torch's Python binding does, including a number that is passed as a tensor.
c10::IValue ivalue_of(py::handle value, const c10::Argument& argument) {
  if (THPVariable_Check(value.ptr())) return THPVariable_Unpack(value.ptr());
  const bool tensor = argument.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
  if (!tensor || value.is_none()) return torch::jit::toIValue(value, argument.real_type());
  at::Tensor number = c10::scalar_to_tensor(torch::jit::toIValue(value, c10::NumberType::get()).toScalar());
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

}  // namespace

Plan::Argument::Argument(py::handle value) : constant_(py::reinterpret_borrow<py::object>(value)) {
  const auto add_all = [&](Kind kind, py::handle items) {
    kind_ = kind;
    for (const py::handle item : items) items_.emplace_back(item);
  };
  if (py::isinstance<Slot>(value)) {
    kind_ = Kind::kSlot;
    slot_ = value.cast<const Slot&>().index;
  } else if (PyList_Check(value.ptr())) {
    add_all(Kind::kList, value);
  } else if (PyTuple_Check(value.ptr())) {
    add_all(Kind::kTuple, value);
  } else if (PyDict_Check(value.ptr())) {
    const auto dict = py::reinterpret_borrow<py::dict>(value);
    add_all(Kind::kDict, dict.attr("values")());
    constant_ = py::tuple(dict.attr("keys")());
  } else if (PySlice_Check(value.ptr())) {
    add_all(Kind::kSlice, py::make_tuple(value.attr("start"), value.attr("stop"), value.attr("step")));
  }
}

py::object Plan::Argument::fill(const Values& values) const {
  switch (kind_) {
    case Kind::kConstant:
      break;
    case Kind::kSlot:
      return values[slot_];
    case Kind::kList: {
      py::list list(items_.size());
      for (size_t i = 0; i < items_.size(); ++i) list[i] = items_[i].fill(values);
      return list;
    }
    case Kind::kTuple: {
      py::tuple tuple(items_.size());
      for (size_t i = 0; i < items_.size(); ++i) tuple[i] = items_[i].fill(values);
      return tuple;
    }
    case Kind::kDict: {
      py::dict dict;
      for (size_t i = 0; i < items_.size(); ++i) dict[py::tuple(constant_)[i]] = items_[i].fill(values);
      return dict;
    }
    case Kind::kSlice: {
      const py::object start = items_[0].fill(values), stop = items_[1].fill(values), step = items_[2].fill(values);
      PyObject* slice = PySlice_New(start.ptr(), stop.ptr(), step.ptr());
      if (slice == nullptr) throw py::error_already_set();
      return py::reinterpret_steal<py::object>(slice);
    }
  }
  return constant_;
}

void Plan::use_op(Step& step, const py::tuple& args, const py::dict& kwargs) {
  const GraphOp& op = graph_op(step.call);
  if (!op.name || op.name->getNamespace() != std::string_view("aten")) return;
  const auto handle = op.handle();
  if (!handle) return;
  std::vector<Argument> arguments;
  std::vector<c10::IValue> constants;
  for (const py::object& value : op.arguments(args, kwargs)) {
    if (!value) return;
    const c10::Argument& its = handle->schema().arguments()[arguments.size()];
    arguments.emplace_back(value);
    try {
      constants.push_back(arguments.back().is_constant() ? ivalue_of(value, its) : c10::IValue());
    } catch (const std::exception&) {  // only Python can convert it
      return;
    }
  }
  step.args = std::move(arguments);
  step.constants = std::move(constants);
  step.op = handle;
}

py::object Plan::call_op(const Step& step, const Values& args) {
  torch::jit::Stack stack = step.constants;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!step.args[i].is_constant()) stack[i] = ivalue_of(args[i], step.op->schema().arguments()[i]);
  }
  {
    py::gil_scoped_release release;
    step.op->callBoxed(stack);
  }
  return torch::jit::createPyObjectForStack(std::move(stack));
}

void Plan::add(py::object call, const py::tuple& args, const py::dict& kwargs, std::vector<size_t> results,
               std::vector<size_t> last) {
  Step step;
  if (py::isinstance<CompiledGraph>(call)) step.program = call.cast<CompiledGraph*>();
  for (const py::handle value : args) step.args.emplace_back(value);
  for (const py::handle value : kwargs.attr("values")()) step.args.emplace_back(value);
  step.keywords = py::tuple(kwargs.attr("keys")());
  step.call = std::move(call);
  if (step.program == nullptr) use_op(step, args, kwargs);
  step.results = std::move(results);
  step.last = std::move(last);
  steps_.push_back(std::move(step));
}

void Plan::finish(size_t slots, py::handle results) {
  slots_ = slots;
  results_.emplace_back(results);
}

py::object Plan::call(py::list& arguments) const {
  TORCH_CHECK(arguments.size() == arguments_, "remote: a compiled graph of ", arguments_, " arguments was called with ",
              arguments.size());
  Values values(slots_);
  for (size_t i = 0; i < arguments_; ++i) values[i] = arguments[i];
  if (PyList_SetSlice(arguments.ptr(), 0, PY_SSIZE_T_MAX, nullptr) != 0) throw py::error_already_set();

  Values args;
  std::vector<PyObject*> pointers;
  for (const Step& step : steps_) {
    args.clear();
    pointers.clear();
    for (const Argument& argument : step.args) args.push_back(argument.fill(values));
    for (const size_t slot : step.last) values[slot] = {};
    if (step.program != nullptr) {
      const py::list results = step.program->call(static_cast<py::list&>(args[0]));
      for (size_t i = 0; i < step.results.size(); ++i) values[step.results[i]] = results[i];
      continue;
    }
    if (step.op) {
      values[step.results[0]] = call_op(step, args);
      continue;
    }
    for (const py::object& argument : args) pointers.push_back(argument.ptr());
    PyObject* result = PyObject_Vectorcall(step.call.ptr(), pointers.data(), args.size() - step.keywords.size(),
                                           step.keywords.empty() ? nullptr : step.keywords.ptr());
    if (result == nullptr) throw py::error_already_set();
    values[step.results[0]] = py::reinterpret_steal<py::object>(result);
  }
  return results_[0].fill(values);
}

}  // namespace torch_remote::frontend
