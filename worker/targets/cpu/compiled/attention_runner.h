#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "worker/device/strided_copy.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::kernels {

struct AttentionRunnerOptions {
  ParallelFor threads;  // null: its caller's thread
  // Called once for each group of a program that the loops do not do with the sizes of a run. May be null.
  std::function<void(std::string_view ops, std::string_view why)> tell_refusal;
};

// The runner of attention and its gradient on this machine's memory, with hand-written loops: groups of one node of the
// kind kAttention.
std::unique_ptr<Runner> make_attention_runner(AttentionRunnerOptions options);

}  // namespace torch_remote::worker::kernels
