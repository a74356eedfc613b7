#include "worker/runner/plugin.h"

// A plugin of another version of the interface.
extern "C" __attribute__((visibility("default"))) const tr_executor_api* torch_remote_executor_api() {
  static const tr_executor_api api = {.struct_size = sizeof(tr_executor_api), .abi = 99, .description = "old"};
  return &api;
}
