#include "codegen/lower/lower.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "codegen/loop/facts.h"
#include "codegen/lower/expand.h"
#include "codegen/lower/group_emitter.h"
#include "ir/fusion/domain.h"
#include "ir/fusion/kernel_dims.h"
#include "ir/fusion/sections.h"

namespace torch_remote::codegen {

using ir::IterationDomain;
using ir::KernelDims;

namespace {

// Most nodes that a compiler gets at once. Passes make smaller groups.
constexpr uint32_t kMaxNodes = 256;

// Most columns of a row that is packed as a whole.
constexpr int64_t kMaxPackedColumns = 1 << 15;

Status unsupported(std::string what) { return {ErrorCode::kUnsupported, std::move(what)}; }

// Whether no item reads or writes what another item writes, so that each can be computed alone.
bool are_independent(const ir::Graph& graph, const ir::Group& group, uint32_t items) {
  struct User {
    uint32_t item = kNone;
    bool writes = false;
  };
  std::map<uint32_t, User> users;  // by buffer
  for (uint32_t n = group.first; n <= group.last; ++n) {
    for (uint32_t item = 0; item < items; ++item) {
      ir::KernelForm form;
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

// Whether no tensor that this item writes has elements.
bool is_empty_item(const ir::Graph& graph, const ir::Group& group, std::span<const int64_t> values, uint32_t item) {
  for (uint32_t n = group.first; n <= group.last; ++n) {
    ir::KernelForm form;
    if (!ir::find_form(graph, graph.nodes[n], item, &form)) return false;
    for (const ir::Part& part : form.parts) {
      const auto is_zero = [&](ir::Sym size) { return values[size] == 0; };
      if (part.writes && std::ranges::none_of(graph.views[part.view].sizes, is_zero)) return false;
    }
  }
  return true;
}

// Whether any range of columns can be computed without the others.
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

// If adjacent elements of an operand are in different rows, loading a row touches as many cache lines as there are
// columns. Such operands are packed first. Returns false if that is impossible; ATen's kernels then handle this memory
// in tiles.
bool pack_transposed(Launch& launch) {
  Kernel& kernel = launch.kernel;
  for (size_t i = 0; i < kernel.operands.size(); ++i) {
    const std::vector<int64_t>& strides = launch.operands[i].strides;
    if (kernel.operands[i].strided && kernel.rows != 0 && launch.sizes[0] > 16 && launch.sizes.back() > 16 &&
        strides[0] != 0 && strides[0] < strides[kernel.dims() - 1]) {
      const bool fits = kernel.columns == 1 && (launch.sizes.back() <= kMaxPackedColumns || is_pointwise(kernel));
      if (kernel.operands[i].indexed != 0 || !fits) return false;
      kernel.operands[i].strided = false;
      launch.operands[i].packed = true;
    }
  }
  return true;
}

// Lowers the nodes first..last to one kernel. For ops over lists, it computes the tensors number `item`.
Status lower_nodes(const ir::Graph& graph, uint32_t first, uint32_t last, std::span<const int64_t> values,
                   uint32_t item, ir::DomainKind kind, Launch* launch) {
  IterationDomain domain(graph, values, item, kind);
  for (uint32_t n = first; n <= last; ++n) {
    if (!domain.add(n)) {
      return unsupported(std::string(ir::op_desc(graph.nodes[n].opcode).name) +
                         " does not have the elements of the other nodes");
    }
  }
  KernelDims dims(domain);
  if (Status status = dims.find(); !status.ok()) return status;
  GroupEmitter group(graph, values, domain, dims, *launch);
  for (const IterationDomain::Member& member : domain.members()) {
    NodeEmitter node(group, member, item);
    if (!expand(node)) {
      return unsupported("there is no kernel for this form of " + std::string(ir::op_desc(node.node.opcode).name));
    }
  }
  if (!group.store()) return unsupported("the added elements are not adjacent");
  return {};
}

bool has_totals(const Kernel& kernel) {
  return std::ranges::any_of(kernel.values, [](const Value& value) { return is_total(value); });
}

// Checks the kernel, which has stores, and appends it to `launches`. `any_order`: transposed operands are not packed.
Status finish_launch(Launch launch, bool any_order, std::vector<Launch>* launches) {
  const auto at_indices = [](const Store& store) { return !store.indices.empty(); };
  if (has_totals(launch.kernel) && std::ranges::any_of(launch.kernel.stores, at_indices)) {
    return unsupported("the kernel partitions rows in two ways");
  }
  if (!any_order && !pack_transposed(launch))
    return unsupported("adjacent elements of one operand are not adjacent in another");
  if (Status status = verify(launch.kernel); !status.ok()) return unsupported(status.message());
  launches->push_back(std::move(launch));
  return {};
}

// Replaces a section's own numbers of buffers, symbols and nodes by those of the whole graph.
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

bool can_alternate(const Launch& before, const Launch& launch) {
  return launch.kernel.rows != 0 && launch.kernel.rows == before.kernel.rows && launch.sizes[0] == before.sizes[0] &&
         launch.outer == before.outer && !has_totals(before.kernel) && !has_totals(launch.kernel);
}

// Makes one kernel for each section.
Status lower_sections(const ir::Graph& graph, std::span<const uint32_t> nodes, std::span<const int64_t> values,
                      std::vector<Launch>* launches) {
  std::vector<ir::Section> sections;
  if (!ir::find_sections(graph, values, nodes, &sections))
    return unsupported("joined tensors cannot be computed separately");
  for (const ir::Section& section : sections) {
    Launch launch;
    const auto last = static_cast<uint32_t>(section.nodes.size()) - 1;
    if (Status status = lower_nodes(section.graph, 0, last, section.values, 0, ir::DomainKind::kGroup, &launch);
        !status.ok())
      return status;
    rename(section, &launch);
    if (launch.kernel.stores.empty()) continue;
    launch.alternates_with_previous = !launches->empty() && can_alternate(launches->back(), launch);
    if (Status status = finish_launch(std::move(launch), /*any_order=*/false, launches); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Status lower_group(const ir::Graph& graph, const ir::Group& group, std::span<const int64_t> values,
                   std::vector<Launch>* launches, bool in_order, ir::DomainKind kind) {
  launches->clear();
  if (group.last - group.first >= kMaxNodes) return unsupported("the group has too many nodes");
  const uint32_t items = ir::count_items(graph.nodes[group.first]);
  const bool takes_turns = in_order && group.first == group.last;
  if (items > 1 && !takes_turns && !are_independent(graph, group, items)) {
    return unsupported("tensors of one list share memory");
  }
  bool joins = false;
  for (uint32_t n = group.first; n <= group.last; ++n) {
    if (ir::count_items(graph.nodes[n]) != items) return unsupported("the lists have different lengths");
    joins |= ir::is_join(graph.nodes[n].opcode);
  }
  std::vector<uint32_t> nodes(group.last - group.first + 1);
  std::iota(nodes.begin(), nodes.end(), group.first);
  const bool check_indices_first = !ir::can_reexecute(graph, nodes);
  if (check_indices_first && !ir::indices_exist_before(graph, nodes))
    return unsupported("an index selects what is written in place");
  if (joins) {
    if (Status status = lower_sections(graph, nodes, values, launches); !status.ok()) return status;
  }
  for (uint32_t item = 0; item < items && !joins; ++item) {
    if (items > 1 && is_empty_item(graph, group, values, item)) continue;
    Launch launch;
    Status status = lower_nodes(graph, group.first, group.last, values, item, kind, &launch);
    if (!status.ok()) return status;
    if (launch.kernel.stores.empty()) continue;
    if (status = finish_launch(std::move(launch), kind != ir::DomainKind::kGroup, launches); !status.ok())
      return status;
  }
  for (Launch& launch : *launches) launch.check_indices_first = check_indices_first;
  return {};
}

}  // namespace torch_remote::codegen
