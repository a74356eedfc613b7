#include "frontend/device/sync_debug.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "frontend/source/source.h"

namespace torch_remote::frontend {
namespace {

std::atomic<SyncDebugMode> current_mode{SyncDebugMode::kDefault};

void warn_or_raise(const char* reason) {
  std::string message = std::string("remote: the code waits for the worker (") + reason + ")";
  const std::string line = describe_source(user_line());
  if (!line.empty()) message += " at " + line;
  TORCH_CHECK(sync_debug_mode() != SyncDebugMode::kError, message,
              "; torch.remote.set_sync_debug_mode(\"default\") allows it");
  TORCH_WARN(message);
}

}  // namespace

SyncDebugMode sync_debug_mode() { return current_mode.load(std::memory_order_relaxed); }

void set_sync_debug_mode(SyncDebugMode mode) { current_mode.store(mode, std::memory_order_relaxed); }

void before_wait(const char* reason) {
  if (sync_debug_mode() != SyncDebugMode::kDefault) warn_or_raise(reason);
}

}  // namespace torch_remote::frontend
