#pragma once

#include <cstdint>

#include "ir/trace.h"
#include "remote/client.h"

// TORCH_REMOTE_LOG, TORCH_REMOTE_DUMP, TORCH_REMOTE_SYNC. Read once, at import.
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

// The function that turns a trace or a graph into a program: import, passes, encode; dumps if TORCH_REMOTE_DUMP is set.
Status build_program(const remote::BuildRequest& request, std::vector<uint8_t>* program);

uint64_t now_ns();

}  // namespace torch_remote::frontend
