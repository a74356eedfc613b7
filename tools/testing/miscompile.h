#pragma once

#include <span>

#include "passes/pass.h"

// A pipeline with bugs, to test the tools that find them. Only test programs are linked with it.
namespace torch_remote::tools::testing {

// After `canonicalize`, a pass exchanges the operands of aten::sub.Tensor if an aten::mul.Tensor reads the difference.
// Before `plan`, another pass has the effect of a wrong memory plan: a temporary of aten::sigmoid that is still needed
// is overwritten by one of aten::tanh with the same shape.
std::span<const passes::Pass> miscompiling_pipeline();

}  // namespace torch_remote::tools::testing
