#include "frontend/compile/compiled_graph_builder.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_symnode.h>

#include <bit>
#include <utility>

#include "frontend/compile/fx.h"
#include "frontend/source/source.h"
#include "ir/analysis.h"

namespace torch_remote::frontend {

namespace py = pybind11;
using ir::Arg;
using ir::ArgTag;
using ir::ExprKind;
using ir::kNoSym;
using ir::Sym;

void throw_unsupported(std::string why) { throw UnsupportedNode{std::move(why)}; }

CompiledGraphBuilder::CompiledGraphBuilder(c10::DeviceIndex device, bool trust_ranges)
    : device_(device), symbols_(graph_, trust_ranges) {
  symbols_.on_unknown = [this](py::handle expr) { return offered_symbol(expr); };
}

// -- symbols ---------------------------------------------------------------------------------------------------------

std::optional<Sym> CompiledGraphBuilder::offered_symbol(py::handle expr) {
  PyObject* node = lookup(offered_by_size_, expr);
  if (node == nullptr && !offered_tensors_.empty()) {
    for (PyObject* tensor : std::exchange(offered_tensors_, {})) {
      const py::object val = meta_entry(tensor, names().val);
      for (const c10::SymInt& size : THPVariable_Unpack(val.ptr()).sym_sizes()) {
        const py::handle symbolic = Symbols::node_of(size);
        if (symbolic) PyDict_SetDefault(offered_by_size_.ptr(), symbolic.attr("expr").ptr(), tensor);
      }
    }
    node = lookup(offered_by_size_, expr);
  }
  if (node == nullptr || !offered_nodes_.contains(node)) return std::nullopt;
  make_input(node);
  return symbols_.defined(expr);
}

Sym CompiledGraphBuilder::size_of(const c10::SymInt& size) {
  const auto found = symbols_.find_size(size);
  if (!found) throw_unsupported("a size is an expression that a program cannot represent");
  return *found;
}

Sym CompiledGraphBuilder::number_symbol(py::handle value, ArgTag& tag) {
  if (is_fx_node(value)) {
    const Value& v = value_of(value);
    const ArgTag its = v.kind == Value::Kind::kInt     ? ArgTag::kInt
                       : v.kind == Value::Kind::kFloat ? ArgTag::kFloat
                       : v.kind == Value::Kind::kBool  ? ArgTag::kBool
                                                       : ArgTag::kNone;
    if (its == ArgTag::kNone) throw_unsupported("expected a number, got a tensor");
    if (tag == ArgTag::kNone) tag = its;
    if (tag != its && (tag == ArgTag::kFloat || its == ArgTag::kFloat)) {
      int64_t known = 0;
      if (its == ArgTag::kInt && graph_.is_constant(v.symbol, &known))
        return float_constant(static_cast<double>(known));
      throw_unsupported("an int is passed as a float or a float as an int, and its value is known only at the call");
    }
    return v.symbol;
  }
  if (PyBool_Check(value.ptr())) {
    if (tag == ArgTag::kNone) tag = ArgTag::kBool;
    if (tag == ArgTag::kFloat) return float_constant(value.ptr() == Py_True);
    return symbols_.constant(value.ptr() == Py_True);
  }
  if (PyLong_Check(value.ptr())) {
    if (tag == ArgTag::kFloat) return float_constant(PyLong_AsDouble(value.ptr()));
    if (tag == ArgTag::kNone) tag = ArgTag::kInt;
    const int64_t number = PyLong_AsLongLong(value.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      throw_unsupported("an int does not fit 64 bits");
    }
    return symbols_.constant(number);
  }
  if (PyFloat_Check(value.ptr())) {
    if (tag == ArgTag::kNone) tag = ArgTag::kFloat;
    if (tag != ArgTag::kFloat) throw_unsupported("expected an int, got a float");
    return float_constant(PyFloat_AsDouble(value.ptr()));
  }
  if (PyComplex_Check(value.ptr())) {
    if (tag != ArgTag::kNone) throw_unsupported("expected a real number, got a complex one");
    tag = ArgTag::kComplex;
    return complex_constant(value);
  }
  if (torch::is_symint(value)) {
    if (tag == ArgTag::kNone) tag = ArgTag::kInt;
    const auto found = symbols_.find_node(value.attr(names().node));
    if (found && tag == ArgTag::kInt) return *found;
  }
  throw_unsupported("the value of a number of type " + std::string(Py_TYPE(value.ptr())->tp_name) +
                    " is unknown before the call");
}

Sym CompiledGraphBuilder::float_constant(double value) { return symbols_.constant(std::bit_cast<int64_t>(value)); }

Sym CompiledGraphBuilder::complex_constant(py::handle value) {
  const double parts[] = {PyComplex_RealAsDouble(value.ptr()), PyComplex_ImagAsDouble(value.ptr())};
  const Sym first = Symbols::kFirstExpr + static_cast<Sym>(graph_.exprs.size());
  for (const double part : parts) {
    graph_.exprs.push_back({ExprKind::kConst, kNoSym, kNoSym, std::bit_cast<int64_t>(part)});
  }
  return first;
}

std::optional<int64_t> CompiledGraphBuilder::guarded_value(py::handle value) {
  const py::object val = is_fx_node(value) ? meta_entry(value, names().val) : py::reinterpret_borrow<py::object>(value);
  if (!symbols_.trusts_ranges() || !val || !torch::is_symint(val)) return std::nullopt;
  const py::object node = val.attr(names().node);
  if (py::cast<bool>(node.attr("shape_env").attr("frozen")) || !py::cast<bool>(node.attr("has_hint")())) {
    return std::nullopt;
  }
  const py::object made_of = node.attr("expr").attr("free_symbols");
  for (const py::object& other : alive_nodes_) {
    if (py::cast<std::string>(other.attr("op")) != "placeholder") continue;
    const py::object tensor = meta_entry(other, names().val);
    if (!tensor || !THPVariable_Check(tensor.ptr())) continue;
    for (const c10::SymInt& size : THPVariable_Unpack(tensor.ptr()).sym_sizes()) {
      const py::handle symbolic = Symbols::node_of(size);
      if (!symbolic) continue;
      const py::object symbols_of_size = symbolic.attr("expr").attr("free_symbols");
      if (!py::cast<bool>(made_of.attr("isdisjoint")(symbols_of_size))) return std::nullopt;
    }
  }
  return py::cast<int64_t>(node.attr("guard_int")("", 0));
}

// -- values ----------------------------------------------------------------------------------------------------------

void CompiledGraphBuilder::offer(py::object node, bool determines_size) {
  const py::object val = determines_size ? meta_entry(node, names().val) : py::object();
  if (val && torch::is_symint(val)) {
    offered_by_size_[val.attr(names().node).attr("expr")] = node;
  } else if (val && THPVariable_Check(val.ptr())) {
    offered_tensors_.push_back(node.ptr());
  }
  offered_nodes_.insert(node.ptr());
  alive_nodes_.push_back(std::move(node));
}

void CompiledGraphBuilder::remember(py::handle node, Value value) {
  alive_nodes_.push_back(py::reinterpret_borrow<py::object>(node));
  values_.insert_or_assign(node.ptr(), std::move(value));
}

const Value* CompiledGraphBuilder::find_value(py::handle node) const {
  const auto found = values_.find(node.ptr());
  return found == values_.end() ? nullptr : &found->second;
}

const Value& CompiledGraphBuilder::value_of(py::handle node) {
  if (const Value* known = find_value(node)) return *known;
  // A number that is determined by sizes, whichever node computes it.
  const py::object val = meta_entry(node, names().val);
  if (val && torch::is_symint(val)) {
    if (const auto symbol = symbols_.find_node(val.attr(names().node))) {
      Value value;
      value.kind = Value::Kind::kInt;
      value.symbol = *symbol;
      remember(node, std::move(value));
      return values_.at(node.ptr());
    }
  }
  return make_input(node);
}

const Value& CompiledGraphBuilder::make_input(py::handle node, bool random_state) {
  // Erase first: a tensor that is becoming an input must not be offered for its own sizes.
  if (offered_nodes_.erase(node.ptr()) == 0) throw_unsupported("it needs a result of the program as a number");
  const py::object val = meta_entry(node, names().val);
  if (!val) throw_unsupported("a node has no example value");
  GraphInput in;
  Value value;
  if (random_state) {
    in.kind = GraphInput::Kind::kRandomState;
    in.param = symbols_.new_param();
    symbols_.new_param();
    value.kind = Value::Kind::kRandomState;
    value.symbol = in.param;
  } else if (THPVariable_Check(val.ptr())) {
    make_tensor_input(val, in, value);
  } else {
    in.param = symbols_.new_param();
    value.symbol = in.param;
    if (torch::is_symint(val) || (PyLong_Check(val.ptr()) && !PyBool_Check(val.ptr()))) {
      in.kind = GraphInput::Kind::kInt;
      value.kind = Value::Kind::kInt;
      if (torch::is_symint(val)) symbols_.define(val.attr(names().node), in.param);
    } else if (torch::is_symfloat(val) || PyFloat_Check(val.ptr())) {
      in.kind = GraphInput::Kind::kFloat;
      value.kind = Value::Kind::kFloat;
    } else if (torch::is_symbool(val) || PyBool_Check(val.ptr())) {
      in.kind = GraphInput::Kind::kBool;
      value.kind = Value::Kind::kBool;
    } else {
      throw_unsupported("an input is of type " + std::string(Py_TYPE(val.ptr())->tp_name));
    }
  }
  spec_->inputs.push_back(std::move(in));
  input_nodes_.append(node);
  remember(node, std::move(value));
  return values_.at(node.ptr());
}

namespace {

// Whether several elements of the tensor are at the same place in memory, because a dim was expanded.
bool is_expanded(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i].maybe_as_int() == 0 && sizes[i].maybe_as_int() != 1) return true;
  }
  return false;
}

}  // namespace

void CompiledGraphBuilder::make_tensor_input(py::handle val, GraphInput& in, Value& value) {
  const at::Tensor& tensor = THPVariable_Unpack(val.ptr());
  check_strided_dtype(tensor);
  in.conj = value.conj = tensor.is_conj();
  in.neg = value.neg = tensor.is_neg();
  const c10::Device on = device_of(val);
  in.dtype = tensor.scalar_type();
  if (on.is_cpu() && tensor.dim() == 0) {
    if (value.conj || value.neg) throw_unsupported("a number on the CPU is a lazy conjugate or negative");
    in.kind = GraphInput::Kind::kNumber;
    in.param = symbols_.new_param();
    if (c10::isComplexType(in.dtype)) symbols_.new_param();
    value.kind = Value::Kind::kNumber;
    value.symbol = in.param;
    value.dtype = in.dtype;
    return;
  }
  check_device(on);
  in.kind = GraphInput::Kind::kTensor;
  const auto sizes = tensor.sym_sizes(), strides = tensor.sym_strides();
  // A call of an exported program may pass a tensor that is not expanded, and fix_strides() cannot copy it to these
  // strides. Dynamo's guards ensure that a compiled function gets the strides of its example.
  if (!symbols_.trusts_ranges() && is_expanded(sizes, strides)) {
    throw_unsupported("the example of an input is expanded");
  }
  const Symbols::Mark before = symbols_.mark();
  try {
    for (size_t i = 0; i < sizes.size(); ++i) in.sizes.push_back(input_size(in, sizes[i], static_cast<uint32_t>(i)));
    for (size_t i = 0; i < strides.size(); ++i) {
      const auto stride = symbols_.find(strides[i]);
      if (!stride) throw_unsupported("an input has a stride that a program cannot represent");
      in.strides.push_back(*stride);
    }
  } catch (const UnsupportedNode&) {
    symbols_.forget_since(before);  // No input sets the parameters of `in`, so no other tensor may use them.
    throw;
  }
  in.param = symbols_.new_param();
  const uint32_t buffer = new_buffer(ir::BufferKind::kInput, kNoSym, static_cast<uint32_t>(spec_->inputs.size()));
  value.kind = Value::Kind::kTensor;
  value.view = new_view(buffer, tensor.scalar_type(), in.sizes, in.strides, in.param);
  starts_.resize(spec_->inputs.size() + 1);
  starts_.back() = {value.view, tensor.sym_storage_offset()};
}

Sym CompiledGraphBuilder::input_size(GraphInput& in, const c10::SymInt& size, uint32_t dim) {
  if (const auto known = symbols_.find_size(size)) return *known;
  const py::handle node = Symbols::node_of(size);
  if (!node) throw_unsupported("an input has a size that a program cannot represent");
  const Sym param = symbols_.new_param();
  symbols_.define(node, param);
  in.size_params.emplace_back(dim, param);
  return symbols_.find_size(size).value_or(param);
}

void CompiledGraphBuilder::check_strided_dtype(const at::Tensor& tensor) {
  if (tensor.layout() != c10::kStrided) throw_unsupported("a tensor is not strided");
  if (!ir::is_valid(static_cast<ir::DType>(tensor.scalar_type())))
    throw_unsupported("a tensor has a dtype that a program cannot represent");
}

void CompiledGraphBuilder::check_device(c10::Device on) const {
  if (on.type() != c10::DeviceType::PrivateUse1 || (on.has_index() && on.index() != device_)) {
    throw_unsupported("a tensor is on " + on.str());
  }
}

// -- buffers and views ----------------------------------------------------------------------------------------------

uint32_t CompiledGraphBuilder::new_buffer(ir::BufferKind kind, Sym nbytes, uint32_t input_index) {
  ir::Buffer buffer;
  buffer.kind = kind;
  buffer.survives = kind == ir::BufferKind::kInput;
  buffer.nbytes = nbytes;
  graph_.buffers.push_back(buffer);
  input_of_buffer_.push_back(input_index);
  return static_cast<uint32_t>(graph_.buffers.size() - 1);
}

uint32_t CompiledGraphBuilder::new_view(uint32_t buffer, c10::ScalarType dtype, const std::vector<Sym>& sizes,
                                        const std::vector<Sym>& strides, Sym offset) {
  ir::View view;
  view.buffer = buffer;
  view.dtype = static_cast<ir::DType>(dtype);
  view.sizes = sizes;
  view.strides = strides;
  view.offset = offset;
  graph_.views.push_back(std::move(view));
  return static_cast<uint32_t>(graph_.views.size() - 1);
}

Geometry CompiledGraphBuilder::geometry(const at::Tensor& tensor) {
  Geometry g;
  for (const c10::SymInt& size : tensor.sym_sizes()) g.sizes.push_back(size_of(size));
  for (const c10::SymInt& stride : tensor.sym_strides()) {
    const auto found = symbols_.find(stride);
    if (!found) throw_unsupported("a stride is an expression that a program cannot represent");
    g.strides.push_back(*found);
  }
  return g;
}

Sym CompiledGraphBuilder::extent(const Geometry& g, size_t item_size) {
  Sym last = symbols_.constant(0);
  bool symbolic = false;
  for (size_t i = 0; i < g.sizes.size(); ++i) {
    int64_t size = 0;
    if (graph_.is_constant(g.sizes[i], &size)) {
      if (size == 0) return symbols_.constant(0);
    } else {
      symbolic = true;
    }
    const Sym steps = symbols_.expr(ExprKind::kSub, g.sizes[i], symbols_.constant(1));
    last = symbols_.expr(ExprKind::kAdd, last, symbols_.expr(ExprKind::kMul, steps, g.strides[i]));
  }
  const Sym count = symbols_.expr(ExprKind::kAdd, last, symbols_.constant(1));
  const Sym bytes = symbols_.expr(ExprKind::kMul, count, symbols_.constant(static_cast<int64_t>(item_size)));
  return symbolic ? symbols_.expr(ExprKind::kMax, bytes, symbols_.constant(0)) : bytes;
}

Sym CompiledGraphBuilder::elements(py::handle val) {
  Sym count = symbols_.constant(1);
  for (const c10::SymInt& size : THPVariable_Unpack(val.ptr()).sym_sizes()) {
    count = symbols_.expr(ExprKind::kMul, count, size_of(size));
  }
  return count;
}

uint32_t CompiledGraphBuilder::fresh_view(c10::ScalarType dtype, const Geometry& g) {
  const Sym bytes = extent(g, c10::elementSize(dtype));
  return new_view(new_buffer(ir::BufferKind::kFresh, bytes, kNotInput), dtype, g.sizes, g.strides,
                  symbols_.constant(0));
}

Value CompiledGraphBuilder::fresh(py::handle val, bool host) {
  Value value;
  if (val.is_none()) return value;
  if (!THPVariable_Check(val.ptr())) throw_unsupported("a result is not a tensor");
  const at::Tensor& tensor = THPVariable_Unpack(val.ptr());
  check_strided_dtype(tensor);
  if (tensor.is_conj() || tensor.is_neg()) throw_unsupported("a result is a lazy conjugate or negative");
  const c10::Device on = device_of(val);
  value.computed_on_cpu = host && on.is_cpu() && tensor.dim() == 0;
  if (!value.computed_on_cpu) check_device(on);
  value.kind = Value::Kind::kTensor;
  value.view = fresh_view(tensor.scalar_type(), geometry(tensor));
  return value;
}

Value CompiledGraphBuilder::view_of(const Value& base, py::handle val) {
  Value value;
  if (py::isinstance<py::list>(val) || py::isinstance<py::tuple>(val)) {
    value.kind = Value::Kind::kList;
    for (const py::handle item : val) value.items.push_back(view_of(base, item));
    return value;
  }
  if (!THPVariable_Check(val.ptr())) throw_unsupported("a view is not a tensor");
  const at::Tensor& tensor = THPVariable_Unpack(val.ptr());
  check_strided_dtype(tensor);
  check_device(device_of(val));
  const Geometry g = geometry(tensor);
  // A fake tensor's offset is relative to the fake storage, where the input starts at `starts_[in].offset`. The real
  // input may start elsewhere, so the view starts at the same distance from the input's real offset.
  const uint32_t buffer = graph_.views[base.view].buffer;
  const uint32_t in = input_of_buffer_[buffer];
  const auto offset = symbols_.find(tensor.sym_storage_offset());
  if (!offset) throw_unsupported("a storage offset is an expression that a program cannot represent");
  Sym at = *offset;
  if (in != kNotInput) {
    const auto start = symbols_.find(starts_[in].offset);
    if (!start) throw_unsupported("a storage offset is an expression that a program cannot represent");
    // Scales from the input's element size to that of this view.
    const auto from = static_cast<int64_t>(c10::elementSize(spec_->inputs[in].dtype));
    const auto to = static_cast<int64_t>(tensor.element_size());
    const auto scaled = [&](Sym offset) {
      if (from == to) return offset;
      const Sym bytes = symbols_.expr(ExprKind::kMul, offset, symbols_.constant(from));
      return symbols_.expr(ExprKind::kFloorDiv, bytes, symbols_.constant(to));
    };
    at = symbols_.expr(ExprKind::kSub, at, scaled(*start));
    at = symbols_.expr(ExprKind::kAdd, scaled(spec_->inputs[in].param), at);
  }
  value.kind = Value::Kind::kTensor;
  value.conj = tensor.is_conj();
  value.neg = tensor.is_neg();
  value.view = new_view(buffer, tensor.scalar_type(), g.sizes, g.strides, at);
  return value;
}

// -- nodes ----------------------------------------------------------------------------------------------------------

ir::Node& CompiledGraphBuilder::add_node(const ir::OpDesc& desc, std::vector<Arg> args, py::handle fx) {
  ir::Node& node = graph_.nodes.emplace_back();
  node.opcode = desc.opcode;
  node.args = std::move(args);
  node.results.resize(desc.results.size());
  node.record = static_cast<uint32_t>(spec_->sources.size());
  const py::object text = meta_entry(fx, names().stack_trace);
  spec_->sources.push_back(text && py::isinstance<py::str>(text) ? text_source(text.ptr()) : ir::SourceRef());
  return node;
}

void CompiledGraphBuilder::cut_to(const Size& size) {
  graph_.nodes.resize(size.nodes);
  spec_->sources.resize(size.sources);
  spec_->randoms.resize(size.randoms);
}

// -- the end --------------------------------------------------------------------------------------------------------

GraphOutput CompiledGraphBuilder::output(py::handle object) {
  GraphOutput out;
  if (!is_fx_node(object)) {
    out.object = py::reinterpret_borrow<py::object>(object);
    return out;
  }
  const Value& value = value_of(object);
  switch (value.kind) {
    case Value::Kind::kNone:
      out.object = py::none();
      return out;
    case Value::Kind::kInt:
      out.kind = GraphOutput::Kind::kInt;
      out.offset = value.symbol;
      return out;
    case Value::Kind::kRandomState:
      out.kind = GraphOutput::Kind::kRandomState;
      out.offset = value.symbol;
      return out;
    case Value::Kind::kTensor:
      break;
    default:  // an input that the graph does not change
      for (const py::handle input : input_nodes_) {
        if (input.is(object)) {
          out.kind = GraphOutput::Kind::kInput;
          return out;
        }
        ++out.index;
      }
      throw_unsupported("a graph cannot return a result of this kind");
  }
  if (value.computed_on_cpu) throw_unsupported("a result is on the CPU");
  const ir::View& view = graph_.views[value.view];
  const uint32_t in = input_of_buffer_[view.buffer];
  out.dtype = static_cast<c10::ScalarType>(view.dtype);
  out.conj = value.conj;
  out.neg = value.neg;
  out.sizes = view.sizes;
  out.strides = view.strides;
  out.offset = view.offset;
  if (in == kNotInput) {
    out.kind = GraphOutput::Kind::kFresh;
    out.index = view.buffer;  // a buffer, until close_symbols numbers the new storages
    graph_.buffers[view.buffer].survives = true;
    return out;
  }
  out.kind = starts_[in].view == value.view ? GraphOutput::Kind::kInput : GraphOutput::Kind::kInputView;
  out.index = in;
  return out;
}

void CompiledGraphBuilder::add_output(py::handle object) {
  const auto place = static_cast<uint32_t>(spec_->outputs.size());
  if (is_fx_node(object)) {
    const auto [first, is_new] = outputs_.emplace(object.ptr(), place);
    if (!is_new) {
      GraphOutput& same = spec_->outputs.emplace_back();
      same.kind = GraphOutput::Kind::kSame;
      same.index = first->second;
      return;
    }
  }
  spec_->outputs.push_back(output(object));
}

Sym CompiledGraphBuilder::on_host(Sym symbol) {
  if (symbol == kNoSym || symbol < graph_.params) return symbol;
  const auto known = host_symbols_.find(symbol);
  if (known != host_symbols_.end()) return known->second;
  ir::Expr expr = graph_.exprs[symbol - graph_.params];
  if (expr.kind != ExprKind::kConst) {
    expr.a = on_host(expr.a);
    expr.b = on_host(expr.b);
  }
  const Sym copy = spec_->host.symbols();
  spec_->host.exprs.push_back(expr);
  host_symbols_.emplace(symbol, copy);
  return copy;
}

void CompiledGraphBuilder::on_host(std::vector<Sym>& list) {
  for (Sym& symbol : list) symbol = on_host(symbols_.closed(symbol));
}

void CompiledGraphBuilder::note_accesses() {
  using Elements = GraphInput::Elements;
  for (const ir::Node& node : graph_.nodes) {
    // Reads of a node come before its overwrites.
    for (const bool overwrites : {false, true}) {
      ir::for_each_access(node, [&](uint32_t v, ir::Access access) {
        const uint32_t index = input_of_buffer_[graph_.views[v].buffer];
        if (index == kNotInput) return;
        GraphInput& in = spec_->inputs[index];
        in.written = in.written || access != ir::Access::kReads;
        const bool all = access == ir::Access::kOverwrites && graph_.views[v] == graph_.views[starts_[index].view];
        if (in.elements != Elements::kUnused || all != overwrites) return;
        in.elements = all ? Elements::kOverwritten : Elements::kRead;
        if (!all) in.reader = spec_->sources[node.record];
      });
    }
  }
}

void CompiledGraphBuilder::close_symbols() {
  symbols_.close();
  for (ir::Buffer& buffer : graph_.buffers) {
    if (buffer.nbytes != kNoSym) buffer.nbytes = symbols_.closed(buffer.nbytes);
  }
  for (ir::View& view : graph_.views) {
    for (Sym& size : view.sizes) size = symbols_.closed(size);
    for (Sym& stride : view.strides) stride = symbols_.closed(stride);
    view.offset = symbols_.closed(view.offset);
  }
  for (ir::Node& node : graph_.nodes) {
    for (Arg& arg : node.args) {
      ir::for_each_symbol(arg, [&](Sym& symbol, uint32_t) { symbol = symbols_.closed(symbol); });
    }
  }
  spec_->host.params = graph_.params;
  for (GraphInput& in : spec_->inputs) {
    on_host(in.sizes);
    on_host(in.strides);
  }
  for (GraphOutput& out : spec_->outputs) {
    on_host(out.sizes);
    on_host(out.strides);
    if (out.offset != kNoSym) out.offset = on_host(symbols_.closed(out.offset));
  }
  for (GraphRandom& random : spec_->randoms) on_host(random.elements);
  std::unordered_map<uint32_t, uint32_t> places;  // surviving buffers to their positions in fresh_nbytes
  for (uint32_t b = 0; b < graph_.buffers.size(); ++b) {
    if (graph_.buffers[b].kind != ir::BufferKind::kFresh || !graph_.buffers[b].survives) continue;
    places.emplace(b, static_cast<uint32_t>(spec_->fresh_nbytes.size()));
    spec_->fresh_nbytes.push_back(on_host(graph_.buffers[b].nbytes));
  }
  for (GraphOutput& out : spec_->outputs) {
    if (out.kind == GraphOutput::Kind::kFresh) out.index = places.at(out.index);
  }
}

std::unique_ptr<CompiledGraphSpec> CompiledGraphBuilder::finish() {
  note_accesses();
  close_symbols();
  spec_->device = device_;
  if (const Status status = ir::verify(graph_); !status) {
    TORCH_CHECK(false, "remote: torch.compile made a graph that is not valid: ", status.message());
  }
  spec_->graph = std::make_shared<const ir::Graph>(std::move(graph_));
  return std::move(spec_);
}

}  // namespace torch_remote::frontend
