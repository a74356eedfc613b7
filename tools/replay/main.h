#pragma once

#include <span>

#include "passes/pass.h"

namespace torch_remote::tools::replay {

// remote-replay. `passes` are those of --passes rebuild: the pipeline in the tool that ships.
int main(std::span<const passes::Pass> passes, int argc, char** argv);

}  // namespace torch_remote::tools::replay
