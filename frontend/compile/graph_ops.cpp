#include "frontend/compile/graph_ops.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "frontend/compile/fx.h"
#include "frontend/ops/kernels.h"
#include "frontend/ops/registration.h"
#include "frontend/record/schemas.h"
#include "ir/op_table_generated.h"

namespace torch_remote::frontend {
namespace {

namespace py = pybind11;
using How = GraphOp::How;

// Memory that nobody has written.
const std::unordered_set<std::string_view> kEmptyOps = {"aten::empty.memory_format", "aten::empty_strided",
                                                        "aten::empty_like",          "aten::new_empty",
                                                        "aten::new_empty_strided",   "aten::empty_permuted"};

// What is new memory and an op that fills it: such an op in place beside its functional form, which reads nothing of
// the tensor that it is called on but its sizes.
struct Fill {
  const char* op;
  // Its other arguments: names of the functional op's, or constants.
  std::vector<std::variant<const char*, bool, int, double>> arguments;
};
const std::unordered_map<std::string_view, Fill> kFills = {
    {"prims::convert_element_type", {"aten::copy_", {"a", false}}},
    {"aten::clone", {"aten::copy_", {"self", false}}},
    {"aten::_to_copy", {"aten::copy_", {"self", false}}},
    {"aten::lift_fresh_copy", {"aten::copy_", {"self", false}}},
    {"aten::copy", {"aten::copy_", {"src", false}}},
    {"aten::_foreach_copy", {"aten::_foreach_copy_", {"src", false}}},
    {"aten::zero", {"aten::zero_", {}}},
    {"aten::zeros", {"aten::zero_", {}}},
    {"aten::zeros_like", {"aten::zero_", {}}},
    {"aten::new_zeros", {"aten::zero_", {}}},
    {"aten::_foreach_zero", {"aten::_foreach_zero_", {}}},
    {"aten::ones", {"aten::fill_.Scalar", {1}}},
    {"aten::ones_like", {"aten::fill_.Scalar", {1}}},
    {"aten::new_ones", {"aten::fill_.Scalar", {1}}},
    {"aten::full", {"aten::fill_.Scalar", {"fill_value"}}},
    {"aten::full_like", {"aten::fill_.Scalar", {"fill_value"}}},
    {"aten::new_full", {"aten::fill_.Scalar", {"fill_value"}}},
    {"aten::fill.Scalar", {"aten::fill_.Scalar", {"value"}}},
    {"aten::fill.Tensor", {"aten::fill_.Tensor", {"value"}}},
    {"aten::rand", {"aten::uniform_", {0.0, 1.0}}},
    {"aten::rand_like", {"aten::uniform_", {0.0, 1.0}}},
    {"aten::uniform", {"aten::uniform_", {"from", "to", "generator"}}},
    {"aten::randn", {"aten::normal_", {0.0, 1.0}}},
    {"aten::randn_like", {"aten::normal_", {0.0, 1.0}}},
    {"aten::normal_functional", {"aten::normal_", {"mean", "std", "generator"}}},
    {"aten::normal.float_float", {"aten::normal_", {"mean", "std", "generator"}}},
    {"aten::randperm", {"aten::randperm.generator_out", {"n"}}},
    {"aten::bernoulli", {"aten::bernoulli_.Tensor", {"self", "generator"}}},
    {"aten::bernoulli.p", {"aten::bernoulli_.float", {"p", "generator"}}},
    {"aten::bernoulli.Tensor", {"aten::bernoulli_.Tensor", {"p", "generator"}}},
    {"aten::exponential", {"aten::exponential_", {"lambd", "generator"}}},
    {"aten::geometric", {"aten::geometric_", {"p", "generator"}}},
    {"aten::cauchy", {"aten::cauchy_", {"median", "sigma", "generator"}}},
    {"aten::log_normal", {"aten::log_normal_", {"mean", "std", "generator"}}},
    {"aten::randint", {"aten::random_.from", {0, "high"}}},
    {"aten::randint.low", {"aten::random_.from", {"low", "high"}}},
    {"aten::randint_like", {"aten::random_.from", {0, "high"}}},
    {"aten::randint_like.low_dtype", {"aten::random_.from", {"low", "high"}}},
    {"aten::random", {"aten::random_", {"generator"}}},
    {"aten::random.from", {"aten::random_.from", {"from", "to", "generator"}}},
    {"aten::random.to", {"aten::random_.to", {"to", "generator"}}}};

void classify(const c10::OperatorHandle& handle, const std::string& name, GraphOp& op) {
  const auto known = [&](How how, const char* desc) {
    op.how = how;
    op.desc = &ir::op_desc(ir::find_op(desc));
  };
  if (name == "aten::_scaled_dot_product_fused_attention_overrideable") {
    return known(How::kAttention, "aten::_scaled_dot_product_flash_attention_for_cpu");
  }
  if (name == "aten::_scaled_dot_product_fused_attention_overrideable_backward") {
    return known(How::kAttentionBackward, "aten::_scaled_dot_product_flash_attention_for_cpu_backward");
  }
  if (const auto fill = kFills.find(name); fill != kFills.end()) {
    for (const auto& argument : fill->second.arguments) {
      GraphOp::Filling filling;
      if (const auto* its = std::get_if<const char*>(&argument)) {
        filling.place = handle.schema().argumentIndexWithName(*its).value();
      } else {
        filling.fixed = std::visit([](auto value) -> py::object { return py::cast(value); }, argument);
      }
      op.filling.push_back(std::move(filling));
    }
    return known(How::kFill, fill->second.op);
  }
  if (kEmptyOps.contains(name)) {
    op.how = How::kEmpty;
    return;
  }
  if (is_view_schema(handle.schema()) || name == "aten::_unsafe_view" || name == "aten::_reshape_alias" ||
      name == "aten::lift_fresh") {
    op.how = How::kView;
    return;
  }
  const bool torchs = name.starts_with("aten::");
  op.why_not = "the recorder has its own way with this op";
  if (torchs && is_own_kernel(name) && name != "aten::copy_") return;
  op.why_not = "an argument or a result is of a type that no program holds";
  const ir::OpDesc* desc = graph_desc(handle);
  if (desc == nullptr) return;
  op.why_not = "its results depend on data";
  if (desc->flags & (ir::kOpDynamicShape | ir::kOpHostResult)) return;
  op.why_not = "torch composes it, and its random numbers are then others";
  if (torchs && (desc->flags & ir::kOpRandom) && !is_recorded(handle)) return;
  op.why_not = "the worker does not have it";
  if (!torchs && !worker_has_op(handle)) return;
  op.how = How::kRecord;
  op.desc = desc;
}

// As FX nodes hold it: a dtype, where the schema has its number.
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

std::vector<py::object> GraphOp::arguments(const py::tuple& args, const py::dict& kwargs) const {
  std::vector<py::object> all(schema.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < args.size()) {
      all[i] = args[i];
    } else if (PyObject* given = kwargs.size() == 0 ? nullptr : lookup(kwargs, schema[i].name)) {
      all[i] = py::reinterpret_borrow<py::object>(given);
    } else {
      all[i] = schema[i].otherwise;
    }
  }
  return all;
}

bool is_program_op(py::handle target) { return graph_op(target).how == How::kRecord; }

bool is_whole_op(py::handle target) {
  const GraphOp& op = graph_op(target);
  return op.how == How::kRecord && is_recorded(*op.handle) && !(op.desc->flags & ir::kOpHiddenMutation);
}

const GraphOp& graph_op(py::handle target) {
  static auto* known = new std::unordered_map<PyObject*, GraphOp>;
  const auto found = known->find(target.ptr());
  if (found != known->end()) return found->second;
  GraphOp op;
  op.why_not = "it is no operator of the dispatcher";
  static const py::object overload = py::module_::import("torch._ops").attr("OpOverload");
  if (py::isinstance(target, overload)) {
    const auto name = py::cast<std::string>(target.attr("_name"));
    const size_t dot = name.find('.', name.find("::"));
    const auto handle = c10::Dispatcher::singleton().findSchema(
        {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
    if (handle) {
      op.handle = handle;
      for (const c10::Argument& argument : handle->schema().arguments()) {
        op.schema.push_back({py::str(argument.name()), default_of(argument)});
      }
      classify(*handle, name, op);
    }
  }
  Py_INCREF(target.ptr());  // its address means it for good
  return known->emplace(target.ptr(), std::move(op)).first->second;
}

}  // namespace torch_remote::frontend
