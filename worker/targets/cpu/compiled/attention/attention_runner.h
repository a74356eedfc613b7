#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "worker/device/strided_copy.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::kernels {

struct AttentionRunnerOptions {
  ParallelFor threads;  // null: the calling thread runs everything
  // Called once for each group whose sizes in a run the loops do not support. May be null.
  std::function<void(std::string_view ops, std::string_view why)> on_refusal;
};

// The runner that executes attention and its gradient on this machine's memory with hand-written loops. It accepts
// groups of one node of the kind kAttention.
std::unique_ptr<Runner> make_attention_runner(AttentionRunnerOptions options);

}  // namespace torch_remote::worker::kernels
