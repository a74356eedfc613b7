#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "tools/common/graph_json.h"

// Makes the page that shows the programs of an input: one self-contained HTML file.
namespace torch_remote::tools {

struct NodeTime {
  double p50_us = 0;
  double p99_us = 0;
  std::string runner = {};  // what executed the node; empty: unknown
};

struct PageProgram {
  uint32_t number = 0;  // the client's number of the program; 0: a graph without a number
  ir::Graph graph = {};
  std::vector<int64_t> values = {};                 // the symbols' values in one run, or empty
  std::vector<std::optional<NodeTime>> times = {};  // per node, or empty
  double p50_us = 0;                                // of a run of the whole program; 0: unknown
  std::optional<uint64_t> runs = {};                // in the capture; absent: unknown
  std::string missing = {};  // why the graph is not known; the page then lists the program, and cannot show it
};

// What a page shows.
struct PageInput {
  std::string title;
  std::vector<PageProgram> programs;  // in the order of the menu
  // Bytes of the programs' data in the page. A program that does not fit is left out, unless it is the most expensive.
  uint64_t limit = uint64_t{64} << 20;
};

// The data of one program for the page's script; tools/viz/page/data.js documents it.
Json program_data(const PageProgram& program);

// Indices of the programs, with the most expensive one first. The cost is the time of all runs. A run takes p50_us or,
// if that is unknown, the sum of its nodes' p50_us. If the time of no program is known, the cost is the number of ops
// in all runs. An unknown number of runs counts as 1.
std::vector<size_t> by_cost(const std::vector<PageProgram>& programs);

// The page. It has the most expensive programs that fit into the limit, and shows the most expensive one first. A
// program that does not fit leaves space for cheaper ones. *left_out: numbers of the programs that do not fit, in the
// order of the menu, which lists them, too. Programs whose graph is not known (PageProgram::missing) are not among
// them.
std::string make_page(const PageInput& input, std::vector<uint32_t>* left_out);

}  // namespace torch_remote::tools
