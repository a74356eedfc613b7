#include "tools/runs/profiled_runs.h"

#include <memory>
#include <span>

namespace torch_remote::tools {
namespace {

constexpr int kWarmup = 2;

// Runs a graph. *error: an error that the worker reported.
Status once(Device& device, const LoadedGraph& loaded, std::span<const int64_t> params,
            std::span<const uint64_t> inputs, WorkerError* error) {
  uint64_t first_result_id;
  remote::ResultWords result_words;
  WorkerError later;
  if (Status status = device.run(loaded, params, inputs, &first_result_id, &result_words, error); !status)
    return status;
  if (Status status = device.synchronize(&later); !status) return status;
  for (uint64_t k = 0; k < loaded.survivor_count; ++k) device.free(first_result_id + k);
  if (!*error) *error = std::move(later);
  return {};
}

// Copies the inputs, because runs may change them.
Status copy_inputs(Device& device, const Inputs& inputs, std::vector<uint64_t>* copies, WorkerError* error) {
  for (size_t i = 0; i < inputs.ids.size() && !*error; ++i) {
    if (Status status = device.copy(inputs.ids[i], inputs.nbytes[i], &copies->emplace_back(), error); !status) {
      return status;
    }
  }
  return {};
}

}  // namespace

Status profile_runs(Device& device, const remote::RunEvent& run, const Inputs& inputs, int rounds,
                    ProfiledRuns* profiled, WorkerError* error) {
  const ir::Graph& graph = run.program->graph;
  auto whole = std::make_shared<ir::Graph>(graph);
  for (const uint32_t b : run.program->inputs) whole->buffers[b].survives = true;
  std::vector<uint64_t> own;
  LoadedGraph loaded;
  device.set_math_modes(run.math_modes);
  Status status = copy_inputs(device, inputs, &own, error);
  if (status.ok() && !*error) status = device.load(whole, &loaded);
  for (int round = 0; round < kWarmup && status.ok() && !*error; ++round) {
    status = once(device, loaded, run.params, own, error);
  }
  remote::WorkerProfile profile;
  const uint64_t events = static_cast<uint64_t>(rounds) * (graph.nodes.size() + 8);
  if (status.ok()) status = device.profile(remote::ProfileCommand::kStart, events, &profile);
  for (int round = 0; round < rounds && status.ok() && !*error; ++round) {
    status = once(device, loaded, run.params, own, error);
  }
  if (status.ok()) status = device.profile(remote::ProfileCommand::kStop, 0, &profile);
  for (const uint64_t id : own) device.free(id);
  if (!status || *error) return status;

  profiled->rows.assign(graph.nodes.size() + graph.groups.size(), {});
  for (const wire::ProfileEvent& event : profile.events) {
    if (event.program == wire::ProfileEvent::kMessage) {
      if (event.node == static_cast<uint32_t>(wire::Type::kRun)) profiled->runs.push_back(event.end - event.begin);
      continue;
    }
    if (event.node >= profiled->rows.size()) continue;
    ProfiledRuns::Row& row = profiled->rows[event.node];
    row.ns.push_back(event.end - event.begin);
    const remote::WorkerProfile::ProfiledProgram& program = profile.programs[event.program];
    row.runner = program.runners[event.node];
    row.declined = program.declined[event.node];
  }
  return {};
}

}  // namespace torch_remote::tools
