#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/dtype.h"
#include "ir/ops/op_table.h"
#include "ir/status.h"
#include "ir/trace.h"

// The graph: what passes work on and what a program encodes. It comes from a trace (`import_trace`), from text
// (`parse_graph`) or from a program (`decode_program`), and torch.compile builds one directly.
//
// A graph is an ordered list of nodes over *buffers*. An operand is a view of a buffer; program order is the semantics.
// After the pass `lift`, fresh buffers that only the first node that touches them writes are marked `ssa`: reading one
// is reading an immutable value. All others stay memory, with ordered effects.
namespace torch_remote::ir {

// A symbolic int64: an index into the graph's symbols. The first `params` of them are the run's parameters, in the
// order recorded; then come expressions over earlier ones. Evaluated once per run, in order.
using Sym = uint32_t;
inline constexpr Sym kNoSym = 0xFFFFFFFF;
inline constexpr uint32_t kNoBuffer = 0xFFFFFFFF;
inline constexpr uint32_t kNoNode = 0xFFFFFFFF;

enum class ExprKind : uint8_t {
  kConst,     // value
  kAdd,       // a + b
  kSub,       // a - b
  kMul,       // a * b
  kFloorDiv,  // floor(a / b)
  kMod,
  kMax,
  kMin,
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  Sym a = kNoSym;
  Sym b = kNoSym;
  int64_t value = 0;
  bool operator==(const Expr&) const = default;
};

enum class BufferKind : uint8_t {
  kInput,  // existed before; bound to a buffer id at each run
  kFresh,  // created by this graph; if no node has it as a result, it is uninitialised memory (torch.empty)
};

// Buffers are named across the wire by their place: a run binds its input buffers in the order of their indices, and
// the k-th surviving fresh buffer, counted by index, gets the id base + k. So a pass keeps every input buffer, used or
// not, and the relative order of inputs and of surviving fresh buffers; where it gives a surviving value a new place,
// the index that survives stays the one that held it (`lift` gives the *older* versions of a buffer the new indices).

struct Buffer {
  BufferKind kind = BufferKind::kFresh;
  bool survives = false;  // outlives the run. An input that does not is freed by it (its last use may reuse its memory)
  // Written by one node only, the first that touches it and does not read it: every other node reads the same value.
  // That node has it as a result, or fills it as an argument (torch makes zeros and clone of empty and zero_ or copy_).
  // Elements that the node does not write are undefined. Set by `lift`.
  bool ssa = false;
  Sym nbytes = kNoSym;  // fresh ones only
  // All its uses are in one group: who does that group as a whole need not give it memory. Set by `group`.
  bool in_group = false;
  // The buffer whose memory it may take over in the first node that touches it, if the sizes turn out to fit. Set by
  // `plan`.
  uint32_t reuses = kNoBuffer;
  bool operator==(const Buffer&) const = default;
};

struct View {
  uint32_t buffer = 0;
  DType dtype = DType::kFloat32;
  // A size that is a parameter is neither 0 nor 1 in any run: the key fixes those dims, so they are constants here.
  // Passes rely on it (broadcasting), check_extents enforces it.
  std::vector<Sym> sizes;
  std::vector<Sym> strides;  // elements
  Sym offset = kNoSym;       // elements
  // Nothing is known before the node ran (nonzero, unique): the runner makes the buffer and reports dtype and sizes.
  // `sizes` and `strides` are empty, `offset` is kNoSym, `dtype` means nothing.
  bool dynamic = false;
  bool operator==(const View&) const = default;
};

enum class ArgTag : uint8_t {
  kNone,          // an optional argument that was not given; an undefined result
  kView,          // a: view
  kScalarTensor,  // a number in a tensor's place. a: first symbol (two for complex), b: dtype | wrapped << 8
  kList,          // `items`: of the above, or of the numbers below
  kInt,           // a: symbol
  kFloat,         // a: symbol whose bits are a double
  kBool,          // a: symbol, 0 or 1
  kComplex,       // a: symbol of the real part, a + 1 of the imaginary one, both doubles
  kString,        // text
  kDType,         // a: the DType
  kMemoryFormat,  // a: c10::MemoryFormat's number
  kGenerator,     // a: symbol of the seed, a + 1 of the offset
};

struct Arg {
  ArgTag tag = ArgTag::kNone;
  uint32_t a = 0;
  uint32_t b = 0;
  std::string text;
  std::vector<Arg> items;
  bool operator==(const Arg&) const = default;
};

struct Node {
  Opcode opcode = kInvalidOpcode;
  // One for each ArgDesc, in order; those with role kIgnored are kNone. Numbers with role kStructural are constants.
  // Where the schema says Tensor, kNone is an undefined tensor.
  std::vector<Arg> args;
  // One for each ResultDesc: kNone for an alias, a host result or an undefined one, kView, kList of kView (or kNone); a
  // list of unknown length is one dynamic view.
  std::vector<Arg> results;
  uint32_t source = 0;  // the record it came from: its index in the trace
  // It was an op in place, and its only result is its first argument's next value (`lift`): if the node cannot run, the
  // result has that argument's value.
  bool in_place = false;
  bool operator==(const Node&) const = default;
};

// What one kernel may do: the kind says how its loops are made.
enum class GroupKind : uint8_t {
  kPointwise,       // each element of the results from elements of operands at one place
  kRowwise,         // along the last dims, one row at a time: softmax, norms
  kReduce,          // over any dims
  kTranspose,       // copies that change the order of dims
  kMultiTensor,     // the same over many tensors
  kMatmulEpilogue,  // a matmul, then pointwise ops on its result
  kConvEpilogue,
  kAttention,
};
inline constexpr uint32_t kGroupKinds = 8;

// What holds for every run, so that a kernel may be made that relies on it.
enum GroupHint : uint8_t {
  kGroupContiguous = 1,  // all views are contiguous
  kGroupAligned = 2,     // all views begin at a multiple of 16 bytes of their buffers
};
inline constexpr uint8_t kGroupHints = kGroupContiguous | kGroupAligned;

// Nodes first to last, in order. It means what they mean one by one, and may be done so.
struct Group {
  uint32_t first = 0;
  uint32_t last = 0;
  GroupKind kind = GroupKind::kPointwise;
  uint8_t hints = 0;  // GroupHint
  bool operator==(const Group&) const = default;
};

namespace internal {
// Finds expressions by content: open addressing over the indices of Graph::exprs. A cache: it catches up with
// expressions that were added without it, and every hit is checked, so that it can be stale but never wrong.
class ExprIndex {
 public:
  // The index in `exprs` of the first one that equals `expr`, which is added if there is none.
  uint32_t find_or_add(std::vector<Expr>& exprs, const Expr& expr);
  bool operator==(const ExprIndex&) const { return true; }  // no part of the graph's value

 private:
  void insert(const std::vector<Expr>& exprs, uint32_t index);
  std::vector<uint32_t> slots_;
  uint32_t indexed_ = 0;
};
}  // namespace internal

struct Graph {
  uint32_t params = 0;      // number of parameters
  std::vector<Expr> exprs;  // symbol params + i
  std::vector<Buffer> buffers;
  std::vector<View> views;
  std::vector<Node> nodes;
  std::vector<std::string> sources;  // debug: the user's line of each record ("train.py:12 in forward"), or empty

  // Filled by `group`; empty before, and where nobody does groups. In order, without a node in common.
  std::vector<Group> groups;

  bool operator==(const Graph&) const = default;

  // For who moves or removes nodes: groups and the memory plan are of the order that there was.
  void drop_groups();
  void drop_plan();

  // The symbol for a constant or an expression; equal ones are one symbol. Folds constants and neutral elements.
  Sym constant(int64_t value);
  Sym expr(ExprKind kind, Sym a, Sym b);
  bool is_constant(Sym symbol, int64_t* value = nullptr) const;
  uint32_t symbols() const { return params + static_cast<uint32_t>(exprs.size()); }

  internal::ExprIndex index_;  // of constant() and expr()
};
// Calls f(view, writes) for every view that the node reads or writes, arguments before results, in order. A result that
// creates a view counts as a write.
template <typename F>
void for_each_view(const Node& node, F&& f);

enum class Access : uint8_t {
  kReads,
  kUpdates,     // writes some of it, or what depends on its contents
  kOverwrites,  // writes all of its elements and looks at none
  kCreates,     // a result
};
// The same with f(view, Access).
template <typename F>
void for_each_access(const Node& node, F&& f);

// The graph of a trace. Dims that the key fixes (0 and 1) are constants, all others parameters. `survivors` as
// Trace::survivors. Input buffers come in the order of their ordinals: the run's bindings are in that order.
Status import_trace(const Trace& trace, const std::vector<uint64_t>& survivors, Graph* graph);

// Checks everything that later code relies on: ops known, arguments as the op's schema says, indices in range, ranks,
// no view of a buffer before the node that creates it, ssa buffers written once, dynamic results in the last node only,
// memory taken over only where that changes no result, groups in order and what is in_group used by one of them only.
// The message names the node.
Status verify(const Graph& graph);

// Evaluates the symbols for one run. False (with a message) on int64 overflow or division by zero.
Status evaluate(const Graph& graph, const int64_t* params, std::vector<int64_t>* values);

// For one run: every view lies inside its buffer, sizes are not negative, sizes that are parameters are neither 0
// nor 1. `values` are evaluate's, `buffer_nbytes` has one number a graph buffer. Dynamic views are left out. About 20
// ns a view.
Status check_extents(const Graph& graph, const std::vector<int64_t>& values, std::span<const uint64_t> buffer_nbytes);

// Text form; see docs/ir.md for the grammar. parse_graph(print(g)) == g for every graph that verifies.
struct PrintOptions {
  bool sources = true;
  bool plan = true;
  bool groups = true;
};
std::string print(const Graph& graph, const PrintOptions& options = {});
// Where a text declares what a graph consists of: lines, from 1.
struct TextLines {
  std::vector<uint32_t> buffers;
  std::vector<uint32_t> views;
  std::vector<uint32_t> nodes;
};
// On an error the message starts with "line:column: ".
Status parse_graph(std::string_view text, Graph* graph, TextLines* lines = nullptr);

// Flatbuffer (ir/program.fbs). `encode_program` wants a graph that verifies. `decode_program` verifies: flatbuffer,
// format version, fingerprint, then `verify`. It accepts any bytes: kInvalid for damaged ones, kUnsupported for another
// version of the format or the op table. Ops outside the table travel with their signatures and are registered by
// decoding.
std::vector<uint8_t> encode_program(const Graph& graph);
Status decode_program(const uint8_t* data, size_t size, Graph* graph);

// -- implementation --------------------------------------------------------------------------------------------------

namespace internal {
template <typename F>
void visit_views(const Arg& arg, bool writes, F& f) {
  if (arg.tag == ArgTag::kView) f(arg.a, writes);
  if (arg.tag == ArgTag::kList) {
    for (const Arg& item : arg.items) visit_views(item, writes, f);
  }
}
}  // namespace internal

template <typename F>
void for_each_view(const Node& node, F&& f) {
  const OpDesc& desc = op_desc(node.opcode);
  for (size_t i = 0; i < node.args.size(); ++i) internal::visit_views(node.args[i], desc.args[i].writes, f);
  for (const Arg& result : node.results) internal::visit_views(result, true, f);
}

template <typename F>
void for_each_access(const Node& node, F&& f) {
  const OpDesc& desc = op_desc(node.opcode);
  for (size_t i = 0; i < node.args.size(); ++i) {
    const Access access = desc.args[i].overwrites ? Access::kOverwrites
                          : desc.args[i].writes   ? Access::kUpdates
                                                  : Access::kReads;
    auto visit = [&](uint32_t view, bool) { f(view, access); };
    internal::visit_views(node.args[i], false, visit);
  }
  auto visit = [&](uint32_t view, bool) { f(view, Access::kCreates); };
  for (const Arg& result : node.results) internal::visit_views(result, true, visit);
}

}  // namespace torch_remote::ir
