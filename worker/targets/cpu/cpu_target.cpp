#include "worker/targets/cpu/cpu_target.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "codegen/loop/scalar_ops.h"
#include "ir/math_modes.h"
#include "remote/wire/environment.h"
#include "worker/device/host_device.h"
#include "worker/device/machine.h"
#include "worker/runner/plugin_loader.h"
#include "worker/runner/plugin_runner.h"
#include "worker/targets/cache_folder.h"
#include "worker/targets/cpu/compiled/attention/attention_runner.h"
#include "worker/targets/cpu/compiled/compiler.h"
#include "worker/targets/cpu/compiled/gemm.h"
#include "worker/targets/cpu/compiled/gemm_runner.h"
#include "worker/targets/cpu/compiled/kernel_runner.h"
#include "worker/targets/cpu/compiled/library_gemm.h"
#include "worker/targets/probed_part.h"

namespace torch_remote::worker {
namespace {

using Algorithm = kernels::GemmChoices::Algorithm;

// Delay before a requested kernel is compiled: most first steps are over by then.
constexpr std::chrono::milliseconds kCompileDelay{200};

// Opens the runners of compiled kernels, attention and matmuls, if there is a compiler and it supports this processor.
// *gemm_choices then holds the algorithm choices for matmuls.
Runners open_kernels(const DeviceOptions& options, Runner& plugin,
                     std::shared_ptr<kernels::GemmChoices>* gemm_choices) {
  const std::string target = kernels::host_target();
  if (options.codegen.empty() || options.inproc) return {};
  if (target.empty()) {
    spdlog::info("this processor has neither AVX2 nor AVX-512: ops run one by one");
    return {};
  }
  kernels::CacheOptions cache;
  cache.folder = cache_folder();
  cache.target = target;
  cache.urgent = options.deterministic || remote::is_enabled("TORCH_REMOTE_WAIT_COMPILE");
  if (!cache.urgent) cache.delay = kCompileDelay;
  if (const Status status = kernels::open_compiler(options.codegen, target, &cache); !status.ok()) {
    spdlog::warn("{}; ops run one by one", status.message());
    return {};
  }
  cache.on_failure = [](const Status& why) { spdlog::warn("{}; ops run one by one", why.message()); };
  kernels::KernelRunnerOptions made;
  made.waits = cache.urgent;
  made.description = "kernels";
  made.on_refusal = [](std::string_view ops, std::string_view why) {
    spdlog::debug("no kernel for a group ({}): {}; its ops run one by one", ops, why);
  };
  made.threads = plugin.threads();
  made.on_choice = [](std::string_view ops, std::string_view algorithm) {
    spdlog::debug("a tuned group ({}) is executed by {}", ops, algorithm);
  };
  const std::string about = target + ", " + processor_name() + ", " + plugin.description() + ", " +
                            std::to_string(options.threads) + " of " + std::to_string(processor_cores()) + " threads";
  made.choices = std::make_shared<kernels::GroupChoices>(cache.folder, about + ", " + cache.version);
  *gemm_choices =
      std::make_shared<kernels::GemmChoices>(kernels::GemmChoices::Options{.loops = kernels::gemm_loops(target),
                                                                           .threads = made.threads,
                                                                           .library = plugin.matmul(),
                                                                           .fixed = cache.urgent,
                                                                           .folder = cache.folder,
                                                                           .about = about});
  made.cache = std::make_shared<kernels::KernelCache>(std::move(cache));
  Runners runners;
  runners.push_back(kernels::make_attention_runner({made.threads, made.on_refusal}));
  runners.push_back(kernels::make_gemm_runner({made.threads, *gemm_choices, plugin.thread_notifier()}));
  runners.push_back(kernels::make_kernel_runner(std::move(made)));
  return runners;
}

}  // namespace

Status open_cpu(remote::Transport& transport, const DeviceOptions& options,
                std::function<tr_client_activity()> client_activity, OpenDevice* opened) {
  auto device = std::make_unique<HostDevice>(
      HostDevice::Options{.transport = &transport,
                          .inproc = options.inproc,
                          // Memory that the client cannot access does not change after it is checked.
                          .trusted = options.trusted || !transport.shares_memory(),
                          .limit = options.memory_limit});
  std::unique_ptr<Runner> plugin;
  const auto gemm_choices = std::make_shared<std::shared_ptr<kernels::GemmChoices>>();
  const auto matmul_algorithm = [gemm_choices, on = device.get()](const tr_matmul& matmul) {
    if (*gemm_choices == nullptr) return TR_MATMUL_AS_OP;
    // A measured choice may differ from one process to the next.
    if ((on->math_modes() & ir::kDeterministic) != 0 && !(*gemm_choices)->is_fixed()) return TR_MATMUL_AS_OP;
    return (*gemm_choices)->algorithm(kernels::shape_of(matmul)) == Algorithm::kOneDnn ? TR_MATMUL_ONEDNN
                                                                                       : TR_MATMUL_AS_OP;
  };
  Status status = make_plugin_runner(
      options.runner,
      {options.threads, options.inproc, &device->memory(), std::move(client_activity), matmul_algorithm}, &plugin);
  if (!status.ok()) return status;
  device->set_threads(plugin->threads());
  if (Runners runners = open_kernels(options, *plugin, gemm_choices.get()); !runners.empty()) {
    opened->targets = {kernels::host_target()};
    opened->group_kind_mask = kernels::group_kind_mask();
    opened->dtype_mask = codegen::memory_types();
    std::ranges::move(runners, std::back_inserter(opened->runners));
  }
  opened->runners.push_back(std::move(plugin));
  opened->device = std::move(device);
  return {};
}

namespace {

// The part "cpu": the plugin, without which this target executes nothing.
Probed probe_cpu(const DeviceOptions& options) {
  ProbedPart part{.name = "cpu", .path = options.plugin, .without = "--device cpu does not work"};
  const tr_runner_api* runner = nullptr;
  if (const Status status = load_plugin(options.plugin, &runner); !status.ok()) part.set_missing(status);
  Probed probed;
  add_part(part, &probed.text);
  probed.json = "\"cpu\": " + json_of(part);
  return probed;
}

}  // namespace

Target cpu_target() {
  return {.name = "cpu",
          .about = "this machine's memory and processor",
          .load = [](DeviceOptions* options) { return load_plugin(options->plugin, &options->runner); },
          .open = [](const std::string&) { return open_cpu; },
          .probe = probe_cpu};
}

}  // namespace torch_remote::worker
