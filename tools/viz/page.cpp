#include "tools/viz/page.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "tools/viz/dependencies.h"
#include "tools/viz/memory.h"
#include "tools/viz/page_files.h"
#include "tools/viz/shared_json.h"

namespace torch_remote::tools {
namespace {

// JSON inside a script element must not end the element; "<" occurs only in strings.
std::string for_script(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

std::string for_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '&':
        out += "&amp;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void replace_mark(std::string& page, std::string_view mark, std::string_view text) {
  page.replace(page.find(mark), mark.size(), text);
}

Json memory_json(const MemoryChart& chart) {
  Json bars = Json::array();
  for (const MemoryBar& bar : chart.bars) bars.push_back({bar.buffer, bar.first, bar.last, bar.offset, bar.bytes});
  return {{"sizes_known", chart.sizes_known},
          {"height", chart.height},
          {"peak", chart.peak},
          {"bars", bars},
          {"live", chart.live}};
}

// Number of kernels and library calls by runner, the most frequent runner first; empty if no runner is known.
Json runner_counts(const PageProgram& program) {
  std::map<std::string, uint64_t> counts;
  for (const std::optional<NodeTime>& time : program.times) {
    if (time.has_value() && !time->runner.empty()) ++counts[time->runner];
  }
  std::vector<std::pair<std::string, uint64_t>> sorted(counts.begin(), counts.end());
  std::ranges::stable_sort(sorted, std::greater(), &std::pair<std::string, uint64_t>::second);
  Json out = Json::array();
  for (const auto& [runner, count] : sorted) out.push_back({runner, count});
  return out;
}

double sum_of_times(const PageProgram& program) {
  double sum = 0;
  for (const std::optional<NodeTime>& time : program.times) sum += time.has_value() ? time->p50_us : 0;
  return sum;
}

double time_of(const PageProgram& program) { return program.p50_us > 0 ? program.p50_us : sum_of_times(program); }

// An entry of the menu.
Json menu_entry(const PageProgram& program) {
  const double us = time_of(program);
  return {{"number", program.number},
          {"ops", program.graph.nodes.size()},
          {"groups", program.graph.groups.size()},
          {"runs", program.runs.has_value() ? Json(*program.runs) : Json(nullptr)},
          {"us", us > 0 ? Json(us) : Json(nullptr)},
          {"runner_counts", runner_counts(program)},
          {"entry", nullptr},
          {"missing", program.missing}};
}

}  // namespace

Json program_data(const PageProgram& program) {
  Json data;
  data["graph"] = graph_json(program.graph);
  data["edges"] = dependencies(program.graph);
  data["memory"] = memory_json(memory_chart(program.graph, program.values));
  data["values"] = program.values;
  data["times"] = Json::array();
  data["runners"] = Json::array();
  for (const std::optional<NodeTime>& time : program.times) {
    data["times"].push_back(time.has_value() ? Json{time->p50_us, time->p99_us} : Json(nullptr));
    data["runners"].push_back(time.has_value() ? Json(time->runner) : Json(""));
  }
  data["bytes"] = Json::array();
  for (uint32_t n = 0; !program.values.empty() && n < program.graph.nodes.size(); ++n) {
    data["bytes"].push_back(bytes_of_node(program.graph, n, program.values));
  }
  return data;
}

std::vector<size_t> by_cost(const std::vector<PageProgram>& programs) {
  const bool timed = std::ranges::any_of(programs, [](const PageProgram& program) { return time_of(program) > 0; });
  std::vector<double> costs;
  for (const PageProgram& program : programs) {
    const double one = timed ? time_of(program) : static_cast<double>(program.graph.nodes.size());
    costs.push_back(one * static_cast<double>(program.runs.value_or(1)));
  }
  std::vector<size_t> order(programs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  return order;
}

std::string make_page(const PageInput& input, std::vector<uint32_t>* left_out) {
  SharedJson shared;
  Json menu = Json::array();
  for (const PageProgram& program : input.programs) menu.push_back(menu_entry(program));
  std::vector<bool> fits(input.programs.size());
  Json shown;
  for (const size_t i : by_cost(input.programs)) {
    if (!input.programs[i].missing.empty()) continue;
    const uint32_t before = shared.size();
    const uint32_t entry = shared.add(program_data(input.programs[i]));
    fits[i] = shown.is_null() || shared.bytes() <= input.limit;
    if (fits[i]) {
      menu[i]["entry"] = entry;
    } else {
      shared.truncate(before);
      menu[i]["missing"] = "it does not fit into the page";
    }
    if (shown.is_null()) shown = i;
  }
  left_out->clear();
  for (size_t i = 0; i < input.programs.size(); ++i) {
    if (!fits[i] && input.programs[i].missing.empty()) left_out->push_back(input.programs[i].number);
  }
  std::string page(page_files::kHtml);
  // From the last mark to the first one, so that no mark is searched in a text that is not ours.
  replace_mark(page, "@SCRIPT@", page_files::kScript);
  replace_mark(page, "@SHARED@", for_script(shared.text()));
  replace_mark(page, "@MENU@", for_script(dump({{"title", input.title}, {"programs", menu}, {"shown", shown}}, -1)));
  replace_mark(page, "@STYLE@", page_files::kStyle);
  replace_mark(page, "@TITLE@", for_html(input.title));
  return page;
}

}  // namespace torch_remote::tools
