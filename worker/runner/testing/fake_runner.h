#pragma once

#include "worker/runner/plugin.h"

// For tests: a runner without torch. Knows a few ops on packed f32 tensors: aten::add.Tensor, aten::mul.Tensor,
// aten::relu, aten::add_.Tensor (in place), test::make (makes its result's memory), aten::nonzero (dynamic; of f32),
// aten::equal (a host result). aten::neg_ fails with an IndexError, aten::exp writes to its result and then fails,
// test::check, which makes nothing, fails.
namespace torch_remote::worker::testing {

const tr_runner_api* fake_runner();

// Calls of `run`, and of those with symbols_changed, since the start.
int runs();
int runs_with_changes();

}  // namespace torch_remote::worker::testing
