#include "passes/testing/interpreter.h"

#include <cstring>
#include <memory>
#include <utility>

#include "passes/rewrite.h"

namespace torch_remote::passes::testing {
namespace {

using ir::Arg;
using ir::ArgTag;
using ir::Graph;
using ir::kNoBuffer;
using ir::Node;
using ir::View;

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15;
  return hash ^ hash >> 29;
}

struct Element {
  uint64_t value = 0;
  bool defined = true;
};

class Interpreter {
 public:
  Interpreter(const Graph& graph, const std::vector<int64_t>& values)
      : graph_(graph), values_(values), lifetimes_(ir::find_lifetimes(graph)) {}

  void run(const std::vector<std::vector<uint8_t>>& inputs, std::vector<Bytes>* survivors) {
    memory_.resize(graph_.buffers.size());
    size_t next = 0;
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (graph_.buffers[i].kind != ir::BufferKind::kInput) continue;
      memory_[i] = std::make_shared<Bytes>();
      memory_[i]->data = inputs[next++];
      memory_[i]->defined.assign(memory_[i]->data.size(), true);
    }
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      ir::for_each_view(graph_.nodes[i], [&](uint32_t view, bool) { allocate(graph_.views[view].buffer, i); });
      run_node(graph_.nodes[i]);
      release(i);
    }
    for (const ir::BufferKind kind : {ir::BufferKind::kInput, ir::BufferKind::kFresh}) {
      for (size_t i = 0; i < memory_.size(); ++i) {
        if (graph_.buffers[i].kind != kind || !graph_.buffers[i].survives) continue;
        allocate(static_cast<uint32_t>(i), 0);
        survivors->push_back(*memory_[i]);
      }
    }
  }

 private:
  size_t nbytes(uint32_t buffer) const { return static_cast<size_t>(values_[graph_.buffers[buffer].nbytes]); }

  void allocate(uint32_t buffer, uint32_t node) {
    if (memory_[buffer] != nullptr) return;
    const uint32_t source = graph_.buffers[buffer].may_reuse;
    if (source != kNoBuffer && lifetimes_[buffer].first == node && memory_[source]->data.size() == nbytes(buffer)) {
      memory_[buffer] = memory_[source];
      return;
    }
    memory_[buffer] = std::make_shared<Bytes>();
    memory_[buffer]->data.resize(nbytes(buffer));
    memory_[buffer]->defined.resize(nbytes(buffer));
  }

  void release(uint32_t node) {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (lifetimes_[i].last != node || graph_.buffers[i].survives || memory_[i] == nullptr) continue;
      if (memory_[i].use_count() == 1) memory_[i]->defined.assign(memory_[i]->defined.size(), false);
      memory_[i] = std::make_shared<Bytes>();
    }
  }

  // -- elements ------------------------------------------------------------------------------------------------------

  std::vector<int64_t> sizes(const View& view) const {
    std::vector<int64_t> out;
    for (const ir::Sym size : view.sizes) out.push_back(values_[size]);
    return out;
  }

  static int64_t count(const std::vector<int64_t>& sizes) {
    int64_t n = 1;
    for (const int64_t size : sizes) n *= size;
    return n;
  }

  // Byte position of the element of `view` at the logical index `index` over `shape`, with broadcasting.
  size_t position(const View& view, const std::vector<int64_t>& shape, int64_t index) const {
    int64_t element = values_[view.offset];
    for (size_t d = shape.size(); d-- > 0;) {
      const int64_t i = index % shape[d];
      index /= shape[d];
      const size_t shift = shape.size() - view.sizes.size();
      if (d >= shift && values_[view.sizes[d - shift]] != 1) element += i * values_[view.strides[d - shift]];
    }
    return static_cast<size_t>(element) * ir::item_size(view.dtype);
  }

  Element load(const View& view, const std::vector<int64_t>& shape, int64_t index) const {
    const Bytes& memory = *memory_[view.buffer];
    const size_t at = position(view, shape, index);
    Element element;
    std::memcpy(&element.value, memory.data.data() + at, ir::item_size(view.dtype));
    element.defined = memory.defined[at];
    return element;
  }

  void store(const View& view, const std::vector<int64_t>& shape, int64_t index, Element element) {
    Bytes& memory = *memory_[view.buffer];
    const size_t at = position(view, shape, index);
    const size_t size = ir::item_size(view.dtype);
    std::memcpy(memory.data.data() + at, &element.value, size);
    for (size_t i = 0; i < size; ++i) memory.defined[at + i] = element.defined;
  }

  // -- nodes ---------------------------------------------------------------------------------------------------------

  // Hashes the functional op and the arguments that are not tensors: an in-place op computes the same as its functional
  // op.
  uint64_t identity(const Node& node) const {
    uint64_t hash = mix(1, ir::op_desc(node.opcode).functional);
    for (const Arg& arg : node.args) hash = mix(hash, number(arg));
    return hash;
  }

  uint64_t number(const Arg& arg) const {
    uint64_t hash = mix(2, arg.tag == ArgTag::kView ? 0 : static_cast<uint64_t>(arg.tag));
    Arg copy = arg;
    if (arg.tag != ArgTag::kList) {
      ir::for_each_symbol(copy, [&](ir::Sym& symbol, uint32_t n) {
        for (uint32_t i = 0; i < n; ++i) hash = mix(hash, static_cast<uint64_t>(values_[symbol + i]));
      });
    }
    for (const Arg& item : arg.items) hash = mix(hash, number(item));
    return hash;
  }

  void run_node(const Node& node) {
    const ir::OpDesc& desc = ir::op_desc(node.opcode);
    if (ir::fills_first_argument(desc)) return fill(node);
    if (desc.family == ir::Family::kPointwise && node.args[0].tag == ArgTag::kView) return pointwise(node);
    mix_all_elements(node);
  }

  // copy_, fill_, zero_: the first argument is not read.
  void fill(const Node& node) {
    const View& to = graph_.views[node.args[0].a];
    const std::vector<int64_t> shape = sizes(to);
    std::vector<Element> elements(static_cast<size_t>(count(shape)));
    for (size_t i = 0; i < elements.size(); ++i) {
      if (node.args.size() < 2) {
        elements[i].value = 0;
      } else if (node.args[1].tag == ArgTag::kView) {
        const View& from = graph_.views[node.args[1].a];
        elements[i] = load(from, shape, static_cast<int64_t>(i));
        if (from.dtype != to.dtype) elements[i].value = mix(elements[i].value, static_cast<uint64_t>(to.dtype));
      } else {
        elements[i].value = number(node.args[1]);
      }
    }
    for (size_t i = 0; i < elements.size(); ++i) store(to, shape, static_cast<int64_t>(i), elements[i]);
  }

  // Computes element by element, like a kernel that takes over an operand's memory. In place, all reads come first.
  void pointwise(const Node& node) {
    const bool in_place = node.results[0].tag != ArgTag::kView;
    const View& target = graph_.views[in_place ? node.args[0].a : node.results[0].a];
    const std::vector<int64_t> shape = sizes(target);
    const uint64_t op = identity(node);
    const uint32_t functional = ir::op_desc(node.opcode).functional;
    const bool commutes = (ir::op_desc(functional).flags & ir::kOpCommutative) != 0;
    std::vector<Element> elements;
    for (int64_t i = 0; i < count(shape); ++i) {
      Element element{op, true};
      std::vector<uint64_t> operands;
      for (const Arg& arg : node.args) {
        if (arg.tag != ArgTag::kView) continue;
        const Element operand = load(graph_.views[arg.a], shape, i);
        operands.push_back(operand.value);
        element.defined = element.defined && operand.defined;
      }
      if (commutes && operands.size() == 2 && operands[0] > operands[1]) std::swap(operands[0], operands[1]);
      for (const uint64_t operand : operands) element.value = mix(element.value, operand);
      if (in_place) {
        elements.push_back(element);
      } else {
        store(target, shape, i, element);
      }
    }
    for (size_t i = 0; i < elements.size(); ++i) store(target, shape, static_cast<int64_t>(i), elements[i]);
  }

  // Every written element depends on every element that is read.
  void mix_all_elements(const Node& node) {
    Element all{identity(node), true};
    ir::for_each_access(node, [&](uint32_t index, ir::Access access) {
      if (access == ir::Access::kCreates) return;
      const View& view = graph_.views[index];
      const std::vector<int64_t> shape = sizes(view);
      for (int64_t i = 0; i < count(shape); ++i) {
        const Element element = load(view, shape, i);
        all.value = mix(all.value, element.value);
        all.defined = all.defined && element.defined;
      }
    });
    uint64_t written = 0;
    ir::for_each_view(node, [&](uint32_t index, bool writes) {
      if (!writes) return;
      const View& view = graph_.views[index];
      const std::vector<int64_t> shape = sizes(view);
      ++written;
      for (int64_t i = 0; i < count(shape); ++i) {
        store(view, shape, i, {mix(mix(all.value, written), static_cast<uint64_t>(i)), all.defined});
      }
    });
  }

  const Graph& graph_;
  const std::vector<int64_t>& values_;
  const std::vector<ir::Lifetime> lifetimes_;
  std::vector<std::shared_ptr<Bytes>> memory_;
};

}  // namespace

Status interpret(const Graph& graph, const std::vector<int64_t>& params,
                 const std::vector<std::vector<uint8_t>>& inputs, std::vector<Bytes>* survivors) {
  std::vector<int64_t> values;
  if (Status status = ir::evaluate(graph, params.data(), &values); !status) return status;
  std::vector<uint64_t> nbytes;
  size_t next = 0;
  for (const ir::Buffer& buffer : graph.buffers) {
    const bool input = buffer.kind == ir::BufferKind::kInput;
    nbytes.push_back(input ? inputs[next++].size() : static_cast<uint64_t>(values[buffer.nbytes]));
  }
  if (Status status = ir::check_extents(graph, values, nbytes); !status) return status;
  Interpreter(graph, values).run(inputs, survivors);
  return {};
}

}  // namespace torch_remote::passes::testing
