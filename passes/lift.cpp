#include <cstdint>
#include <vector>

#include "passes/pass.h"
#include "passes/rewrite.h"

// lift: finds the buffers that hold only one value, and creates more of them.
//
// An in-place pointwise op on a whole fresh buffer becomes its functional sibling with a new buffer as result. So x = a
// + b; x.relu_() is two values, and not one memory location. The new *index* goes to the older value. The last value
// keeps the buffer's index, because the client relies on the indices of surviving buffers. This is exact only if the
// functional op gives the same dtype. Nothing but the value that the op reads may ever have been written to the buffer.
// The node is marked in_place for runs in which it fails: the buffer then has the older value.
//
// Ops on integers stay in place: a division can fail halfway, when the older value may have lost its memory. Finally,
// every buffer that only its first node writes is marked written_once.
namespace torch_remote::passes {
namespace {

using ir::Arg;
using ir::ArgTag;
using ir::DType;
using ir::Graph;
using ir::kNoNode;
using ir::Node;
using ir::OpDesc;
using ir::View;

constexpr uint32_t kNoView = 0xFFFFFFFF;

// The order of categories in torch's type promotion.
int category(DType dtype) {
  if (dtype == DType::kBool) return 0;
  if (ir::is_complex(dtype)) return 3;
  return ir::is_float(dtype) ? 2 : 1;
}

// Whether the functional op has the same arguments, writes none of them, and has a new tensor as its only result.
bool is_functional_form(const OpDesc& in_place, const OpDesc& functional) {
  if (in_place.args.size() != functional.args.size() || functional.results.size() != 1) return false;
  if (functional.results[0].kind != ir::ResultKind::kTensor || functional.results[0].alias >= 0) return false;
  for (size_t i = 0; i < in_place.args.size(); ++i) {
    const ir::ArgDesc& a = in_place.args[i];
    const ir::ArgDesc& b = functional.args[i];
    if (a.name != b.name || a.kind != b.kind || a.role != b.role || b.writes || a.writes != (i == 0)) return false;
  }
  return true;
}

class Lifter {
 public:
  explicit Lifter(Graph& graph) : graph_(graph), states_(graph.buffers.size()) {}

  void run() {
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) scan(i);
    if (!converted_.empty()) rewrite();
    mark();
  }

 private:
  // The value that a buffer holds while the nodes are scanned.
  struct State {
    uint32_t definition = kNoView;  // the view that the value's node wrote
    uint32_t first = kNoNode;
    bool overwritten = false;  // something else wrote it since then
    uint32_t conversions = 0;
  };

  void scan(uint32_t index) {
    const Node& node = graph_.nodes[index];
    if (convertible(node)) {
      const uint32_t view = node.args[0].a;
      State& state = states_[graph_.views[view].buffer];
      state.definition = view;
      ++state.conversions;
      converted_.push_back(index);
      return;
    }
    ir::for_each_view(node, [&](uint32_t view, bool writes) {
      State& state = states_[graph_.views[view].buffer];
      if (writes) {
        if (state.first == kNoNode) {
          state.definition = view;
        } else {
          state.overwritten = true;
        }
      }
      if (state.first == kNoNode) state.first = index;
    });
  }

  bool convertible(const Node& node) const {
    const OpDesc& desc = ir::op_desc(node.opcode);
    if ((desc.flags & ir::kOpInPlace) == 0 || desc.functional == desc.opcode || node.args.empty()) return false;
    if (node.args[0].tag != ArgTag::kView) return false;
    const OpDesc& functional = ir::op_desc(desc.functional);
    if (functional.family != ir::Family::kPointwise || (functional.flags & ir::kOpPure) == 0) return false;
    const View& self = graph_.views[node.args[0].a];
    const State& state = states_[self.buffer];
    if (graph_.buffers[self.buffer].kind != ir::BufferKind::kFresh || state.definition == kNoView ||
        state.overwritten) {
      return false;
    }
    return ir::same_geometry(self, graph_.views[state.definition]) && is_functional_form(desc, functional) &&
           keeps_dtype(functional, node, self);
  }

  // Whether the functional op's result has self's dtype, by torch's promotion rules.
  bool keeps_dtype(const OpDesc& functional, const Node& node, const View& self) const {
    if (functional.shape_rule == ir::ShapeRule::kComparison) {
      if (self.dtype != DType::kBool) return false;
    } else if (functional.shape_rule != ir::ShapeRule::kPointwise) {
      return false;
    }
    const int limit = category(self.dtype);
    if (limit == 1 || limit == 3) return false;  // divisions by zero; abs and angle of a complex number are real
    for (const Arg& arg : node.args) {
      switch (arg.tag) {
        case ArgTag::kView: {
          const View& view = graph_.views[arg.a];
          const bool weaker = view.sizes.empty() && !self.sizes.empty() && category(view.dtype) <= limit;
          if (view.dtype != self.dtype && !weaker) return false;
          break;
        }
        case ArgTag::kScalarTensor: {
          const DType dtype = static_cast<DType>(arg.b & 0xFF);
          const bool weaker = ((arg.b >> 8) != 0 || !self.sizes.empty()) && category(dtype) <= limit;
          if (dtype != self.dtype && !weaker) return false;
          break;
        }
        case ArgTag::kInt:
          if (limit < 1) return false;
          break;
        case ArgTag::kFloat:
          if (limit < 2) return false;
          break;
        case ArgTag::kComplex:
        case ArgTag::kList:
          return false;
        default:
          break;
      }
    }
    return true;
  }

  // -- rewriting -----------------------------------------------------------------------------------------------------

  // For each buffer with conversions: the new buffers of its older values, and which value is current.
  struct Versions {
    uint32_t first = 0;
    uint32_t count = 0;    // number of older values
    uint32_t current = 0;  // == count: the last value, which keeps the buffer
  };

  void rewrite() {
    graph_.drop_plan();
    versions_.resize(graph_.buffers.size());
    for (uint32_t i = 0; i < states_.size(); ++i) {
      versions_[i] = {static_cast<uint32_t>(graph_.buffers.size()), states_[i].conversions, 0};
      for (uint32_t k = 0; k < states_[i].conversions; ++k) {
        ir::Buffer older = graph_.buffers[i];
        older.survives = false;
        older.written_once = false;
        graph_.buffers.push_back(older);
      }
    }
    renamed_.resize(graph_.views.size());
    size_t next = 0;
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      Node& node = graph_.nodes[i];
      const bool convert = next < converted_.size() && converted_[next] == i;
      const uint32_t self = convert ? node.args[0].a : kNoView;
      for_each_view_slot(node, [&](uint32_t& view, bool) { view = renamed(view); });
      if (!convert) continue;
      ++next;
      ++versions_[graph_.views[self].buffer].current;
      node.opcode = ir::op_desc(node.opcode).functional;
      node.in_place = true;
      Arg result;
      result.tag = ArgTag::kView;
      result.a = renamed(self);
      node.results.assign(1, result);
    }
  }

  // Returns the same view of the current value's buffer.
  uint32_t renamed(uint32_t view) {
    const uint32_t buffer = graph_.views[view].buffer;
    if (buffer >= versions_.size()) return view;
    const Versions& versions = versions_[buffer];
    if (versions.current == versions.count) return view;
    const uint32_t target = versions.first + versions.current;
    Renamed& known = renamed_[view];
    if (known.buffer != target) {
      View copy = graph_.views[view];
      copy.buffer = target;
      known = {target, static_cast<uint32_t>(graph_.views.size())};
      graph_.views.push_back(std::move(copy));
    }
    return known.view;
  }

  // Marks the written_once buffers, as the verifier defines them.
  void mark() {
    struct Use {
      uint32_t first = kNoNode;
      bool defined = false;
      bool written_again = false;
    };
    std::vector<Use> uses(graph_.buffers.size());
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      ir::for_each_view(graph_.nodes[i], [&](uint32_t view, bool writes) {
        Use& use = uses[graph_.views[view].buffer];
        if (use.first == kNoNode) {
          use.first = i;
          use.defined = writes;
        } else {
          use.written_again |= writes || use.first == i;
        }
      });
    }
    for (size_t i = 0; i < uses.size(); ++i) {
      const bool fresh = graph_.buffers[i].kind == ir::BufferKind::kFresh;
      graph_.buffers[i].written_once = fresh && uses[i].defined && !uses[i].written_again;
    }
  }

  struct Renamed {
    uint32_t buffer = ir::kNoBuffer;
    uint32_t view = kNoView;
  };

  Graph& graph_;
  std::vector<State> states_;
  std::vector<uint32_t> converted_;
  std::vector<Versions> versions_;
  std::vector<Renamed> renamed_;
};

}  // namespace

Status lift(Graph& graph, const PassContext&) {
  graph.drop_groups();
  Lifter(graph).run();
  return {};
}

}  // namespace torch_remote::passes
