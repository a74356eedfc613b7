#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/replay/modes.h"
#include "tools/runs/culprit.h"
#include "tools/runs/replayer.h"

namespace torch_remote::tools::replay {
namespace {

struct Finding {
  uint64_t run;
  uint32_t program;
  std::string what;
  std::optional<Culprit> culprit;
};

// Compares two graphs that should give the same results, on one or two devices.
class RunComparer {
 public:
  RunComparer(Device& device, Device& other, const Options& options)
      : device_(device), other_(other), options_(options) {}

  // Compares a run whose inputs are on the device.
  Status compare_run(const remote::RunEvent& run, const Inputs& inputs, std::optional<Finding>* finding);

 private:
  struct Pair {
    std::shared_ptr<const ir::Graph> first, second;
    LoadedGraph loaded_first, loaded_second;
  };
  Status pair_of(const remote::CapturedProgramPtr& program, Pair** pair);
  Status inputs_of_other(const Inputs& inputs, Inputs* others);

  Device& device_;
  Device& other_;
  const Options& options_;
  std::map<uint32_t, std::pair<remote::CapturedProgramPtr, Pair>> pairs_;
};

Status RunComparer::pair_of(const remote::CapturedProgramPtr& program, Pair** pair) {
  auto& [known, made] = pairs_[program->number];
  *pair = &made;
  if (known == program) return {};
  known = program;
  made.second = {program, &program->graph};
  made.first = made.second;
  if (const auto& source = program->source; source && options_.compare == Compare::kPasses) {
    made.first = {program, &*source};
    if (options_.rebuild) {
      ir::Graph graph = *source;
      if (Status status = passes::run_pipeline(graph, {.passes = options_.passes, .verify = true}); !status)
        return status;
      made.second = std::make_shared<const ir::Graph>(std::move(graph));
    }
  }
  if (Status status = device_.load(made.first, &made.loaded_first); !status) return status;
  return other_.load(made.second, &made.loaded_second);
}

Status RunComparer::inputs_of_other(const Inputs& inputs, Inputs* others) {
  *others = inputs;
  if (&device_ == &other_) return {};
  for (size_t i = 0; i < inputs.ids.size(); ++i) {
    Bytes bytes;
    WorkerError error;
    if (Status status = device_.read(inputs.ids[i], inputs.nbytes[i], &bytes, &error); !status) return status;
    if (Status status = other_.upload(bytes, &others->ids[i]); !status) return status;
  }
  return {};
}

Status RunComparer::compare_run(const remote::RunEvent& run, const Inputs& inputs, std::optional<Finding>* finding) {
  Pair* pair;
  if (Status status = pair_of(run.program, &pair); !status) return status;
  Inputs others;
  if (Status status = inputs_of_other(inputs, &others); !status) return status;
  std::vector<int64_t> values;
  if (Status status = ir::evaluate(*pair->first, run.params.data(), &values); !status) return status;
  const std::vector<OutputView> views = output_views(*pair->first, values);
  device_.set_math_modes(run.math_modes);
  other_.set_math_modes(run.math_modes);
  Outcome first, second;
  Status status = execute(device_, pair->loaded_first, run.params, inputs, views, &first);
  if (status.ok()) status = execute(other_, pair->loaded_second, run.params, others, views, &second);
  if (!status) return status;
  if (const auto difference = tools::compare(views, first, second, options_.tolerance)) {
    *finding = Finding{0, run.program->number, *difference, {}};
    const bool same_graph = pair->first == pair->second;
    status = find_culprit({&device_, pair->first.get(), inputs}, {&other_, pair->second.get(), others},
                          same_graph ? pair_with_itself(*pair->first) : pair_by_record(*pair->first, *pair->second),
                          run.params, options_.tolerance, options_.memory, &(*finding)->culprit);
  }
  if (&device_ != &other_) free(other_, others);
  return status;
}

void print(const Finding& finding, const Options& options) {
  const bool passes = options.compare == Compare::kPasses;
  std::printf("run %llu of program %u differs: %s\n", static_cast<unsigned long long>(finding.run), finding.program,
              finding.what.c_str());
  if (!finding.culprit) {
    std::printf(" no single op differs when the results of all ops are kept: look at the memory plan and the order\n");
    return;
  }
  const Culprit& culprit = *finding.culprit;
  std::printf("  first differing op: node %u: %s\n", culprit.nodes.b, culprit.op_b.c_str());
  if (passes && culprit.op_a != culprit.op_b) {
    std::printf("  before the passes:  node %u: %s\n", culprit.nodes.a, culprit.op_a.c_str());
  }
  if (!culprit.line.empty()) std::printf("  at %s\n", culprit.line.c_str());
  std::printf("  result %u (%s), %s: %s\n", culprit.written, std::string(ir::name(culprit.dtype)).c_str(),
              passes ? "before and after the passes" : "on the two workers", to_string(culprit.difference).c_str());
  if (culprit.operand) {
    std::printf(
        "  operand %u differs already when the op begins, although the op that computed it agrees: its memory was "
        "overwritten\n",
        *culprit.operand);
  }
}

nlohmann::ordered_json to_json(const Finding& finding) {
  nlohmann::ordered_json json = {{"run", finding.run}, {"program", finding.program}, {"what", finding.what}};
  if (!finding.culprit) return json;
  const Culprit& culprit = *finding.culprit;
  json["node"] = culprit.nodes.b;
  json["op"] = culprit.op_b;
  json["node_before"] = culprit.nodes.a;
  json["op_before"] = culprit.op_a;
  json["line"] = culprit.line;
  json["result"] = culprit.written;
  json["operand"] = culprit.operand ? nlohmann::ordered_json(*culprit.operand) : nlohmann::ordered_json();
  json["dtype"] = ir::name(culprit.dtype);
  json["differing"] = culprit.difference.differing;
  json["elements"] = culprit.difference.elements;
  json["first"] = culprit.difference.first;
  json["max_abs"] = culprit.difference.max_abs;  // null: infinite
  json["max_rel"] = culprit.difference.max_rel;
  return json;
}

}  // namespace

Status compare_runs(remote::CaptureReader& capture, Device& device, Device& other, const Options& options, bool* good) {
  Replayer replayer(device);
  RunComparer comparer(device, other, options);
  std::vector<Finding> findings;
  uint64_t runs = 0, compared = 0, without_source = 0;
  for (;;) {
    std::optional<remote::CaptureEvent> event;
    if (Status status = capture.next(&event); !status) return status;
    if (!event) break;
    const auto* run = std::get_if<remote::RunEvent>(&event->what);
    if (run && (++runs == options.run || options.run == 0)) {
      Inputs inputs;
      if (options.compare == Compare::kPasses && !run->program->source) {
        ++without_source;
      } else if (replayer.inputs(*run, &inputs)) {
        std::optional<Finding> finding;
        if (Status status = comparer.compare_run(*run, inputs, &finding); !status) return status;
        ++compared;
        if (finding) {
          finding->run = runs;
          findings.push_back(std::move(*finding));
        }
      }
    }
    if (Status status = replayer.perform(*event); !status) return status;
  }
  if (Status status = replayer.finish(); !status) return status;
  if (options.run > runs) {
    return Status::invalid("the capture has " + std::to_string(runs) + " runs, none with number " +
                           std::to_string(options.run));
  }
  *good = findings.empty();
  if (options.json) {
    nlohmann::ordered_json json = {
        {"compared", compared}, {"without_source", without_source}, {"differences", nlohmann::json::array()}};
    for (const Finding& finding : findings) json["differences"].push_back(to_json(finding));
    std::printf("%s\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return {};
  }
  for (const Finding& finding : findings) print(finding, options);
  if (without_source > 0) {
    std::printf("%llu runs have no graph from before the passes in the capture\n",
                static_cast<unsigned long long>(without_source));
  }
  std::printf("compared %llu runs, %zu differ\n", static_cast<unsigned long long>(compared), findings.size());
  return {};
}

}  // namespace torch_remote::tools::replay
