#pragma once

#include <cstdint>
#include <iterator>
#include <mutex>
#include <string>

#include "ir/status.h"
#include "remote/client/worker_memory.h"

namespace torch_remote::remote {

class Channel;

struct Counters {
  uint64_t flushes = 0;
  uint64_t programs_built = 0;
  uint64_t program_hits = 0;
  uint64_t programs_dropped = 0;  // by this client and on its worker, because of the limit on programs
  uint64_t programs_kept = 0;     // programs that the worker has now
  uint64_t kernels_compiled = 0;
  uint64_t groups_without_kernel = 0;  // fusion groups for which the worker has no kernel
  uint64_t round_trips = 0;            // waits for a reply
  uint64_t connections = 0;            // waits for a worker's hello
  uint64_t back_pressure_waits = 0;    // waits because too many messages are in flight
  uint64_t bytes_sent = 0;             // headers and control bytes
  uint64_t bytes_received = 0;         // headers and control bytes
  uint64_t bytes_uploaded = 0;         // of tensors
  uint64_t bytes_downloaded = 0;       // of tensors
  uint64_t worker_bytes = 0;           // in buffers on the worker, as of its last message
  uint64_t worker_peak_bytes = 0;

  // Adds another client's counters, levels too.
  void add(const Counters& other);
};

// A counter under the name that users see. A level is a current value; the others count events.
struct CounterField {
  const char* name;
  uint64_t Counters::* value;
  bool level = false;
};
inline constexpr CounterField kCounterFields[] = {
    {"flushes", &Counters::flushes},
    {"programs_built", &Counters::programs_built},
    {"program_hits", &Counters::program_hits},
    {"programs_dropped", &Counters::programs_dropped},
    {"programs_kept", &Counters::programs_kept, true},
    {"kernels_compiled", &Counters::kernels_compiled},
    {"groups_without_kernel", &Counters::groups_without_kernel},
    {"round_trips", &Counters::round_trips},
    {"connections", &Counters::connections},
    {"back_pressure_waits", &Counters::back_pressure_waits},
    {"bytes_sent", &Counters::bytes_sent},
    {"bytes_received", &Counters::bytes_received},
    {"bytes_uploaded", &Counters::bytes_uploaded},
    {"bytes_downloaded", &Counters::bytes_downloaded},
    {"worker_bytes", &Counters::worker_bytes, true},
    {"worker_peak_bytes", &Counters::worker_peak_bytes, true},
};
static_assert(std::size(kCounterFields) * sizeof(uint64_t) == sizeof(Counters), "a counter has no name");

// What this end knows of the connection and of the worker. Nothing here sends a message or waits for one. Thread safe.
class ConnectionStatus {
 public:
  explicit ConnectionStatus(Channel& channel) : channel_(channel) {}

  // Returns kLost and the reason once the worker is gone, and in a forked child.
  Status health() const;
  // The number of the session.
  uint64_t session() const;
  // For log lines and the exception WorkerLost.
  std::string description() const;
  MachineInfo machine() const;
  // The worker's memory as of its last message.
  MemoryUse memory_use() const;
  // Sequences of messages.
  uint64_t last_acknowledged() const;
  uint64_t last_sent() const;
  // Whether the worker has something to do for this client, as far as this end knows: a message is not acknowledged,
  // ops run in the background, or a thread waits for a reply. Handles the messages that have already arrived. False if
  // the worker is lost.
  bool is_busy() const;

  // The counters since the last reset, and the current levels. All are 0 in a forked child.
  Counters counters() const;
  void reset_counters();

 private:
  // The counters since the connection was made.
  Counters all_counters() const;

  Channel& channel_;
  mutable std::mutex mutex_;
  Counters base_;  // the counters at the last reset; guarded by mutex_
};

}  // namespace torch_remote::remote
