#pragma once

#include <span>

#include "passes/pass.h"

// A pipeline with a bug, for tests of the tools that find such. Only test programs are linked with it.
namespace torch_remote::tools::testing {

// After `canonicalize` comes a pass that exchanges the operands of aten::sub.Tensor where an aten::mul.Tensor reads the
// difference; before `plan` one that does what a wrong memory plan would: a temporary of aten::sigmoid that is still
// needed is overwritten by one of aten::tanh that has the same shape.
std::span<const passes::Pass> miscompiling_pipeline();

}  // namespace torch_remote::tools::testing
