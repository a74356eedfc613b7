#include "worker/runner/plugin.h"

// A plugin with another version of the ABI.
extern "C" __attribute__((visibility("default"))) const tr_runner_api* torch_remote_runner_api() {
  static const tr_runner_api api = {.struct_size = sizeof(tr_runner_api), .abi = 99, .description = "old"};
  return &api;
}
