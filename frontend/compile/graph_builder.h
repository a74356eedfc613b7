#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "frontend/compile/compiled_graph_spec.h"
#include "frontend/compile/symbols.h"
#include "ir/graph.h"

namespace torch_remote::frontend {

// Raised where a node cannot be part of a graph: it stays out.
struct Refused {
  std::string why;
};
[[noreturn]] void refuse(std::string why);

// What a node stands for.
struct Value {
  enum class Kind : uint8_t { kNone, kTensor, kNumber, kInt, kFloat, kBool, kRandomState, kList };
  Kind kind = Kind::kNone;
  uint32_t view = 0;            // kTensor
  ir::Sym symbol = ir::kNoSym;  // kNumber, kInt, kFloat, kBool; kRandomState: the seed, the position follows
  c10::ScalarType dtype = c10::ScalarType::Float;  // kNumber
  bool host = false;                               // kTensor: one on the CPU, computed in the program too
  bool conj = false, neg = false;                  // kTensor: lazily; the view has what torch's memory has
  std::vector<Value> items;                        // kList: a list, or several results
};

// The parts of a graph that is lowered: symbols, the values of FX nodes, inputs, buffers and views. Lowering
// (lowering.cpp) makes nodes of it. With the GIL; anything may raise Refused.
struct GraphBuilder {
  GraphBuilder(c10::DeviceIndex device, bool trust_ranges);

  // -- symbols: constants, parameters and expressions

  // A tensor's size.
  ir::Sym size_of(const c10::SymInt& size);
  // The symbol of a Python number, SymInt or node in a place for `tag` (kNone: whatever it is, which is then set).
  ir::Sym number_symbol(pybind11::handle value, ir::ArgTag& tag);
  ir::Sym float_constant(double value);  // its bits
  // Real and imaginary part, neighbours: not shared with equal constants.
  ir::Sym complex_constant(pybind11::handle value);

  // -- values of nodes

  void remember(pybind11::handle node, Value value);
  // Of a node that is in the graph, or becomes its input.
  const Value& value_of(pybind11::handle node);
  // Makes a node that was offered an argument of the call. `random_state`: as one of a generator.
  const Value& input(pybind11::handle node, bool random_state = false);
  void tensor_input(pybind11::handle val, GraphInput& in, Value& value);
  // A size of an input: known, or a parameter that it gives.
  ir::Sym told_by(GraphInput& in, const c10::SymInt& size, uint32_t dim);
  static void check_plain(const at::Tensor& tensor);  // strided, of a dtype that programs hold
  void check_device(c10::Device on) const;

  // -- buffers and views

  uint32_t new_buffer(ir::BufferKind kind, ir::Sym nbytes, uint32_t input_index);
  uint32_t new_view(uint32_t buffer, c10::ScalarType dtype, const std::vector<ir::Sym>& sizes,
                    const std::vector<ir::Sym>& strides, ir::Sym offset);
  struct Geometry {
    std::vector<ir::Sym> sizes, strides;
  };
  Geometry geometry(const at::Tensor& tensor);
  // Bytes of the memory that a tensor reaches from offset 0.
  ir::Sym extent(const Geometry& g, size_t item_size);
  ir::Sym elements(pybind11::handle val);  // of a fake tensor
  // A view of new memory.
  uint32_t fresh_view(c10::ScalarType dtype, const Geometry& g);
  // A new tensor like this fake one. `host`: it may be one of the CPU's.
  Value fresh(pybind11::handle val, bool host = false);
  // A view of `base`'s buffer, like this fake tensor (or list of them).
  Value view_of(const Value& base, pybind11::handle val);

  // Its place among the inputs.
  std::optional<uint32_t> input_index(pybind11::handle node) const;

  // Ends it: final numbers of symbols, what the host evaluates, what happens to inputs.
  void close();

  static constexpr uint32_t kNotInput = 0xFFFFFFFF;

  const c10::DeviceIndex device;
  std::unique_ptr<CompiledGraphSpec> spec = std::make_unique<CompiledGraphSpec>();
  ir::Graph graph;
  Symbols symbols;
  bool hosts_only = false;                 // of the node at hand: no tensor of the device was among its arguments
  std::unordered_set<PyObject*> outside;   // nodes that may become inputs
  pybind11::dict offered;                  // by the sizes (sympy expressions) that they tell
  std::vector<PyObject*> offered_tensors;  // whose sizes nobody has asked for yet
  std::unordered_map<PyObject*, Value> values;
  std::vector<pybind11::object> kept;  // the nodes in `values`
  pybind11::list input_nodes;
  std::vector<uint32_t> input_of_buffer;  // or kNotInput
  struct Start {
    uint32_t view = 0;
    c10::SymInt offset;  // the fake tensor's
  };
  std::vector<Start> starts;  // by input; of tensors
  std::unordered_map<ir::Sym, ir::Sym> host_symbols;
  std::unordered_map<PyObject*, at::Tensor> host_constants;  // 0-dim, on the CPU
  std::unordered_map<PyObject*, uint32_t> host_steps;        // that make these nodes

 private:
  // Of an expression that a node outside gives, as a number or as a size.
  std::optional<ir::Sym> offered_symbol(pybind11::handle expr);
  void close_arg(ir::Arg& arg);
  // Sets GraphInput::elements.
  void note_elements();
  // Copies what `symbol` is made of to the host's graph; the symbol there.
  ir::Sym on_host(ir::Sym symbol);
  void on_host(std::vector<ir::Sym>& list);
};

}  // namespace torch_remote::frontend
