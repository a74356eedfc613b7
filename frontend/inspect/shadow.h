#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

// Shadow runs for users (remote/client/shadow.h).
namespace torch_remote::frontend {

// The counts since the session began, as a dict. "difference" is the oldest step that no call has returned, or None: a
// dict of op, line, what, runner, and file. It is written to `file` as a capture, whose folder is created. "file" is
// then its name, and None if it could not be written. `wait`: until all checks are done. None, without a message to
// the worker, if there is no worker or it checks no runs. Requires the GIL.
py::object shadow_report(int device, bool wait, const std::string& file);

// Makes the interpreter call `report`, on the main thread and soon, when a worker has found a difference.
void watch_shadow_differences(py::object report);

}  // namespace torch_remote::frontend
