#pragma once

#include <cstdint>

#include "ir/status.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

class Channel;

// An event that the worker's device has reached.
struct RecordedEvent {
  uint64_t device_time_ns = 0;  // ns on the device's clock, whose origin is arbitrary
  bool failed = false;          // there are failures for Client::synchronize to report
};

// Events on the worker's device. Thread safe.
class DeviceEvents {
 public:
  explicit DeviceEvents(Channel& channel) : channel_(channel) {}

  // Records an event after the work that was sent so far; the worker reports when that is done. Does not wait. `ticket`
  // must be passed to wait or forget once.
  Status record(uint64_t* ticket);
  // Whether the event was reached, as far as this end knows. Does not wait and never reports failures.
  bool is_reached(uint64_t ticket);
  Status wait(uint64_t ticket, const KeepWaiting& keep_waiting, RecordedEvent* event);
  // Says that nobody will wait for this ticket. Never throws.
  void forget(uint64_t ticket) noexcept;
  // Whether everything that was sent is done, as far as this end knows. Does not wait.
  bool is_idle();

 private:
  Channel& channel_;
};

}  // namespace torch_remote::remote
