#pragma once

// torch.remote.set_sync_debug_mode: warns or raises where user code waits for the worker.
namespace torch_remote::frontend {

enum class SyncDebugMode { kDefault, kWarn, kError };

SyncDebugMode sync_debug_mode();
void set_sync_debug_mode(SyncDebugMode mode);

// Call it before an op waits, with no lock held and before the op has recorded anything. `reason` is for instance
// "item" or "copy to cpu".
void before_wait(const char* reason);

}  // namespace torch_remote::frontend
