#include "codegen/lower/lower.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "codegen/loop/facts.h"
#include "codegen/loop/scalar_ops.h"
#include "codegen/lower/emitter.h"
#include "ir/domain.h"
#include "ir/sections.h"

namespace torch_remote::codegen {

using ir::DimMask;
using ir::Domain;
using ir::DType;

namespace {

// What a compiler is given at once. Passes make smaller groups.
constexpr uint32_t kMostNodes = 256;

// Columns of a row that is packed as a whole.
constexpr int64_t kMostPacked = 1 << 15;

// A row of a reduction of all has about so many elements.
constexpr int64_t kPiece = 4096;

Status unsupported(std::string what) { return {ErrorCode::kUnsupported, std::move(what)}; }

// Dims of the domain that are one dim of the kernel: outer ones first.
struct Merged {
  std::vector<uint32_t> dims;
  int64_t size = 1;
  int64_t stride(const Domain::Access& access) const { return dims.empty() ? 0 : access.strides[dims.back()]; }
};

// Which dims the kernel has, in the order of memory, so that the last one is that of neighbours.
class Arrangement {
 public:
  explicit Arrangement(const Domain& domain) : domain_(domain) {}

  Status find() {
    bool over_rows = false, over_all = false;
    for (const Domain::Member& member : domain_.members()) {
      over_all |= member.reduces == ir::Reduces::kAll;
      over_rows |= member.reduces == ir::Reduces::kAll || member.reduces == ir::Reduces::kRows;
      for (const Domain::Access& access : member.accesses) over_rows |= access.part.over_rows;
    }
    find_reference();
    if (domain_.columns() != 0) {
      columns = merge(domain_.columns());
      outer = merge(domain_.all() & ~domain_.columns() & ~domain_.kept_rows());
    } else {
      outer = merge(domain_.all());
      if (!outer.empty()) {
        columns = {outer.back()};
        outer.pop_back();
      }
      if (over_all && outer.size() == 1 && columns.size() == 1) {
        // Any two dims may be the columns.
      } else if (over_all && outer.empty() && !columns.empty()) {
        cut();
      }
    }
    if (columns.size() > kMaxColumns) return unsupported("more than two dims of columns");
    if (!outer.empty()) {
      row = {outer.back()};
      outer.pop_back();
    }
    if (over_rows && !outer.empty()) return unsupported("a reduction over rows of several dims");
    if (domain_.kept_rows() != 0) outer = merge(domain_.kept_rows());
    return {};
  }

  std::vector<Merged> outer, row, columns;  // at most one row
  int64_t piece = 0;                        // the columns are so many of the only dim, which the row goes along, too
  int64_t rest = 0;

 private:
  // What is written most of, or read: memory is to be gone through in its order.
  void find_reference() {
    for (const bool writes : {true, false}) {
      for (const Domain::Member& member : domain_.members()) {
        for (const Domain::Access& access : member.accesses) {
          if (access.part.writes != writes) continue;
          if (reference_ == nullptr || std::popcount(access.dims) > std::popcount(reference_->dims))
            reference_ = &access;
        }
      }
    }
  }

  std::vector<Merged> merge(DimMask mask) const {
    std::vector<uint32_t> dims;
    for (uint32_t d = 0; d < domain_.sizes().size(); ++d) {
      if ((mask >> d & 1) != 0) dims.push_back(d);
    }
    if (reference_ != nullptr) {
      // Those along which it varies, among each other; the others stay where they are.
      std::vector<uint32_t> varying;
      std::ranges::copy_if(dims, std::back_inserter(varying), [&](uint32_t d) { return reference_->strides[d] != 0; });
      std::ranges::sort(varying, [&](uint32_t a, uint32_t b) {
        const int64_t of_a = reference_->strides[a], of_b = reference_->strides[b];
        return of_a != of_b ? of_a > of_b : a < b;
      });
      auto next = varying.begin();
      for (uint32_t& d : dims) {
        if (reference_->strides[d] != 0) d = *next++;
      }
    }
    std::vector<Merged> merged;
    for (const uint32_t d : dims) {
      if (!merged.empty() && joins(merged.back(), d)) {
        merged.back().dims.push_back(d);
        merged.back().size *= domain_.sizes()[d];
      } else {
        merged.push_back({{d}, domain_.sizes()[d]});
      }
    }
    return merged;
  }

  // Behind the last element along `d` comes the next one of the outer dim, in all views.
  bool joins(const Merged& outer_dim, uint32_t d) const {
    for (const Domain::Member& member : domain_.members()) {
      for (const Domain::Access& access : member.accesses) {
        if (outer_dim.stride(access) != access.strides[d] * domain_.sizes()[d]) return false;
      }
    }
    return true;
  }

  // Makes rows of one line: one if it is short, so that long and short ones have the same kernel.
  void cut() {
    const int64_t size = columns[0].size;
    piece = std::min(size, kPiece);
    rest = size % piece;
    row = {{columns[0].dims, size / piece}};
    columns[0].size = piece;
    outer = row;
  }

  const Domain& domain_;
  const Domain::Access* reference_ = nullptr;
};

}  // namespace

struct NodeEmitter::Group {
  Group(const ir::Graph& graph, std::span<const int64_t> values, const Domain& domain, const Arrangement& dims,
        Launch& launch)
      : graph(graph), values(values), domain(domain), dims(dims), launch(launch), emitter(launch) {
    Kernel& kernel = launch.kernel;
    kernel.rows = static_cast<uint32_t>(dims.row.size());
    kernel.columns = static_cast<uint32_t>(dims.columns.size());
    for (const Merged& dim : dims.row) launch.sizes.push_back(dim.size);
    for (const Merged& dim : dims.columns) launch.sizes.push_back(dim.size);
    for (const Merged& dim : dims.outer) launch.outer.push_back(dim.size);
    launch.rest = dims.rest;
  }

  uint32_t operand(const Domain::Access& access, uint32_t node) {
    const ir::View& view = graph.views[access.part.view];
    Operand operand;
    operand.dtype = view.dtype;
    Binding binding;
    binding.buffer = view.buffer;
    binding.offset = access.offset;
    const auto add = [&](const Merged& dim, int64_t times) {
      const int64_t stride = dim.stride(access) * times;
      if (stride != 0) operand.dims |= 1u << binding.strides.size();
      binding.strides.push_back(stride);
      return stride;
    };
    for (const Merged& dim : dims.row) add(dim, dims.piece != 0 ? dims.piece : 1);
    int64_t inner = 0;
    for (const Merged& dim : dims.columns) inner = add(dim, 1);
    const uint32_t last = static_cast<uint32_t>(binding.strides.size());
    operand.strided = last != 0 && (operand.dims >> (last - 1) & 1) != 0 && !dims.columns.empty() && inner != 1;
    for (const Merged& dim : dims.outer) binding.outer.push_back(dim.stride(access));
    operand.indexed = static_cast<uint8_t>(access.indexed.size());
    for (const Domain::Indexed& dim : access.indexed) {
      binding.strides.push_back(dim.stride);
      binding.bounds.push_back(dim.size);
    }
    for (uint32_t i = 0; i < launch.operands.size(); ++i) {
      const Binding& known = launch.operands[i];
      if (launch.kernel.operands[i] == operand && known.buffer == binding.buffer && known.offset == binding.offset &&
          known.strides == binding.strides && known.outer == binding.outer && known.bounds == binding.bounds) {
        return i;
      }
    }
    launch.kernel.operands.push_back(operand);
    launch.operands.push_back(std::move(binding));
    launch.nodes.push_back(node);
    return static_cast<uint32_t>(launch.operands.size() - 1);
  }

  // Values go to memory that somebody outside looks at; of several in the same place, the last one. False: what is
  // added up does not lie as who sets it to 0 expects, side by side along the last column.
  bool store() {
    for (const auto& [buffer, written] : made) {
      if (graph.buffers[buffer].in_group) continue;
      launch.kernel.stores.push_back({operand(*written.access, written.node), written.value, {}, false});
    }
    for (const Written& written : at_indices) {
      if (graph.buffers[graph.views[written.access->part.view].buffer].in_group) continue;
      const uint32_t to = operand(*written.access, written.node);
      launch.kernel.stores.push_back({to, written.value, written.indices, written.adds});
      Binding& binding = launch.operands[to];
      binding.zeroed = !written.access->part.reads;
      if (!binding.zeroed) continue;
      const auto is_zero = [](int64_t stride) { return stride == 0; };
      const bool apart =
          !dims.columns.empty() && !std::ranges::all_of(binding.strides.begin(), binding.strides.end() - 2, is_zero);
      if (apart || launch.kernel.operands[to].strided || !std::ranges::all_of(binding.outer, is_zero)) return false;
    }
    return true;
  }

  struct Made {
    V value = kNone;
    const Domain::Access* access = nullptr;
    uint32_t node = 0;
    bool rounds = false;  // who reads it gets what a store of it would leave
  };

  struct Written {
    std::vector<V> indices;
    V value = kNone;
    const Domain::Access* access = nullptr;
    uint32_t node = 0;
    bool adds = false;
  };

  const ir::Graph& graph;
  std::span<const int64_t> values;
  const Domain& domain;
  const Arrangement& dims;
  Launch& launch;
  Emitter emitter;
  std::map<uint32_t, Made> made;  // by buffer
  std::vector<Written> at_indices;
};

NodeEmitter::NodeEmitter(Group& group, const Domain::Member& member, const ir::Node& node, uint32_t item)
    : e(group.emitter),
      graph(group.graph),
      member(member),
      node(node),
      desc(ir::op_desc(node.opcode)),
      group_(group),
      item_(item) {}

const ir::Arg* NodeEmitter::argument(std::string_view name) const {
  for (size_t i = 0; i < desc.args.size(); ++i) {
    if (desc.args[i].name == name) return &arg(i);
  }
  return nullptr;
}

// Whoever asks for a value makes something else of it: for another value, that must be made again.
int64_t NodeEmitter::symbol(ir::Sym symbol) const {
  group_.launch.depends.push_back(symbol);
  return group_.values[symbol];
}

V NodeEmitter::scalar_of(DType type, ir::Sym symbol) { return e.scalar_of(type, symbol, group_.values[symbol]); }

V NodeEmitter::read(const Domain::Access& access, std::vector<V> indices) {
  const auto made = group_.made.find(graph.views[access.part.view].buffer);
  if (made != group_.made.end()) {
    const Group::Made& known = made->second;
    return known.rounds ? e.rounded(known.value, graph.views[access.part.view].dtype) : known.value;
  }
  return e.load(group_.operand(access, member.node), std::move(indices));
}

V NodeEmitter::element(uint32_t view) {
  for (const Domain::Access& access : member.accesses) {
    if (access.part.view == view && access.part.reads && access.indexed.empty()) return read(access);
  }
  return kNone;
}

V NodeEmitter::operand(size_t index) {
  const ir::Arg& given = arg(index);
  switch (given.tag) {
    case ir::ArgTag::kView:
      return element(given.a);
    case ir::ArgTag::kScalarTensor: {
      const auto dtype = static_cast<DType>(given.b & 0xFF);
      if (dtype == DType::kBool) return scalar_of(DType::kBool, given.a);
      const DType wide = ir::is_float(dtype) ? DType::kFloat64 : DType::kInt64;
      return e.convert(scalar_of(wide, given.a), loaded_type(dtype));
    }
    case ir::ArgTag::kInt:
      return scalar_of(DType::kInt64, given.a);
    case ir::ArgTag::kFloat:
      return scalar_of(DType::kFloat64, given.a);
    case ir::ArgTag::kBool:
      return scalar_of(DType::kBool, given.a);
    default:
      return kNone;
  }
}

V NodeEmitter::operand(std::string_view name) {
  for (size_t i = 0; i < desc.args.size(); ++i) {
    if (desc.args[i].name == name) return operand(i);
  }
  return kNone;
}

V NodeEmitter::operand(std::string_view name, DType type) { return e.convert(operand(name), type); }

int64_t NodeEmitter::whole(std::string_view name) const {
  const ir::Arg* given = argument(name);
  return given != nullptr && given->tag == ir::ArgTag::kInt ? symbol(given->a) : 0;
}

double NodeEmitter::number(std::string_view name) const {
  const ir::Arg* given = argument(name);
  if (given == nullptr) return 0;
  if (given->tag == ir::ArgTag::kInt) return static_cast<double>(symbol(given->a));
  return given->tag == ir::ArgTag::kFloat ? std::bit_cast<double>(symbol(given->a)) : 0;
}

bool NodeEmitter::flag(std::string_view name) const {
  const ir::Arg* given = argument(name);
  return given != nullptr && given->tag == ir::ArgTag::kBool && symbol(given->a) != 0;
}

std::optional<double> NodeEmitter::number(size_t index) const {
  const ir::Arg& given = arg(index);
  const bool floats = given.tag == ir::ArgTag::kFloat ||
                      (given.tag == ir::ArgTag::kScalarTensor && ir::is_float(static_cast<DType>(given.b & 0xFF)));
  if (floats) return std::bit_cast<double>(symbol(given.a));
  if (given.tag != ir::ArgTag::kInt && given.tag != ir::ArgTag::kScalarTensor) return std::nullopt;
  return static_cast<double>(symbol(given.a));
}

bool NodeEmitter::has(std::string_view name) const {
  const ir::Arg* given = argument(name);
  return given != nullptr && given->tag != ir::ArgTag::kNone;
}

bool NodeEmitter::has_part(std::string_view name) const {
  const ir::Arg* given = argument(name);
  return given != nullptr && given->tag == ir::ArgTag::kView &&
         std::ranges::any_of(member.accesses,
                             [&](const Domain::Access& access) { return access.part.view == given->a; });
}

const ir::View* NodeEmitter::view(std::string_view name) const {
  const ir::Arg* given = argument(name);
  return given != nullptr && given->tag == ir::ArgTag::kView ? &graph.views[given->a] : nullptr;
}

bool NodeEmitter::wants(size_t result) const {
  return ir::item_of(node.results[result], item_).tag == ir::ArgTag::kView;
}

DType NodeEmitter::result_dtype(size_t result) const {
  if (!node.results.empty() && wants(result)) return graph.views[ir::item_of(node.results[result], item_).a].dtype;
  for (const Domain::Access& access : member.accesses) {
    if (access.part.writes) return graph.views[access.part.view].dtype;
  }
  return DType::kFloat32;
}

void NodeEmitter::write(uint32_t view, V value) {
  const ir::View& to = graph.views[view];
  // A chain of ops on half types is rounded at its end, but a conversion to one is meant to round.
  bool rounds = false;
  if (member.form.expansion == ir::Expansion::kCopy && is_half(to.dtype)) {
    rounds = std::ranges::any_of(member.accesses, [&](const Domain::Access& access) {
      return access.part.reads && graph.views[access.part.view].dtype != to.dtype;
    });
  }
  for (const Domain::Access& access : member.accesses) {
    if (access.part.view != view || !access.part.writes) continue;
    group_.made[to.buffer] = {e.convert(value, loaded_type(to.dtype)), &access, member.node, rounds};
  }
}

void NodeEmitter::result(size_t index, V value) {
  if (wants(index)) write(ir::item_of(node.results[index], item_).a, value);
}

void NodeEmitter::fill(V value) {
  for (const Domain::Access& access : member.accesses) {
    if (access.part.writes) write(access.part.view, value);
  }
}

void NodeEmitter::update(std::string_view name, V value) {
  const ir::Arg* given = argument(name);
  if (given != nullptr && given->tag == ir::ArgTag::kView) write(given->a, value);
}

int64_t NodeEmitter::size(const ir::View& view, size_t dim) const { return group_.values[view.sizes[dim]]; }

int64_t NodeEmitter::space_points() const {
  int64_t points = 1;
  for (const ir::Sym size : graph.views[member.form.space].sizes) points *= group_.values[size];
  return points;
}

V NodeEmitter::reduced_points(DType type) {
  return e.convert(e.scalar_float(static_cast<double>(count_reduced())), type);
}

int64_t NodeEmitter::count_reduced() const {
  std::vector<int64_t> sizes;
  int64_t points = 1;
  if (!ir::find_sizes(graph, member.form, group_.values, &sizes)) return points;
  for (size_t a = 0; a < sizes.size(); ++a) {
    if ((member.form.reduced >> a & 1) != 0) points *= sizes[a];
  }
  return points;
}

V NodeEmitter::sum_for(size_t result, V value) {
  const uint32_t view = ir::item_of(node.results[result], item_).a;
  const auto found = std::ranges::find_if(
      member.accesses, [&](const Domain::Access& access) { return access.part.view == view && access.part.writes; });
  if (found == member.accesses.end()) return kNone;
  const std::vector<Merged>& columns = group_.dims.columns;
  const auto varies = [&](size_t column) { return columns[column].stride(*found) != 0; };
  const bool rows = group_.launch.kernel.rows != 0;
  if (columns.size() == 2 && varies(0) != varies(1)) return varies(0) ? e.lines(Reduction::kSum, value) : kNone;
  if (!columns.empty() && !varies(0)) value = e.columns(Reduction::kSum, value);
  return rows ? e.rows(Reduction::kSum, value) : value;
}

V NodeEmitter::reduce(Reduction reduction, V value) {
  if (member.reduces == ir::Reduces::kColumns || member.reduces == ir::Reduces::kAll) {
    value = e.columns(reduction, value);
  }
  if (member.reduces == ir::Reduces::kRows || member.reduces == ir::Reduces::kAll) value = e.rows(reduction, value);
  return value;
}

bool NodeEmitter::has_one_column() const {
  return group_.dims.columns.size() == 1 && member.reduces == ir::Reduces::kColumns;
}

V NodeEmitter::axis_index(uint32_t axis) {
  uint32_t at = 0;
  for (const std::vector<Merged>* list : {&group_.dims.row, &group_.dims.columns}) {
    for (const Merged& dim : *list) {
      DimMask mask = 0;
      for (const uint32_t d : dim.dims) mask |= 1u << d;
      if (mask == member.axes[axis] && std::ranges::is_sorted(dim.dims) && group_.dims.piece == 0) return e.index(at);
      ++at;
    }
  }
  return kNone;
}

V NodeEmitter::linear_index() {
  // In the order of memory, which must be that of the axes.
  const Arrangement& dims = group_.dims;
  if (!dims.outer.empty() || dims.piece != 0 || member.space != group_.domain.all()) return kNone;
  std::vector<uint32_t> in_memory, in_order;
  for (const std::vector<Merged>* list : {&dims.row, &dims.columns}) {
    for (const Merged& dim : *list) in_memory.insert(in_memory.end(), dim.dims.begin(), dim.dims.end());
  }
  for (const DimMask axis : member.axes) {
    for (uint32_t d = 0; d < group_.domain.sizes().size(); ++d) {
      if ((axis >> d & 1) != 0) in_order.push_back(d);
    }
  }
  if (in_memory != in_order) return kNone;
  V number = kNone;
  uint32_t at = 0;
  for (const std::vector<Merged>* list : {&dims.row, &dims.columns}) {
    for (const Merged& dim : *list) {
      const V here = e.index(at++);
      number = number == kNone ? here : e.add(e.mul(number, e.scalar_int(dim.size)), here);
    }
  }
  return number == kNone ? e.constant_int(DType::kInt64, 0) : number;
}

V NodeEmitter::place(uint32_t view, int64_t bound, bool wraps, std::optional<int64_t> ignored) {
  const ir::View& from = graph.views[view];
  if (group_.made.contains(from.buffer)) {
    group_.launch.computes_indices = true;
  } else {
    IndexCheck check{from.buffer, from.dtype, group_.values[from.offset], {}, {}, bound, wraps, ignored};
    for (const ir::Sym size : from.sizes) check.sizes.push_back(group_.values[size]);
    for (const ir::Sym stride : from.strides) check.strides.push_back(group_.values[stride]);
    group_.launch.checks.push_back(std::move(check));
  }
  const V index = e.convert(element(view), DType::kInt64);
  if (!wraps) return index;
  const V below = e.op(ir::ScalarOp::kLt, index, e.constant_int(DType::kInt64, 0));
  return e.where(below, e.add(index, e.scalar_int(bound)), index);
}

V NodeEmitter::indexed(std::string_view name, std::span<const uint32_t> indices, bool wraps) {
  const ir::Arg* given = argument(name);
  for (const Domain::Access& access : member.accesses) {
    if (given == nullptr || access.part.view != given->a || access.indexed.size() != indices.size()) continue;
    std::vector<V> places;
    for (size_t i = 0; i < indices.size(); ++i) places.push_back(place(indices[i], access.indexed[i].size, wraps));
    return e.load(group_.operand(access, member.node), std::move(places));
  }
  return kNone;
}

V NodeEmitter::indexed_in_axis(std::string_view name, V index, uint32_t axis) {
  const ir::Arg* given = argument(name);
  for (Domain::Access access : member.accesses) {
    if (given == nullptr || access.part.view != given->a) continue;
    std::ranges::fill(access.strides, 0);
    access.dims = 0;
    access.indexed = {{1, 0}};
    for (uint32_t d = 0; d < group_.domain.sizes().size(); ++d) {
      if ((member.axes[axis] >> d & 1) != 0) access.indexed[0].size *= group_.domain.sizes()[d];
    }
    return e.load(group_.operand(access, member.node), {index});
  }
  return kNone;
}

void NodeEmitter::write_at(std::span<const uint32_t> indices, V value, bool adds, bool wraps) {
  for (const Domain::Access& access : member.accesses) {
    if (!access.part.in_order) continue;
    std::vector<V> places;
    for (size_t i = 0; i < indices.size(); ++i) places.push_back(place(indices[i], access.indexed[i].size, wraps));
    const DType type = loaded_type(graph.views[access.part.view].dtype);
    group_.at_indices.push_back({std::move(places), e.convert(value, type), &access, member.node, adds});
  }
}

namespace {

// No item reads or writes what another one writes: each may be done for itself.
bool are_apart(const ir::Graph& graph, const ir::Group& group, uint32_t items) {
  struct User {
    uint32_t item = kNone;
    bool writes = false;
  };
  std::map<uint32_t, User> users;  // of buffers
  for (uint32_t n = group.first; n <= group.last; ++n) {
    for (uint32_t item = 0; item < items; ++item) {
      ir::Form form;
      if (!ir::find_form(graph, graph.nodes[n], item, &form)) return false;
      for (const ir::Part& part : form.parts) {
        User& user = users[graph.views[part.view].buffer];
        if (user.item != kNone && user.item != item && (user.writes || part.writes)) return false;
        user = {item, user.writes || part.writes};
      }
    }
  }
  return true;
}

// Whether columns may be done apart from each other.
bool is_pointwise(const Kernel& kernel) {
  return std::ranges::none_of(kernel.values,
                              [&](const Value& value) {
                                return value.kind == Kind::kReduce || value.kind == Kind::kRunning ||
                                       (value.kind == Kind::kIndex && value.a >= kernel.rows);
                              }) &&
         std::ranges::all_of(kernel.stores, [&](const Store& store) {
           return (kernel.operands[store.operand].dims & kernel.column_dims()) != 0;
         });
}

// Where elements of an operand that lie side by side are in different rows, they would be gathered from as many lines
// of the cache as there are columns: they are packed. False: they cannot be; ATen's kernels go through such memory in
// tiles.
bool pack_transposed(Launch& launch) {
  Kernel& kernel = launch.kernel;
  for (size_t i = 0; i < kernel.operands.size(); ++i) {
    const std::vector<int64_t>& strides = launch.operands[i].strides;
    if (kernel.operands[i].strided && kernel.rows != 0 && launch.sizes[0] > 16 && launch.sizes.back() > 16 &&
        strides[0] != 0 && strides[0] < strides[kernel.dims() - 1]) {
      const bool stored = std::ranges::any_of(kernel.stores, [&](const Store& store) { return store.operand == i; });
      const bool fits = kernel.columns == 1 && (launch.sizes.back() <= kMostPacked || is_pointwise(kernel));
      if (stored || kernel.operands[i].indexed != 0 || !fits) return false;
      kernel.operands[i].strided = false;
      launch.operands[i].packed = true;
    }
  }
  return true;
}

// The kernel of all nodes of a graph, or of some; of ops over lists, of their `item`-th tensors.
Status lower_nodes(const ir::Graph& graph, uint32_t first, uint32_t last, std::span<const int64_t> values,
                   uint32_t item, Launch* launch) {
  Domain domain(graph, values, item);
  for (uint32_t n = first; n <= last; ++n) {
    if (!domain.add(n)) {
      return unsupported(std::string(ir::op_desc(graph.nodes[n].opcode).name) + " is not at the same places");
    }
  }
  Arrangement dims(domain);
  if (Status status = dims.find(); !status.ok()) return status;
  NodeEmitter::Group made(graph, values, domain, dims, *launch);
  for (const Domain::Member& member : domain.members()) {
    NodeEmitter node(made, member, graph.nodes[member.node], item);
    if (!expand(node)) {
      return unsupported("no kernel for this form of " + std::string(ir::op_desc(node.node.opcode).name));
    }
  }
  if (!made.store()) return unsupported("what is added up lies apart");
  return {};
}

bool has_totals(const Kernel& kernel) {
  return std::ranges::any_of(kernel.values, [](const Value& value) { return is_total(value); });
}

// Adds a kernel that stores something.
Status finish_launch(Launch launch, std::vector<Launch>* launches) {
  const auto at_indices = [](const Store& store) { return !store.indices.empty(); };
  if (has_totals(launch.kernel) && std::ranges::any_of(launch.kernel.stores, at_indices)) {
    return unsupported("rows are dealt in two ways");
  }
  if (!pack_transposed(launch)) return unsupported("neighbours of one operand are no neighbours of another");
  if (Status status = verify(launch.kernel); !status.ok()) return unsupported(status.message());
  launches->push_back(std::move(launch));
  return {};
}

// In the graph's own terms.
void rename(const ir::Section& section, Launch* launch) {
  for (Binding& binding : launch->operands) binding.buffer = section.buffers[binding.buffer];
  for (IndexCheck& check : launch->checks) check.buffer = section.buffers[check.buffer];
  for (ir::Sym& symbol : launch->scalar_symbols) {
    if (symbol != ir::kNoSym) symbol = section.symbols[symbol];
  }
  for (ir::Sym& symbol : launch->depends) symbol = section.symbols[symbol];
  std::erase(launch->depends, ir::kNoSym);
  launch->depends.insert(launch->depends.end(), section.depends.begin(), section.depends.end());
  for (uint32_t& node : launch->nodes) node = section.nodes[node];
}

bool is_in_turn(const Launch& before, const Launch& launch) {
  return launch.kernel.rows != 0 && launch.kernel.rows == before.kernel.rows && launch.sizes[0] == before.sizes[0] &&
         launch.outer == before.outer && !has_totals(before.kernel) && !has_totals(launch.kernel);
}

// A kernel for each section.
Status lower_sections(const ir::Graph& graph, std::span<const uint32_t> nodes, std::span<const int64_t> values,
                      std::vector<Launch>* launches) {
  std::vector<ir::Section> sections;
  if (!ir::find_sections(graph, values, nodes, &sections)) return unsupported("what is joined is not done apart");
  for (const ir::Section& section : sections) {
    Launch launch;
    const auto last = static_cast<uint32_t>(section.nodes.size()) - 1;
    if (Status status = lower_nodes(section.graph, 0, last, section.values, 0, &launch); !status.ok()) return status;
    rename(section, &launch);
    if (launch.kernel.stores.empty()) continue;
    launch.in_turn = !launches->empty() && is_in_turn(launches->back(), launch);
    if (Status status = finish_launch(std::move(launch), launches); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Status lower_group(const ir::Graph& graph, const ir::Group& group, std::span<const int64_t> values,
                   std::vector<Launch>* launches) {
  launches->clear();
  if (group.last - group.first >= kMostNodes) return unsupported("too many nodes");
  const uint32_t items = ir::count_items(graph.nodes[group.first]);
  if (items > 1 && !are_apart(graph, group, items)) return unsupported("tensors of one list share memory");
  bool joins = false;
  for (uint32_t n = group.first; n <= group.last; ++n) {
    if (ir::count_items(graph.nodes[n]) != items) return unsupported("lists of several lengths");
    joins |= ir::is_join(graph.nodes[n].opcode);
  }
  std::vector<uint32_t> nodes(group.last - group.first + 1);
  std::iota(nodes.begin(), nodes.end(), group.first);
  const bool checks_first = !ir::may_be_repeated(graph, nodes);
  if (checks_first && !ir::knows_indices(graph, nodes)) return unsupported("an index decides what is written in place");
  if (joins) {
    if (Status status = lower_sections(graph, nodes, values, launches); !status.ok()) return status;
  }
  for (uint32_t item = 0; item < items && !joins; ++item) {
    Launch launch;
    if (Status status = lower_nodes(graph, group.first, group.last, values, item, &launch); !status.ok()) return status;
    if (launch.kernel.stores.empty()) continue;
    if (Status status = finish_launch(std::move(launch), launches); !status.ok()) return status;
  }
  for (Launch& launch : *launches) launch.checks_first = checks_first;
  return {};
}

}  // namespace torch_remote::codegen
