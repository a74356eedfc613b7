#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "tools/common/graph_json.h"

// The page that shows a graph: one HTML file that needs nothing else.
namespace torch_remote::tools {

struct NodeTime {
  double p50_us = 0;
  double p99_us = 0;
};

struct PageInput {
  std::string title;
  ir::Graph graph;
  std::vector<int64_t> values;                 // of the symbols in one run, or empty
  std::vector<std::optional<NodeTime>> times;  // of each node, or empty
};

// What the page's script gets; documented at the top of tools/viz/page/data.js.
Json page_data(const PageInput& input);

std::string make_page(const PageInput& input);

}  // namespace torch_remote::tools
