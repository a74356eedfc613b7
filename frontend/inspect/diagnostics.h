#pragma once

#include <cstdint>
#include <memory>

#include "ir/trace.h"
#include "remote/capture/capture_writer.h"
#include "remote/client/client.h"

// TORCH_REMOTE_LOG, TORCH_REMOTE_DUMP, TORCH_REMOTE_SYNC: read once, at import. TORCH_REMOTE_CAPTURE: when a worker is
// started.
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

// The capture that TORCH_REMOTE_CAPTURE asks for; null if it asks for none.
Status open_capture(std::shared_ptr<remote::CaptureWriter>* writer);

// The function that turns a trace or a graph into a program: import, passes, encode; dumps if TORCH_REMOTE_DUMP is set.
// `capture`, if not null, gets the graph before the passes.
Status build_program(const remote::BuildRequest& request, remote::CaptureWriter* capture,
                     std::vector<uint8_t>* program);

}  // namespace torch_remote::frontend
