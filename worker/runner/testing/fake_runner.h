#pragma once

#include "worker/runner/plugin.h"

// A runner for tests, without torch. It knows a few ops on contiguous f32 tensors: aten::add.Tensor, aten::mul.Tensor,
// aten::relu, aten::add_.Tensor (in place), test::make (allocates its result), aten::nonzero (dynamic; of f32),
// aten::equal (a host result). aten::neg_ fails with an IndexError. aten::exp writes to its result and then fails.
// test::check, which has no results, fails.
namespace torch_remote::worker::testing {

const tr_runner_api* fake_runner();

// Number of calls of `run` since the start, and of those with symbols_changed.
int runs();
int runs_with_changes();

}  // namespace torch_remote::worker::testing
