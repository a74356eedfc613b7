#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "tools/common/graph_json.h"

// Makes the page that shows a graph: one self-contained HTML file.
namespace torch_remote::tools {

struct NodeTime {
  double p50_us = 0;
  double p99_us = 0;
};

struct PageInput {
  std::string title;
  ir::Graph graph;
  std::vector<int64_t> values;                 // the symbols' values in one run, or empty
  std::vector<std::optional<NodeTime>> times;  // per node, or empty
};

// The data for the page's script; tools/viz/page/data.js documents it.
Json page_data(const PageInput& input);

std::string make_page(const PageInput& input);

}  // namespace torch_remote::tools
