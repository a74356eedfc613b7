#include <string>

#include "tools/common/command.h"
#include "tools/common/input.h"
#include "tools/viz/page.h"
#include "tools/viz/times.h"

// remote-viz: a graph as an HTML page.
namespace torch_remote::tools {
namespace {

constexpr const char* kName = "remote-viz";
constexpr const char* kAbout =
    R"(Draws a graph: writes one HTML file that any browser opens, without a network.

The page shows the ops by the lines of the script that recorded them, to be opened and closed, with shapes, strides,
lines, times and bytes; which buffers are alive at which op; and has a search. The input is the text form of a graph
(TORCH_REMOTE_DUMP=folder writes it) or a program.)";
constexpr const char* kExamples = R"(Examples:
  remote-viz program_3/5_plan.txt -o net.html
  remote-viz --times bench.json program.bin -o net.html

Exit status: 0 done, 2 bad arguments or a bad input.)";

struct Options {
  std::string input, output, times, title;
  uint32_t program = 1;
};

bool read_options(int argc, char** argv, Options* options, int* exit) {
  CLI::App app(kAbout, kName);
  app.footer(kExamples);
  app.add_option("input", options->input, "the graph; - or nothing: the standard input")->type_name("FILE");
  app.add_option("-o,--output", options->output, "where to; - or nothing: the standard output")->type_name("FILE");
  app.add_option("--times", options->times, "times of the ops, from remote-replay --bench --json")->type_name("FILE");
  app.add_option("--program", options->program, "which program, by its number in the capture or the times; 1")
      ->type_name("N");
  app.add_option("--title", options->title, "title of the page; else the input's name")->type_name("TEXT");
  return parse_arguments(app, argc, argv, exit);
}

int run(int argc, char** argv) {
  Options options;
  int exit = kExitOk;
  if (!read_options(argc, argv, &options, &exit)) return exit;
  Input input;
  PageInput page;
  if (const Status status = read_input(options.input, &input); !status.ok()) return fail(kName, status);
  if (const Status status = load_graph(input, &page.graph); !status.ok()) return fail(kName, status);
  if (!options.times.empty()) {
    const Status status = read_times(options.times, options.program, page.graph.nodes.size(), &page.times);
    if (!status.ok()) return fail(kName, status);
  }
  page.title = options.title.empty() ? input.name : options.title;
  const Status status = write_output(options.output, make_page(page));
  return status.ok() ? kExitOk : fail(kName, status);
}

}  // namespace
}  // namespace torch_remote::tools

int main(int argc, char** argv) {
  return torch_remote::tools::run_tool(torch_remote::tools::kName, torch_remote::tools::run, argc, argv);
}
