#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "ir/status.h"
#include "tests/emulated_gpu/emulator/checker.h"
#include "tests/emulated_gpu/emulator/launch.h"
#include "tests/emulated_gpu/emulator/memory.h"
#include "tests/emulated_gpu/emulator/worker.h"

namespace torch_remote::codegen::emulator {

struct DeviceState {
  explicit DeviceState(const DeviceOptions& options)
      : tag(options.tag), memory(options.capacity, options.tracked), checker(memory) {}

  const uint64_t tag;
  DeviceMemory memory;
  std::mutex mutex;  // guards all members below; held for a whole launch
  Checker checker;
  std::vector<std::unique_ptr<Worker>> workers;
};

// Runs the launch on its own host threads.
Status run_launch(DeviceState& device, Launch& launch);

}  // namespace torch_remote::codegen::emulator
