#pragma once

#include <c10/core/Device.h>

// The current device of each thread: calls that name no device use it.
namespace torch_remote::frontend {

namespace detail {
// Initial-exec TLS, so a read needs no call.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local c10::DeviceIndex current_device;
}  // namespace detail

inline c10::DeviceIndex current_device() { return detail::current_device; }
// Raises if there is no such device.
void set_current_device(int device);

}  // namespace torch_remote::frontend
