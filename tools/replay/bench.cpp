#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/replay/modes.h"
#include "tools/runs/profiled_runs.h"
#include "tools/runs/replayer.h"
#include "tools/runs/snapshots.h"

// The worker measures the times: it records a profile while each program runs repeatedly.
namespace torch_remote::tools::replay {
namespace {

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
  std::string what, runner, line;
  Times times;
};

Status bench_program(Device& device, const remote::RunEvent& run, const Inputs& inputs, int rounds,
                     std::vector<Row>* rows) {
  const ir::Graph& graph = run.program->graph;
  const size_t nodes = graph.nodes.size();
  ProfiledRuns profiled;
  WorkerError error;
  if (Status status = profile_runs(device, run, inputs, rounds, &profiled, &error); !status || error) return status;
  std::vector<int64_t> values;
  if (Status status = ir::evaluate(graph, run.params.data(), &values); !status) return status;
  const std::string what = std::to_string(nodes) + (nodes == 1 ? " op" : " ops");
  rows->push_back({run.program->number, -1, what, "", "", percentiles(profiled.runs)});
  const auto add = [&](uint32_t node, ProfiledRuns::Row& row, const std::string& text) {
    if (row.ns.empty()) return;
    rows->push_back(
        {run.program->number, node, text, row.runner, line_of(graph, graph.nodes[node]), percentiles(row.ns)});
  };
  auto group = graph.groups.begin();
  for (uint32_t n = 0; n < nodes; ++n) {
    if (group != graph.groups.end() && group->first == n) {  // the kernel's row comes before its first node's row
      std::string all = "kernel: ";
      for (uint32_t m = n; m <= group->last; ++m) {
        all += (m > n ? "; " : "") + describe(graph, graph.nodes[m], values);
      }
      add(n, profiled.rows[nodes + (group - graph.groups.begin())], all);
      ++group;
    }
    add(n, profiled.rows[n], describe(graph, graph.nodes[n], values));
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
      if (row.node >= 0) entry["runner"] = row.runner;
      if (row.node >= 0) entry["line"] = row.line;
      (row.node >= 0 ? nodes : programs).push_back(std::move(entry));
    }
    const nlohmann::ordered_json all = {{"programs", programs}, {"times", nodes}};
    std::printf("%s\n", all.dump(1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  size_t width = std::string_view("runner").size();
  for (const Row& row : rows) width = std::max(width, row.runner.size());
  const auto field = static_cast<int>(width);
  std::printf("%7s %6s %10s %10s  %-*s  %s\n", "program", "node", "p50 us", "p99 us", field, "runner", "op");
  for (const Row& row : rows) {
    std::printf("%7u %6s %10.2f %10.2f  %-*s  %s%s%s\n", row.program,
                row.node < 0 ? "all" : std::to_string(row.node).c_str(), row.times.p50, row.times.p99, field,
                row.runner.c_str(), row.what.c_str(), row.line.empty() ? "" : "  at ", row.line.c_str());
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
