#include "tools/runs/case.h"

#include "remote/capture/session_writer.h"

namespace torch_remote::tools {

Status save_case(const RunCase& run, const std::string& path) {
  return remote::save_run(path, run.graph, run.optimized ? *run.optimized : run.graph, run.params, run.inputs,
                          run.math_modes);
}

}  // namespace torch_remote::tools
