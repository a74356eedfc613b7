#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ir/status.h"
#include "worker/device/memory.h"
#include "worker/runner/plugin.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker {

// Where its work is queued, if that is not this machine's memory: tr_host has more.
struct PluginGpu {
  int number = 0;
  void* stream = nullptr;
  std::string library;  // with torch's kernels; empty: libtorch_cuda.so beside the plugin's libtorch_cpu.so
};

// What the runner in a plugin is told and given.
struct PluginOptions {
  int threads = 0;      // 0: its default
  bool inproc = false;  // the process is the user's own
  // Where its ops' results and scratch lie. Outlives the runner.
  CachingAllocator* memory = nullptr;
  // What the client's process does, asked in the middle of a run; null: nobody knows.
  std::function<tr_client()> client_activity = nullptr;
  // In which way it is to do products that are part of its ops, asked in the middle of a run; null: as ops are done.
  std::function<tr_product_way(const tr_product& product)> product_way = nullptr;
  std::optional<PluginGpu> gpu = std::nullopt;
};

// The runner in a plugin. It accepts every node: what it cannot do, its `load` refuses by name. *runner is set
// unless an error is returned.
Status make_plugin_runner(const tr_runner_api* api, PluginOptions options, std::unique_ptr<Runner>* runner);

// What a plugin says went wrong, as a Status.
Status runner_error(const tr_error& error);

}  // namespace torch_remote::worker
