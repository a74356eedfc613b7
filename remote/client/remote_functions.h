#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/status.h"
#include "remote/client/types.h"

namespace torch_remote::remote {

class Channel;

// A tensor passed to a Python function next to the worker: a strided view of a buffer.
struct CallInput {
  uint64_t buffer = 0;
  uint32_t item_size = 0;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;  // elements
};

// Most tensors that one call may return.
inline constexpr uint64_t kMaxResults = 4096;

// The outcome of a call.
struct CallResult {
  std::vector<std::byte> answer;  // what the function's process answered
  std::vector<uint64_t> sizes;    // bytes of the resulting buffers
};

// Calls of Python functions next to the worker. Thread safe. A function that sends a message waits only while too many
// messages are in flight (back-pressure).
class RemoteFunctions {
 public:
  explicit RemoteFunctions(Channel& channel) : channel_(channel) {}

  // Makes the worker call a Python function, which `request` names; its bytes are copied. Does not wait for the call.
  // `ticket` must be passed to wait until the call has ended, or to drop_results. The results become the buffers from
  // *first_result_id on, at most kMaxResults.
  Status call(std::span<const std::byte> request, const std::vector<CallInput>& inputs, uint64_t* ticket,
              uint64_t* first_result_id);
  // Waits for a call to end. `error` is set if the call could not start, or if its end is unknown. After an
  // interruption the wait can be repeated.
  Status wait(uint64_t ticket, const KeepWaiting& keep_waiting, CallResult* result, OpError* error);
  // Interrupts a call, as Ctrl-C does, or kills its process. Does not wait for the call to end.
  Status cancel(uint64_t ticket, bool kill);
  // Says that nobody waits for the call or wants its results, which are freed if they exist. The call itself continues.
  Status drop_results(uint64_t ticket, uint64_t first_result_id);

 private:
  // Sends a CancelFunction message (wire.fbs).
  Status send_cancel(uint64_t ticket, bool kill, uint64_t drop_results_from);

  Channel& channel_;
};

}  // namespace torch_remote::remote
