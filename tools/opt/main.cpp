#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "ir/text.h"
#include "passes/pass.h"
#include "tools/common/command.h"
#include "tools/common/graph_json.h"
#include "tools/common/input.h"

// remote-opt: runs passes over a graph in text form.
namespace torch_remote::tools {
namespace {

constexpr const char* kName = "remote-opt";
constexpr const char* kAbout = R"(Runs optimization passes over a graph and prints the result.

The input is the text form of a graph (docs/ir.md; TORCH_REMOTE_DUMP=folder writes it), a program, or a capture
(TORCH_REMOTE_CAPTURE=file). Without --passes the whole pipeline runs, as on a client.)";
constexpr const char* kExamples = R"(Examples:
  remote-opt graph.txt                         what the pipeline makes of it
  remote-opt --passes lift,dce --verify < graph.txt
  remote-opt --passes none --emit json graph.bin | jq .nodes[0]

Exit status: 0 done, 1 a pass failed, 2 bad arguments or a bad input.)";

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

struct Options {
  std::string input, output;
  std::vector<std::string> passes;
  std::string emit = "text";
  uint32_t program = 0;
  std::string pass_options;
  std::vector<std::string> group_kinds;
  std::vector<int64_t> params;
  bool verify = false, before_all = false, after_all = false, time = false, list = false;
};

struct Timing {
  std::string_view name;
  double microseconds;
};

bool read_options(int argc, char** argv, Options* options, int* exit) {
  CLI::App app(kAbout, kName);
  app.footer(kExamples);
  app.add_option("input", options->input, "text, program or capture; - or nothing: the standard input")
      ->type_name("FILE");
  app.add_option("--passes", options->passes, "passes in the order to run them, with commas between; none: no pass")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAMES");
  app.add_option("--options", options->pass_options,
                 "options of passes, and 0 for a pass to skip: fuse.limit=3,cse=0 (--list has all)")
      ->type_name("OPTIONS");
  app.add_option("--group-kinds", options->group_kinds,
                 "kinds of groups that the worker is assumed to support, with commas between; all: every kind")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("KINDS");
  app.add_option("--params", options->params,
                 "parameters of a run, with commas between; fuse creates groups only if it knows the sizes of a run")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NUMBERS");
  app.add_option("--program", options->program, "which program of a capture: its graph before the passes")
      ->type_name("N");
  app.add_option("--emit", options->emit, "form of the result: text, program or json")
      ->check(CLI::IsMember({"text", "program", "json"}).description(""))
      ->type_name("FORM");
  app.add_option("-o,--output", options->output, "output file; - or nothing: the standard output")->type_name("FILE");
  app.add_flag("--verify", options->verify, "check the graph after each pass, too");
  app.add_flag("--print-before-all", options->before_all, "print the graph before each pass, on stderr");
  app.add_flag("--print-after-all", options->after_all, "print the graph after each pass, on stderr");
  app.add_flag("--time-passes", options->time, "print how long each step took, on stderr");
  app.add_flag("--list", options->list, "list the passes, in the pipeline's order, and do nothing");
  return parse_arguments(app, argc, argv, exit);
}

void list_passes() {
  for (const passes::Pass& pass : passes::pipeline()) {
    std::printf("%-14.*s %.*s\n", static_cast<int>(pass.name.size()), pass.name.data(),
                static_cast<int>(pass.summary.size()), pass.summary.data());
    for (const passes::PassOption& option : pass.options) {
      std::printf("%-14s %.*s.%.*s: %.*s\n", "", static_cast<int>(pass.name.size()), pass.name.data(),
                  static_cast<int>(option.name.size()), option.name.data(), static_cast<int>(option.summary.size()),
                  option.summary.data());
    }
  }
}

// The passes with these names; without names, the whole pipeline.
Status choose_passes(const std::vector<std::string>& names, std::vector<const passes::Pass*>* chosen) {
  if (names.empty()) {
    for (const passes::Pass& pass : passes::pipeline()) chosen->push_back(&pass);
    return {};
  }
  if (names.size() == 1 && names[0] == "none") return {};
  for (const std::string& name : names) {
    chosen->push_back(passes::find_pass(name));
    if (chosen->back() != nullptr) continue;
    std::string message = "there is no pass '" + name + "'; there are:";
    for (const passes::Pass& pass : passes::pipeline()) message.append(" ").append(pass.name);
    return Status::invalid(message);
  }
  return {};
}

// Describes a worker that can execute groups of these kinds, in every dtype.
Status make_context(const Options& options, passes::PassContext* context) {
  context->worker.dtype_mask = ~uint64_t{0};
  for (const std::string& name : options.group_kinds) {
    const auto kind = std::ranges::find(ir::text::kGroups, name);
    if (name == "all") {
      context->worker.group_kind_mask = (1u << ir::kGroupKinds) - 1;
    } else if (kind != std::end(ir::text::kGroups)) {
      context->worker.group_kind_mask |= 1u << (kind - std::begin(ir::text::kGroups));
    } else {
      std::string message = "there is no kind of group '" + name + "'; there are: all";
      for (const std::string_view known : ir::text::kGroups) message.append(" ").append(known);
      return Status::invalid(message);
    }
  }
  return passes::parse_options(options.pass_options, context);
}

void print_step(const char* when, std::string_view pass, const ir::Graph& graph) {
  std::fprintf(stderr, "// %s %.*s\n%s", when, static_cast<int>(pass.size()), pass.data(), ir::print(graph).c_str());
}

Status run_passes(const std::vector<const passes::Pass*>& chosen, const Options& options,
                  const passes::PassContext& context, ir::Graph& graph, std::vector<Timing>* timings) {
  for (const passes::Pass* pass : chosen) {
    if (!context.wants(pass->name)) continue;
    if (options.before_all) print_step("before", pass->name, graph);
    const Clock::time_point begin = Clock::now();
    if (Status status = pass->run(graph, context); !status.ok()) {
      return Status::internal("pass '" + std::string(pass->name) + "' failed: " + status.message());
    }
    timings->push_back({pass->name, microseconds_since(begin)});
    if (options.after_all) print_step("after", pass->name, graph);
    if (!options.verify) continue;
    if (Status status = ir::verify(graph); !status.ok()) {
      return Status::internal("pass '" + std::string(pass->name) + "' broke the graph: " + status.message());
    }
  }
  return {};
}

std::string emit(const ir::Graph& graph, const std::string& form) {
  if (form == "json") return dump(graph_json(graph), 1);
  if (form == "text") return ir::print(graph);
  const std::vector<uint8_t> program = ir::encode_program(graph);
  return {program.begin(), program.end()};
}

void print_timings(const std::vector<Timing>& timings, size_t nodes) {
  double total = 0;
  for (const Timing& timing : timings) total += timing.microseconds;
  std::fprintf(stderr, "%-14s %10s %6s\n", "step", "us", "share");
  for (const Timing& timing : timings) {
    std::fprintf(stderr, "%-14.*s %10.1f %5.1f%%\n", static_cast<int>(timing.name.size()), timing.name.data(),
                 timing.microseconds, total > 0 ? 100 * timing.microseconds / total : 0);
  }
  std::fprintf(stderr, "%-14s %10.1f        %zu nodes at the beginning\n", "total", total, nodes);
}

int run(int argc, char** argv) {
  Options options;
  int exit = kExitOk;
  if (!read_options(argc, argv, &options, &exit)) return exit;
  if (options.list) {
    list_passes();
    return kExitOk;
  }
  std::vector<const passes::Pass*> chosen;
  if (const Status status = choose_passes(options.passes, &chosen); !status.ok()) return fail(kName, status);
  passes::PassContext context;
  if (const Status status = make_context(options, &context); !status.ok()) return fail(kName, status);
  Input input;
  if (const Status status = read_input(options.input, &input); !status.ok()) return fail(kName, status);
  const GraphSelection choice{options.program, /*before_passes=*/input.format == Format::kCapture};
  std::vector<Timing> timings;
  ir::Graph graph;
  Clock::time_point begin = Clock::now();
  if (const Status status = load_graph(input, choice, &graph); !status.ok()) return fail(kName, status);
  timings.push_back({"(parse)", microseconds_since(begin)});
  if (!options.params.empty() && options.params.size() != graph.params) {
    return fail(kName, Status::invalid("--params has " + std::to_string(options.params.size()) +
                                       " numbers; the graph has " + std::to_string(graph.params) + " parameters"));
  }
  context.sample = options.params;
  const size_t nodes = graph.nodes.size();
  if (const Status status = run_passes(chosen, options, context, graph, &timings); !status.ok()) {
    fail(kName, input.name + ": " + status.message());
    return kExitDifferent;
  }
  begin = Clock::now();
  const std::string result = emit(graph, options.emit);
  timings.push_back({"(emit)", microseconds_since(begin)});
  if (options.time) print_timings(timings, nodes);
  const Status status = write_output(options.output, result);
  return status.ok() ? kExitOk : fail(kName, status);
}

}  // namespace
}  // namespace torch_remote::tools

int main(int argc, char** argv) {
  return torch_remote::tools::run_tool(torch_remote::tools::kName, torch_remote::tools::run, argc, argv);
}
