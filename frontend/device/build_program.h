#pragma once

#include <memory>
#include <vector>

#include "passes/pass.h"
#include "remote/capture/capture_writer.h"
#include "remote/client/client.h"

// Builds the programs that a worker does not have yet. TORCH_REMOTE_DUMP and TORCH_REMOTE_VERIFY are read once;
// TORCH_REMOTE_CAPTURE is read whenever a worker starts.
namespace torch_remote::frontend {

// Opens the capture that TORCH_REMOTE_CAPTURE names. *writer is null if the variable is not set.
Status open_capture(std::shared_ptr<remote::CaptureWriter>* writer);

// Turns a trace or a graph into a program: import, passes, encoding. Writes dumps if TORCH_REMOTE_DUMP is set.
// `capture`, if not null, receives the graph before the passes.
Status build_program(const remote::BuildRequest& request, remote::CaptureWriter* capture,
                     std::vector<uint8_t>* program);

// Reads TORCH_REMOTE_FUSION and TORCH_REMOTE_PASSES into *context.
Status read_switches(passes::PassContext* context);

}  // namespace torch_remote::frontend
