#pragma once

#include <span>

#include "passes/pass.h"

namespace torch_remote::tools::reduce {

// remote-reduce. `passes` are those that are looked at: the pipeline in the tool that ships.
int main(std::span<const passes::Pass> passes, int argc, char** argv);

}  // namespace torch_remote::tools::reduce
