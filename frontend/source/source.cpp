#include "frontend/source/source.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontend/source/user_frame.h"

namespace torch_remote::frontend {
namespace {

constexpr int32_t kStackTraceText = -2;  // SourceRef::instruction: `code` is a str

// The code object, or the text of a stack trace. It is never freed.
PyObject* object_of(const ir::SourceRef& source) {
  return reinterpret_cast<PyObject*>(source.code);  // NOLINT(performance-no-int-to-ptr): a trace stores integers
}
PyCodeObject* code_of(const ir::SourceRef& source) { return reinterpret_cast<PyCodeObject*>(object_of(source)); }

constexpr std::string_view kOutsideOfFunctions = "<module>";

// By file. Read and written with the GIL held.
std::unordered_map<std::string, std::string>& file_labels() {
  static auto* labels = new std::unordered_map<std::string, std::string>;
  return *labels;
}

// A line of code, as describe_source() says. `function` is the qualified name of a function, or kOutsideOfFunctions.
// Requires the GIL.
std::string location(std::string_view file, std::string_view line, std::string_view function) {
  const auto label = file_labels().find(std::string(file));
  std::string text = label == file_labels().end() ? std::string(file).append(":") : label->second + ", line ";
  text.append(line);
  if (label == file_labels().end()) return text.append(" in ").append(function);
  return function == kOutsideOfFunctions ? text : text.append(", in ").append(function);
}

// Turns each entry '  File "train.py", line 12, in forward' into "train.py:12 in forward"; the innermost is last.
// Requires the GIL.
std::vector<std::string> lines_of_text(PyObject* text) {
  std::vector<std::string> lines;
  const char* utf8 = PyUnicode_AsUTF8(text);
  if (utf8 == nullptr) return lines;
  const std::string_view trace(utf8);
  constexpr std::string_view kFile = "File \"", kLine = "\", line ", kIn = ", in ";
  for (size_t at = 0;;) {
    const size_t file = trace.find(kFile, at), line = trace.find(kLine, file), in = trace.find(kIn, line);
    if (file == trace.npos || line == trace.npos || in == trace.npos) return lines;
    at = std::min(trace.find('\n', in), trace.size());
    const auto part = [&](size_t from, size_t to) { return trace.substr(from, to - from); };
    lines.push_back(
        location(part(file + kFile.size(), line), part(line + kLine.size(), in), part(in + kIn.size(), at)));
  }
}

}  // namespace

ir::SourceRef text_source(PyObject* stack_trace) {
  static PyObject* const kept = PyDict_New();  // interns equal texts; never freed, as code objects are not
  PyObject* text = PyDict_SetDefault(kept, stack_trace, stack_trace);
  if (text == nullptr) {
    PyErr_Clear();
    return {};
  }
  return {reinterpret_cast<uint64_t>(text), kStackTraceText, 0};
}

ir::SourceRef user_line() {
  PyThreadState* state = PyGILState_GetThisThreadState();
  return state != nullptr ? frame_source(state) : ir::SourceRef();
}

bool is_backward(const ir::SourceRef& source) { return (source.callers & kBackward) != 0; }

namespace {

// Requires the GIL.
std::string line_of(PyCodeObject* code, int32_t instruction) {
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const char* name = PyUnicode_AsUTF8(code->co_qualname);
  PyErr_Clear();
  if (file == nullptr) return {};
  return location(file, std::to_string(PyCode_Addr2Line(code, instruction)), name != nullptr ? name : "?");
}

// The library that a file belongs to: "torch", "transformers", or "python" for the standard library; "" for user code.
// Requires the GIL.
std::string library_of(std::string_view file) {
  if (file.starts_with("<frozen")) return "python";
  for (const std::string_view folder : {"/site-packages/", "/dist-packages/"}) {
    const size_t at = file.rfind(folder);
    if (at == file.npos) continue;
    const std::string_view rest = file.substr(at + folder.size());
    return std::string(rest.substr(0, rest.find_first_of("/.")));
  }
  for (const std::string& folder : library_folders()) {
    if (file.starts_with(folder)) return folder.find("torch_remote") != folder.npos ? "torch_remote" : "torch";
  }
  static const std::string standard = [] {
    const char* of_os = nullptr;
    PyObject* module = PyImport_ImportModule("os");
    PyObject* path = module != nullptr ? PyObject_GetAttrString(module, "__file__") : nullptr;
    if (path != nullptr) of_os = PyUnicode_AsUTF8(path);
    std::string folder = of_os != nullptr ? of_os : "";
    PyErr_Clear();
    Py_XDECREF(path);
    Py_XDECREF(module);
    return folder.substr(0, folder.rfind('/') + 1);
  }();
  return !standard.empty() && file.starts_with(standard) ? "python" : "";
}

// A run of consecutive library frames.
struct Skipped {
  size_t frames = 0;
  std::vector<std::string> libraries;

  void add(const std::string& library) {
    ++frames;
    if (std::ranges::find(libraries, library) == libraries.end()) libraries.push_back(library);
  }
  std::string text() const {
    std::string all;
    for (size_t i = 0; i < libraries.size() && i < 3; ++i) all += (i ? ", " : "") + libraries[i];
    if (libraries.size() > 3) all += ", ...";
    return "... " + std::to_string(frames) + (frames == 1 ? " frame of " : " frames of ") + all;
  }
};

// Formats callers, which are added innermost first. Consecutive library frames become one line. Requires the GIL.
class CallerLines {
 public:
  // Returns false once the limit on lines is reached.
  bool add(std::string_view file, const std::string& line) {
    constexpr size_t kMost = 24;
    if (std::string library = library_of(file); !library.empty()) {
      skipped_.add(library);
      return true;
    }
    if (skipped_.frames > 0) lines_.push_back(std::exchange(skipped_, {}).text());
    const bool more = lines_.size() < kMost;
    lines_.push_back(more ? line : "...");
    return more;
  }

  // Outermost first. Library frames outside of the user's program are left out.
  std::string text() const {
    std::string text;
    for (size_t i = lines_.size(); i-- > 0;) {
      text += (i + 1 == lines_.size() ? "\n  called from " : "\n    ") + lines_[i];
    }
    return text;
  }

 private:
  std::vector<std::string> lines_;
  Skipped skipped_;
};

std::string_view file_of(PyCodeObject* code) {
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  return file != nullptr ? file : "";
}

// Whether this is the code outside of functions of a labeled file. Its callers are those who run a notebook's cells.
// Requires the GIL.
bool is_labeled_module(PyCodeObject* code) {
  const char* name = PyUnicode_AsUTF8(code->co_qualname);
  return name != nullptr && name == kOutsideOfFunctions && file_labels().contains(std::string(file_of(code)));
}

}  // namespace

std::string describe_source(const ir::SourceRef& source) {
  if (source.code == 0 || !Py_IsInitialized()) return {};
  const PyGILState_STATE gil = PyGILState_Ensure();
  std::string text;
  if (source.instruction == kStackTraceText) {
    const std::vector<std::string> lines = lines_of_text(object_of(source));
    if (!lines.empty()) text = lines.back();
  } else {
    text = line_of(code_of(source), source.instruction);
    if (!text.empty() && is_backward(source)) text += " (backward)";
  }
  PyErr_Clear();
  PyGILState_Release(gil);
  return text;
}

std::string describe_stack(const ir::SourceRef& source) {
  if (source.code == 0 || !Py_IsInitialized()) return {};
  const PyGILState_STATE gil = PyGILState_Ensure();
  CallerLines callers_above;
  std::string line;
  if (source.instruction == kStackTraceText) {
    std::vector<std::string> lines = lines_of_text(object_of(source));
    if (!lines.empty()) {
      line = std::move(lines.back());
      lines.pop_back();
    }
    while (!lines.empty() && callers_above.add(lines.back(), lines.back())) lines.pop_back();
  } else {
    Callers::Frame frame{source.callers & ~kBackward, code_of(source)};
    line = line_of(frame.code, source.instruction);
    while (frame.caller != 0 && !is_labeled_module(frame.code)) {
      frame = callers().frame(frame.caller);
      if (frame.code == nullptr || !callers_above.add(file_of(frame.code), line_of(frame.code, frame.instruction)))
        break;
    }
  }
  std::string text;
  if (!line.empty()) {
    const bool backward = source.instruction != kStackTraceText && is_backward(source);
    text = callers_above.text() + (backward ? "\n  recorded in the backward pass of " : "\n  recorded at ") + line;
  }
  PyErr_Clear();
  PyGILState_Release(gil);
  return text;
}

std::vector<std::string> describe_sources(std::span<const ir::SourceRef> sources) {
  std::vector<std::string> lines;
  lines.reserve(sources.size());
  for (const ir::SourceRef& source : sources) lines.push_back(describe_source(source));
  return lines;
}

void label_file(const std::string& file, const std::string& label) { file_labels()[file] = label; }

void add_library_folder(const std::string& folder) { library_folders().push_back(folder); }

}  // namespace torch_remote::frontend
