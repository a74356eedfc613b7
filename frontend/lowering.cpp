#include "frontend/lowering.h"

#include <ATen/ops/_local_scalar_dense_native.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_symnode.h>

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "frontend/graph_ops.h"
#include "frontend/source.h"
#include "frontend/symbols.h"

namespace torch_remote::frontend {
namespace {

namespace py = pybind11;
using ir::Arg;
using ir::ArgKind;
using ir::ArgTag;
using ir::ExprKind;
using ir::Graph;
using ir::kNoSym;
using ir::Sym;
using How = GraphOp::How;

// Raised within add(): the node stays out.
struct Refused {
  std::string why;
};
[[noreturn]] void refuse(std::string why) { throw Refused{std::move(why)}; }

// What a node stands for.
struct Value {
  enum class Kind : uint8_t { kNone, kTensor, kNumber, kInt, kFloat, kBool, kList };
  Kind kind = Kind::kNone;
  uint32_t view = 0;                               // kTensor
  Sym symbol = kNoSym;                             // kNumber, kInt, kFloat, kBool
  c10::ScalarType dtype = c10::ScalarType::Float;  // kNumber
  bool host = false;                               // kTensor: one on the CPU, computed in the program too
  std::vector<Value> items;                        // kList: a list, or several results
};

struct Names {
  py::str meta{"meta"}, val{"val"}, target{"target"}, args{"args"}, kwargs{"kwargs"}, node{"node"},
      fake_device{"fake_device"}, stack_trace{"stack_trace"};
  py::object fx_node = py::module_::import("torch.fx").attr("Node");
  py::object getitem = py::module_::import("operator").attr("getitem");
};

const Names& names() {
  static const auto* instance = new Names;
  return *instance;
}

bool is_fx_node(py::handle object) { return PyObject_IsInstance(object.ptr(), names().fx_node.ptr()) == 1; }

// The entry of a dict, or null; borrowed.
PyObject* lookup(py::handle dict, py::handle key) {
  PyObject* found = PyDict_GetItemWithError(dict.ptr(), key.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return found;
}

py::object meta_entry(py::handle node, const py::str& key) {
  PyObject* value = lookup(node.attr(names().meta), key);
  return value == nullptr ? py::object() : py::reinterpret_borrow<py::object>(value);
}

c10::Device device_of(py::handle tensor) {
  const py::object device = py::getattr(tensor, names().fake_device, py::none());
  return device.is_none() ? THPVariable_Unpack(tensor.ptr()).device()
                          : reinterpret_cast<THPDevice*>(device.ptr())->device;
}

Arg number(ArgTag tag, Sym symbol) {
  Arg arg;
  arg.tag = tag;
  arg.a = symbol;
  return arg;
}

bool is_number_list(ArgKind kind) {
  switch (kind) {
    case ArgKind::kIntList:
    case ArgKind::kOptionalIntList:
    case ArgKind::kFloatList:
    case ArgKind::kOptionalFloatList:
    case ArgKind::kBoolList:
    case ArgKind::kScalarList:
      return true;
    default:
      return false;
  }
}

ArgTag tag_of(ArgKind kind) {
  switch (kind) {
    case ArgKind::kInt:
    case ArgKind::kOptionalInt:
    case ArgKind::kIntList:
    case ArgKind::kOptionalIntList:
      return ArgTag::kInt;
    case ArgKind::kFloat:
    case ArgKind::kOptionalFloat:
    case ArgKind::kFloatList:
    case ArgKind::kOptionalFloatList:
      return ArgTag::kFloat;
    case ArgKind::kBool:
    case ArgKind::kOptionalBool:
    case ArgKind::kBoolList:
      return ArgTag::kBool;
    default:
      return ArgTag::kNone;  // as the number is
  }
}

}  // namespace

struct Lowering::State {
  State(c10::DeviceIndex index, bool trust_ranges) : device(index), symbols(graph, trust_ranges) {
    symbols.on_unknown = [this](py::handle symbol) { return offered_symbol(symbol); };
  }

  // -- symbols --------------------------------------------------------------------------------------------------------

  // Of an expression that a node outside gives, as a number or as a size.
  std::optional<Sym> offered_symbol(py::handle expr) {
    PyObject* node = lookup(offered, expr);
    if (node == nullptr || values.contains(node)) return std::nullopt;
    input(node);
    return symbols.defined(expr);
  }

  Sym size_of(const c10::SymInt& size) {
    const auto found = symbols.find_size(size);
    if (!found) refuse("a size is an expression that no program can hold");
    return *found;
  }

  // The symbol of a Python number, SymInt or node in a place for `tag` (kNone: whatever it is, which is then set).
  Sym number_symbol(py::handle value, ArgTag& tag) {
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
        if (its == ArgTag::kInt && graph.is_constant(v.symbol, &known))
          return float_constant(static_cast<double>(known));
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

  Sym float_constant(double value) { return symbols.constant(std::bit_cast<int64_t>(value)); }

  // Real and imaginary part, neighbours: not shared with equal constants.
  Sym complex_constant(py::handle value) {
    const double parts[] = {PyComplex_RealAsDouble(value.ptr()), PyComplex_ImagAsDouble(value.ptr())};
    const Sym first = Symbols::kFirstExpr + static_cast<Sym>(graph.exprs.size());
    for (const double part : parts) {
      graph.exprs.push_back({ExprKind::kConst, kNoSym, kNoSym, std::bit_cast<int64_t>(part)});
    }
    return first;
  }

  // -- values ---------------------------------------------------------------------------------------------------------

  void remember(py::handle node, Value value) {
    kept.push_back(py::reinterpret_borrow<py::object>(node));
    values.insert_or_assign(node.ptr(), std::move(value));
  }

  // Of a node that is in the graph, or becomes its input.
  const Value& value_of(py::handle node) {
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

  const Value& input(py::handle node) {
    if (!outside.contains(node.ptr())) refuse("it needs what the program computes, as a number");
    const py::object val = meta_entry(node, names().val);
    if (!val) refuse("a node has no example value");
    GraphInput in;
    Value value;
    if (THPVariable_Check(val.ptr())) {
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

  void tensor_input(py::handle val, GraphInput& in, Value& value) {
    const at::Tensor& tensor = THPVariable_Unpack(val.ptr());
    check_plain(tensor);
    const c10::Device on = device_of(val);
    in.dtype = tensor.scalar_type();
    if (on.is_cpu() && tensor.dim() == 0) {
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

  // A size of an input: known, or a parameter that it gives.
  Sym told_by(GraphInput& in, const c10::SymInt& size, uint32_t dim) {
    if (const auto known = symbols.find_size(size)) return *known;
    const py::handle node = Symbols::node_of(size);
    if (!node) refuse("an input has a size that no program can hold");
    const Sym param = symbols.new_param();
    symbols.define(node, param);
    in.size_params.emplace_back(dim, param);
    return symbols.find_size(size).value_or(param);
  }

  static void check_plain(const at::Tensor& tensor) {
    if (tensor.layout() != c10::kStrided) refuse("a tensor is not strided");
    if (tensor.is_conj() || tensor.is_neg()) refuse("a tensor is a lazy conjugate or negative");
    if (!ir::is_valid(static_cast<ir::DType>(tensor.scalar_type())))
      refuse("a tensor has a dtype that no program holds");
  }

  void check_device(c10::Device on) const {
    if (on.type() != c10::DeviceType::PrivateUse1 || (on.has_index() && on.index() != device)) {
      refuse("a tensor is on " + on.str());
    }
  }

  // -- buffers and views ----------------------------------------------------------------------------------------------

  uint32_t new_buffer(ir::BufferKind kind, Sym nbytes, uint32_t input_index) {
    ir::Buffer buffer;
    buffer.kind = kind;
    buffer.survives = kind == ir::BufferKind::kInput;
    buffer.nbytes = nbytes;
    graph.buffers.push_back(buffer);
    input_of_buffer.push_back(input_index);
    return static_cast<uint32_t>(graph.buffers.size() - 1);
  }

  uint32_t new_view(uint32_t buffer, c10::ScalarType dtype, const std::vector<Sym>& sizes,
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

  struct Geometry {
    std::vector<Sym> sizes, strides;
  };
  Geometry geometry(const at::Tensor& tensor) {
    Geometry g;
    for (const c10::SymInt& size : tensor.sym_sizes()) g.sizes.push_back(size_of(size));
    for (const c10::SymInt& stride : tensor.sym_strides()) {
      const auto found = symbols.find(stride);
      if (!found) refuse("a stride is an expression that no program can hold");
      g.strides.push_back(*found);
    }
    return g;
  }

  // Bytes of the memory that a tensor reaches from offset 0.
  Sym extent(const Geometry& g, size_t item_size) {
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

  Sym elements(py::handle val) {
    Sym count = symbols.constant(1);
    for (const c10::SymInt& size : THPVariable_Unpack(val.ptr()).sym_sizes()) {
      count = symbols.expr(ExprKind::kMul, count, size_of(size));
    }
    return count;
  }

  // A new tensor like this fake one. `host`: it may be one of the CPU's.
  Value fresh(py::handle val, bool host = false) {
    Value value;
    if (val.is_none()) return value;
    if (!THPVariable_Check(val.ptr())) refuse("a result is no tensor");
    const at::Tensor& tensor = THPVariable_Unpack(val.ptr());
    check_plain(tensor);
    const c10::Device on = device_of(val);
    value.host = host && on.is_cpu() && tensor.dim() == 0;
    if (!value.host) check_device(on);
    const Geometry g = geometry(tensor);
    const uint32_t buffer = new_buffer(ir::BufferKind::kFresh, extent(g, tensor.element_size()), kNotInput);
    value.kind = Value::Kind::kTensor;
    value.view = new_view(buffer, tensor.scalar_type(), g.sizes, g.strides, symbols.constant(0));
    return value;
  }

  // A view of `base`'s buffer, like this fake tensor (or list of them).
  Value view_of(const Value& base, py::handle val) {
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
      at = symbols.expr(ExprKind::kSub, at, *start);
      at = symbols.expr(ExprKind::kAdd, spec->inputs[in].param, at);
    }
    if (static_cast<ir::DType>(tensor.scalar_type()) != graph.views[base.view].dtype && in != kNotInput) {
      refuse("a view of an input has another dtype");  // its offset counts other elements
    }
    value.kind = Value::Kind::kTensor;
    value.view = new_view(buffer, tensor.scalar_type(), g.sizes, g.strides, at);
    return value;
  }

  // -- arguments ------------------------------------------------------------------------------------------------------

  Arg operand(py::handle value, bool writes) {
    Arg arg;
    if (value.is_none()) return arg;
    if (!is_fx_node(value)) {  // a number
      ArgTag tag = ArgTag::kNone;
      const Sym symbol = number_symbol(value, tag);
      return scalar_tensor(symbol, tag);
    }
    const Value& v = value_of(value);
    switch (v.kind) {
      case Value::Kind::kNone:
        return arg;
      case Value::Kind::kTensor:
        hosts_only &= v.host;
        arg.tag = ArgTag::kView;
        arg.a = v.view;
        if (writes) {
          const uint32_t in = input_of_buffer[graph.views[v.view].buffer];
          if (in != kNotInput) spec->inputs[in].written = true;
        }
        return arg;
      case Value::Kind::kNumber:
        arg.tag = ArgTag::kScalarTensor;
        arg.a = v.symbol;
        arg.b = static_cast<uint32_t>(v.dtype);
        if (writes) refuse("a tensor on the CPU is written");
        return arg;
      case Value::Kind::kInt:
        return scalar_tensor(v.symbol, ArgTag::kInt);
      case Value::Kind::kFloat:
        return scalar_tensor(v.symbol, ArgTag::kFloat);
      case Value::Kind::kBool:
        return scalar_tensor(v.symbol, ArgTag::kBool);
      case Value::Kind::kList:
        break;
    }
    refuse("a list stands in a tensor's place");
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
    if (desc.role == ir::ArgRole::kIgnored) return arg;
    if (desc.role == ir::ArgRole::kRandom) {
      if (value && !value.is_none()) refuse("it draws from a generator of its own");
      arg.tag = ArgTag::kGenerator;
      arg.a = symbols.new_param();
      symbols.new_param();
      return arg;
    }
    if (!value) refuse("argument '" + std::string(desc.name) + "' is missing");
    if (value.is_none() && desc.kind != ArgKind::kTensor) return arg;
    switch (desc.kind) {
      case ArgKind::kTensor:
      case ArgKind::kOptionalTensor:
        return operand(value, desc.writes);
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList:
        arg.tag = ArgTag::kList;
        if (is_fx_node(value)) {
          const Value v = value_of(value);
          if (v.kind != Value::Kind::kList) refuse("a tensor stands in a list's place");
          for (const Value& item : v.items) {
            if (item.kind != Value::Kind::kTensor) refuse("a list holds something else than tensors");
            hosts_only &= item.host;
            arg.items.push_back(number(ArgTag::kView, item.view));
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
        if (!THPDtype_Check(value.ptr())) refuse("a dtype is none");
        return number(ArgTag::kDType, static_cast<uint32_t>(reinterpret_cast<THPDtype*>(value.ptr())->scalar_type));
      case ArgKind::kMemoryFormat:
        if (!THPMemoryFormat_Check(value.ptr())) refuse("a memory format is none");
        return number(ArgTag::kMemoryFormat,
                      static_cast<uint32_t>(reinterpret_cast<THPMemoryFormat*>(value.ptr())->memory_format));
      default:
        break;
    }
    if (is_number_list(desc.kind)) {
      arg.tag = ArgTag::kList;
      if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value)) {
        arg.items.push_back(checked_number(desc, value));  // torch takes one for int[1]
        return arg;
      }
      for (const py::handle item : value) arg.items.push_back(checked_number(desc, item));
      return arg;
    }
    return checked_number(desc, value);
  }

  Arg checked_number(const ir::ArgDesc& desc, py::handle value) {
    ArgTag tag = tag_of(desc.kind);
    const Sym symbol = number_symbol(value, tag);
    if (desc.role == ir::ArgRole::kStructural && !graph.is_constant(symbol)) {
      refuse("argument '" + std::string(desc.name) + "', which a program fixes, is known only at the call");
    }
    return number(tag, symbol);
  }

  // -- nodes ----------------------------------------------------------------------------------------------------------

  // The node's arguments in the order of its schema; null for those that are neither given nor have a default.
  static std::vector<py::object> arguments_of(py::handle node, const GraphOp& op) {
    const py::tuple args = node.attr(names().args);
    const py::dict kwargs = node.attr(names().kwargs);
    std::vector<py::object> all(op.arguments.size());
    for (size_t i = 0; i < all.size(); ++i) {
      if (i < args.size()) {
        all[i] = args[i];
      } else if (PyObject* given = kwargs.size() == 0 ? nullptr : lookup(kwargs, op.arguments[i].name)) {
        all[i] = py::reinterpret_borrow<py::object>(given);
      } else {
        all[i] = op.arguments[i].otherwise;
      }
    }
    return all;
  }

  ir::Node& new_node(const ir::OpDesc& desc, std::vector<Arg> args, py::handle fx) {
    ir::Node& node = graph.nodes.emplace_back();
    node.opcode = desc.opcode;
    node.args = std::move(args);
    node.results.resize(desc.results.size());
    node.source = static_cast<uint32_t>(spec->sources.size());
    const py::object text = meta_entry(fx, names().stack_trace);
    spec->sources.push_back(text && py::isinstance<py::str>(text) ? text_source(text.ptr()) : ir::SourceRef());
    return node;
  }

  std::vector<Arg> convert_all(const ir::OpDesc& desc, const std::vector<py::object>& given) {
    std::vector<Arg> args;
    args.reserve(desc.args.size());
    for (size_t i = 0; i < desc.args.size(); ++i) {
      args.push_back(convert(desc.args[i], i < given.size() ? py::handle(given[i]) : py::handle()));
    }
    return args;
  }

  // A random op's seed and offset, drawn at each call.
  void draw(const ir::OpDesc& desc, const std::vector<Arg>& args, std::vector<Sym> counts) {
    if (!(desc.flags & ir::kOpRandom)) return;
    GraphRandom random{kNoSym, std::move(counts)};
    for (const Arg& arg : args) {
      if (arg.tag == ArgTag::kGenerator) random.seed = arg.a;
      if (arg.tag == ArgTag::kView) {
        Sym count = symbols.constant(1);
        for (const Sym size : graph.views[arg.a].sizes) count = symbols.expr(ExprKind::kMul, count, size);
        random.elements.push_back(count);
      }
    }
    spec->randoms.push_back(std::move(random));
  }

  Value record(py::handle fx, py::handle val, const ir::OpDesc& desc, const std::vector<py::object>& given) {
    hosts_only = true;
    std::vector<Arg> args = convert_all(desc, given);
    const bool host = hosts_only && !(desc.flags & (ir::kOpRandom | ir::kOpInPlace | ir::kOpOut));
    const bool several = desc.results.size() != 1;
    if (several && !desc.results.empty() && !py::isinstance<py::tuple>(val) && !py::isinstance<py::list>(val)) {
      refuse("its example value is no tuple");
    }
    Value value;
    std::vector<Arg> results(desc.results.size());
    std::vector<Sym> counts;
    const Arg* mask = result_mask(desc, args);
    for (size_t i = 0; i < desc.results.size(); ++i) {
      const ir::ResultDesc& result = desc.results[i];
      Value one;
      if (mask != nullptr && i < mask->items.size() && mask->items[i].a == symbols.constant(0)) {
        // not wanted
      } else if (i > 0 && is_batch_norm_at_rest(desc, args)) {
        // The CPU's op returns no statistics then, whatever the example says; nobody's result depends on them.
        one = fresh(val[py::int_(i)]);
      } else if (result.alias >= 0) {
        one.kind = Value::Kind::kTensor;
        if (args[result.alias].tag != ArgTag::kView) refuse("it returns an argument that is no tensor of the device");
        one.view = args[result.alias].a;
      } else {
        const py::object its = several ? py::object(val[py::int_(i)]) : py::reinterpret_borrow<py::object>(val);
        if (result.kind == ir::ResultKind::kTensorList) {
          one.kind = Value::Kind::kList;
          results[i].tag = ArgTag::kList;
          for (const py::handle item : its) {
            one.items.push_back(fresh(item, host));
            results[i].items.push_back(result_arg(one.items.back()));
          }
        } else {
          one = fresh(its, host);
          results[i] = result_arg(one);
          if (one.kind == Value::Kind::kTensor && (desc.flags & ir::kOpRandom)) counts.push_back(elements(its));
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
    new_node(desc, std::move(args), fx).results = std::move(results);
    return value;
  }

  // The argument of a backward op that says which results are wanted, if it has one.
  static const Arg* result_mask(const ir::OpDesc& desc, const std::vector<Arg>& args) {
    for (size_t i = 0; i < args.size(); ++i) {
      if (desc.args[i].kind == ArgKind::kBoolList && desc.args[i].name.ends_with("put_mask")) return &args[i];
    }
    return nullptr;
  }

  // Batch norm that is not training.
  bool is_batch_norm_at_rest(const ir::OpDesc& desc, const std::vector<Arg>& args) {
    if (!desc.name.starts_with("aten::_native_batch_norm") && desc.name != "aten::native_batch_norm") return false;
    for (size_t i = 0; i < args.size(); ++i) {
      if (desc.args[i].name == "training") return args[i].a == symbols.constant(0);
    }
    return desc.name.find("no_training") != std::string_view::npos;
  }

  static Arg result_arg(const Value& value) {
    return value.kind == Value::Kind::kTensor ? number(ArgTag::kView, value.view) : Arg();
  }

  // New memory that an in-place op fills; `rest` follow its first argument.
  Value fill(py::handle fx, py::handle val, const ir::OpDesc& desc, const std::vector<py::object>& rest) {
    hosts_only = true;
    std::vector<Arg> args(1);
    for (size_t i = 1; i < desc.args.size(); ++i) {
      args.push_back(convert(desc.args[i], i - 1 < rest.size() ? py::handle(rest[i - 1]) : py::handle()));
    }
    const Value value = fresh(val, hosts_only && !(desc.flags & ir::kOpRandom));
    args[0] = result_arg(value);
    draw(desc, args, {});
    new_node(desc, std::move(args), fx);
    return value;
  }

  std::vector<py::object> random_arguments(const GraphOp& op, py::handle fx, const std::vector<py::object>& given) {
    const auto name = py::cast<std::string>(fx.attr(names().target).attr("_name"));
    const auto among = [&](std::string_view wanted) {
      for (size_t i = 0; i < op.arguments.size(); ++i) {
        if (py::cast<std::string>(op.arguments[i].name) == wanted) return given[i];
      }
      return py::object(py::none());
    };
    const py::object generator = among("generator");
    if (generator && !generator.is_none()) refuse("it draws from a generator of its own");
    if (name.starts_with("aten::rand") && op.desc->name == "aten::random_.from") {
      const py::object low = among("low");
      return {low.is_none() ? py::object(py::int_(0)) : low, among("high"), py::none()};
    }
    if (op.desc->name == "aten::bernoulli_.Tensor" && name == "aten::bernoulli") return {given[0], py::none()};
    if (name.starts_with("aten::rand")) {  // uniform in [0, 1), or normal with mean 0 and deviation 1
      return {py::float_(0.0), py::float_(1.0), py::none()};
    }
    return {given.begin() + 1, given.end()};
  }

  Value attention(py::handle fx, py::handle val, const GraphOp& op, const std::vector<py::object>& given) {
    const bool backward = op.how == How::kAttentionBackward;
    const auto at = [&](size_t i) { return given[i]; };
    const double dropout = at(backward ? 12 : 4).cast<double>();
    if (dropout != 0.0) refuse("fused attention has no dropout");
    std::vector<py::object> mine;
    if (backward) {
      mine = {at(0), at(1), at(2), at(3), at(6), at(7), at(12), at(13), at(4), at(16)};
    } else {
      mine = {at(0), at(1), at(2), at(4), at(5), at(3), at(7)};
    }
    std::vector<Arg> args = convert_all(*op.desc, mine);
    Value value;
    value.kind = Value::Kind::kList;
    std::vector<Arg> results;
    const size_t made = op.desc->results.size();
    for (const py::handle its : py::reinterpret_borrow<py::tuple>(val)) {
      Value one;
      if (torch::is_symint(its) || PyLong_Check(its.ptr())) {
        ArgTag tag = ArgTag::kInt;
        one.kind = Value::Kind::kInt;
        one.symbol = number_symbol(its, tag);
      } else {
        one = fresh(its);
      }
      if (results.size() < made) results.push_back(result_arg(one));
      value.items.push_back(std::move(one));
    }
    new_node(*op.desc, std::move(args), fx).results = std::move(results);
    return value;
  }

  Value lower(py::handle fx) {
    const py::object target = fx.attr(names().target);
    if (target.is(names().getitem)) {
      const py::tuple args = fx.attr(names().args);
      const Value& list = value_of(args[0]);
      if (list.kind != Value::Kind::kList || !PyLong_Check(py::object(args[1]).ptr())) refuse("it indexes no list");
      const auto index = py::cast<int64_t>(args[1]);
      if (index < 0 || index >= static_cast<int64_t>(list.items.size())) refuse("it indexes no item");
      return Value(list.items[static_cast<size_t>(index)]);
    }
    const GraphOp& op = graph_op(target);
    if (op.how == How::kNot) refuse(op.why_not);
    py::object val = meta_entry(fx, names().val);
    if (!val) {
      if (op.how != How::kRecord || !op.desc->results.empty()) refuse("it has no example value");
      val = py::none();
    }
    const std::vector<py::object> given = arguments_of(fx, op);
    switch (op.how) {
      case How::kView: {
        if (!is_fx_node(given[0])) refuse("it is a view of no node");
        const Value base = value_of(given[0]);
        if (base.kind != Value::Kind::kTensor || base.host) refuse("it is a view of no tensor of the device");
        return view_of(base, val);
      }
      case How::kEmpty:
        return fresh(val);
      case How::kCopy:
        if (!is_fx_node(given[op.from])) refuse("it copies no node");
        return fill(fx, val, *op.desc, {given[op.from], py::bool_(false)});
      case How::kRandom:
        return fill(fx, val, *op.desc, random_arguments(op, fx, given));
      case How::kAttention:
      case How::kAttentionBackward:
        return attention(fx, val, op, given);
      default:
        return record(fx, val, *op.desc, given);
    }
  }

  GraphOutput output(py::handle object) {
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
      case Value::Kind::kTensor:
        break;
      default:  // an input of a kind that nothing here changes
        for (size_t i = 0; i < input_nodes.size(); ++i) {
          if (PyList_GET_ITEM(input_nodes.ptr(), static_cast<Py_ssize_t>(i)) != object.ptr()) continue;
          out.kind = GraphOutput::Kind::kInput;
          out.index = static_cast<uint32_t>(i);
          return out;
        }
        refuse("a result is of a kind that a graph does not return");
    }
    const ir::View& view = graph.views[value.view];
    const uint32_t in = input_of_buffer[view.buffer];
    out.dtype = static_cast<c10::ScalarType>(view.dtype);
    out.sizes = view.sizes;
    out.strides = view.strides;
    out.offset = view.offset;
    if (in == kNotInput) {
      out.kind = GraphOutput::Kind::kFresh;
      out.index = view.buffer;  // of the buffer, until they are numbered
      graph.buffers[view.buffer].survives = true;
      return out;
    }
    out.kind = starts[in].view == value.view ? GraphOutput::Kind::kInput : GraphOutput::Kind::kInputView;
    out.index = in;
    return out;
  }

  // -- the end --------------------------------------------------------------------------------------------------------

  void close_arg(Arg& arg) {
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

  // Copies what `symbol` is made of to the host's graph; the symbol there.
  Sym on_host(Sym symbol) {
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
  void on_host(std::vector<Sym>& list) {
    for (Sym& symbol : list) symbol = on_host(symbols.closed(symbol));
  }

  void close() {
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

  static constexpr uint32_t kNotInput = 0xFFFFFFFF;

  const c10::DeviceIndex device;
  std::unique_ptr<CompiledGraphSpec> spec = std::make_unique<CompiledGraphSpec>();
  Graph graph;
  Symbols symbols;
  bool hosts_only = false;                // of the node at hand: no tensor of the device was among its arguments
  std::unordered_set<PyObject*> outside;  // nodes that may become inputs
  py::dict offered;                       // by the sizes (sympy expressions) that they tell
  std::unordered_map<PyObject*, Value> values;
  std::vector<py::object> kept;  // the nodes in `values`
  py::list input_nodes;
  std::vector<uint32_t> input_of_buffer;  // or kNotInput
  struct Start {
    uint32_t view = 0;
    c10::SymInt offset;  // the fake tensor's
  };
  std::vector<Start> starts;  // by input; of tensors
  std::unordered_map<Sym, Sym> host_symbols;
  std::string why_not;
};

Lowering::Lowering(c10::DeviceIndex device, bool trust_ranges)
    : state_(std::make_unique<State>(device, trust_ranges)) {}
Lowering::~Lowering() = default;

void Lowering::offer(py::object node) {
  const py::object val = meta_entry(node, names().val);
  if (val && torch::is_symint(val)) {
    state_->offered[val.attr(names().node).attr("expr")] = node;
  } else if (val && THPVariable_Check(val.ptr())) {
    for (const c10::SymInt& size : THPVariable_Unpack(val.ptr()).sym_sizes()) {
      const py::handle symbolic = Symbols::node_of(size);
      if (symbolic) PyDict_SetDefault(state_->offered.ptr(), symbolic.attr("expr").ptr(), node.ptr());
    }
  }
  state_->outside.insert(node.ptr());
  state_->kept.push_back(std::move(node));
}

bool Lowering::add(py::object node) {
  State& s = *state_;
  // Inputs that are met on the way stay; a node and its results are all or nothing.
  const size_t nodes = s.graph.nodes.size(), sources = s.spec->sources.size(), randoms = s.spec->randoms.size();
  try {
    Value value = s.lower(node);
    s.remember(node, std::move(value));
    return true;
  } catch (const Refused& refused) {
    s.why_not = refused.why;
    s.graph.nodes.resize(nodes);
    s.spec->sources.resize(sources);
    s.spec->randoms.resize(randoms);
    return false;
  }
}

const std::string& Lowering::why_not() const { return state_->why_not; }

bool Lowering::is_host(py::handle node) const {
  const auto found = state_->values.find(node.ptr());
  if (found == state_->values.end()) return false;
  const Value* value = &found->second;
  while (value->kind == Value::Kind::kList && !value->items.empty()) value = &value->items[0];
  return value->host;
}

void Lowering::constant(const py::object& node, const at::Tensor& value) {
  State& s = *state_;
  Value v;
  v.kind = Value::Kind::kNumber;
  v.dtype = value.scalar_type();
  const c10::Scalar number = at::native::_local_scalar_dense_cpu(value);  // whatever modes are on
  if (number.isComplex()) {
    v.symbol = s.complex_constant(py::cast(number.toComplexDouble()));
  } else {
    v.symbol =
        number.isFloatingPoint() ? s.float_constant(number.toDouble()) : s.symbols.constant(number.to<int64_t>());
  }
  s.remember(node, std::move(v));
}

size_t Lowering::size() const { return state_->graph.nodes.size(); }
py::list Lowering::inputs() const { return state_->input_nodes; }

std::unique_ptr<CompiledGraphSpec> Lowering::finish(const py::list& outputs) {
  State& s = *state_;
  try {
    for (const py::handle object : outputs) s.spec->outputs.push_back(s.output(object));
  } catch (const Refused& refused) {
    TORCH_CHECK(false, "remote: a compiled graph's result cannot be returned: ", refused.why);
  }
  s.close();
  s.spec->device = s.device;
  if (const Status status = ir::verify(s.graph); !status) {
    TORCH_CHECK(false, "remote: torch.compile made a graph that is not valid: ", status.message());
  }
  s.spec->graph = std::make_shared<const Graph>(std::move(s.graph));
  return std::move(s.spec);
}

}  // namespace torch_remote::frontend
