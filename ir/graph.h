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

// The graph: passes rewrite it, and a program encodes it. It comes from a trace (`import_trace`), from text
// (`parse_graph`) or from a program (`decode_program`); torch.compile builds one directly.
//
// A graph is an ordered list of nodes over *buffers*. An operand is a view of a buffer. A graph means that its nodes
// execute one after the other.
// The pass `lift` marks a fresh buffer as `written_once` if only the first node that touches it writes it. A read of
// such a buffer is a read of an immutable value. All other buffers are memory, with ordered effects.
namespace torch_remote::ir {

// A symbolic int64: an index into the graph's symbols. The first `params` symbols are the run's parameters in recorded
// order. The others are expressions over earlier symbols, evaluated once per run, in order.
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
  kInput,  // exists before the run; bound to a buffer id at each run
  kFresh,  // created by this graph; uninitialized memory (torch.empty) if it is no node's result
};

// A buffer of a graph. Messages refer to it by its index: a run binds the input buffers in index order, and the k-th
// surviving fresh buffer gets the id base + k. Rules for passes: (1) Keep every input buffer, used or not, in order.
// (2) Keep the order of surviving fresh buffers. (3) If a buffer is split into versions, the surviving last version
// keeps the index, and older versions get new ones.
struct Buffer {
  BufferKind kind = BufferKind::kFresh;
  bool survives = false;  // outlives the run; the run frees an input that does not, or reuses its memory
  // Only one node writes it: the first that touches it, which does not read it. Every other node reads the same value.
  // The writer creates the buffer as its result, or it fills a buffer that `empty` created. For example, torch composes
  // zeros of `empty` and `zero_`, and clone of `empty` and `copy_`. Elements that the node does not write are
  // undefined. Set by `lift`.
  bool written_once = false;
  Sym nbytes = kNoSym;  // bytes; kNoSym for inputs and for buffers with a dynamic view
  // All its uses are in one group: a runner that executes the group as a whole need not allocate it. Set by `fuse`.
  bool group_local = false;
  // The buffer whose memory this buffer may take over in the first node that touches this one, if the run's sizes allow
  // it. Set by `plan`.
  uint32_t may_reuse = kNoBuffer;
  bool operator==(const Buffer&) const = default;
};

struct View {
  uint32_t buffer = 0;
  DType dtype = DType::kFloat32;
  // A size that is a parameter is neither 0 nor 1 in any run: the key fixes such dims, so they are constants here.
  // Passes rely on it (broadcasting); check_extents enforces it.
  std::vector<Sym> sizes;
  std::vector<Sym> strides;  // elements
  Sym offset = kNoSym;       // elements
  // The sizes are unknown until the node ran (nonzero, unique): the runner creates the buffer and reports dtype and
  // sizes. `sizes` and `strides` are empty, `offset` is kNoSym, and `dtype` has no meaning.
  bool dynamic = false;
  bool operator==(const View&) const = default;
};

enum class ArgTag : uint8_t {
  kNone,  // an optional argument that was not given; an undefined result
  kView,  // a: view
  // a number in place of a tensor. a: first symbol (two for complex), b: dtype | 1 << 8 for torch's wrapped numbers
  kScalarTensor,
  kList,          // `items`: items of the tags above, or of the number tags below
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
  // One for each ArgDesc, in order. Arguments with role kClientOnly are kNone; numbers with role kStructural are
  // constants. Where the schema says Tensor, kNone is an undefined tensor.
  std::vector<Arg> args;
  // One for each ResultDesc: kNone for an alias, a host result or an undefined result; otherwise kView, or kList of
  // kView (or kNone). A list of unknown length is one dynamic view.
  std::vector<Arg> results;
  uint32_t record = 0;  // index in the trace of the record that the node came from
  // The node was an in-place op that `lift` changed: its only result is the next value of its first argument. If the
  // node cannot run, the result has that argument's value.
  bool in_place = false;
  bool operator==(const Node&) const = default;
};

// The kinds of groups that one kernel may compute. The kind determines the structure of the kernel's loops.
enum class GroupKind : uint8_t {
  kPointwise,    // each element of the results comes from the operands' elements at the same index
  kRowwise,      // along the last dims, one row at a time: softmax, norms
  kReduce,       // over any dims
  kMultiTensor,  // the same computation for many tensors
  kMatmul,       // a matmul; an activation of its result may follow
  kAttention,    // a single attention op, or its gradient
};
inline constexpr uint32_t kGroupKinds = 6;

// Facts that hold for every run, so that a kernel may rely on them.
enum GroupProperty : uint8_t {
  kGroupContiguous = 1,  // all views are contiguous
  kGroupAligned = 2,     // all views begin at a multiple of 16 bytes of their buffers
};
inline constexpr uint8_t kGroupProperties = kGroupContiguous | kGroupAligned;

// Nodes `first` to `last`, in order. A group has the meaning of its nodes one by one, and may be executed that way.
struct Group {
  uint32_t first = 0;
  uint32_t last = 0;
  GroupKind kind = GroupKind::kPointwise;
  uint8_t properties = 0;  // GroupProperty
  bool operator==(const Group&) const = default;
};

namespace internal {
// Finds expressions by content, with open addressing over the indices of Graph::exprs. It is a cache: it adds
// expressions that were appended without it, and checks every hit. So it can be stale but never wrong.
class ExprTable {
 public:
  // Returns the index in `exprs` of the first expression that equals `expr`; appends `expr` if there is none.
  uint32_t find_or_add(std::vector<Expr>& exprs, const Expr& expr);
  bool operator==(const ExprTable&) const { return true; }  // not part of the graph's value

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
  // debug: the user's source line of each record ("train.py:12 in forward"), or empty
  std::vector<std::string> source_lines;

  // Filled by `fuse`; empty before that pass, and if no runner executes groups. In order; no two share a node.
  std::vector<Group> groups;

  bool operator==(const Graph&) const = default;

  // For code that moves or removes nodes: groups and the memory plan hold only for the old order.
  void drop_groups();
  void drop_plan();

  // Returns the symbol of a constant or an expression; equal ones share a symbol. Folds constants and neutral elements.
  Sym constant(int64_t value);
  Sym expr(ExprKind kind, Sym a, Sym b);
  bool is_constant(Sym symbol, int64_t* value = nullptr) const;
  uint32_t symbols() const { return params + static_cast<uint32_t>(exprs.size()); }

  internal::ExprTable index_;  // used by constant() and expr()
};

// Calls f(view, writes) for every view that the node reads or writes, arguments before results, in order. A result that
// creates a view counts as a write.
template <typename F>
void for_each_view(const Node& node, F&& f);
// Adds the sizes, strides and offsets of the group's views to `symbols`, which then is sorted and has each symbol once.
// Dynamic views have none.
void add_view_symbols(const Graph& graph, const Group& group, std::vector<Sym>* symbols);
// Calls f(view) for every view that the node creates, in order; lists' items, too.
template <typename F>
void for_each_result_view(const Node& node, F&& f);

enum class Access : uint8_t {
  kReads,
  kUpdates,     // writes a part of it, or writes what depends on its contents
  kOverwrites,  // writes all of its elements and reads none
  kCreates,     // a result
};
// Calls f(view, Access) in the same order.
template <typename F>
void for_each_access(const Node& node, F&& f);

// Builds the graph of a trace. Dims that the key fixes (0 and 1) are constants, all other dims are parameters.
// `survivors`: see Trace::survivors. Input buffers are in the order of their ordinals, which is also the order of the
// run's bindings. Fails with kInternal if the trace is damaged.
Status import_trace(const Trace& trace, const std::vector<uint64_t>& survivors, Graph* graph);

// Checks everything that later code relies on. Ops are known, arguments match the op's schema, and indices and ranks
// are in range. No node uses a view before the node that creates its buffer; written_once buffers are written once;
// only the last node has dynamic results. Memory is taken over only where that changes no result. Groups are in order,
// and a group_local buffer is used by one group only. The message names the node.
Status verify(const Graph& graph);

// Evaluates the symbols for one run: (*values)[s] is the value of symbol s. `params` has Graph::params values. Fails
// with kInvalid on int64 overflow or division by zero.
Status evaluate(const Graph& graph, const int64_t* params, std::vector<int64_t>* values);

// Checks one run: every view lies inside its buffer, sizes are not negative, and sizes that are parameters are neither
// 0 nor 1. `values` come from `evaluate`; `buffer_nbytes` has one number per buffer of the graph. Dynamic views are
// skipped. Takes about 20 ns per view.
Status check_extents(const Graph& graph, const std::vector<int64_t>& values, std::span<const uint64_t> buffer_nbytes);

// Text form; see docs/ir.md for the grammar. parse_graph(print(g)) == g for every graph that verifies.
struct PrintOptions {
  bool source_lines = true;
  bool plan = true;
  bool groups = true;
};
std::string print(const Graph& graph, const PrintOptions& options = {});
// The line, counted from 1, on which a text declares each buffer, view and node.
struct TextLines {
  std::vector<uint32_t> buffers;
  std::vector<uint32_t> views;
  std::vector<uint32_t> nodes;
};
// Does not call `verify`. On an error the message starts with "line:column: ".
Status parse_graph(std::string_view text, Graph* graph, TextLines* lines = nullptr);

// Flatbuffer form (ir/program.fbs). `encode_program` requires a graph that verifies. `decode_program` accepts any
// bytes: it checks the flatbuffer, the format version and the signatures of ops, and then calls `verify`. It returns
// kInvalid for damaged bytes, and kUnsupported for another version of the format, or an op that the op table lacks or
// has with another signature. Ops outside the table travel with their signatures; decoding registers them.
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
void for_each_result_view(const Node& node, F&& f) {
  auto visit = [&](uint32_t view, bool) { f(view); };
  for (const Arg& result : node.results) internal::visit_views(result, true, visit);
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
  for_each_result_view(node, [&](uint32_t view) { f(view, Access::kCreates); });
}

}  // namespace torch_remote::ir
