#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "remote/wire/wire.h"

// A worker reports this in a profile (wire.fbs, ProfileReply).
namespace torch_remote::remote {

struct WorkerProfile {
  struct ProfiledProgram {
    uint32_t program = 0;
    std::vector<std::string> labels;       // of each node and group: "aten::relu(f32[4])"
    std::vector<uint32_t> record_indices;  // of each node and group: the record of the trace
    std::vector<std::string> runners;      // of each node and group: the runner that executed it: "ATen 2.13.0"
    std::vector<std::string> declined;     // of each node and group: the runners that declined it, with reasons, or ""
  };

  uint32_t process = 0;
  // When this exchange began and ended here, in ns. The worker's clock is ahead of ours by at least clock_least and at
  // most clock_most ns. The bounds follow from the order of events: the worker took the message after we sent it, and
  // replied before we received the reply.
  uint64_t begin = 0, end = 0;
  int64_t clock_least = 0, clock_most = 0;
  uint64_t lost = 0;  // for kStop: when we noticed that the worker is gone, in ns; 0: it is not
  // For kStop, even if it failed: what the worker has sent. Each event names a program of `programs` and one of its
  // nodes, or is a whole message.
  std::vector<wire::ProfileEvent> events;
  std::vector<ProfiledProgram> programs;
  uint64_t dropped = 0;  // events that exceeded the limit
};

// The command of a Profile message, as wire::ProfileCommand.
enum class ProfileCommand : uint8_t { kReadClock, kStart, kStop };

// Sets process and clocks from a verified ProfileReply. `begin` and `end` are the times of the exchange.
void decode_worker_clock(const Frame& reply, uint64_t begin, uint64_t end, WorkerProfile* profile);
// Adds the events and programs of a ProfileReply, or of a part of a profile, to `profile`. Checks that the events refer
// to known programs and nodes.
Status append_worker_profile(const Frame& part, WorkerProfile* profile);

}  // namespace torch_remote::remote
