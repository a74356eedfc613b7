#include "worker/runner/plugin.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "worker/targets/aten/aten_program.h"
#include "worker/targets/aten/checks/schema.h"
#include "worker/targets/aten/errors.h"
#include "worker/targets/aten/first_calls.h"
#include "worker/targets/aten/gpu.h"
#include "worker/targets/aten/host_memory.h"
#include "worker/targets/aten/kernels/fft.h"
#include "worker/targets/aten/kernels/multiply.h"
#include "worker/targets/aten/kernels/parallel.h"
#include "worker/targets/aten/kernels/special.h"
#include "worker/targets/aten/threads.h"

// The plugin's C ABI. No exception leaves this file.

struct tr_runner {
  tr_runner(const tr_host& host, int threads, bool inproc) : host(host), inproc(inproc), threads(threads, inproc) {}

  tr_host host;
  bool inproc;
  bool heavy_run = false;  // the current run has much work (see `notify_threads`)
  torch_remote::worker::aten::Threads threads;
};

struct tr_program {
  torch_remote::worker::aten::AtenProgram program;
};

namespace torch_remote::worker::aten {
namespace {

int create(const tr_host* host, int threads, int inproc, tr_runner** runner, tr_error* error) {
  try {
    TORCH_CHECK(host->abi == TR_RUNNER_ABI, "remote: the worker speaks version ", host->abi,
                " of the runner interface, this plugin ", TR_RUNNER_ABI, "; install them from one package");
    tr_host known{};  // an older host's struct has fewer fields
    std::memcpy(&known, host, std::min(sizeof(known), host->struct_size));
    auto result = std::make_unique<tr_runner>(known, threads, inproc != 0);
    // Must precede any other call of torch: torch checks once whether CUDA exists, and remembers the result.
    if (known.has_gpu != 0) open_gpu(result->host);
    make_first_calls();
    // Clients fill new memory themselves when the user asks for it. Torch must not fill the temporaries of ops.
    if (!inproc) at::globalContext().setDeterministicFillUninitializedMemory(false);
    if (!inproc) transform_dims_apart();
    if (known.has_gpu == 0 && !inproc) {
      use_host_memory(&result->host);
      set_gemm_host(&result->host);
    }
    *runner = result.release();
    return 0;
  } catch (...) {
    describe_exception(error);
    return 1;
  }
}

void destroy(tr_runner* runner) {
  close_gpu(runner->host);
  if (!runner->inproc) {
    reset_host_memory();
    set_gemm_host(nullptr);
  }
  delete runner;
}

int load(tr_runner* runner, const uint8_t* bytes, size_t size, const tr_load_options* options, tr_program** out,
         tr_error* error) {
  try {
    ir::Graph graph;
    const Status status = ir::decode_program(bytes, size, &graph);
    if (!status.ok()) {
      set_error(error, "RuntimeError", status.message().c_str());
      return 1;
    }
    *out = new tr_program{
        AtenProgram(runner->host, runner->threads, std::move(graph), options->tune != 0, options->may_run)};
    return 0;
  } catch (...) {
    describe_exception(error);
    return 1;
  }
}

void unload(tr_runner* runner, tr_program* program) { delete program; }

int run(tr_runner* runner, tr_program* program, tr_run* run, tr_error* error) {
  try {
    std::optional<MathModeScope> there;
    if (!runner->inproc) there.emplace(runner->host, run->math_modes);
    program->program.run(*run, &error->node);
    return 0;
  } catch (...) {
    describe_exception(error);
    return 1;
  }
}

int allocates_buffer(const tr_program* program, uint32_t buffer) { return program->program.allocates_buffer(buffer); }

// Chooses the number of threads by the same rules as AtenProgram::run: little work wakes no threads, and leaves a core
// to a client that needs one. `grains`: the work, in units of about 10 us.
void choose_threads(tr_runner& runner, double grains) {
  constexpr double kGrainsWorthWaking = 64;
  Threads& threads = runner.threads;
  const bool small = grains < kGrainsWorthWaking && !runner.heavy_run;
  const bool parallel = grains >= 2 && !(small && threads.sleeping());
  if (parallel && should_leave_core(runner.host, threads, small)) {
    threads.leave_one_core();
  } else {
    threads.set(parallel);
  }
}

// Nothing here throws.
void parallel_for(tr_runner* runner, int64_t count, int64_t grain,
                  void (*body)(void* context, int64_t begin, int64_t end), void* context) {
  choose_threads(*runner, static_cast<double>(count) / static_cast<double>(grain));
  run_parallel(count, grain, [&](int64_t begin, int64_t end) { body(context, begin, end); });
}

int has_op(tr_runner* runner, const char* name) {
  try {
    const Target target = target_of(runner->host);
    if (target.is_gpu()) return can_run_on_gpu(name);
    return find_special(name) != nullptr || can_run(name, target.key);
  } catch (...) {  // out of memory
    return 0;
  }
}

void notify_threads(tr_runner* runner, int heavy_run) {
  runner->heavy_run = heavy_run != 0;
  if (heavy_run != 0 && !should_leave_core(runner->host, runner->threads, false)) runner->threads.begin_wake();
}

int matmul(tr_runner* runner, const tr_matmul* matmul) {
  try {
    const double work = static_cast<double>(std::max<int64_t>(matmul->batches, 1)) * static_cast<double>(matmul->rows) *
                        static_cast<double>(matmul->columns) * static_cast<double>(matmul->depth);
    choose_threads(*runner, work / kMinParallelWork);
    return run_gemm(*matmul) ? 0 : 1;
  } catch (...) {
    return 1;
  }
}

// Threads that do not go to sleep at once do so after a while, so errors are ignored.
void on_idle(tr_runner* runner) {
  try {
    runner->threads.sleep();
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace
}  // namespace torch_remote::worker::aten

extern "C" __attribute__((visibility("default"))) const tr_runner_api* torch_remote_runner_api() {
  namespace aten = torch_remote::worker::aten;
  static const std::string description = "ATen " TORCH_VERSION;
  static const tr_runner_api api = {
      .struct_size = sizeof(tr_runner_api),
      .abi = TR_RUNNER_ABI,
      .description = description.c_str(),
      .create = aten::create,
      .destroy = aten::destroy,
      .load = aten::load,
      .unload = aten::unload,
      .run = aten::run,
      .allocates_buffer = aten::allocates_buffer,
      .parallel_for = aten::parallel_for,
      .has_op = aten::has_op,
      .on_idle = aten::on_idle,
      .matmul = aten::matmul,
      .notify_threads = aten::notify_threads,
  };
  return &api;
}
