#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/operator_name.h>

namespace torch_remote::frontend {

// Shape inference of torch's structured ops without the dispatcher: a kernel that runs `at::meta::<op>` on a boxed
// stack of Meta tensors, 0.1 to 0.5 us a call. (The dispatcher's Meta key is up to a thousand times slower: torch
// registers Python functions there.) In-place and out overloads check and resize their first argument or `out`. Null
// for an overload that is not structured. Lives as long as the process. A hash lookup, thread safe: meant for
// registration, not for each call.
const c10::KernelFunction* find_structured_meta(const c10::OperatorName& name);

}  // namespace torch_remote::frontend
