#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

// Ops that the worker cannot run: custom ops that are registered only in this process, and ops with arguments that
// cannot be recorded. TORCH_REMOTE_FALLBACK decides what happens to them:
//   error  (default) the call raises, and names the setting
//   warn   runs on this process's CPU, with copies there and back; one warning per op
//   allow  the same without a warning
// Each such call is counted in torch.remote.stats()["client_fallbacks"].
namespace torch_remote::frontend {

// Runs the op as the setting says, and replaces the arguments on the stack by the results. `why`: the reason, for
// messages.
void run_on_client(const c10::OperatorHandle& op, torch::jit::Stack* stack, std::string_view why);

uint64_t client_fallbacks();
void reset_client_fallbacks();

// Returns false if the device's worker lacks the op, which is never the case for torch's own ops. Asks each worker
// once, and waits for the answer. Raises the loss of the worker.
bool worker_has(const c10::OperatorHandle& op, c10::DeviceIndex device);

}  // namespace torch_remote::frontend
