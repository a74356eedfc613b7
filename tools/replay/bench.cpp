#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/replay/modes.h"
#include "tools/runs/compact.h"
#include "tools/runs/replayer.h"
#include "tools/runs/snapshots.h"

// Times come from outside: a worker's answer to "wait until all is done" is awaited. What that costs by itself is taken
// off: of a program, the time of a graph without nodes; of a node, that of a graph with one copy of it, from the time
// of one with many.
namespace torch_remote::tools::replay {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmup = 2;
constexpr int kOverheadRounds = 50;
constexpr int kEstimate = 5;     // rounds with one copy, which tell how many more to make
constexpr double kEnough = 200;  // us that these should take
constexpr int kMaxCopies = 64;

struct Times {
  double p50 = 0, p99 = 0;  // us
};

// Of (samples - without) / parts.
Times percentiles(std::vector<double> samples, double without, int parts) {
  std::ranges::sort(samples);
  const auto at = [&](double p) {
    if (samples.empty()) return 0.0;
    const double sample = samples[static_cast<size_t>(p * static_cast<double>(samples.size() - 1))];
    return std::max(0.0, (sample - without) / parts);
  };
  return {at(0.5), at(0.99)};
}

struct Row {
  uint32_t program;
  int64_t node;  // -1: the whole program
  std::string what, line;
  Times times;
};

class Bench {
 public:
  Bench(Device& device, int rounds) : device_(device), rounds_(rounds) {}

  Status start() {
    std::vector<double> samples;
    Status status = time(std::make_shared<const ir::Graph>(), {}, {}, kOverheadRounds, &samples);
    overhead_ = percentiles(samples, 0, 1).p50;
    return status;
  }
  Status program(const remote::RunEvent& run, const Inputs& inputs, std::vector<Row>* rows);

 private:
  // One run, with a wait. *failed: the worker reported an error.
  Status once(const LoadedGraph& loaded, std::span<const int64_t> params, std::span<const uint64_t> inputs,
              double* microseconds, bool* failed);
  Status time(std::shared_ptr<const ir::Graph> graph, std::span<const int64_t> params, std::span<const uint64_t> inputs,
              int rounds, std::vector<double>* samples);
  Status node(const ir::Graph& graph, uint32_t node, std::span<const int64_t> params, std::span<const uint64_t> buffers,
              Times* times);

  Device& device_;
  const int rounds_;
  double overhead_ = 0;
  bool failed_ = false;
};

Status Bench::once(const LoadedGraph& loaded, std::span<const int64_t> params, std::span<const uint64_t> inputs,
                   double* microseconds, bool* failed) {
  uint64_t base;
  remote::Words words;
  WorkerError run_error, error;
  const Clock::time_point begin = Clock::now();
  if (Status status = device_.run(loaded, params, inputs, &base, &words, &run_error); !status) return status;
  if (Status status = device_.settle(&error); !status) return status;
  *microseconds = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  *failed = run_error || error;
  for (uint64_t k = 0; k < loaded.made; ++k) device_.free(base + k);
  return {};
}

Status Bench::time(std::shared_ptr<const ir::Graph> graph, std::span<const int64_t> params,
                   std::span<const uint64_t> inputs, int rounds, std::vector<double>* samples) {
  LoadedGraph loaded;
  if (Status status = device_.load(std::move(graph), &loaded); !status) return status;
  samples->clear();
  for (int round = -kWarmup; round < rounds; ++round) {
    double microseconds = 0;
    if (Status status = once(loaded, params, inputs, &microseconds, &failed_); !status || failed_) return status;
    if (round >= 0) samples->push_back(microseconds);
  }
  return {};
}

// Buffers that this node makes anew.
std::set<uint32_t> results_of(const ir::Graph& graph, const ir::Node& node) {
  std::set<uint32_t> made;
  const auto add = [&](const ir::Arg& arg) {
    if (arg.tag == ir::ArgTag::kView) made.insert(graph.views[arg.a].buffer);
  };
  for (const ir::Arg& result : node.results) {
    add(result);
    for (const ir::Arg& item : result.items) add(item);
  }
  return made;
}

void redirect(ir::Graph& graph, ir::Arg& arg, const std::map<uint32_t, uint32_t>& buffers) {
  if (arg.tag == ir::ArgTag::kView) {
    ir::View view = graph.views[arg.a];
    view.buffer = buffers.at(view.buffer);
    arg.a = static_cast<uint32_t>(graph.views.size());
    graph.views.push_back(std::move(view));
  }
  for (ir::Arg& item : arg.items) redirect(graph, item, buffers);
}

// One node, `copies` times, on buffers that all are inputs but for its results. `inputs`: these buffers of the graph.
ir::Graph alone(const ir::Graph& graph, uint32_t index, int copies, std::vector<uint32_t>* params,
                std::vector<uint32_t>* inputs) {
  Kept kept;
  ir::Graph made = compact(graph, {&graph.nodes[index], 1}, &kept);
  const ir::Node node = made.nodes[0];
  const std::set<uint32_t> results = results_of(made, node);
  *params = std::move(kept.params);
  inputs->clear();
  for (uint32_t b = 0; b < made.buffers.size(); ++b) {
    ir::Buffer& buffer = made.buffers[b];
    buffer.ssa = false;
    buffer.survives = !results.contains(b);
    if (results.contains(b)) continue;
    buffer.kind = ir::BufferKind::kInput;
    buffer.nbytes = ir::kNoSym;
    inputs->push_back(kept.buffers[b]);
  }
  for (int copy = 1; copy < copies; ++copy) {
    std::map<uint32_t, uint32_t> renamed;
    for (const uint32_t b : results) {
      renamed[b] = static_cast<uint32_t>(made.buffers.size());
      made.buffers.push_back(made.buffers[b]);
    }
    ir::Node again = node;
    for (ir::Arg& result : again.results) redirect(made, result, renamed);
    made.nodes.push_back(std::move(again));
  }
  return made;
}

Status Bench::node(const ir::Graph& graph, uint32_t index, std::span<const int64_t> params,
                   std::span<const uint64_t> ids, Times* times) {
  std::vector<double> samples;
  const auto measure = [&](int copies, int rounds) {
    std::vector<uint32_t> kept, buffers;
    const auto small = std::make_shared<const ir::Graph>(alone(graph, index, copies, &kept, &buffers));
    std::vector<int64_t> values;
    std::vector<uint64_t> inputs;
    values.reserve(kept.size());
    inputs.reserve(buffers.size());
    for (const uint32_t param : kept) values.push_back(params[param]);
    for (const uint32_t b : buffers) inputs.push_back(ids[b]);
    return time(small, values, inputs, rounds, &samples);
  };
  if (Status status = measure(1, kEstimate); !status || failed_) return status;
  const double one = percentiles(samples, 0, 1).p50;
  const int more = std::min(kMaxCopies, static_cast<int>(kEnough / std::max(one - overhead_, 1.0)));
  if (Status status = measure(1 + more, rounds_); !status) return status;
  *times = more > 0 ? percentiles(samples, one, more) : percentiles(samples, overhead_, 1);
  return {};
}

bool has_dynamic_results(const ir::Graph& graph, const ir::Node& node) {
  bool dynamic = false;
  ir::for_each_view(node, [&](uint32_t view, bool) { dynamic |= graph.views[view].dynamic; });
  return dynamic;
}

Status Bench::program(const remote::RunEvent& run, const Inputs& inputs, std::vector<Row>* rows) {
  const ir::Graph& graph = run.program->graph;
  // Everything that the run touches outlives it: then each node can run again by itself.
  auto kept = std::make_shared<ir::Graph>(graph);
  kept->plan.clear();
  for (ir::Buffer& buffer : kept->buffers) buffer.survives = true;
  std::vector<uint64_t> own;
  WorkerError error;
  for (size_t i = 0; i < inputs.ids.size(); ++i) {
    uint64_t copy;
    if (Status status = device_.copy(inputs.ids[i], inputs.nbytes[i], &copy, &error); !status) return status;
    own.push_back(copy);
  }
  auto whole = std::make_shared<ir::Graph>(graph);
  for (const uint32_t b : run.program->inputs) whole->buffers[b].survives = true;
  Row row{run.program->number, -1, std::to_string(graph.nodes.size()) + " ops", "", {}};
  failed_ = false;
  std::vector<double> samples;
  if (Status status = time(whole, run.params, own, rounds_, &samples); !status) return status;
  row.times = percentiles(samples, overhead_, 1);
  if (!failed_) rows->push_back(row);

  LoadedGraph loaded;
  uint64_t base;
  remote::Words words;
  if (Status status = device_.load(kept, &loaded); !status) return status;
  if (Status status = device_.run(loaded, run.params, own, &base, &words, &error); !status) return status;
  std::vector<uint64_t> ids(graph.buffers.size());
  size_t input = 0, fresh = 0;
  for (size_t b = 0; b < ids.size(); ++b) {
    ids[b] = graph.buffers[b].kind == ir::BufferKind::kInput ? own[input++] : base + fresh++;
  }
  std::vector<int64_t> values;
  if (Status status = ir::evaluate(graph, run.params.data(), &values); !status) return status;
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    if (has_dynamic_results(graph, graph.nodes[n])) continue;
    Row one{run.program->number, n, describe(graph, graph.nodes[n], values), line_of(graph, graph.nodes[n]), {}};
    failed_ = false;
    if (Status status = node(*kept, n, run.params, ids, &one.times); !status) return status;
    if (!failed_) rows->push_back(std::move(one));
  }
  for (const uint64_t id : ids) device_.free(id);
  return {};
}

void print(const std::vector<Row>& rows, bool json) {
  if (json) {
    nlohmann::ordered_json programs = nlohmann::json::array(), nodes = nlohmann::json::array();
    for (const Row& row : rows) {
      nlohmann::ordered_json entry = {{"program", row.program}};
      if (row.node >= 0) entry["node"] = row.node;
      entry["p50_us"] = row.times.p50;
      entry["p99_us"] = row.times.p99;
      entry["what"] = row.what;
      if (row.node >= 0) entry["line"] = row.line;
      (row.node >= 0 ? nodes : programs).push_back(std::move(entry));
    }
    const nlohmann::ordered_json all = {{"programs", programs}, {"times", nodes}};
    std::printf("%s\n", all.dump(1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  std::printf("%7s %6s %10s %10s  %s\n", "program", "node", "p50 us", "p99 us", "op");
  for (const Row& row : rows) {
    std::printf("%7u %6s %10.2f %10.2f  %s%s%s\n", row.program, row.node < 0 ? "all" : std::to_string(row.node).c_str(),
                row.times.p50, row.times.p99, row.what.c_str(), row.line.empty() ? "" : "  at ", row.line.c_str());
  }
}

}  // namespace

Status bench(remote::CaptureReader& capture, Device& device, const Options& options) {
  Replayer replayer(device);
  Bench bench(device, options.rounds);
  if (Status status = bench.start(); !status) return status;
  std::vector<Row> rows;
  std::set<uint32_t> done;
  uint64_t runs = 0;
  for (;;) {
    std::optional<remote::CaptureEvent> event;
    if (Status status = capture.next(&event); !status) return status;
    if (!event) break;
    const auto* run = std::get_if<remote::RunEvent>(&event->what);
    if (run) ++runs;
    if (run && (options.run == 0 ? done.insert(run->program->number).second : runs == options.run)) {
      Inputs inputs;
      if (replayer.inputs(*run, &inputs)) {
        if (Status status = bench.program(*run, inputs, &rows); !status) return status;
      }
    }
    if (Status status = replayer.perform(*event); !status) return status;
  }
  if (options.run > runs) {
    return Status::invalid("the capture has " + std::to_string(runs) + " runs, none with number " +
                           std::to_string(options.run));
  }
  print(rows, options.json);
  return {};
}

}  // namespace torch_remote::tools::replay
