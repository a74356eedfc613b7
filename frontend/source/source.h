#pragma once

#include <Python.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/trace.h"

// The user's line of a record. Capturing reads the interpreter's frames without the GIL (a thread's own frames are only
// changed by that thread) and costs some nanoseconds a frame; text is made only when an error or a log line needs it.
namespace torch_remote::frontend {

// The innermost frame of this thread that is not inside torch or torch_remote, and which frames called it; in the
// autograd engine's threads the frame of the forward op whose backward runs. Must not be called with a recorder's lock
// held: a code object seen first is kept alive, and that takes the GIL. `backward`: this thread runs a backward node.
ir::SourceRef capture_source(bool* backward);

// The line that a stack trace as torch.fx keeps it (a str) ends with. With the GIL; the text is kept.
ir::SourceRef text_source(PyObject* stack_trace);

// The innermost such frame, for what is no record: a wait.
ir::SourceRef user_line();

// Whether the record is of a backward pass: it then points to the forward op.
bool is_backward(const ir::SourceRef& source);

// "train.py:12 in forward", or "" if nothing is known; "train.py:12 in forward (backward)" for a backward op. Takes the
// GIL.
std::string describe_source(const ir::SourceRef& source);

// For an error: the callers, outermost first, and the line, each on a line of its own:
//   called from train.py:88 in <module>
//     3 frames of torch
//   recorded at train.py:12 in forward
// Frames of libraries between are only counted. "" if nothing is known. Takes the GIL.
std::string describe_stack(const ir::SourceRef& source);

std::vector<std::string> describe_sources(std::span<const ir::SourceRef> sources);

// Frames in files below this folder are not the user's.
void add_library_folder(const std::string& folder);

}  // namespace torch_remote::frontend
