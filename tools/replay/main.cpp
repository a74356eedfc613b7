#include "tools/replay/main.h"

#include <map>
#include <string>

#include "tools/common/command.h"
#include "tools/common/input.h"
#include "tools/replay/modes.h"

// remote-replay: runs a capture again.
namespace torch_remote::tools::replay {
namespace {

constexpr const char* kName = "remote-replay";
constexpr const char* kAbout = R"(Runs a captured session again, on any worker, without the program that recorded it.

TORCH_REMOTE_CAPTURE=run.rreplay makes a capture of a program that uses the device. Without options, the capture runs
once, and errors that it did not have are reported.)";
constexpr const char* kExamples = R"(Examples:
  remote-replay run.rreplay
  remote-replay run.rreplay --compare recorded --rtol 1e-5     what was read then, and now
  remote-replay run.rreplay --compare passes                   did the passes change a result? which op?
  remote-replay run.rreplay --compare worker --other unix:///tmp/other.sock
  remote-replay run.rreplay --bench --json > times.json        time of each program and op
  remote-replay run.rreplay --extract run:12 --out one.rreplay one run, with its inputs

Exit status: 0 done, 1 a difference or a new error, 2 bad arguments, a bad capture or no worker.)";

const std::map<std::string, Compare> kCompare = {
    {"recorded", Compare::kRecorded}, {"passes", Compare::kPasses}, {"worker", Compare::kWorker}};

// Parses "run:12"; returns 0 for other text.
uint64_t run_number(const std::string& text) {
  constexpr std::string_view kRun = "run:";
  if (!text.starts_with(kRun) || text.size() > 15) return 0;
  uint64_t number = 0;
  for (const char c : text.substr(kRun.size())) {
    if (c < '0' || c > '9') return 0;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  return number;
}

bool read_options(int argc, char** argv, Options* options, bool* extracts, int* exit) {
  CLI::App app(kAbout, kName);
  app.footer(kExamples);
  std::string extract, passes = "captured";
  app.add_option("capture", options->input, "the capture; - or nothing: the standard input")->type_name("FILE");
  app.add_option("--worker", options->worker, "where it runs: local (a child process), inproc, unix://PATH")
      ->type_name("NAME");
  app.add_option("--threads", options->threads, "threads of a local worker")
      ->check(CLI::NonNegativeNumber.description(""))
      ->type_name("N");
  app.add_option("--compare", options->compare, "what to compare with: recorded, passes or worker")
      ->transform(CLI::CheckedTransformer(kCompare).description(""))
      ->type_name("WHAT");
  app.add_option("--other", options->other, "the worker to compare with, named like --worker")->type_name("NAME");
  app.add_option("--passes", passes,
                 "the graph that --compare passes checks: captured (the graph that was sent to the worker) or rebuild "
                 "(the result of this tool's passes)")
      ->check(CLI::IsMember({"captured", "rebuild"}).description(""))
      ->type_name("WHICH");
  app.add_option("--rtol", options->tolerance.rtol, "relative tolerance (default: results must be equal bit for bit)")
      ->type_name("X");
  app.add_option("--atol", options->tolerance.atol, "absolute tolerance")->type_name("X");
  app.add_option("--run", options->run, "for --compare passes or worker and --bench: only this run, counted from 1")
      ->check(CLI::PositiveNumber.description(""))
      ->type_name("N");
  app.add_option("--memory", options->memory, "bytes of intermediate results to keep during the search for an op")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->type_name("BYTES");
  app.add_flag("--bench", options->bench, "time each program and each op, at the program's first run or --run");
  app.add_option("--rounds", options->rounds, "how often")
      ->check(CLI::Range(1, 1'000'000).description(""))
      ->type_name("N");
  app.add_option("--extract", extract, "write one run as a capture of its own")->type_name("run:N");
  app.add_option("--out", options->output, "output file of --extract")->type_name("FILE");
  app.add_flag("--json", options->json, "print JSON");
  if (!parse_arguments(app, argc, argv, exit)) return false;
  options->rebuild = passes == "rebuild";
  *extracts = !extract.empty();
  if (*extracts) options->run = run_number(extract);
  const char* wrong = nullptr;
  if (*extracts == options->output.empty()) wrong = "--extract and --out go together";
  if (*extracts && options->run == 0) wrong = "--extract needs run:N, with N counted from 1";
  if ((options->compare == Compare::kWorker) == options->other.empty()) {
    wrong = "--compare worker and --other go together";
  }
  if ((options->compare != Compare::kNothing) + options->bench + *extracts > 1) {
    wrong = "choose one of --compare, --bench and --extract";
  }
  if (options->run != 0 && !options->bench && !*extracts &&
      (options->compare == Compare::kNothing || options->compare == Compare::kRecorded)) {
    wrong = "--run goes with --compare passes, --compare worker or --bench";
  }
  if (wrong) *exit = fail(kName, std::string(wrong) + "; see remote-replay --help");
  return wrong == nullptr;
}

std::span<const passes::Pass> tool_passes;

int run(int argc, char** argv) {
  Options options;
  bool extracts = false, good = true;
  int exit = kExitOk;
  if (!read_options(argc, argv, &options, &extracts, &exit)) return exit;
  options.passes = tool_passes;
  Input input;
  if (const Status status = read_input(options.input, &input); !status) return fail(kName, status);
  if (input.format != Format::kCapture) {
    return fail(kName, input.name + " is " + (input.format == Format::kText ? "text" : "a program") +
                           ", not a capture; TORCH_REMOTE_CAPTURE=file.rreplay makes one");
  }
  std::unique_ptr<remote::CaptureReader> capture;
  if (const Status status = open_capture(input, &capture); !status) return fail(kName, status);
  std::unique_ptr<Device> device, other;
  if (const Status status = Device::open(options.worker, options.threads, &device); !status) return fail(kName, status);
  if (!options.other.empty()) {
    if (const Status status = Device::open(options.other, options.threads, &other); !status) return fail(kName, status);
  }
  Status status;
  if (extracts) {
    status = extract(*capture, *device, options);
  } else if (options.bench) {
    status = bench(*capture, *device, options);
  } else if (options.compare == Compare::kPasses || options.compare == Compare::kWorker) {
    status = compare_runs(*capture, *device, other ? *other : *device, options, &good);
  } else {
    status = replay(*capture, *device, options, &good);
  }
  if (!status) return fail(kName, status);
  return good ? kExitOk : kExitDifferent;
}

}  // namespace

int main(std::span<const passes::Pass> passes, int argc, char** argv) {
  tool_passes = passes;
  return run_tool(kName, run, argc, argv);
}

}  // namespace torch_remote::tools::replay
