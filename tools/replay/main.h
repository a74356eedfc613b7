#pragma once

#include <span>

#include "passes/pass.h"

namespace torch_remote::tools::replay {

// Runs remote-replay. `passes`: those that --passes rebuild applies; the shipped tool uses the pipeline.
int main(std::span<const passes::Pass> passes, int argc, char** argv);

}  // namespace torch_remote::tools::replay
