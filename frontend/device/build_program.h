#pragma once

#include <memory>
#include <vector>

#include "passes/pass.h"
#include "remote/capture/capture_writer.h"
#include "remote/client/client.h"

// What runs when a worker does not have a program yet. TORCH_REMOTE_DUMP and TORCH_REMOTE_VERIFY are read once,
// TORCH_REMOTE_CAPTURE when a worker is started.
namespace torch_remote::frontend {

// The capture that TORCH_REMOTE_CAPTURE asks for; null if it asks for none.
Status open_capture(std::shared_ptr<remote::CaptureWriter>* writer);

// The function that turns a trace or a graph into a program: import, passes, encode; dumps if TORCH_REMOTE_DUMP is set.
// `capture`, if not null, gets the graph before the passes.
Status build_program(const remote::BuildRequest& request, remote::CaptureWriter* capture,
                     std::vector<uint8_t>* program);

// What TORCH_REMOTE_FUSION and TORCH_REMOTE_PASSES say.
Status read_switches(passes::PassContext* context);

}  // namespace torch_remote::frontend
