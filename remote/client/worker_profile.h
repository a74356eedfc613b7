#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "remote/wire/wire.h"

// What a worker says about a profile (wire.fbs, ProfileReply).
namespace torch_remote::remote {

struct WorkerProfile {
  struct ProfiledProgram {
    uint32_t program = 0;
    std::vector<std::string> labels;    // of each node: "aten::relu(f32[4])"
    std::vector<uint32_t> records;      // of each node: the record of the trace
    std::vector<std::string> runners;   // of each node: who executed it: "ATen 2.13.0"
    std::vector<std::string> declined;  // of each node: "compiled kernels: it is being compiled"; or ""
  };

  uint32_t process = 0;
  // When this exchange began and ended here, ns. The worker's clock is ahead of ours by at least clock_least and at
  // most clock_most ns: it took the message after we sent it, and replied before we had the reply.
  uint64_t begin = 0, end = 0;
  int64_t clock_least = 0, clock_most = 0;
  uint64_t lost = 0;  // of Stop: when we learned that the worker is gone, ns; 0: it is not
  // Of Stop, also if that fails: what the worker had sent until then. Each event names a program of `programs` and a
  // node of it, or is a message.
  std::vector<wire::ProfileEvent> events;
  std::vector<ProfiledProgram> programs;
  uint64_t dropped = 0;
};

// A Profile message: command is a wire::ProfileCommand.
enum class ProfileCommand : uint8_t { kClock, kStart, kStop };

// Of a ProfileReply that has been verified: process and clocks. `begin`, `end`: of the exchange.
void decode_worker_clock(const Frame& reply, uint64_t begin, uint64_t end, WorkerProfile* profile);
// Adds what was recorded, of a reply or a part of a profile, to `profile`. Checks what its events name.
Status append_worker_profile(const Frame& part, WorkerProfile* profile);

}  // namespace torch_remote::remote
