#pragma once

#include <span>

#include "passes/pass.h"

namespace torch_remote::tools::reduce {

// Runs remote-reduce. `passes`: the passes under test; the shipped tool uses the pipeline.
int main(std::span<const passes::Pass> passes, int argc, char** argv);

}  // namespace torch_remote::tools::reduce
