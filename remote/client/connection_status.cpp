#include "remote/client/connection_status.h"

#include "remote/client/channel.h"

namespace torch_remote::remote {

void Counters::add(const Counters& other) {
  for (const CounterField& field : kCounterFields) this->*field.value += other.*field.value;
}

Status ConnectionStatus::health() const { return channel_.health(); }
uint64_t ConnectionStatus::session() const { return channel_.session(); }
std::string ConnectionStatus::description() const { return channel_.description(); }
MachineInfo ConnectionStatus::machine() const { return channel_.machine(); }
uint64_t ConnectionStatus::last_acknowledged() const { return channel_.replies.acknowledged(); }
uint64_t ConnectionStatus::last_sent() const { return channel_.replies.last_sent(); }

bool ConnectionStatus::is_busy() const {
  if (channel_.is_abandoned()) return false;
  Replies& replies = channel_.replies;
  replies.drain();
  return replies.health().ok() &&
         (replies.acknowledged() != replies.last_sent() || replies.has_background_work() || replies.expects_reply());
}

MemoryUse ConnectionStatus::memory_use() const {
  return channel_.is_abandoned() ? MemoryUse() : channel_.replies.totals().memory;
}

Counters ConnectionStatus::all_counters() const {
  const Replies::Totals totals = channel_.replies.totals();
  const AtomicCounters& counted = channel_.counters;
  return {.flushes = counted.flushes,
          .programs_built = counted.programs_built,
          .program_hits = counted.program_hits,
          .programs_dropped = counted.programs_dropped,
          .programs_kept = channel_.programs.size(),
          .kernels_compiled = totals.kernels_compiled,
          .groups_without_kernel = totals.groups_without_kernel,
          .round_trips = counted.round_trips,
          .connections = counted.connections,
          .back_pressure_waits = totals.back_pressure_waits,
          .bytes_sent = counted.bytes_sent,
          .bytes_received = totals.bytes_received,
          .bytes_uploaded = counted.bytes_uploaded,
          .bytes_downloaded = counted.bytes_downloaded,
          .worker_bytes = totals.memory.allocated.current,
          .worker_peak_bytes = totals.memory.allocated.peak};
}

Counters ConnectionStatus::counters() const {
  if (channel_.is_abandoned()) return {};
  std::lock_guard lock(mutex_);  // taken first: a reset in between would make the differences negative
  Counters all = all_counters();
  for (const CounterField& field : kCounterFields) {
    if (!field.level) all.*field.value -= base_.*field.value;
  }
  return all;
}

void ConnectionStatus::reset_counters() {
  if (channel_.is_abandoned()) return;
  std::lock_guard lock(mutex_);
  base_ = all_counters();
}

}  // namespace torch_remote::remote
