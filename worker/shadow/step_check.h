#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/math_modes.h"
#include "worker/shadow/isolated_step.h"
#include "worker/shadow/reference.h"

namespace torch_remote::worker {

// The first view that differs.
struct StepDifference {
  uint32_t node = 0;  // Node of the isolated graph.
  std::string what;   // "result 0 (f32): 12 of 400 elements differ, ..."
};

// Executes a step on the reference and compares what it writes with `results`, which a device has computed from the
// same inputs. Floating elements agree if they differ by at most
// this share of the view's largest element:
//
//   float64 1e-10    float32 1e-4, with TF32 5e-3    float16 4e-3    bfloat16 3e-2
//
// Infinite elements agree with NaN: which of both a sum of infinite terms is depends on the order of the terms.
//
// If some do not agree, the step may amplify roundings, such as a sum whose terms cancel. So the reference executes it
// twice more, on inputs that are changed by a few roundings. A difference counts only if it is more than eight times as
// large as what that changes. Integers, bools and float8 must be equal, unless that changes some of them. Then twice as
// many may differ, or one of a thousand.
//
// Returns an error if the reference cannot execute the step.
Status check_step(Reference& reference, const IsolatedStep& step, std::span<const Bytes> inputs,
                  const StepResults& results, ir::MathModes math_modes, std::optional<StepDifference>* difference);

}  // namespace torch_remote::worker
