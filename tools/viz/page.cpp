#include "tools/viz/page.h"

#include <string_view>

#include "tools/viz/dependencies.h"
#include "tools/viz/memory.h"
#include "tools/viz/page_files.h"

namespace torch_remote::tools {
namespace {

// JSON inside a script element must not end the element; "<" occurs only in strings.
std::string for_script(const Json& json) {
  std::string out;
  for (const char c : dump(json, -1)) {
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

}  // namespace

Json page_data(const PageInput& input) {
  Json data;
  data["title"] = input.title;
  data["graph"] = graph_json(input.graph);
  data["edges"] = dependencies(input.graph);
  data["memory"] = memory_json(memory_chart(input.graph, input.values));
  data["values"] = input.values;
  Json times = Json::array();
  for (const std::optional<NodeTime>& time : input.times) {
    times.push_back(time.has_value() ? Json{time->p50_us, time->p99_us} : Json(nullptr));
  }
  data["times"] = times;
  Json bytes = Json::array();
  for (uint32_t n = 0; !input.values.empty() && n < input.graph.nodes.size(); ++n) {
    bytes.push_back(bytes_of_node(input.graph, n, input.values));
  }
  data["bytes"] = bytes;
  return data;
}

std::string make_page(const PageInput& input) {
  std::string page(page_files::kHtml);
  replace_mark(page, "@TITLE@", for_html(input.title));
  replace_mark(page, "@STYLE@", page_files::kStyle);
  replace_mark(page, "@SCRIPT@", page_files::kScript);
  // last, because this text is not ours and may contain marks
  replace_mark(page, "@DATA@", for_script(page_data(input)));
  return page;
}

}  // namespace torch_remote::tools
