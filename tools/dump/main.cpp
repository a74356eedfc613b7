#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/common/capture_summary.h"
#include "tools/common/command.h"
#include "tools/common/graph_json.h"
#include "tools/common/input.h"
#include "tools/dump/describe.h"
#include "tools/dump/graph_diff.h"
#include "tools/dump/runners.h"

// remote-dump: prints a graph, a program or a capture, or the difference between two of them.
namespace torch_remote::tools {
namespace {

constexpr const char* kName = "remote-dump";
constexpr const char* kAbout = R"(Shows the contents of a program or a capture, and the differences between two of them.

For the text of a graph or a program, it prints the graph: ops, operands with dtypes, sizes and strides, the memory
plan, lines of the script. For a capture (TORCH_REMOTE_CAPTURE=file), it prints the programs and how often they ran.
--program or --all adds their graphs, and the parameters that differ between runs.)";
constexpr const char* kExamples = R"(Examples:
  remote-dump train.rreplay                    the programs, and how often they ran
  remote-dump train.rreplay --program 3        one program, and which parameters changed
  remote-dump train.rreplay --program 3 --before-passes
  remote-dump train.rreplay --events           every message of the session
  remote-dump train.rreplay --program 3 --runners   which runner executes each op on this machine, and why
  remote-dump --diff before.rreplay after.rreplay
  remote-dump --json program.bin | jq '.nodes[].op'

Exit status: 0 done (--diff: no difference), 1 --diff found one, 2 bad arguments or a bad input.)";

struct Options {
  std::vector<std::string> inputs;
  std::string output, worker = "local";
  GraphSelection choice;
  bool all = false, params = false, events = false, json = false, numbers = false, runners = false, diff = false;
};

bool read_options(int argc, char** argv, Options* options, int* exit) {
  CLI::App app(kAbout, kName);
  app.footer(kExamples);
  app.add_option("input", options->inputs, "text, program or capture; - or nothing: the standard input")
      ->type_name("FILE")
      ->expected(0, 2);
  app.add_option("-o,--output", options->output, "output file; - or nothing: the standard output")->type_name("FILE");
  app.add_flag("--json", options->json, "JSON; docs/tools.md describes it");
  auto* program = app.add_option("--program", options->choice.program, "show this program of a capture")
                      ->check(CLI::PositiveNumber.description(""))
                      ->type_name("N");
  app.add_flag("--all", options->all, "show all programs of a capture")->excludes(program);
  app.add_flag("--before-passes", options->choice.before_passes, "show the graphs of a capture as they were recorded");
  app.add_flag("--params", options->params, "show all used parameters of a capture, not only those that differ");
  app.add_flag("--events,--runs", options->events,
               "show the runs, uploads, reads and errors of a capture, one per line");
  app.add_flag("--numbers", options->numbers, "print each op's number after it");
  auto* runners = app.add_flag("--runners", options->runners,
                               "run the programs of a capture on a worker, and print after each op which runner "
                               "executes it, and why earlier runners declined it");
  app.add_option("--worker", options->worker, "the worker of --runners: local (a child process), inproc, unix://PATH")
      ->type_name("NAME")
      ->needs(runners);
  app.add_flag("--diff", options->diff, "compare two inputs: the first op that differs, and a unified diff");
  if (!parse_arguments(app, argc, argv, exit)) return false;
  if (options->diff && options->inputs == std::vector<std::string>{"-", "-"}) {
    *exit = fail(kName, "--diff needs two inputs; only one of them can be the standard input");
    return false;
  }
  if (options->runners && (options->diff || options->events || options->choice.before_passes)) {
    *exit = fail(kName, "--runners shows what a worker executes: leave out --before-passes, --events and --diff");
    return false;
  }
  options->all |= options->runners && options->choice.program == 0;
  if (options->inputs.size() == (options->diff ? 2u : 1u)) return true;
  if (!options->diff && options->inputs.empty()) {
    options->inputs.emplace_back("-");
    return true;
  }
  *exit = fail(kName, options->diff ? "--diff needs two files" : "two files are for --diff; see remote-dump --help");
  return false;
}

// -- one input --------------------------------------------------------------------------------------------------------

// The comments after the ops.
std::vector<std::string> remarks(const ir::Graph& graph, const Options& options,
                                 const std::vector<NodeRunner>* runners) {
  std::vector<std::string> texts;
  for (size_t n = 0; n < graph.nodes.size() && (options.numbers || options.runners); ++n) {
    texts.push_back(options.numbers ? "op " + std::to_string(n) : "");
    if (!options.runners) continue;
    if (options.numbers) texts[n] += ": ";
    texts[n] += runners == nullptr ? "did not run" : to_string((*runners)[n]);
  }
  return texts;
}

Status show_graph(const Input& input, const Options& options, std::string* out) {
  if (options.runners) {
    return Status::invalid(input.name +
                           " is one graph: the runner of an op depends on the sizes of a run, so --runners needs a "
                           "capture (TORCH_REMOTE_CAPTURE=file)");
  }
  if (options.choice.program != 0 || options.all || options.events || options.params) {
    return Status::invalid(input.name + " is one graph: --program, --all, --events and --params are for captures");
  }
  ir::Graph graph;
  if (Status status = load_graph(input, options.choice, &graph); !status.ok()) return status;
  *out = options.json ? dump(graph_json(graph), 1) : graph_text(graph, remarks(graph, options, nullptr));
  return {};
}

// One object per op; null if the program did not run.
Json runners_json(const std::vector<NodeRunner>* runners) {
  if (runners == nullptr) return nullptr;
  Json nodes = Json::array();
  for (const NodeRunner& node : *runners) {
    nodes.push_back({{"runner", node.runner}, {"in_kernel", node.in_kernel}, {"declined", node.declined}});
  }
  return nodes;
}

Status add_program(const Input& input, const Options& options, const ProgramSummary& program, const NodeRunners& known,
                   std::string* text, Json* json) {
  ir::Graph graph;
  if (Status status = graph_of(input, *program.program, options.choice.before_passes, &graph); !status.ok()) {
    return status;
  }
  const auto found = known.find(program.program->number);
  const std::vector<NodeRunner>* runners = found == known.end() ? nullptr : &found->second;
  if (options.json) {
    json->push_back({{"program", program.program->number},
                     {"runs", program.runs},
                     {"params", params_json(program, graph)},
                     {"graph", graph_json(graph)}});
    if (options.runners) json->back()["runners"] = runners_json(runners);
  } else {
    if (!text->empty()) *text += '\n';
    *text += params_text(program, graph, options.params) + graph_text(graph, remarks(graph, options, runners));
  }
  return {};
}

Status add_events(const Input& input, const Options& options, remote::CaptureReader& reader, std::string* text,
                  Json* json) {
  reader.rewind();
  for (std::optional<remote::CaptureEvent> event;;) {
    if (Status status = reader.next(&event); !status.ok()) return with_input_name(input, status);
    if (!event.has_value()) return {};
    const auto* run = std::get_if<remote::RunEvent>(&event->what);
    if (options.choice.program != 0 && (run == nullptr || run->program->number != options.choice.program)) continue;
    if (options.json) {
      json->push_back(event_json(*event));
    } else {
      *text += event_text(*event);
    }
  }
}

Status show_capture(const Input& input, const Options& options, std::string* out) {
  std::unique_ptr<remote::CaptureReader> reader;
  CaptureSummary summary;
  if (Status status = open_capture(input, &reader); !status.ok()) return status;
  if (Status status = summarize(*reader, &summary); !status.ok()) return with_input_name(input, status);
  std::string text = capture_text(input.name, *reader, summary);
  Json json = capture_json(input.name, *reader, summary);
  if (options.choice.program != 0) {
    remote::CapturedProgramPtr program;
    reader->rewind();
    if (Status status = find_program(input, *reader, options.choice, &program); !status.ok()) return status;
    text.clear();  // only the graph, so that remote-opt can read it
  }
  Json graphs = Json::array();
  Json events = Json::array();
  if (options.events) {
    if (!text.empty()) text += '\n';
    if (Status status = add_events(input, options, *reader, &text, &events); !status.ok()) return status;
    json["events"] = std::move(events);
  } else {
    NodeRunners runners;
    if (options.runners) {
      if (Status status = find_runners(*reader, options.worker, options.choice.program, &runners); !status.ok()) {
        return status;
      }
    }
    for (const ProgramSummary& program : summary.programs) {
      if (!options.all && program.program->number != options.choice.program) continue;
      if (Status status = add_program(input, options, program, runners, &text, &graphs); !status.ok()) return status;
    }
    if (!graphs.empty()) json["graphs"] = std::move(graphs);
  }
  *out = options.json ? dump(json, 1) : text;
  return {};
}

// -- two inputs -------------------------------------------------------------------------------------------------------

struct NamedGraph {
  std::string name;
  ir::Graph graph;
};

// Loads the graph, or the graphs of all programs of a capture.
Status load_graphs(const Input& input, const GraphSelection& choice, std::vector<NamedGraph>* graphs) {
  if (input.format != Format::kCapture || choice.program != 0) {
    return load_graph(input, choice, &graphs->emplace_back(NamedGraph{input.name, {}}).graph);
  }
  std::unique_ptr<remote::CaptureReader> reader;
  if (Status status = open_capture(input, &reader); !status.ok()) return status;
  for (remote::CapturedProgramPtr program;;) {
    if (Status status = next_program(input, *reader, &program); !status.ok()) return status;
    if (program == nullptr) return {};
    NamedGraph& named = graphs->emplace_back();
    named.name = input.name + " program " + std::to_string(program->number);
    if (Status status = graph_of(input, *program, choice.before_passes, &named.graph); !status.ok()) return status;
  }
}

Status compare(const Options& options, std::string* out, bool* same) {
  std::vector<NamedGraph> graphs[2];
  for (size_t i = 0; i < 2; ++i) {
    Input input;
    if (Status status = read_input(options.inputs[i], &input); !status.ok()) return status;
    if (Status status = load_graphs(input, options.choice, &graphs[i]); !status.ok()) return status;
  }
  Json differences = Json::array();
  const auto add = [&](const std::string& a, const std::string& b, const std::string& first, const std::string& diff) {
    *same = false;
    *out += first + "\n" + diff;
    differences.push_back({{"a", a}, {"b", b}, {"first", first}, {"diff", diff}});
  };
  const size_t both = std::min(graphs[0].size(), graphs[1].size());
  for (size_t i = 0; i < both; ++i) {
    const NamedGraph& a = graphs[0][i];
    const NamedGraph& b = graphs[1][i];
    const GraphDifference difference = diff_graphs(a.graph, b.graph, a.name, b.name);
    if (!difference.same) add(a.name, b.name, difference.first, difference.diff);
  }
  if (graphs[0].size() != graphs[1].size()) {
    add(options.inputs[0], options.inputs[1],
        options.inputs[0] + " has " + std::to_string(graphs[0].size()) + " programs, " + options.inputs[1] + " has " +
            std::to_string(graphs[1].size()),
        "");
  }
  if (options.json) *out = dump({{"same", *same}, {"differences", differences}}, 1);
  return {};
}

int run(int argc, char** argv) {
  Options options;
  int exit = kExitOk;
  if (!read_options(argc, argv, &options, &exit)) return exit;
  std::string out;
  bool same = true;
  if (options.diff) {
    if (const Status status = compare(options, &out, &same); !status.ok()) return fail(kName, status);
  } else {
    Input input;
    if (const Status status = read_input(options.inputs[0], &input); !status.ok()) return fail(kName, status);
    const Status status =
        input.format == Format::kCapture ? show_capture(input, options, &out) : show_graph(input, options, &out);
    if (!status.ok()) return fail(kName, status);
  }
  if (const Status status = write_output(options.output, out); !status.ok()) return fail(kName, status);
  return same ? kExitOk : kExitDifferent;
}

}  // namespace
}  // namespace torch_remote::tools

int main(int argc, char** argv) {
  return torch_remote::tools::run_tool(torch_remote::tools::kName, torch_remote::tools::run, argc, argv);
}
