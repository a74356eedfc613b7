#include "frontend/compile/graph_builder.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_symnode.h>

#include <bit>
#include <utility>

#include "frontend/compile/fx.h"

namespace torch_remote::frontend {

namespace py = pybind11;
using ir::Arg;
using ir::ArgTag;
using ir::ExprKind;
using ir::kNoSym;
using ir::Sym;

void refuse(std::string why) { throw Refused{std::move(why)}; }

GraphBuilder::GraphBuilder(c10::DeviceIndex index, bool trust_ranges) : device(index), symbols(graph, trust_ranges) {
  symbols.on_unknown = [this](py::handle expr) { return offered_symbol(expr); };
}

// -- symbols --------------------------------------------------------------------------------------------------------

std::optional<Sym> GraphBuilder::offered_symbol(py::handle expr) {
  PyObject* node = lookup(offered, expr);
  if (node == nullptr && !offered_tensors.empty()) {
    for (PyObject* tensor : std::exchange(offered_tensors, {})) {
      const py::object val = meta_entry(tensor, names().val);
      for (const c10::SymInt& size : THPVariable_Unpack(val.ptr()).sym_sizes()) {
        const py::handle symbolic = Symbols::node_of(size);
        if (symbolic) PyDict_SetDefault(offered.ptr(), symbolic.attr("expr").ptr(), tensor);
      }
    }
    node = lookup(offered, expr);
  }
  if (node == nullptr || !outside.contains(node)) return std::nullopt;
  input(node);
  return symbols.defined(expr);
}

Sym GraphBuilder::size_of(const c10::SymInt& size) {
  const auto found = symbols.find_size(size);
  if (!found) refuse("a size is an expression that no program can hold");
  return *found;
}

Sym GraphBuilder::number_symbol(py::handle value, ArgTag& tag) {
  if (is_fx_node(value)) {
    const Value& v = value_of(value);
    const ArgTag its = v.kind == Value::Kind::kInt     ? ArgTag::kInt
                       : v.kind == Value::Kind::kFloat ? ArgTag::kFloat
                       : v.kind == Value::Kind::kBool  ? ArgTag::kBool
                                                       : ArgTag::kNone;
    if (its == ArgTag::kNone) refuse("a tensor stands in a number's place");
    if (tag == ArgTag::kNone) tag = its;
    if (tag != its && (tag == ArgTag::kFloat || its == ArgTag::kFloat)) {
      int64_t known = 0;
      if (its == ArgTag::kInt && graph.is_constant(v.symbol, &known)) return float_constant(static_cast<double>(known));
      refuse("an int or a float that is known only at the call stands in the other's place");
    }
    return v.symbol;
  }
  if (PyBool_Check(value.ptr())) {
    if (tag == ArgTag::kNone) tag = ArgTag::kBool;
    if (tag == ArgTag::kFloat) return float_constant(value.ptr() == Py_True);
    return symbols.constant(value.ptr() == Py_True);
  }
  if (PyLong_Check(value.ptr())) {
    if (tag == ArgTag::kFloat) return float_constant(PyLong_AsDouble(value.ptr()));
    if (tag == ArgTag::kNone) tag = ArgTag::kInt;
    const int64_t number = PyLong_AsLongLong(value.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      refuse("an int does not fit 64 bits");
    }
    return symbols.constant(number);
  }
  if (PyFloat_Check(value.ptr())) {
    if (tag == ArgTag::kNone) tag = ArgTag::kFloat;
    if (tag != ArgTag::kFloat) refuse("a float stands in an int's place");
    return float_constant(PyFloat_AsDouble(value.ptr()));
  }
  if (PyComplex_Check(value.ptr())) {
    if (tag != ArgTag::kNone) refuse("a complex number stands in another's place");
    tag = ArgTag::kComplex;
    return complex_constant(value);
  }
  if (torch::is_symint(value)) {
    if (tag == ArgTag::kNone) tag = ArgTag::kInt;
    const auto found = symbols.find_node(value.attr(names().node));
    if (found && tag == ArgTag::kInt) return *found;
  }
  refuse("a number of type " + std::string(Py_TYPE(value.ptr())->tp_name) + " cannot be told before the call");
}

Sym GraphBuilder::float_constant(double value) { return symbols.constant(std::bit_cast<int64_t>(value)); }

Sym GraphBuilder::complex_constant(py::handle value) {
  const double parts[] = {PyComplex_RealAsDouble(value.ptr()), PyComplex_ImagAsDouble(value.ptr())};
  const Sym first = Symbols::kFirstExpr + static_cast<Sym>(graph.exprs.size());
  for (const double part : parts) {
    graph.exprs.push_back({ExprKind::kConst, kNoSym, kNoSym, std::bit_cast<int64_t>(part)});
  }
  return first;
}

// -- values ---------------------------------------------------------------------------------------------------------

void GraphBuilder::remember(py::handle node, Value value) {
  kept.push_back(py::reinterpret_borrow<py::object>(node));
  values.insert_or_assign(node.ptr(), std::move(value));
}

const Value& GraphBuilder::value_of(py::handle node) {
  const auto found = values.find(node.ptr());
  if (found != values.end()) return found->second;
  // A number that sizes tell, whoever computes it.
  const py::object val = meta_entry(node, names().val);
  if (val && torch::is_symint(val)) {
    if (const auto symbol = symbols.find_node(val.attr(names().node))) {
      Value value;
      value.kind = Value::Kind::kInt;
      value.symbol = *symbol;
      remember(node, std::move(value));
      return values.at(node.ptr());
    }
  }
  return input(node);
}

const Value& GraphBuilder::input(py::handle node, bool random_state) {
  // Once: a tensor that is becoming an input is asked for its own sizes.
  if (outside.erase(node.ptr()) == 0) refuse("it needs what the program computes, as a number");
  const py::object val = meta_entry(node, names().val);
  if (!val) refuse("a node has no example value");
  GraphInput in;
  Value value;
  if (random_state) {
    in.kind = GraphInput::Kind::kRandomState;
    in.param = symbols.new_param();
    symbols.new_param();
    value.kind = Value::Kind::kRandomState;
    value.symbol = in.param;
  } else if (THPVariable_Check(val.ptr())) {
    tensor_input(val, in, value);
  } else {
    in.param = symbols.new_param();
    value.symbol = in.param;
    if (torch::is_symint(val) || (PyLong_Check(val.ptr()) && !PyBool_Check(val.ptr()))) {
      in.kind = GraphInput::Kind::kInt;
      value.kind = Value::Kind::kInt;
      if (torch::is_symint(val)) symbols.define(val.attr(names().node), in.param);
    } else if (torch::is_symfloat(val) || PyFloat_Check(val.ptr())) {
      in.kind = GraphInput::Kind::kFloat;
      value.kind = Value::Kind::kFloat;
    } else if (torch::is_symbool(val) || PyBool_Check(val.ptr())) {
      in.kind = GraphInput::Kind::kBool;
      value.kind = Value::Kind::kBool;
    } else {
      refuse("an input is of type " + std::string(Py_TYPE(val.ptr())->tp_name));
    }
  }
  spec->inputs.push_back(std::move(in));
  input_nodes.append(node);
  remember(node, std::move(value));
  return values.at(node.ptr());
}

void GraphBuilder::tensor_input(py::handle val, GraphInput& in, Value& value) {
  const at::Tensor& tensor = THPVariable_Unpack(val.ptr());
  check_plain(tensor);
  in.conj = value.conj = tensor.is_conj();
  in.neg = value.neg = tensor.is_neg();
  const c10::Device on = device_of(val);
  in.dtype = tensor.scalar_type();
  if (on.is_cpu() && tensor.dim() == 0) {
    if (value.conj || value.neg) refuse("a number on the CPU is a lazy conjugate or negative");
    in.kind = GraphInput::Kind::kNumber;
    in.param = symbols.new_param();
    if (c10::isComplexType(in.dtype)) symbols.new_param();
    value.kind = Value::Kind::kNumber;
    value.symbol = in.param;
    value.dtype = in.dtype;
    return;
  }
  check_device(on);
  in.kind = GraphInput::Kind::kTensor;
  const auto sizes = tensor.sym_sizes(), strides = tensor.sym_strides();
  for (size_t i = 0; i < sizes.size(); ++i) in.sizes.push_back(told_by(in, sizes[i], static_cast<uint32_t>(i)));
  for (size_t i = 0; i < strides.size(); ++i) {
    const auto stride = symbols.find(strides[i]);
    if (!stride) refuse("an input has a stride that no program can hold");
    in.strides.push_back(*stride);
  }
  in.param = symbols.new_param();
  const uint32_t buffer = new_buffer(ir::BufferKind::kInput, kNoSym, static_cast<uint32_t>(spec->inputs.size()));
  value.kind = Value::Kind::kTensor;
  value.view = new_view(buffer, tensor.scalar_type(), in.sizes, in.strides, in.param);
  starts.resize(spec->inputs.size() + 1);
  starts.back() = {value.view, tensor.sym_storage_offset()};
}

Sym GraphBuilder::told_by(GraphInput& in, const c10::SymInt& size, uint32_t dim) {
  if (const auto known = symbols.find_size(size)) return *known;
  const py::handle node = Symbols::node_of(size);
  if (!node) refuse("an input has a size that no program can hold");
  const Sym param = symbols.new_param();
  symbols.define(node, param);
  in.size_params.emplace_back(dim, param);
  return symbols.find_size(size).value_or(param);
}

void GraphBuilder::check_plain(const at::Tensor& tensor) {
  if (tensor.layout() != c10::kStrided) refuse("a tensor is not strided");
  if (!ir::is_valid(static_cast<ir::DType>(tensor.scalar_type()))) refuse("a tensor has a dtype that no program holds");
}

void GraphBuilder::check_device(c10::Device on) const {
  if (on.type() != c10::DeviceType::PrivateUse1 || (on.has_index() && on.index() != device)) {
    refuse("a tensor is on " + on.str());
  }
}

// -- buffers and views ----------------------------------------------------------------------------------------------

uint32_t GraphBuilder::new_buffer(ir::BufferKind kind, Sym nbytes, uint32_t input_index) {
  ir::Buffer buffer;
  buffer.kind = kind;
  buffer.survives = kind == ir::BufferKind::kInput;
  buffer.nbytes = nbytes;
  graph.buffers.push_back(buffer);
  input_of_buffer.push_back(input_index);
  return static_cast<uint32_t>(graph.buffers.size() - 1);
}

uint32_t GraphBuilder::new_view(uint32_t buffer, c10::ScalarType dtype, const std::vector<Sym>& sizes,
                                const std::vector<Sym>& strides, Sym offset) {
  ir::View view;
  view.buffer = buffer;
  view.dtype = static_cast<ir::DType>(dtype);
  view.sizes = sizes;
  view.strides = strides;
  view.offset = offset;
  graph.views.push_back(std::move(view));
  return static_cast<uint32_t>(graph.views.size() - 1);
}

GraphBuilder::Geometry GraphBuilder::geometry(const at::Tensor& tensor) {
  Geometry g;
  for (const c10::SymInt& size : tensor.sym_sizes()) g.sizes.push_back(size_of(size));
  for (const c10::SymInt& stride : tensor.sym_strides()) {
    const auto found = symbols.find(stride);
    if (!found) refuse("a stride is an expression that no program can hold");
    g.strides.push_back(*found);
  }
  return g;
}

Sym GraphBuilder::extent(const Geometry& g, size_t item_size) {
  Sym last = symbols.constant(0);
  bool symbolic = false;
  for (size_t i = 0; i < g.sizes.size(); ++i) {
    int64_t size = 0;
    if (graph.is_constant(g.sizes[i], &size)) {
      if (size == 0) return symbols.constant(0);
    } else {
      symbolic = true;
    }
    const Sym steps = symbols.expr(ExprKind::kSub, g.sizes[i], symbols.constant(1));
    last = symbols.expr(ExprKind::kAdd, last, symbols.expr(ExprKind::kMul, steps, g.strides[i]));
  }
  const Sym count = symbols.expr(ExprKind::kAdd, last, symbols.constant(1));
  const Sym bytes = symbols.expr(ExprKind::kMul, count, symbols.constant(static_cast<int64_t>(item_size)));
  return symbolic ? symbols.expr(ExprKind::kMax, bytes, symbols.constant(0)) : bytes;
}

Sym GraphBuilder::elements(py::handle val) {
  Sym count = symbols.constant(1);
  for (const c10::SymInt& size : THPVariable_Unpack(val.ptr()).sym_sizes()) {
    count = symbols.expr(ExprKind::kMul, count, size_of(size));
  }
  return count;
}

uint32_t GraphBuilder::fresh_view(c10::ScalarType dtype, const Geometry& g) {
  const Sym bytes = extent(g, c10::elementSize(dtype));
  return new_view(new_buffer(ir::BufferKind::kFresh, bytes, kNotInput), dtype, g.sizes, g.strides, symbols.constant(0));
}

Value GraphBuilder::fresh(py::handle val, bool host) {
  Value value;
  if (val.is_none()) return value;
  if (!THPVariable_Check(val.ptr())) refuse("a result is no tensor");
  const at::Tensor& tensor = THPVariable_Unpack(val.ptr());
  check_plain(tensor);
  if (tensor.is_conj() || tensor.is_neg()) refuse("a result is a lazy conjugate or negative");
  const c10::Device on = device_of(val);
  value.host = host && on.is_cpu() && tensor.dim() == 0;
  if (!value.host) check_device(on);
  value.kind = Value::Kind::kTensor;
  value.view = fresh_view(tensor.scalar_type(), geometry(tensor));
  return value;
}

Value GraphBuilder::view_of(const Value& base, py::handle val) {
  Value value;
  if (py::isinstance<py::list>(val) || py::isinstance<py::tuple>(val)) {
    value.kind = Value::Kind::kList;
    for (const py::handle item : val) value.items.push_back(view_of(base, item));
    return value;
  }
  if (!THPVariable_Check(val.ptr())) refuse("a view is no tensor");
  const at::Tensor& tensor = THPVariable_Unpack(val.ptr());
  check_plain(tensor);
  check_device(device_of(val));
  const Geometry g = geometry(tensor);
  // Fake tensors count offsets from where their input's begins; so far may that itself be from the storage's.
  const uint32_t buffer = graph.views[base.view].buffer;
  const uint32_t in = input_of_buffer[buffer];
  const auto offset = symbols.find(tensor.sym_storage_offset());
  if (!offset) refuse("a storage offset is an expression that no program can hold");
  Sym at = *offset;
  if (in != kNotInput) {
    const auto start = symbols.find(starts[in].offset);
    if (!start) refuse("a storage offset is an expression that no program can hold");
    // From the input's elements to those of this view.
    const auto from = static_cast<int64_t>(c10::elementSize(spec->inputs[in].dtype));
    const auto to = static_cast<int64_t>(tensor.element_size());
    const auto scaled = [&](Sym offset) {
      if (from == to) return offset;
      const Sym bytes = symbols.expr(ExprKind::kMul, offset, symbols.constant(from));
      return symbols.expr(ExprKind::kFloorDiv, bytes, symbols.constant(to));
    };
    at = symbols.expr(ExprKind::kSub, at, scaled(*start));
    at = symbols.expr(ExprKind::kAdd, scaled(spec->inputs[in].param), at);
  }
  value.kind = Value::Kind::kTensor;
  value.conj = tensor.is_conj();
  value.neg = tensor.is_neg();
  value.view = new_view(buffer, tensor.scalar_type(), g.sizes, g.strides, at);
  return value;
}

std::optional<uint32_t> GraphBuilder::input_index(py::handle node) const {
  for (size_t i = 0; i < input_nodes.size(); ++i) {
    if (PyList_GET_ITEM(input_nodes.ptr(), static_cast<Py_ssize_t>(i)) == node.ptr()) return static_cast<uint32_t>(i);
  }
  return std::nullopt;
}

// -- the end --------------------------------------------------------------------------------------------------------

void GraphBuilder::close_arg(Arg& arg) {
  switch (arg.tag) {
    case ArgTag::kScalarTensor:
    case ArgTag::kInt:
    case ArgTag::kFloat:
    case ArgTag::kBool:
    case ArgTag::kComplex:
    case ArgTag::kGenerator:
      arg.a = symbols.closed(arg.a);
      break;
    case ArgTag::kList:
      for (Arg& item : arg.items) close_arg(item);
      break;
    default:
      break;
  }
}

Sym GraphBuilder::on_host(Sym symbol) {
  if (symbol == kNoSym || symbol < graph.params) return symbol;
  const auto known = host_symbols.find(symbol);
  if (known != host_symbols.end()) return known->second;
  ir::Expr expr = graph.exprs[symbol - graph.params];
  if (expr.kind != ExprKind::kConst) {
    expr.a = on_host(expr.a);
    expr.b = on_host(expr.b);
  }
  const Sym copy = spec->host.symbols();
  spec->host.exprs.push_back(expr);
  host_symbols.emplace(symbol, copy);
  return copy;
}

void GraphBuilder::on_host(std::vector<Sym>& list) {
  for (Sym& symbol : list) symbol = on_host(symbols.closed(symbol));
}

void GraphBuilder::note_elements() {
  using Elements = GraphInput::Elements;
  for (const ir::Node& node : graph.nodes) {
    // What the node reads counts before what it overwrites.
    for (const bool overwrites : {false, true}) {
      ir::for_each_access(node, [&](uint32_t v, ir::Access access) {
        const uint32_t index = input_of_buffer[graph.views[v].buffer];
        if (index == kNotInput || access == ir::Access::kCreates) return;
        GraphInput& in = spec->inputs[index];
        const bool all = access == ir::Access::kOverwrites && graph.views[v] == graph.views[starts[index].view];
        if (in.elements != Elements::kUnused || all != overwrites) return;
        in.elements = all ? Elements::kOverwritten : Elements::kRead;
        if (!all) in.reader = spec->sources[node.source];
      });
    }
  }
}

void GraphBuilder::close() {
  note_elements();
  symbols.close();
  for (ir::Buffer& buffer : graph.buffers) {
    if (buffer.nbytes != kNoSym) buffer.nbytes = symbols.closed(buffer.nbytes);
  }
  for (ir::View& view : graph.views) {
    for (Sym& size : view.sizes) size = symbols.closed(size);
    for (Sym& stride : view.strides) stride = symbols.closed(stride);
    view.offset = symbols.closed(view.offset);
  }
  for (ir::Node& node : graph.nodes) {
    for (Arg& arg : node.args) close_arg(arg);
  }
  spec->host.params = graph.params;
  for (GraphInput& in : spec->inputs) {
    on_host(in.sizes);
    on_host(in.strides);
  }
  for (GraphOutput& out : spec->outputs) {
    on_host(out.sizes);
    on_host(out.strides);
    if (out.offset != kNoSym) out.offset = on_host(symbols.closed(out.offset));
  }
  for (GraphRandom& random : spec->randoms) on_host(random.elements);
  for (HostStep& step : spec->host_steps) {
    for (HostStep::Given& given : step.given) {
      if (given.symbol != kNoSym) given.symbol = on_host(symbols.closed(given.symbol));
    }
  }
  std::unordered_map<uint32_t, uint32_t> places;  // of surviving buffers
  for (uint32_t b = 0; b < graph.buffers.size(); ++b) {
    if (graph.buffers[b].kind != ir::BufferKind::kFresh || !graph.buffers[b].survives) continue;
    places.emplace(b, static_cast<uint32_t>(spec->fresh_nbytes.size()));
    spec->fresh_nbytes.push_back(on_host(graph.buffers[b].nbytes));
  }
  for (GraphOutput& out : spec->outputs) {
    if (out.kind == GraphOutput::Kind::kFresh) out.index = places.at(out.index);
  }
}

}  // namespace torch_remote::frontend
