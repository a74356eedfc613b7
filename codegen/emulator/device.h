#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "codegen/emulator/checker.h"
#include "codegen/emulator/launch.h"
#include "codegen/emulator/memory.h"
#include "codegen/emulator/worker.h"
#include "ir/status.h"

namespace torch_remote::codegen::emulator {

struct DeviceState {
  explicit DeviceState(const DeviceOptions& options)
      : tag(options.tag), memory(options.capacity, options.tracked), checker(memory) {}

  const uint64_t tag;
  DeviceMemory memory;
  std::mutex mutex;  // of all that follows: one launch at a time
  Checker checker;
  std::vector<std::unique_ptr<Worker>> workers;
};

// Runs it, on host threads of its own.
Status run_launch(DeviceState& device, Launch& launch);

}  // namespace torch_remote::codegen::emulator
