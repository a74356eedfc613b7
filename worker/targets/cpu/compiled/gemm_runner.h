#pragma once

#include <functional>
#include <memory>

#include "worker/device/strided_copy.h"
#include "worker/runner/runner.h"
#include "worker/targets/cpu/compiled/gemm_choice.h"

namespace torch_remote::worker::kernels {

struct GemmRunnerOptions {
  ParallelFor threads;  // null: the calling thread runs everything
  std::shared_ptr<GemmChoices> choices;
  // Called before GEMMs are measured (Runner::thread_notifier). May be null.
  std::function<void(bool heavy_run)> notify_threads;
};

// The runner that executes GEMMs on this machine's memory: with hand-written loops for few rows, and with the library
// of the ATen plugin (Runner::matmul). It accepts groups of one node of the kind kMatmul. `choices` has the
// faster one for each shape.
std::unique_ptr<Runner> make_gemm_runner(GemmRunnerOptions options);

}  // namespace torch_remote::worker::kernels
