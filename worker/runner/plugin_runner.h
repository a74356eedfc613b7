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

// For a plugin whose buffers are in GPU memory: the GPU, and the stream on which it queues its work; see tr_host.
struct PluginGpu {
  int number = 0;
  void* stream = nullptr;
  std::string torch_cuda_library;  // The file with torch's kernels; empty: libtorch_cuda.so next to the plugin's
                                   // libtorch_cpu.so.
};

// Options for the runner in a plugin.
struct PluginOptions {
  int threads = 0;      // 0: the plugin's default.
  bool inproc = false;  // The process is the user's own.
  // The allocator for results and scratch of its ops. Outlives the runner.
  CachingAllocator* memory = nullptr;
  // Returns what the client's process is doing; called during runs. Null: not known.
  std::function<tr_client_activity()> client_activity = nullptr;
  // Returns the algorithm for a matmul inside of an op; called during runs. Null: the op chooses.
  std::function<tr_matmul_algorithm(const tr_matmul& matmul)> matmul_algorithm = nullptr;
  std::optional<PluginGpu> gpu = std::nullopt;
};

// Makes the runner of a plugin. The runner accepts every node, and its `load` refuses nodes that it cannot execute, by
// name. Sets *runner unless an error is returned.
Status make_plugin_runner(const tr_runner_api* api, PluginOptions options, std::unique_ptr<Runner>* runner);

// Converts a plugin's error to a Status.
Status runner_error(const tr_error& error);

}  // namespace torch_remote::worker
