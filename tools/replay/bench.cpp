#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/replay/modes.h"
#include "tools/runs/replayer.h"
#include "tools/runs/snapshots.h"

// The times are the worker's own: it records a profile while each program runs again and again.
namespace torch_remote::tools::replay {
namespace {

constexpr int kWarmup = 2;

struct Times {
  double p50 = 0, p99 = 0;  // us
};

Times percentiles(std::vector<uint64_t>& samples) {
  std::ranges::sort(samples);
  const auto at = [&](double p) {
    return static_cast<double>(samples[static_cast<size_t>(p * static_cast<double>(samples.size() - 1))]) / 1000;
  };
  return samples.empty() ? Times() : Times{at(0.5), at(0.99)};
}

struct Row {
  uint32_t program;
  int64_t node;  // -1: the whole program
  std::string what, line;
  Times times;
};

// Runs a graph; *failed: the worker reported an error.
Status once(Device& device, const LoadedGraph& loaded, std::span<const int64_t> params,
            std::span<const uint64_t> inputs, bool* failed) {
  uint64_t base;
  remote::Words words;
  WorkerError run_error, error;
  if (Status status = device.run(loaded, params, inputs, &base, &words, &run_error); !status) return status;
  if (Status status = device.settle(&error); !status) return status;
  for (uint64_t k = 0; k < loaded.made; ++k) device.free(base + k);
  *failed = run_error || error;
  return {};
}

// Copies of the inputs, which runs may change.
Status copy_inputs(Device& device, const Inputs& inputs, std::vector<uint64_t>* copies, WorkerError* error) {
  for (size_t i = 0; i < inputs.ids.size() && !*error; ++i) {
    if (Status status = device.copy(inputs.ids[i], inputs.nbytes[i], &copies->emplace_back(), error); !status) {
      return status;
    }
  }
  return {};
}

Status bench_program(Device& device, const remote::RunEvent& run, const Inputs& inputs, int rounds,
                     std::vector<Row>* rows) {
  const ir::Graph& graph = run.program->graph;
  auto whole = std::make_shared<ir::Graph>(graph);
  for (const uint32_t b : run.program->inputs) whole->buffers[b].survives = true;
  std::vector<uint64_t> own;
  WorkerError error;
  LoadedGraph loaded;
  Status status = copy_inputs(device, inputs, &own, &error);
  if (status.ok() && !error) status = device.load(whole, &loaded);
  bool failed = error.has_value();
  for (int round = 0; round < kWarmup && status.ok() && !failed; ++round) {
    status = once(device, loaded, run.params, own, &failed);
  }
  remote::WorkerProfile profile;
  const uint64_t events = static_cast<uint64_t>(rounds) * (graph.nodes.size() + 8);
  if (status.ok()) status = device.profile(remote::ProfileCommand::kStart, events, &profile);
  for (int round = 0; round < rounds && status.ok() && !failed; ++round) {
    status = once(device, loaded, run.params, own, &failed);
  }
  if (status.ok()) status = device.profile(remote::ProfileCommand::kStop, 0, &profile);
  for (const uint64_t id : own) device.free(id);
  if (!status || failed) return status;

  std::vector<uint64_t> runs;
  std::vector<std::vector<uint64_t>> nodes(graph.nodes.size()), groups(graph.groups.size());  // those done as one
  for (const wire::ProfileEvent& event : profile.events) {
    if (event.program != wire::ProfileEvent::kMessage) {
      const size_t group = event.node - nodes.size();
      if (event.node < nodes.size()) nodes[event.node].push_back(event.end - event.begin);
      if (event.node >= nodes.size() && group < groups.size()) groups[group].push_back(event.end - event.begin);
    } else if (event.node == static_cast<uint32_t>(wire::Type::kRun)) {
      runs.push_back(event.end - event.begin);
    }
  }
  std::vector<int64_t> values;
  if (status = ir::evaluate(graph, run.params.data(), &values); !status) return status;
  const std::string what = std::to_string(nodes.size()) + (nodes.size() == 1 ? " op" : " ops");
  rows->push_back({run.program->number, -1, what, "", percentiles(runs)});
  // A kernel's row is its first node's.
  const auto kernel = [&](uint32_t first) -> const ir::Group* {
    const auto group = std::ranges::find(graph.groups, first, &ir::Group::first);
    return group != graph.groups.end() && !groups[group - graph.groups.begin()].empty() ? &*group : nullptr;
  };
  for (uint32_t n = 0; n < nodes.size(); ++n) {
    if (const ir::Group* group = kernel(n)) {
      std::string all = "kernel: ";
      for (uint32_t m = n; m <= group->last; ++m) {
        all += (m > n ? "; " : "") + describe(graph, graph.nodes[m], values);
      }
      rows->push_back({run.program->number, n, all, line_of(graph, graph.nodes[n]),
                       percentiles(groups[group - graph.groups.data()])});
    }
    if (nodes[n].empty()) continue;
    rows->push_back({run.program->number, n, describe(graph, graph.nodes[n], values), line_of(graph, graph.nodes[n]),
                     percentiles(nodes[n])});
  }
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
        if (Status status = bench_program(device, *run, inputs, options.rounds, &rows); !status) return status;
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
