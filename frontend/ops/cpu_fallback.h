#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string_view>

// Ops that even the worker cannot run: custom ops that are registered in this process alone, and ops with arguments
// that cannot be recorded. TORCH_REMOTE_FALLBACK says what becomes of them:
//   error  (default) the call raises, and names the setting
//   warn   runs on this process's CPU, with copies there and back; one warning an op
//   allow  likewise, without a warning
// Each such call is counted in torch.remote.stats()["client_fallbacks"].
namespace torch_remote::frontend {

// The op's name and `why` are for the error. Replaces the arguments on the stack by the results.
void run_on_client(const c10::OperatorHandle& op, torch::jit::Stack* stack, std::string_view why);

uint64_t client_fallbacks();
void reset_client_fallbacks();

// False if the device's worker lacks the op (torch's own ops are never lacking). Waits for the worker's answer.
bool worker_has(const c10::OperatorHandle& op);

}  // namespace torch_remote::frontend
