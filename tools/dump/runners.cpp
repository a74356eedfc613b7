#include "tools/dump/runners.h"

#include <cstdlib>
#include <memory>
#include <optional>
#include <variant>

#include "tools/runs/device.h"
#include "tools/runs/profiled_runs.h"
#include "tools/runs/replayer.h"

namespace torch_remote::tools {
namespace {

std::vector<NodeRunner> nodes_of(const ir::Graph& graph, const ProfiledRuns& profiled) {
  std::vector<NodeRunner> nodes;
  nodes.reserve(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    nodes.push_back({profiled.rows[n].runner, profiled.rows[n].declined, false});
  }
  for (size_t g = 0; g < graph.groups.size(); ++g) {
    const ProfiledRuns::Row& row = profiled.rows[graph.nodes.size() + g];
    if (row.ns.empty()) continue;
    for (uint32_t n = graph.groups[g].first; n <= graph.groups[g].last; ++n) nodes[n] = {row.runner, {}, true};
  }
  return nodes;
}

}  // namespace

Status find_runners(remote::CaptureReader& capture, const std::string& worker, uint32_t program, NodeRunners* runners) {
  constexpr int kRounds = 1;
  // Otherwise the answer would depend on how fast kernels are compiled.
  setenv("TORCH_REMOTE_WAIT_COMPILE", "1", /*overwrite=*/0);
  std::unique_ptr<Device> device;
  if (Status status = Device::open(worker, 0, &device); !status) return status;
  Replayer replayer(*device);
  capture.rewind();
  for (;;) {
    std::optional<remote::CaptureEvent> event;
    if (Status status = capture.next(&event); !status) return status;
    if (!event) return {};
    const auto* run = std::get_if<remote::RunEvent>(&event->what);
    const bool wanted = run != nullptr && (program == 0 || run->program->number == program);
    if (Inputs inputs; wanted && !runners->contains(run->program->number) && replayer.inputs(*run, &inputs)) {
      ProfiledRuns profiled;
      WorkerError error;
      if (Status status = profile_runs(*device, *run, inputs, kRounds, &profiled, &error); !status) return status;
      if (!error) (*runners)[run->program->number] = nodes_of(run->program->graph, profiled);
    }
    if (Status status = replayer.perform(*event); !status) return status;
  }
}

std::string to_string(const NodeRunner& runner) {
  if (runner.runner.empty()) return "did not run";
  return runner.runner + (runner.in_kernel ? ", with its group" : "") +
         (runner.declined.empty() ? "" : "; " + runner.declined);
}

}  // namespace torch_remote::tools
