#pragma once

#include <cstdint>

#include "ir/trace.h"
#include "remote/client/client.h"

// Implements TORCH_REMOTE_LOG=flush and TORCH_REMOTE_SYNC, which are read once.
namespace torch_remote::frontend {

struct FlushNote {
  remote::FlushInfo info;
  const char* reason;
  ir::SourceRef source;  // source of the last record
  uint64_t ns;
};

// Stores a flush for the log; cheap when the log is off. Called with a recorder's lock held, so it prints nothing.
void note_flush(const FlushNote& note);
// Prints the stored flushes, one per line. Takes the GIL to find the source lines, so call it with no lock held.
void report_flushes();

// TORCH_REMOTE_SYNC=1: every call waits until its op has run.
bool sync_each_op();

}  // namespace torch_remote::frontend
