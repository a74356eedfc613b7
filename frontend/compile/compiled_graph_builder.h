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

// Sizes and strides of a tensor.
struct Geometry {
  std::vector<ir::Sym> sizes, strides;
};

// The parts of a graph that is lowered: symbols, the values of FX nodes, inputs, buffers and views, nodes. Lowering
// (lowering.cpp) says which. With the GIL; anything may raise Refused.
class CompiledGraphBuilder {
 public:
  CompiledGraphBuilder(c10::DeviceIndex device, bool trust_ranges);

  const ir::Graph& graph() const { return graph_; }
  Symbols& symbols() { return symbols_; }

  // -- numbers

  // The symbol of a Python number, SymInt or node in a place for `tag` (kNone: whatever it is, which is then set).
  ir::Sym number_symbol(pybind11::handle value, ir::ArgTag& tag);
  ir::Sym float_constant(double value);  // its bits
  // Real and imaginary part, neighbours: not shared with equal constants.
  ir::Sym complex_constant(pybind11::handle value);
  // What a symbolic int is in this compilation, for good: for another value Dynamo compiles again. None where it is too
  // late for a guard, or where one would say what a tensor's size must be.
  std::optional<int64_t> guarded_value(pybind11::handle value);

  // -- values of nodes

  // A node whose value a call can be given: it becomes an input when a node needs it or, if it is one that
  // `tells_size`, a size.
  void offer(pybind11::object node, bool tells_size);
  void remember(pybind11::handle node, Value value);
  // Of a node that is in the graph, or null.
  const Value* find_value(pybind11::handle node) const;
  // Of a node that is in the graph, or becomes its input.
  const Value& value_of(pybind11::handle node);
  // Makes a node that was offered an argument of the call. `random_state`: as one of a generator.
  const Value& make_input(pybind11::handle node, bool random_state = false);
  // The nodes that became inputs, in order.
  const pybind11::list& input_nodes() const { return input_nodes_; }

  // -- memory

  // A view of new memory.
  uint32_t fresh_view(c10::ScalarType dtype, const Geometry& g);
  // A new tensor like this fake one. `host`: it may be one of the CPU's.
  Value fresh(pybind11::handle val, bool host = false);
  // A view of `base`'s buffer, like this fake tensor (or list of them).
  Value view_of(const Value& base, pybind11::handle val);
  ir::Sym elements(pybind11::handle val);  // of a fake tensor

  // -- nodes

  // `fx`: where the user's line is told.
  ir::Node& add_node(const ir::OpDesc& desc, std::vector<ir::Arg> args, pybind11::handle fx);
  void add_random(GraphRandom random) { spec_->randoms.push_back(std::move(random)); }
  const std::vector<GraphRandom>& randoms() const { return spec_->randoms; }

  // How much there is; `cut_to` forgets what was added since. Inputs stay.
  struct Size {
    size_t nodes = 0, sources = 0, randoms = 0;
  };
  Size size() const { return {graph_.nodes.size(), spec_->sources.size(), spec_->randoms.size()}; }
  void cut_to(const Size& size);

  // -- the end

  // The next result of a call: a node, or an object that a call returns as it is.
  void add_output(pybind11::handle object);
  std::unique_ptr<CompiledGraphSpec> finish();

 private:
  static constexpr uint32_t kNotInput = 0xFFFFFFFF;

  ir::Sym size_of(const c10::SymInt& size);
  // Of an expression that a node outside gives, as a number or as a size.
  std::optional<ir::Sym> offered_symbol(pybind11::handle expr);
  void make_tensor_input(pybind11::handle val, GraphInput& in, Value& value);
  // A size of an input: known, or a parameter that it gives.
  ir::Sym input_size(GraphInput& in, const c10::SymInt& size, uint32_t dim);
  static void check_plain(const at::Tensor& tensor);  // strided, of a dtype that programs hold
  void check_device(c10::Device on) const;
  uint32_t new_buffer(ir::BufferKind kind, ir::Sym nbytes, uint32_t input_index);
  uint32_t new_view(uint32_t buffer, c10::ScalarType dtype, const std::vector<ir::Sym>& sizes,
                    const std::vector<ir::Sym>& strides, ir::Sym offset);
  Geometry geometry(const at::Tensor& tensor);
  // Bytes of the memory that a tensor reaches from offset 0.
  ir::Sym extent(const Geometry& g, size_t item_size);
  GraphOutput output(pybind11::handle object);

  // Final numbers of symbols, and what the host evaluates.
  void close_symbols();
  void close_arg(ir::Arg& arg);
  // Sets GraphInput::written, elements and reader.
  void note_accesses();
  // Copies what `symbol` is made of to the host's graph; the symbol there.
  ir::Sym on_host(ir::Sym symbol);
  void on_host(std::vector<ir::Sym>& list);

  const c10::DeviceIndex device_;
  std::unique_ptr<CompiledGraphSpec> spec_ = std::make_unique<CompiledGraphSpec>();
  ir::Graph graph_;
  Symbols symbols_;
  std::unordered_set<PyObject*> outside_;   // nodes that may become inputs
  pybind11::dict offered_;                  // by the sizes (sympy expressions) that they tell
  std::vector<PyObject*> offered_tensors_;  // whose sizes nobody has asked for yet
  std::unordered_map<PyObject*, Value> values_;
  std::vector<pybind11::object> kept_;  // the nodes in `values_` and `outside_`
  pybind11::list input_nodes_;
  std::vector<uint32_t> input_of_buffer_;  // or kNotInput
  struct Start {
    uint32_t view = 0;
    c10::SymInt offset;  // the fake tensor's
  };
  std::vector<Start> starts_;                        // by input; of tensors
  std::unordered_map<PyObject*, uint32_t> outputs_;  // by node: the first one that it is
  std::unordered_map<ir::Sym, ir::Sym> host_symbols_;
};

}  // namespace torch_remote::frontend
