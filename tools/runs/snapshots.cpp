#include "tools/runs/snapshots.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>

#include "ir/ops/op_table_generated.h"
#include "ir/text.h"

namespace torch_remote::tools {
namespace {

using ir::is_complex;
using ir::is_float;

// Declares a contiguous view with the sizes of `like`, of a new fresh buffer that survives.
uint32_t packed_view(ir::Graph& graph, uint32_t like) {
  ir::View view;
  view.dtype = graph.views[like].dtype;
  view.sizes = graph.views[like].sizes;
  view.strides.resize(view.sizes.size());
  ir::Sym elements = graph.constant(1);
  for (size_t d = view.sizes.size(); d-- > 0;) {
    view.strides[d] = elements;
    elements = graph.expr(ir::ExprKind::kMul, elements, view.sizes[d]);
  }
  view.offset = graph.constant(0);
  view.buffer = static_cast<uint32_t>(graph.buffers.size());
  ir::Buffer buffer;
  buffer.survives = true;
  buffer.nbytes = graph.expr(ir::ExprKind::kMul, elements, graph.constant(ir::item_size(view.dtype)));
  graph.buffers.push_back(buffer);
  graph.views.push_back(std::move(view));
  return static_cast<uint32_t>(graph.views.size() - 1);
}

ir::Node copy_node(uint32_t from, uint32_t to, uint32_t record) {
  constexpr ir::Opcode copy = ir::ops::aten_copy_;
  ir::Node node;
  node.opcode = copy;
  node.record = record;
  node.args = {
      {ir::ArgTag::kView, to, 0, {}, {}}, {ir::ArgTag::kView, from, 0, {}, {}}, {}};  // non_blocking has no effect here
  node.results.resize(1);
  return node;
}

std::string list(std::span<const ir::Sym> symbols, std::span<const int64_t> values) {
  std::string text;
  for (const ir::Sym symbol : symbols) text += (text.empty() ? "" : ", ") + std::to_string(values[symbol]);
  return text;
}

std::string real(int64_t bits) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", std::bit_cast<double>(bits));
  return text;
}

std::string describe(const ir::Graph& graph, const ir::Arg& arg, std::span<const int64_t> values) {
  const auto value = [&](uint32_t symbol) { return values[symbol]; };
  switch (arg.tag) {
    case ir::ArgTag::kView: {
      const ir::View& view = graph.views[arg.a];
      if (view.dynamic) return "?";
      return std::string(ir::name(view.dtype)) + "[" + list(view.sizes, values) + "]{" + list(view.strides, values) +
             "}" + (value(view.offset) != 0 ? " + " + std::to_string(value(view.offset)) : "");
    }
    case ir::ArgTag::kScalarTensor: {
      const auto dtype = static_cast<ir::DType>(arg.b & 0xFF);
      const std::string type = ": " + std::string(ir::name(dtype));
      if (is_complex(dtype)) return "complex(" + real(value(arg.a)) + ", " + real(value(arg.a + 1)) + ")" + type;
      return (is_float(dtype) ? real(value(arg.a)) : std::to_string(value(arg.a))) + type;
    }
    case ir::ArgTag::kList: {
      constexpr size_t kShown = 8;
      std::string text;
      for (size_t i = 0; i < std::min(kShown, arg.items.size()); ++i) {
        text += (i ? ", " : "") + describe(graph, arg.items[i], values);
      }
      if (arg.items.size() > kShown) text += ", and " + std::to_string(arg.items.size() - kShown) + " more";
      return "[" + text + "]";
    }
    case ir::ArgTag::kInt:
      return std::to_string(value(arg.a));
    case ir::ArgTag::kFloat:
      return real(value(arg.a));
    case ir::ArgTag::kBool:
      return value(arg.a) ? "true" : "false";
    case ir::ArgTag::kComplex:
      return "complex(" + real(value(arg.a)) + ", " + real(value(arg.a + 1)) + ")";
    case ir::ArgTag::kString:
      return "\"" + arg.text + "\"";
    case ir::ArgTag::kDType:
      return std::string(ir::name(static_cast<ir::DType>(arg.a)));
    case ir::ArgTag::kMemoryFormat:
      return "memory format " + std::to_string(arg.a);
    case ir::ArgTag::kGenerator:
      return "philox(" + std::to_string(value(arg.a)) + ", " + std::to_string(value(arg.a + 1)) + ")";
    case ir::ArgTag::kNone:
      break;
  }
  return "none";
}

}  // namespace

std::vector<uint32_t> written_views(const ir::Graph& graph, const ir::Node& node) {
  std::vector<uint32_t> views;
  ir::for_each_view(node, [&](uint32_t view, bool writes) {
    if (writes && !graph.views[view].dynamic) views.push_back(view);
  });
  return views;
}

std::vector<uint32_t> read_views(const ir::Graph& graph, const ir::Node& node) {
  std::vector<uint32_t> views;
  ir::for_each_view(node, [&](uint32_t view, bool writes) {
    if (!writes && !graph.views[view].dynamic) views.push_back(view);
  });
  return views;
}

ir::Graph with_operand_snapshots(const ir::Graph& graph, uint32_t node, std::vector<Snapshot>* snapshots) {
  ir::Graph result = graph;
  result.drop_plan();
  result.drop_groups();
  snapshots->clear();
  std::vector<ir::Node> copies;
  for (const uint32_t view : read_views(graph, graph.nodes[node])) {
    copies.push_back(copy_node(view, packed_view(result, view), graph.nodes[node].record));
    snapshots->push_back({node, view});
  }
  result.nodes.insert(result.nodes.begin() + node, copies.begin(), copies.end());
  return result;
}

ir::Graph with_snapshots(const ir::Graph& graph, std::span<const uint32_t> nodes, std::vector<Snapshot>* snapshots) {
  ir::Graph result = graph;
  result.drop_plan();
  result.drop_groups();
  result.nodes.clear();
  snapshots->clear();
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    result.nodes.push_back(graph.nodes[n]);
    if (nodes.empty() || nodes.front() != n) continue;
    nodes = nodes.subspan(1);
    for (const uint32_t view : written_views(graph, graph.nodes[n])) {
      const uint32_t copy = packed_view(result, view);
      result.nodes.push_back(copy_node(view, copy, graph.nodes[n].record));
      snapshots->push_back({n, view});
    }
  }
  return result;
}

uint64_t view_bytes(const ir::View& view, std::span<const int64_t> values) {
  uint64_t bytes = ir::item_size(view.dtype);
  for (const ir::Sym size : view.sizes) bytes *= static_cast<uint64_t>(values[size]);
  return bytes;
}

std::string describe(const ir::Graph& graph, const ir::Node& node, std::span<const int64_t> values) {
  const ir::OpDesc& desc = ir::op_desc(node.opcode);
  std::string text(desc.name);
  text += "(";
  bool first = true;
  for (size_t i = 0; i < node.args.size(); ++i) {
    if (node.args[i].tag == ir::ArgTag::kNone) continue;
    if (!std::exchange(first, false)) text += ", ";
    if (desc.args[i].keyword_only) text += std::string(desc.args[i].name) + "=";
    text += describe(graph, node.args[i], values);
  }
  return text + ")";
}

std::string line_of(const ir::Graph& graph, const ir::Node& node) {
  return node.record < graph.source_lines.size() ? graph.source_lines[node.record] : "";
}

}  // namespace torch_remote::tools
