#pragma once

#include <cstdint>

#include "ir/trace.h"
#include "remote/client/client.h"

// TORCH_REMOTE_LOG=flush and TORCH_REMOTE_SYNC: read once.
namespace torch_remote::frontend {

struct FlushNote {
  remote::FlushInfo info;
  const char* reason;
  ir::SourceRef source;  // of the last record
  uint64_t ns;
};

// Remembers a flush for the log; cheap when the log is off. Called with a recorder's lock held, so it prints nothing.
void note_flush(const FlushNote& note);
// Prints what was noted, one line a flush. Takes the GIL for the user's lines: never with a lock held.
void report_flushes();

// TORCH_REMOTE_SYNC=1: every op runs before the call returns.
bool sync_each_op();

}  // namespace torch_remote::frontend
