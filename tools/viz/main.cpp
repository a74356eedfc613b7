#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "remote/capture/capture_writer.h"
#include "tools/common/capture_summary.h"
#include "tools/common/command.h"
#include "tools/common/input.h"
#include "tools/viz/page.h"
#include "tools/viz/times.h"

// remote-viz: draws graphs as an HTML page.
namespace torch_remote::tools {
namespace {

constexpr const char* kName = "remote-viz";
constexpr const char* kAbout =
    R"(Draws graphs: writes one HTML file that any browser opens, without a network.

The page shows the ops, grouped by the lines of the script that recorded them, with shapes, strides, lines, times and
bytes. It also shows which buffers are alive at which op, and has a search. The input is the text form of a graph
(TORCH_REMOTE_DUMP=folder writes it), a program, or a capture (TORCH_REMOTE_CAPTURE=file). A capture knows its sizes.

The page of a capture has all its programs, with a menu. page.html#program=3 opens program 3.)";
constexpr const char* kExamples = R"(Examples:
  remote-viz program_3/5_plan.txt -o net.html
  remote-viz --times bench.json train.rreplay -o net.html
  remote-viz --program 3,7 train.rreplay -o net.html

Exit status: 0 done, 2 bad arguments or a bad input.)";

struct Options {
  std::string input, output, times, title, limit = "64M";
  std::vector<uint32_t> programs;  // empty: all
  size_t run = 0;                  // 0: not given, so the first one
  bool before_passes = false;
};

bool read_options(int argc, char** argv, Options* options, uint64_t* limit, int* exit) {
  CLI::App app(kAbout, kName);
  app.footer(kExamples);
  app.add_option("input", options->input, "text, program or capture; - or nothing: the standard input")
      ->type_name("FILE");
  app.add_option("-o,--output", options->output, "output file; - or nothing: the standard output")->type_name("FILE");
  app.add_option("--times", options->times, "times of the ops, from remote-replay --bench --json")->type_name("FILE");
  app.add_option(
         "--program", options->programs,
         "programs of the capture, with commas between; for one graph: the program whose times are shown; default: "
         "all programs")
      ->check(CLI::PositiveNumber.description(""))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N");
  app.add_option("--run", options->run, "run of the program whose sizes are shown; default: 1, the first")
      ->check(CLI::PositiveNumber.description(""))
      ->type_name("N");
  app.add_flag("--before-passes", options->before_passes, "show the graphs of a capture as they were recorded");
  app.add_option("--limit", options->limit,
                 "bytes of the page (K, M, G); default: 64M. The programs that take least time are left out")
      ->type_name("SIZE");
  app.add_option("--title", options->title, "title of the page; default: the input's name")->type_name("TEXT");
  if (!parse_arguments(app, argc, argv, exit)) return false;
  if (const Status status = remote::parse_bytes("--limit", options->limit.c_str(), limit); !status.ok()) {
    *exit = fail(kName, status);
    return false;
  }
  if (!options->times.empty() && options->before_passes) {
    *exit = fail(kName, "--times has times of the ops after the passes: leave out --before-passes or --times");
    return false;
  }
  return true;
}

// The parameters of the program's run `options.run`.
Status find_run(const Input& input, const Options& options, remote::CaptureReader& reader, uint32_t program,
                std::vector<int64_t>* params) {
  reader.rewind();
  size_t runs = 0;
  for (std::optional<remote::CaptureEvent> event;;) {
    if (Status status = reader.next(&event); !status.ok()) return with_input_name(input, status);
    if (!event.has_value()) break;
    const auto* run = std::get_if<remote::RunEvent>(&event->what);
    if (run == nullptr || run->program->number != program || ++runs != options.run) continue;
    *params = run->params;
    return {};
  }
  return Status::invalid(input.name + ": program " + std::to_string(program) + " has " + std::to_string(runs) +
                         " runs and no run " + std::to_string(options.run));
}

Status load_program(const Input& input, const Options& options, remote::CaptureReader& reader,
                    const ProgramSummary& summary, PageProgram* program) {
  program->number = summary.program->number;
  program->runs = summary.runs;
  if (Status status = graph_of(input, *summary.program, options.before_passes, &program->graph); !status.ok()) {
    if (!options.programs.empty()) return status;
    program->missing = "the capture does not have its graph before the passes";
    return {};
  }
  std::vector<int64_t> params = summary.first;
  if (options.run > 1) {
    if (Status status = find_run(input, options, reader, program->number, &params); !status.ok()) return status;
  }
  if (summary.runs == 0) return {};
  const Status status = ir::evaluate(program->graph, params.data(), &program->values);
  return status.ok() ? status : with_input_name(input, status);
}

Status load_capture(const Input& input, const Options& options, std::vector<PageProgram>* programs) {
  std::unique_ptr<remote::CaptureReader> reader;
  CaptureSummary summary;
  if (Status status = open_capture(input, &reader); !status.ok()) return status;
  if (Status status = summarize(*reader, &summary); !status.ok()) return with_input_name(input, status);
  for (const uint32_t number : options.programs) {
    const auto has = [&](const ProgramSummary& program) { return program.program->number == number; };
    if (std::ranges::any_of(summary.programs, has)) continue;
    remote::CapturedProgramPtr program;
    reader->rewind();
    if (Status status = find_program(input, *reader, {.program = number}, &program); !status.ok()) return status;
  }
  std::erase_if(summary.programs, [&](const ProgramSummary& program) {
    return !options.programs.empty() && std::ranges::count(options.programs, program.program->number) == 0;
  });
  if (summary.programs.empty()) {
    return Status::invalid(input.name + ": has no program: the session that it captured ran no op on the worker");
  }
  if (options.run != 0 && summary.programs.size() > 1) {
    return Status::invalid(input.name + ": --run counts the runs of one program, and the page has " +
                           std::to_string(summary.programs.size()) + " programs; choose one with --program");
  }
  for (const ProgramSummary& program : summary.programs) {
    const Status status = load_program(input, options, *reader, program, &programs->emplace_back());
    if (!status.ok()) return status;
  }
  if (std::ranges::none_of(*programs, [](const PageProgram& program) { return program.missing.empty(); })) {
    return Status::invalid(input.name + ": does not have the graphs before the passes; leave out --before-passes");
  }
  return {};
}

Status load_one_graph(const Input& input, const Options& options, PageProgram* program) {
  if (options.programs.size() > 1) {
    return Status::invalid(input.name + " is one graph: give --program, which chooses its times, one number");
  }
  if (options.run != 0) return Status::invalid(input.name + " is one graph: --run is for captures, which have runs");
  return load_graph(input, {.before_passes = options.before_passes}, &program->graph);
}

// Adds the times of the file `options.times`.
Status load_times(const Input& input, const Options& options, std::vector<PageProgram>* programs) {
  Times times;
  if (Status status = Times::read(options.times, &times); !status.ok()) return status;
  const bool is_capture = input.format == Format::kCapture;
  bool found = false;
  for (PageProgram& program : *programs) {
    uint32_t number = program.number;
    if (!is_capture) number = options.programs.empty() ? 1 : options.programs[0];
    if (is_capture && options.programs.empty() && !times.has(number)) continue;  // it did not run
    if (Status status = times.of(number, program.graph.nodes.size(), &program.times); !status.ok()) return status;
    program.p50_us = times.p50_us(number);
    found = true;
  }
  if (found) return {};
  const std::string known = times.programs();
  return Status::invalid(options.times + ": it has no times of a program of " + input.name + "; it has " +
                         (known.empty() ? "none" : known) + ". remote-replay --bench --json " + input.name +
                         " writes them");
}

Status load_page(const Input& input, const Options& options, PageInput* page) {
  const Status status = input.format == Format::kCapture
                            ? load_capture(input, options, &page->programs)
                            : load_one_graph(input, options, &page->programs.emplace_back());
  return !status.ok() || options.times.empty() ? status : load_times(input, options, &page->programs);
}

// A title for people: "program_3/5_plan.txt", "train.rreplay, program 3".
std::string default_title(const Input& input, const Options& options) {
  const std::filesystem::path path(input.name);
  if (input.format != Format::kCapture) return (path.parent_path().filename() / path.filename()).string();
  std::string title = path.filename().string();
  if (options.programs.size() == 1) title += ", program " + std::to_string(options.programs[0]);
  return options.before_passes ? title + ", before the passes" : title;
}

void report_left_out(const Options& options, size_t programs, const std::vector<uint32_t>& left_out) {
  if (left_out.empty()) return;
  fail(kName, "the page has " + std::to_string(programs - left_out.size()) + " of " + std::to_string(programs) +
                  " programs, because the others do not fit into --limit " + options.limit + ": left out " +
                  number_list(left_out) + ". --program N,M chooses programs; a larger --limit has more of them");
}

int run(int argc, char** argv) {
  Options options;
  int exit = kExitOk;
  PageInput page;
  if (!read_options(argc, argv, &options, &page.limit, &exit)) return exit;
  Input input;
  if (const Status status = read_input(options.input, &input); !status.ok()) return fail(kName, status);
  if (const Status status = load_page(input, options, &page); !status.ok()) return fail(kName, status);
  page.title = options.title.empty() ? default_title(input, options) : options.title;
  std::vector<uint32_t> left_out;
  const Status status = write_output(options.output, make_page(page, &left_out));
  if (!status.ok()) return fail(kName, status);
  report_left_out(options, page.programs.size(), left_out);
  return kExitOk;
}

}  // namespace
}  // namespace torch_remote::tools

int main(int argc, char** argv) {
  return torch_remote::tools::run_tool(torch_remote::tools::kName, torch_remote::tools::run, argc, argv);
}
