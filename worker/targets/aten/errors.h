#pragma once

#include "worker/runner/plugin.h"

// torch's exceptions, as the plugin's C ABI reports them.
namespace torch_remote::worker::aten {

// To be called in a catch block: the exception that is being handled, by the Python class that PyTorch makes of it.
void describe_exception(tr_error* error) noexcept;

void set_error(tr_error* error, const char* kind, const char* message) noexcept;

}  // namespace torch_remote::worker::aten
