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

// Thrown when a node cannot be part of a graph. The node then stays out of it.
struct UnsupportedNode {
  std::string why;
};
[[noreturn]] void throw_unsupported(std::string why);

// The value of an FX node.
struct Value {
  enum class Kind : uint8_t { kNone, kTensor, kNumber, kInt, kFloat, kBool, kRandomState, kList };
  Kind kind = Kind::kNone;
  uint32_t view = 0;  // kTensor
  // kInt, kFloat, kBool; kNumber: if complex, the real part, followed by the imaginary part; kRandomState: the seed,
  // followed by the position
  ir::Sym symbol = ir::kNoSym;
  c10::ScalarType dtype = c10::ScalarType::Float;  // kNumber
  // kTensor: a 0-dim CPU tensor; the program computes its value for its own use
  bool computed_on_cpu = false;
  // kTensor: lazily conjugated or negated; `view` describes the memory as torch has it
  bool conj = false, neg = false;
  std::vector<Value> items;  // kList: items of a list, or several results
};

// Sizes and strides of a tensor.
struct Geometry {
  std::vector<ir::Sym> sizes, strides;
};

// Builds a graph: symbols, values of FX nodes, inputs, buffers, views and nodes. Lowering (lowering.cpp) decides which
// ones to add. All methods require the GIL, and may throw UnsupportedNode.
class CompiledGraphBuilder {
 public:
  CompiledGraphBuilder(c10::DeviceIndex device, bool trust_ranges);

  const ir::Graph& graph() const { return graph_; }
  Symbols& symbols() { return symbols_; }

  // -- numbers

  // The symbol of a Python number, SymInt or node that is used as a `tag`. If `tag` is kNone, any kind of number is
  // accepted, and `tag` is set to its kind.
  ir::Sym number_symbol(pybind11::handle value, ir::ArgTag& tag);
  ir::Sym float_constant(double value);  // the double's bits
  // Two consecutive symbols, the real and the imaginary part. They are never shared with equal constants.
  ir::Sym complex_constant(pybind11::handle value);
  // Returns the value of a symbolic int, or of a node that has one, and adds a guard for it, so that Dynamo compiles
  // again for another value. Returns nothing for any other value, without `trust_ranges`, if the value has no hint, if
  // it is too late for a guard, or if the guard would fix a tensor's size.
  std::optional<int64_t> guarded_value(pybind11::handle value);

  // -- values of nodes

  // Offers a node whose value a call can provide. It becomes an input when another node needs it. With
  // `determines_size`, it also becomes an input when a size that it determines is needed.
  void offer(pybind11::object node, bool determines_size);
  void remember(pybind11::handle node, Value value);
  // The value of a node that is in the graph, or null.
  const Value* find_value(pybind11::handle node) const;
  // The value of a node. If the node is not in the graph, it becomes an input.
  const Value& value_of(pybind11::handle node);
  // Makes an offered node an input; throws UnsupportedNode for any other node. With `random_state`, the argument is the
  // state of a generator.
  const Value& make_input(pybind11::handle node, bool random_state = false);
  // The nodes that became inputs, in order.
  const pybind11::list& input_nodes() const { return input_nodes_; }

  // -- memory

  // A view of a new buffer.
  uint32_t fresh_view(c10::ScalarType dtype, const Geometry& g);
  // A new tensor with the metadata of this fake tensor. With `host`, it may be a 0-dim CPU tensor.
  Value fresh(pybind11::handle val, bool host = false);
  // A view of `base`'s buffer with the metadata of this fake tensor, or a list of views for a list of fake tensors.
  Value view_of(const Value& base, pybind11::handle val);
  ir::Sym elements(pybind11::handle val);  // number of elements of a fake tensor

  // -- nodes

  // Adds a node without results, which the caller sets. `fx` is the FX node that has the source line. The reference is
  // valid until the next node is added.
  ir::Node& add_node(const ir::OpDesc& desc, std::vector<ir::Arg> args, pybind11::handle fx);
  void add_random(GraphRandom random) { spec_->randoms.push_back(std::move(random)); }
  const std::vector<GraphRandom>& randoms() const { return spec_->randoms; }

  // Counts what was added; `cut_to` removes the nodes, sources and random numbers that were added since. Inputs,
  // buffers, views and symbols stay.
  struct Size {
    size_t nodes = 0, sources = 0, randoms = 0;
  };
  Size size() const { return {graph_.nodes.size(), spec_->sources.size(), spec_->randoms.size()}; }
  void cut_to(const Size& size);

  // -- outputs

  // Adds the next result of a call of the graph: a node's value, or an object that every call returns unchanged.
  void add_output(pybind11::handle object);
  // Returns the graph and its calling convention; the builder must not be used afterwards. Throws c10::Error if the
  // graph does not verify.
  std::unique_ptr<CompiledGraphSpec> finish();

 private:
  static constexpr uint32_t kNotInput = 0xFFFFFFFF;

  ir::Sym size_of(const c10::SymInt& size);
  // The symbol of an expression that an offered node determines, as its value or as a size. The node becomes an input.
  std::optional<ir::Sym> offered_symbol(pybind11::handle expr);
  void make_tensor_input(pybind11::handle val, GraphInput& in, Value& value);
  // The symbol of an input's size: a known one, or a new parameter that the input sets.
  ir::Sym input_size(GraphInput& in, const c10::SymInt& size, uint32_t dim);
  static void check_strided_dtype(const at::Tensor& tensor);  // refuses layouts and dtypes that programs do not support
  void check_device(c10::Device on) const;
  uint32_t new_buffer(ir::BufferKind kind, ir::Sym nbytes, uint32_t input_index);
  uint32_t new_view(uint32_t buffer, c10::ScalarType dtype, const std::vector<ir::Sym>& sizes,
                    const std::vector<ir::Sym>& strides, ir::Sym offset);
  Geometry geometry(const at::Tensor& tensor);
  // Bytes from a storage's start to the end of a tensor that begins at offset 0.
  ir::Sym extent(const Geometry& g, size_t item_size);
  GraphOutput output(pybind11::handle object);

  // Assigns the final numbers of symbols, and copies the expressions that the host evaluates.
  void close_symbols();
  // Sets GraphInput::written, elements and reader.
  void note_accesses();
  // Copies the expression of `symbol` to the host's graph, and returns its symbol there.
  ir::Sym on_host(ir::Sym symbol);
  void on_host(std::vector<ir::Sym>& list);

  const c10::DeviceIndex device_;
  std::unique_ptr<CompiledGraphSpec> spec_ = std::make_unique<CompiledGraphSpec>();
  ir::Graph graph_;
  Symbols symbols_;
  std::unordered_set<PyObject*> offered_nodes_;  // nodes that may become inputs
  pybind11::dict offered_by_size_;               // by the sizes (sympy expressions) that they determine
  std::vector<PyObject*> offered_tensors_;       // whose sizes are not in `offered_by_size_` yet
  std::unordered_map<PyObject*, Value> values_;
  std::vector<pybind11::object> alive_nodes_;  // keeps alive the nodes in `values_` and `offered_nodes_`
  pybind11::list input_nodes_;
  std::vector<uint32_t> input_of_buffer_;  // by buffer; kNotInput for others
  struct Start {
    uint32_t view = 0;
    c10::SymInt offset;  // the fake tensor's offset
  };
  std::vector<Start> starts_;                        // by input; for tensors
  std::unordered_map<PyObject*, uint32_t> outputs_;  // by node: its first output
  std::unordered_map<ir::Sym, ir::Sym> host_symbols_;
};

}  // namespace torch_remote::frontend
