#include <algorithm>
#include <string>

#include "ir/analysis.h"
#include "ir/graph.h"
#include "ir/number_kinds.h"

namespace torch_remote::ir {
namespace {

constexpr uint32_t kMaxParams = 1u << 24;

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), symbols_(graph.symbols()) {}

  Status run() {
    if (symbols() && buffers() && views() && nodes() && plan() && groups()) return {};
    return Status::invalid("remote: the program is not valid: " + error_);
  }

 private:
  struct Use {
    uint32_t creator = kNoNode;  // the node that has it as a result
    uint32_t first = kNoNode;
    uint32_t last = kNoNode;
    bool written_as_argument = false;  // the first node that touches it writes it as an argument
    bool written_again = false;        // written again, or read by the node that fills it
  };

  bool fail(std::string what) {
    error_ = std::move(what);
    return false;
  }

  bool fail_node(uint32_t index, const std::string& what) {
    const Node& node = graph_.nodes[index];
    std::string name = "opcode " + std::to_string(node.opcode);
    if (known(node.opcode)) name = op_desc(node.opcode).name;
    return fail("node " + std::to_string(index) + " (" + name + "): " + what);
  }

  static bool known(Opcode opcode) {
    return opcode != kInvalidOpcode && (opcode >= kFirstOpaque || opcode < op_table().size());
  }

  // -- symbols, buffers, views ---------------------------------------------------------------------------------------

  bool symbols() {
    if (graph_.params > kMaxParams || graph_.exprs.size() > kMaxParams) return fail("too many symbols");
    Sym symbol = graph_.params;
    for (const Expr& expr : graph_.exprs) {
      const bool constant = expr.kind == ExprKind::kConst;
      const bool good = constant ? expr.a == kNoSym && expr.b == kNoSym
                                 : expr.kind <= ExprKind::kMin && expr.a < symbol && expr.b < symbol && expr.value == 0;
      if (!good) return fail("symbol s" + std::to_string(symbol) + " is not an expression over earlier symbols");
      ++symbol;
    }
    return true;
  }

  bool buffers() {
    uses_.resize(graph_.buffers.size());
    for (size_t i = 0; i < graph_.buffers.size(); ++i) {
      const Buffer& buffer = graph_.buffers[i];
      if (buffer.kind == BufferKind::kInput) {
        if (buffer.written_once)
          return fail("input buffer b" + std::to_string(i) + " is marked written_once, but it existed before");
        if (buffer.nbytes != kNoSym) return fail("input buffer b" + std::to_string(i) + " has a size of its own");
      } else if (buffer.kind != BufferKind::kFresh) {
        return fail("buffer b" + std::to_string(i) + " is neither input nor fresh");
      } else if (buffer.nbytes != kNoSym && buffer.nbytes >= symbols_) {
        return fail("the size of buffer b" + std::to_string(i) + " is not a symbol");
      }
    }
    return true;
  }

  bool views() {
    for (size_t i = 0; i < graph_.views.size(); ++i) {
      const View& view = graph_.views[i];
      const char* what = nullptr;
      if (view.buffer >= graph_.buffers.size()) {
        what = "is of no buffer";
      } else if (!is_valid(view.dtype)) {
        what = "has no dtype";
      } else if (view.dynamic) {
        what = dynamic_view(view);
      } else {
        what = static_view(view);
      }
      if (what != nullptr) return fail("view %" + std::to_string(i) + " " + what);
    }
    return true;
  }

  const char* dynamic_view(const View& view) const {
    const Buffer& buffer = graph_.buffers[view.buffer];
    if (!view.sizes.empty() || !view.strides.empty() || view.offset != kNoSym) return "is dynamic, but has a geometry";
    if (buffer.kind != BufferKind::kFresh || buffer.nbytes != kNoSym) return "is dynamic, but its buffer is not";
    return nullptr;
  }

  const char* static_view(const View& view) const {
    const Buffer& buffer = graph_.buffers[view.buffer];
    if (view.sizes.size() != view.strides.size()) return "does not have as many strides as sizes";
    if (view.sizes.size() > kMaxRank) return "has more than 64 dims";
    if (buffer.kind == BufferKind::kFresh && buffer.nbytes == kNoSym) return "is of a buffer without a size";
    bool good = view.offset < symbols_;
    for (const Sym size : view.sizes) good &= size < symbols_;
    for (const Sym stride : view.strides) good &= stride < symbols_;
    return good ? nullptr : "has a size, stride or offset that is not a symbol";
  }

  // -- nodes ---------------------------------------------------------------------------------------------------------

  bool nodes() {
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!node(i)) return false;
    }
    for (size_t i = 0; i < uses_.size(); ++i) {
      if (!graph_.buffers[i].written_once) continue;
      if (uses_[i].creator == kNoNode && !uses_[i].written_as_argument) {
        return fail("buffer b" + std::to_string(i) +
                    " is marked written_once, but is not written by the first node that touches it");
      }
      if (uses_[i].written_again)
        return fail("buffer b" + std::to_string(i) + " is marked written_once, but is written more than once");
    }
    return true;
  }

  bool node(uint32_t index) {
    const Node& node = graph_.nodes[index];
    if (!known(node.opcode)) return fail_node(index, "the op table lacks this op");
    const OpDesc& desc = op_desc(node.opcode);
    if (node.args.size() != desc.args.size()) {
      return fail_node(
          index, std::to_string(node.args.size()) + " arguments, but the op has " + std::to_string(desc.args.size()));
    }
    if (node.results.size() != desc.results.size()) {
      return fail_node(index, std::to_string(node.results.size()) + " results, but the op has " +
                                  std::to_string(desc.results.size()));
    }
    const char* what = nullptr;
    for (size_t i = 0; i < node.args.size(); ++i) {
      if ((what = argument(index, desc.args[i], node.args[i])) != nullptr) {
        return fail_node(index, "argument '" + std::string(desc.args[i].name) + "' " + what);
      }
    }
    for (size_t i = 0; i < node.results.size(); ++i) {
      if ((what = result(index, desc.results[i], node.results[i])) != nullptr) {
        return fail_node(index, "result " + std::to_string(i) + " " + what);
      }
    }
    if (node.in_place && !updates_first_argument(node)) {
      return fail_node(index, "is marked in_place, but its result is not the next value of its first argument");
    }
    return true;
  }

  // Whether the node has one result, in another buffer than its first argument, with the argument's dtype, sizes,
  // strides and offset.
  bool updates_first_argument(const Node& node) const {
    if (node.args.empty() || node.args[0].tag != ArgTag::kView) return false;
    if (node.results.size() != 1 || node.results[0].tag != ArgTag::kView) return false;
    const View& from = graph_.views[node.args[0].a];
    View to = graph_.views[node.results[0].a];
    if (to.buffer == from.buffer || op_desc(node.opcode).args[0].writes) return false;
    to.buffer = from.buffer;
    return to == from;
  }

  // The checks of one argument return the error, or null.

  const char* argument(uint32_t index, const ArgDesc& desc, const Arg& arg) {
    if (desc.role == ArgRole::kClientOnly)
      return has_only_tag_and_value(arg, ArgTag::kNone) ? nullptr : "is given, but the op ignores it";
    switch (desc.kind) {
      case ArgKind::kTensor:
      case ArgKind::kOptionalTensor:
        return operand(index, desc.writes, arg);
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList:
        if (!list(arg)) return "is not a list of tensors";
        for (const Arg& item : arg.items) {
          if (const char* what = operand(index, desc.writes, item)) return what;
        }
        return nullptr;
      case ArgKind::kOptionalInt:
      case ArgKind::kOptionalFloat:
      case ArgKind::kOptionalBool:
      case ArgKind::kOptionalScalar:
        if (arg.tag == ArgTag::kNone)
          return has_only_tag_and_value(arg, ArgTag::kNone) ? nullptr : "has parts it must not have";
        [[fallthrough]];
      case ArgKind::kInt:
      case ArgKind::kFloat:
      case ArgKind::kBool:
      case ArgKind::kScalar:
        return number(desc, arg);
      case ArgKind::kOptionalIntList:
      case ArgKind::kOptionalFloatList:
        if (arg.tag == ArgTag::kNone)
          return has_only_tag_and_value(arg, ArgTag::kNone) ? nullptr : "has parts it must not have";
        [[fallthrough]];
      case ArgKind::kIntList:
      case ArgKind::kFloatList:
      case ArgKind::kBoolList:
      case ArgKind::kScalarList:
        if (!list(arg)) return "is not a list of numbers";
        for (const Arg& item : arg.items) {
          if (const char* what = number(desc, item)) return what;
        }
        return nullptr;
      case ArgKind::kOptionalString:
        if (has_only_tag_and_value(arg, ArgTag::kNone)) return nullptr;
        [[fallthrough]];
      case ArgKind::kString:
        return arg.tag == ArgTag::kString && arg.a == 0 && arg.b == 0 && arg.items.empty() ? nullptr
                                                                                           : "is not a string";
      case ArgKind::kDType:
        if (has_only_tag_and_value(arg, ArgTag::kNone)) return nullptr;
        return has_only_tag_and_value(arg, ArgTag::kDType) && arg.a <= 0xFF && is_valid(static_cast<DType>(arg.a))
                   ? nullptr
                   : "is not a dtype";
      case ArgKind::kMemoryFormat:
        if (has_only_tag_and_value(arg, ArgTag::kNone)) return nullptr;
        return has_only_tag_and_value(arg, ArgTag::kMemoryFormat) && arg.a < kMemoryFormats ? nullptr
                                                                                            : "is not a memory format";
      case ArgKind::kGenerator:
        return has_only_tag_and_value(arg, ArgTag::kGenerator) && pair(arg.a) ? nullptr
                                                                              : "is not a pair of seed and offset";
      case ArgKind::kLayout:
      case ArgKind::kDevice:
      case ArgKind::kUnsupported:
        break;
    }
    return has_only_tag_and_value(arg, ArgTag::kNone) ? nullptr : "is of a kind that no program can hold";
  }

  // c10::MemoryFormat: contiguous, preserve, channels last, channels last 3d.
  static constexpr uint32_t kMemoryFormats = 4;

  // Whether only the tag and `a` are set, so that each meaning has one form.
  static bool has_only_tag_and_value(const Arg& arg, ArgTag tag) {
    return arg.tag == tag && arg.b == 0 && arg.text.empty() && arg.items.empty() &&
           (tag != ArgTag::kNone || arg.a == 0);
  }
  static bool list(const Arg& arg) { return arg.tag == ArgTag::kList && arg.a == 0 && arg.b == 0 && arg.text.empty(); }
  bool pair(Sym first) const { return first < symbols_ && symbols_ - first >= 2; }

  const char* number(const ArgDesc& desc, const Arg& arg) const {
    if (arg.b != 0 || !arg.text.empty() || !arg.items.empty()) return "has parts it must not have";
    if (!number_tag_fits(desc.kind, arg.tag)) return "is a number of another kind";
    const bool complex = arg.tag == ArgTag::kComplex;
    if (complex ? !pair(arg.a) : arg.a >= symbols_) return "is not a symbol";
    if (desc.role == ArgRole::kStructural &&
        !(graph_.is_constant(arg.a) && (!complex || graph_.is_constant(arg.a + 1)))) {
      return "is structural, so it must be a constant";
    }
    return nullptr;
  }

  static bool number_tag_fits(ArgKind kind, ArgTag tag) {
    const ArgTag only = number_tag(kind);
    return only == ArgTag::kNone ? tag >= ArgTag::kInt && tag <= ArgTag::kComplex : tag == only;
  }

  const char* operand(uint32_t index, bool writes, const Arg& arg) {
    if (arg.tag == ArgTag::kNone)
      return has_only_tag_and_value(arg, ArgTag::kNone) ? nullptr : "has parts it must not have";
    if (arg.tag == ArgTag::kView) {
      if (!has_only_tag_and_value(arg, ArgTag::kView) || arg.a >= graph_.views.size()) return "is not a view";
      const View& view = graph_.views[arg.a];
      if (view.dynamic) return "is a dynamic result: only a later program can read it";
      Use& use = uses_[view.buffer];
      if (use.first == kNoNode) {
        use.written_as_argument = writes;
      } else {
        use.written_again |= writes || (use.written_as_argument && use.first == index);
      }
      touch(view.buffer, index);
      return nullptr;
    }
    if (arg.tag != ArgTag::kScalarTensor) return "is not a tensor";
    if (writes) return "is written, but it is a number";
    if (!arg.text.empty() || !arg.items.empty() || arg.b > 0x1FF) return "has parts it must not have";
    const DType dtype = static_cast<DType>(arg.b & 0xFF);
    if (!is_valid(dtype)) return "has no dtype";
    return (is_complex(dtype) ? pair(arg.a) : arg.a < symbols_) ? nullptr : "is not a symbol";
  }

  const char* result(uint32_t index, const ResultDesc& desc, const Arg& arg) {
    const bool tensors = desc.kind == ResultKind::kTensor || desc.kind == ResultKind::kTensorList;
    if (desc.alias >= 0 || !tensors) {
      return has_only_tag_and_value(arg, ArgTag::kNone) ? nullptr : "must be empty: it is an argument or a number";
    }
    if (desc.kind == ResultKind::kTensor) return created(index, arg);
    if (arg.tag == ArgTag::kView && arg.a < graph_.views.size() && graph_.views[arg.a].dynamic) {
      return created(index, arg);
    }
    if (!list(arg)) return "is not a list of tensors";
    for (const Arg& item : arg.items) {
      if (const char* what = created(index, item)) return what;
    }
    return nullptr;
  }

  const char* created(uint32_t index, const Arg& arg) {
    if (has_only_tag_and_value(arg, ArgTag::kNone)) return nullptr;
    if (!has_only_tag_and_value(arg, ArgTag::kView) || arg.a >= graph_.views.size()) return "is not a view";
    const View& view = graph_.views[arg.a];
    const Buffer& buffer = graph_.buffers[view.buffer];
    Use& use = uses_[view.buffer];
    if (buffer.kind != BufferKind::kFresh) return "is a view of an input buffer";
    if (use.creator == index) {
      if (buffer.written_once) return "is a second view of a written_once buffer";
    } else if (use.first != kNoNode) {
      return "is a view of a buffer that was there before";
    }
    if (view.dynamic && index + 1 != graph_.nodes.size()) return "is dynamic, but the node is not the last one";
    use.creator = index;
    touch(view.buffer, index);
    return nullptr;
  }

  void touch(uint32_t buffer, uint32_t index) {
    Use& use = uses_[buffer];
    if (use.first == kNoNode) use.first = index;
    use.last = index;
  }

  // -- plan ----------------------------------------------------------------------------------------------------------

  bool fail_plan(uint32_t buffer, const std::string& what) {
    return fail("the plan of buffer b" + std::to_string(buffer) + " " + what);
  }

  bool plan() {
    std::vector<bool> taken(graph_.buffers.size());
    for (uint32_t i = 0; i < graph_.buffers.size(); ++i) {
      const uint32_t source = graph_.buffers[i].may_reuse;
      if (source == kNoBuffer) continue;
      if (source >= graph_.buffers.size() || source == i) return fail_plan(i, "may reuse no other buffer");
      const std::string reuse = "may reuse b" + std::to_string(source);
      const uint32_t first = uses_[i].first;
      if (first == kNoNode || uses_[source].last != first || uses_[source].creator == first) {
        return fail_plan(i, reuse + ", whose last use is not the first use of this one");
      }
      if (graph_.buffers[source].survives) return fail_plan(i, reuse + ", which survives");
      if (!may_work_in_place(graph_, graph_.nodes[first], source, i)) {
        return fail_plan(i, reuse + ", but node " + std::to_string(first) + " may not work in place");
      }
      if (taken[source]) return fail_plan(i, reuse + ", which another buffer took over");
      taken[source] = true;
    }
    return true;
  }

  // -- groups --------------------------------------------------------------------------------------------------------

  bool groups() {
    std::vector<uint32_t> group_of(graph_.nodes.size(), kNoNode);
    for (uint32_t i = 0; i < graph_.groups.size(); ++i) {
      const Group& group = graph_.groups[i];
      const auto wrong = [&](const std::string& what) { return fail("group " + std::to_string(i) + " " + what); };
      if (static_cast<uint32_t>(group.kind) >= kGroupKinds) return wrong("is of no kind");
      if ((group.properties & ~kGroupProperties) != 0) return wrong("has unknown properties");
      if (group.first > group.last || group.last >= graph_.nodes.size()) return wrong("has no nodes, or too many");
      if (i > 0 && group.first <= graph_.groups[i - 1].last) return wrong("begins before the one before it ends");
      std::fill(group_of.begin() + group.first, group_of.begin() + group.last + 1, i);
    }
    for (uint32_t i = 0; i < graph_.buffers.size(); ++i) {
      if (!graph_.buffers[i].group_local) continue;
      const auto wrong = [&](const char* what) {
        return fail("buffer b" + std::to_string(i) + " is marked group_local, but " + what);
      };
      const Use& use = uses_[i];
      if (graph_.buffers[i].kind != BufferKind::kFresh || graph_.buffers[i].survives) return wrong("others see it");
      if (use.first == kNoNode || group_of[use.first] == kNoNode || group_of[use.first] != group_of[use.last]) {
        return wrong("is not used by one group only");
      }
    }
    return true;
  }

  const Graph& graph_;
  const uint32_t symbols_;
  std::vector<Use> uses_;
  std::string error_;
};

}  // namespace

Status verify(const Graph& graph) { return Verifier(graph).run(); }

Status check_extents(const Graph& graph, const std::vector<int64_t>& values, std::span<const uint64_t> buffer_nbytes) {
  if (values.size() != graph.symbols() || buffer_nbytes.size() != graph.buffers.size()) {
    return Status::internal("remote: check_extents got " + std::to_string(values.size()) + " symbols and " +
                            std::to_string(buffer_nbytes.size()) + " buffers; the program has " +
                            std::to_string(graph.symbols()) + " and " + std::to_string(graph.buffers.size()));
  }
  for (size_t i = 0; i < graph.views.size(); ++i) {
    const View& view = graph.views[i];
    if (view.dynamic) continue;
    const auto wrong = [&](const std::string& what) {
      return Status::invalid("remote: view %" + std::to_string(i) + " of the program " + what);
    };
    const size_t rank = view.sizes.size();
    int64_t last = values[view.offset];  // the last element that the view reaches
    if (last < 0) return wrong("begins at element " + std::to_string(last) + " of its buffer");
    int64_t elements = 1;
    bool uncountable = false;
    bool overflow = false;
    bool empty = false;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t size = values[view.sizes[d]];
      const int64_t stride = values[view.strides[d]];
      if (size < 0 || (size < 2 && view.sizes[d] < graph.params)) {
        return wrong("got size " + std::to_string(size) + " for dim " + std::to_string(d) +
                     (size < 0 ? "" : ", which its key says is neither 0 nor 1"));
      }
      // Torch has no negative strides and gives them another meaning.
      if (stride < 0) return wrong("has stride " + std::to_string(stride) + " in dim " + std::to_string(d));
      // Torch multiplies in this order, so a size of 0 at the end does not help.
      uncountable |= __builtin_mul_overflow(elements, size, &elements);
      empty |= size == 0;
      if (size == 0) continue;
      int64_t reach = 0;
      overflow |= __builtin_mul_overflow(size - 1, stride, &reach);
      overflow |= __builtin_add_overflow(last, reach, &last);
    }
    if (uncountable) return wrong("has more elements than 64 bits can count");
    if (empty) continue;
    int64_t bytes = 0;
    overflow |= __builtin_add_overflow(last, 1, &bytes);
    overflow |= __builtin_mul_overflow(bytes, static_cast<int64_t>(item_size(view.dtype)), &bytes);
    if (overflow) return wrong("reaches further than 64 bits can say");
    if (static_cast<uint64_t>(bytes) > buffer_nbytes[view.buffer]) {
      return wrong("ends at byte " + std::to_string(bytes) + ", but its buffer b" + std::to_string(view.buffer) +
                   " has " + std::to_string(buffer_nbytes[view.buffer]));
    }
  }
  return {};
}

}  // namespace torch_remote::ir
