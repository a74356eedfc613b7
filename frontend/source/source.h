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

// Returns the innermost frame of this thread outside of torch and torch_remote, with its callers. If all frames are in
// torch and torch_remote, it returns the innermost one. While this thread runs an autograd node, *backward is set, and
// the source is the frame of the node's forward op if that is still known. The source is empty if the thread runs no
// Python code, or if too many code objects are known. Do not call it with a recorder's lock held: it takes the GIL to
// keep a new code object alive.
ir::SourceRef capture_source(bool* backward);

// The source for a stack trace as torch.fx stores it (a str). Its last entry is the line, and the entries before it are
// the callers. Requires the GIL; keeps the text alive forever.
ir::SourceRef text_source(PyObject* stack_trace);

// Like capture_source(), but for a wait, which has no record: it returns this thread's own frame, also in a backward
// pass.
ir::SourceRef user_line();

// Whether the record belongs to a backward pass and its source is the frame of the forward op.
bool is_backward(const ir::SourceRef& source);

// "train.py:12 in forward", or "train.py:12 in forward (backward)" for a backward op; "" if nothing is known. For code
// of a labeled file: "Cell In[4], line 2, in forward", or "Cell In[4], line 2" outside of functions. Takes the GIL.
std::string describe_source(const ir::SourceRef& source);

// For error messages: the callers, outermost first, then the source. Each line begins with a newline:
//   called from train.py:88 in <module>
//     ... 3 frames of torch
//   recorded at train.py:12 in forward
// The last line of a backward op begins with "recorded in the backward pass of". Consecutive library frames are only
// counted. At most 24 lines of callers are shown. The outermost caller is the code outside of functions of a labeled
// file, if there is one. Returns "" if nothing is known. Takes the GIL.
std::string describe_stack(const ir::SourceRef& source);

// Calls describe_source() for each source. Takes the GIL.
std::vector<std::string> describe_sources(std::span<const ir::SourceRef> sources);

// Sets how the texts above name a file: a notebook's cell is compiled under the name of a file that does not exist.
// Requires the GIL.
void label_file(const std::string& file, const std::string& label);

// Registers a folder whose files are not user code; its name ends with '/'. Requires the GIL. Call it during import:
// code that was seen before is not classified again.
void add_library_folder(const std::string& folder);

}  // namespace torch_remote::frontend
