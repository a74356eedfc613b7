#include "tools/reduce/main.h"

#include <chrono>
#include <cstdio>
#include <random>
#include <string>

#include "remote/capture/capture.h"
#include "tools/common/command.h"
#include "tools/common/input.h"
#include "tools/reduce/reducer.h"
#include "tools/reduce/subset.h"
#include "tools/runs/replayer.h"

// remote-reduce: finds the smallest run that still fails.
namespace torch_remote::tools::reduce {
namespace {

constexpr const char* kName = "remote-reduce";
constexpr const char* kAbout = R"(Reduces a failing run to as few ops, results, inputs and sizes as possible.

The input is a capture (TORCH_REMOTE_CAPTURE=run.rreplay makes one), whose first failing run is reduced, or a graph
(docs/ir.md), for which inputs are generated. --mismatch or --command defines what failing means. The result is a
capture of one run, and its graph as text on the standard output. Progress goes to stderr.)";
constexpr const char* kExamples = R"(Examples:
  remote-reduce run.rreplay --mismatch                      results change when the passes run
  remote-reduce run.rreplay --run 12 --mismatch worker --other unix:///tmp/other.sock
  remote-reduce run.rreplay --command 'remote-replay {} | grep -q "error"'
  remote-reduce graph.txt --params 64,32,1 --mismatch -o small.rreplay

The command gets the path of a capture in place of {}. If it exits with 0, the run still fails, and the reduction
continues with it.

Exit status: 0 done, 1 no run fails, 2 bad arguments, a bad input or no worker.)";

struct Options {
  std::string input, output = "reduced.rreplay";
  std::string worker = "local", other, mismatch, command;
  std::vector<int64_t> params;
  uint64_t run = 0, seed = 1;
  int threads = 0;
  ir::Tolerance tolerance;
  bool quiet = false;
};

bool read_options(int argc, char** argv, Options* options, int* exit) {
  CLI::App app(kAbout, kName);
  app.footer(kExamples);
  app.add_option("input", options->input, "a capture or a graph; - or nothing: the standard input")->type_name("FILE");
  app.add_option("-o,--output", options->output, "the reduced run, a capture (default: reduced.rreplay)")
      ->type_name("FILE");
  app.add_option("--mismatch", options->mismatch,
                 "a run fails if its results differ: with and without passes (the default), or on two workers")
      ->expected(0, 1)
      ->default_str("passes")
      ->check([](const std::string& value) -> std::string {
        if (value == "passes" || value == "worker") return {};
        return "'" + value + "' is neither 'passes' nor 'worker' (if it is the input, it goes before --mismatch)";
      })
      ->type_name("[passes|worker]");
  app.add_option("--command", options->command,
                 "a run fails if this command, with a capture in place of {}, exits with 0")
      ->type_name("COMMAND");
  app.add_option("--worker", options->worker, "where it runs: local (a child process), inproc, unix://PATH")
      ->type_name("NAME");
  app.add_option("--other", options->other, "the second worker of --mismatch worker")->type_name("NAME");
  app.add_option("--threads", options->threads, "threads of a local worker")
      ->check(CLI::NonNegativeNumber.description(""))
      ->type_name("N");
  app.add_option("--run", options->run, "the capture's run, counted from 1 (default: the first that fails)")
      ->check(CLI::PositiveNumber.description(""))
      ->type_name("N");
  app.add_option("--params", options->params, "the graph's parameters, with commas between")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NUMBERS");
  app.add_option("--seed", options->seed, "seed of the inputs that are generated for a graph")->type_name("N");
  app.add_option("--rtol", options->tolerance.rtol, "relative tolerance (default: results must be equal bit for bit)")
      ->type_name("X");
  app.add_option("--atol", options->tolerance.atol, "absolute tolerance")->type_name("X");
  app.add_flag("-q,--quiet", options->quiet, "print no progress");
  if (!parse_arguments(app, argc, argv, exit)) return false;
  const char* wrong = nullptr;
  if (options->mismatch.empty() == options->command.empty()) wrong = "choose one of --mismatch and --command";
  if (!options->command.empty() && options->command.find("{}") == std::string::npos) {
    wrong = "--command needs {} where the capture's name goes";
  }
  if ((options->mismatch == "worker") == options->other.empty()) wrong = "--mismatch worker and --other go together";
  if (wrong) *exit = fail(kName, std::string(wrong) + "; see remote-reduce --help");
  return wrong == nullptr;
}

// Makes inputs for a graph: small numbers of the dtype of each buffer's first view.
Bytes made_up(ir::DType dtype, uint64_t nbytes, std::mt19937_64& random) {
  Bytes bytes(nbytes);
  const auto fill = [&](auto make) {
    using T = decltype(make());
    for (uint64_t at = 0; at + sizeof(T) <= nbytes; at += sizeof(T)) {
      const T value = make();
      std::memcpy(bytes.data() + at, &value, sizeof(T));
    }
  };
  const auto real = [&] { return std::normal_distribution<double>()(random); };
  switch (dtype) {
    case ir::DType::kFloat32:
    case ir::DType::kComplex64:
      fill([&] { return static_cast<float>(real()); });
      break;
    case ir::DType::kFloat64:
    case ir::DType::kComplex128:
      fill(real);
      break;
    case ir::DType::kFloat16:
      fill([&] { return static_cast<uint16_t>(0x3800 + random() % 0x800); });  // 0.5 to 2
      break;
    case ir::DType::kBFloat16:
      fill([&] { return static_cast<uint16_t>(0x3F00 + random() % 0x100); });  // 0.5 to 2
      break;
    case ir::DType::kInt64:
    case ir::DType::kUInt64:
      fill([&] { return static_cast<int64_t>(random() % 2); });
      break;
    case ir::DType::kInt32:
    case ir::DType::kUInt32:
      fill([&] { return static_cast<int32_t>(random() % 2); });
      break;
    default:
      fill([&] { return static_cast<uint8_t>(random() % 2); });
  }
  return bytes;
}

Status case_of_graph(const Input& input, const Options& options, RunCase* run) {
  if (Status status = load_graph(input, {}, &run->graph); !status) return status;
  if (options.params.size() != run->graph.params) {
    return Status::invalid(input.name + ": the graph has " + std::to_string(run->graph.params) +
                           " parameters, --params gives " + std::to_string(options.params.size()));
  }
  run->params = options.params;
  std::vector<int64_t> values;
  if (Status status = ir::evaluate(run->graph, run->params.data(), &values); !status) return status;
  std::mt19937_64 random(options.seed);
  for (const uint32_t b : input_buffers(run->graph)) {
    uint64_t nbytes = 0;
    ir::DType dtype = ir::DType::kUInt8;
    for (const ir::View& view : run->graph.views) {
      if (view.buffer != b || view.dynamic) continue;
      __int128 last = values[view.offset];
      for (size_t d = 0; d < view.sizes.size(); ++d) {
        last += static_cast<__int128>(std::max<int64_t>(values[view.sizes[d]] - 1, 0)) * values[view.strides[d]];
      }
      if (last < 0 || last > int64_t{1} << 34)
        return Status::invalid(input.name + ": a view of b" + std::to_string(b) + " is invalid with these parameters");
      nbytes = std::max(nbytes, static_cast<uint64_t>(last + 1) * ir::item_size(view.dtype));
      dtype = view.dtype;
    }
    run->inputs.push_back(made_up(dtype, nbytes, random));
  }
  if (!is_sound(*run)) return Status::invalid(input.name + ": the graph is invalid with these parameters");
  return {};
}

// Finds the capture's run with the number `wanted` or, if that is 0, the first interesting one. *number is 0 if there
// is none.
Status case_of_capture(remote::CaptureReader& capture, RestartingWorker& worker, Test& test, uint64_t wanted,
                       RunCase* found, uint64_t* number) {
  Device* device = nullptr;
  if (Status status = worker.get(&device); !status) return status;
  Replayer replayer(*device);
  uint64_t runs = 0;
  *number = 0;
  for (;;) {
    std::optional<remote::CaptureEvent> event;
    if (Status status = capture.next(&event); !status) return status;
    if (!event) break;
    const auto* run = std::get_if<remote::RunEvent>(&event->what);
    if (run && (++runs == wanted || wanted == 0)) {
      bool yes = wanted != 0;
      Status status = replayer.extract(*run, found);
      if (status.ok() && wanted == 0) status = test.interesting(*found, &yes);
      // A run that cannot be extracted because another one failed is not the one to reduce.
      if (!status && (wanted != 0 || status.code() != ErrorCode::kInvalid)) return status;
      if (yes) {
        *number = runs;
        return {};
      }
    }
    if (Status status = replayer.perform(*event); !status) return status;
  }
  if (wanted == 0) return {};
  return Status::invalid("the capture has " + std::to_string(runs) + " runs, none with number " +
                         std::to_string(wanted));
}

std::span<const passes::Pass> tool_passes;

int run(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  Options options;
  int exit = kExitOk;
  if (!read_options(argc, argv, &options, &exit)) return exit;
  Input input;
  if (const Status status = read_input(options.input, &input); !status) return fail(kName, status);
  RestartingWorker worker(options.worker, options.threads), other(options.other, options.threads);
  const std::unique_ptr<Test> test = !options.command.empty() ? command(options.command)
                                     : options.other.empty()
                                         ? passes_mismatch(worker, tool_passes, options.tolerance)
                                         : worker_mismatch(worker, other, tool_passes, options.tolerance);
  const Clock::time_point begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  RunCase found;
  if (input.format == Format::kCapture) {
    std::unique_ptr<remote::CaptureReader> capture;
    uint64_t number = 0;
    Status status = open_capture(input, &capture);
    if (status.ok()) status = case_of_capture(*capture, worker, *test, options.run, &found, &number);
    if (!status) return fail(kName, status);
    if (number == 0) {
      fail(kName, input.name + ": none of its runs fails");
      return kExitDifferent;
    }
    if (!options.quiet) std::fprintf(stderr, "run %llu\n", static_cast<unsigned long long>(number));
  } else if (const Status status = case_of_graph(input, options, &found); !status) {
    return fail(kName, status);
  }
  Reducer reducer(worker, *test, [&](const Progress& progress) {
    if (options.quiet) return;
    std::fprintf(stderr, "%8.2f s %6llu tests %6zu ops %10llu bytes of inputs  %s\n", seconds(),
                 static_cast<unsigned long long>(progress.tests), progress.ops,
                 static_cast<unsigned long long>(progress.input_bytes), progress.step.c_str());
  });
  if (const Status status = reducer.reduce(&found); !status) {
    const std::string why = !options.command.empty() ? "the command does not exit with 0 for it"
                            : options.other.empty()  ? "its results are the same before and after the passes"
                                                     : "its results are the same on both workers";
    fail(kName, input.name + ": " + status.message() + (status.code() == ErrorCode::kInvalid ? ": " + why : ""));
    return status.code() == ErrorCode::kInvalid ? kExitDifferent : kExitBadInput;
  }
  if (const Status status = save_case(found, options.output); !status) return fail(kName, status);
  if (!options.quiet) {
    std::fprintf(stderr, "%zu ops after %llu tests and %.2f s, in %s: %s\n", found.graph.nodes.size(),
                 static_cast<unsigned long long>(reducer.tests()), seconds(), options.output.c_str(),
                 test->finding().c_str());
  }
  const Status status = write_output("", ir::print(found.graph));
  return status.ok() ? kExitOk : fail(kName, status);
}

}  // namespace

int main(std::span<const passes::Pass> passes, int argc, char** argv) {
  tool_passes = passes;
  return run_tool(kName, run, argc, argv);
}

}  // namespace torch_remote::tools::reduce
