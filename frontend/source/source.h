#pragma once

#include <Python.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/trace.h"

// Finds the line of user code for a record. capture_source reads the interpreter's frames without the GIL. This is safe
// because only the thread itself changes its frames. It costs some nanoseconds per frame. Text is made only when an
// error or a log line needs it.
namespace torch_remote::frontend {

// The innermost frame of this thread outside of torch and torch_remote, with its callers. In threads of the autograd
// engine it is the frame of the forward op whose backward node runs. `backward` is set if this thread runs a backward
// node. Do not call it with a recorder's lock held: it keeps new code objects alive, and for that it takes the GIL.
ir::SourceRef capture_source(bool* backward);

// The source for a stack trace as torch.fx stores it (a str): its last line. Requires the GIL; keeps the text alive.
ir::SourceRef text_source(PyObject* stack_trace);

// The innermost user frame, as for capture_source(), of a wait, which has no record.
ir::SourceRef user_line();

// Whether the record belongs to a backward pass. Its source is then the forward op.
bool is_backward(const ir::SourceRef& source);

// "train.py:12 in forward", or "train.py:12 in forward (backward)" for a backward op; "" if nothing is known. For code
// of a labeled file: "Cell In[4], line 2, in forward", or "Cell In[4], line 2" outside of functions. Takes the GIL.
std::string describe_source(const ir::SourceRef& source);

// For error messages: the callers, outermost first, then the source, each on its own line:
//   called from train.py:88 in <module>
//     3 frames of torch
//   recorded at train.py:12 in forward
// Consecutive library frames are only counted. The outermost caller is the code outside of functions of a labeled file,
// if there is one. Returns "" if nothing is known. Takes the GIL.
std::string describe_stack(const ir::SourceRef& source);

std::vector<std::string> describe_sources(std::span<const ir::SourceRef> sources);

// Sets how the texts above name a file: a notebook's cell is compiled under the name of a file that does not exist.
// Requires the GIL.
void label_file(const std::string& file, const std::string& label);

// Registers a folder whose files are not user code.
void add_library_folder(const std::string& folder);

}  // namespace torch_remote::frontend
