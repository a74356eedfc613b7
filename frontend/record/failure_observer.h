#pragma once

#include <c10/core/Device.h>

#include "frontend/device/device_state.h"
#include "remote/client/types.h"

namespace torch_remote::frontend {

// Relates one device's failures to another device's (direct_copy.h).
class FailureObserver {
 public:
  virtual ~FailureObserver() = default;
  // A wait for the device is about to raise `error`. May add to it, and may wait. Called with no lock held.
  virtual void raises(c10::DeviceIndex device, remote::OpError& error) = 0;
  // The device's pending ops are about to be dropped.
  virtual void cancels(c10::DeviceIndex device) noexcept = 0;
};

// The observer of all devices. Set at start, or never.
inline constinit FailureObserver* failure_observer = nullptr;

// Raises a failure of the device's ops, to which the observer may add. Call it with no lock held.
[[noreturn]] inline void raise_observed(c10::DeviceIndex device, remote::OpError& error) {
  if (failure_observer != nullptr) failure_observer->raises(device, error);
  raise(error);
}

}  // namespace torch_remote::frontend
