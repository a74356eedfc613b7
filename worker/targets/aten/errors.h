#pragma once

#include "worker/runner/plugin.h"

// Reports torch's exceptions through the plugin's C ABI.
namespace torch_remote::worker::aten {

// Call this in a catch block. Describes the current exception; its kind is the Python class that PyTorch raises for it.
void describe_exception(tr_error* error) noexcept;

void set_error(tr_error* error, const char* kind, const char* message) noexcept;

}  // namespace torch_remote::worker::aten
