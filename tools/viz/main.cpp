#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "tools/common/command.h"
#include "tools/common/input.h"
#include "tools/viz/page.h"
#include "tools/viz/times.h"

// remote-viz: draws a graph as an HTML page.
namespace torch_remote::tools {
namespace {

constexpr const char* kName = "remote-viz";
constexpr const char* kAbout =
    R"(Draws a graph: writes one HTML file that any browser opens, without a network.

The page shows the ops, grouped by the lines of the script that recorded them, with shapes, strides, lines, times and
bytes. It also shows which buffers are alive at which op, and has a search. The input is the text form of a graph
(TORCH_REMOTE_DUMP=folder writes it), a program, or a capture (TORCH_REMOTE_CAPTURE=file). A capture knows its sizes.)";
constexpr const char* kExamples = R"(Examples:
  remote-viz program_3/5_plan.txt -o net.html
  remote-viz --program 3 --times bench.json train.rreplay -o net.html

Exit status: 0 done, 2 bad arguments or a bad input.)";

struct Options {
  std::string input, output, times, title;
  uint32_t program = 0;
  size_t run = 1;
  bool before_passes = false;
};

bool read_options(int argc, char** argv, Options* options, int* exit) {
  CLI::App app(kAbout, kName);
  app.footer(kExamples);
  app.add_option("input", options->input, "text, program or capture; - or nothing: the standard input")
      ->type_name("FILE");
  app.add_option("-o,--output", options->output, "output file; - or nothing: the standard output")->type_name("FILE");
  app.add_option("--times", options->times, "times of the ops, from remote-replay --bench --json")->type_name("FILE");
  app.add_option("--program", options->program, "program of the capture, and of the times; default: the only one")
      ->type_name("N");
  app.add_option("--run", options->run, "run whose sizes are shown, counted from 1")->type_name("N");
  app.add_flag("--before-passes", options->before_passes, "show the graph of a capture as it was recorded");
  app.add_option("--title", options->title, "title of the page; default: the input's name")->type_name("TEXT");
  return parse_arguments(app, argc, argv, exit);
}

// Loads the symbols' values in one run of the program; empty if the capture has no run of it.
Status load_values(const Input& input, const Options& options, const ir::Graph& graph, std::vector<int64_t>* values) {
  std::unique_ptr<remote::CaptureReader> reader;
  remote::CapturedProgramPtr program;
  if (Status status = open_capture(input, &reader); !status.ok()) return status;
  if (Status status = find_program(input, *reader, {.program = options.program}, &program); !status.ok()) return status;
  reader->rewind();
  size_t runs = 0;
  for (std::optional<remote::CaptureEvent> event;;) {
    if (Status status = reader->next(&event); !status.ok()) return with_input_name(input, status);
    if (!event.has_value()) break;
    const auto* run = std::get_if<remote::RunEvent>(&event->what);
    if (run == nullptr || run->program->number != program->number || ++runs != options.run) continue;
    const Status status = ir::evaluate(graph, run->params.data(), values);
    return status.ok() ? status : with_input_name(input, status);
  }
  if (runs == 0 && options.run == 1) return {};
  return Status::invalid(input.name + ": program " + std::to_string(program->number) + " has " + std::to_string(runs) +
                         " runs and no run " + std::to_string(options.run));
}

Status load_page(const Input& input, const Options& options, PageInput* page) {
  if (Status status = load_graph(input, {options.program, options.before_passes}, &page->graph); !status.ok()) {
    return status;
  }
  if (input.format == Format::kCapture) {
    if (Status status = load_values(input, options, page->graph, &page->values); !status.ok()) return status;
  }
  if (options.times.empty()) return {};
  const uint32_t program = options.program == 0 ? 1 : options.program;
  return read_times(options.times, program, page->graph.nodes.size(), &page->times);
}

// A title for people: "program_3/5_plan.txt", "train.rreplay, program 3".
std::string default_title(const Input& input, const Options& options) {
  const std::filesystem::path path(input.name);
  if (input.format != Format::kCapture) return (path.parent_path().filename() / path.filename()).string();
  std::string title = path.filename().string();
  if (options.program != 0) title += ", program " + std::to_string(options.program);
  return options.before_passes ? title + ", before the passes" : title;
}

int run(int argc, char** argv) {
  Options options;
  int exit = kExitOk;
  if (!read_options(argc, argv, &options, &exit)) return exit;
  Input input;
  PageInput page;
  if (const Status status = read_input(options.input, &input); !status.ok()) return fail(kName, status);
  if (const Status status = load_page(input, options, &page); !status.ok()) return fail(kName, status);
  page.title = options.title.empty() ? default_title(input, options) : options.title;
  const Status status = write_output(options.output, make_page(page));
  return status.ok() ? kExitOk : fail(kName, status);
}

}  // namespace
}  // namespace torch_remote::tools

int main(int argc, char** argv) {
  return torch_remote::tools::run_tool(torch_remote::tools::kName, torch_remote::tools::run, argc, argv);
}
