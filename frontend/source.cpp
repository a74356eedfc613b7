#include <Python.h>
// Python's headers first. The frame's layout is internal to CPython and differs between versions.
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string_view>
#include <vector>

#include "frontend/source.h"

namespace torch_remote::frontend {
namespace {

std::vector<std::string>& library_folders() {
  static auto* folders = new std::vector<std::string>;  // written at import, read with the GIL
  return *folders;
}

// Every code object seen, with whether it is the user's. Open addressing; entries are never removed, and the code
// objects are kept alive, so that an address means one code object for good. Read without a lock, written with the GIL
// held.
class CodeTable {
 public:
  enum class Kind { kUnknown, kUser, kLibrary };

  Kind find(PyCodeObject* code) const {
    for (size_t i = slot(code);; i = (i + 1) & (kSize - 1)) {
      const uintptr_t entry = entries_[i].load(std::memory_order_acquire);
      if (entry == 0) return Kind::kUnknown;
      if ((entry & ~uintptr_t{1}) == reinterpret_cast<uintptr_t>(code)) {
        return entry & 1 ? Kind::kLibrary : Kind::kUser;
      }
    }
  }

  // GIL held.
  Kind insert(PyCodeObject* code) {
    const Kind known = find(code);
    if (known != Kind::kUnknown) return known;
    const Kind kind = is_library(code) ? Kind::kLibrary : Kind::kUser;
    if (count_ >= kSize / 2) return kind;  // full: its lines stay unknown, nothing else is lost
    ++count_;
    Py_INCREF(code);
    size_t i = slot(code);
    while (entries_[i].load(std::memory_order_relaxed) != 0) i = (i + 1) & (kSize - 1);
    entries_[i].store(reinterpret_cast<uintptr_t>(code) | (kind == Kind::kLibrary), std::memory_order_release);
    return kind;
  }

 private:
  static constexpr size_t kSize = 1 << 16;
  static size_t slot(PyCodeObject* code) {
    return (reinterpret_cast<uintptr_t>(code) >> 4) * 0x9E3779B97F4A7C15ull >> 48;
  }
  static bool is_library(PyCodeObject* code) {
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    if (file == nullptr) {
      PyErr_Clear();
      return true;
    }
    const std::string_view name(file);
    if (name.starts_with("<frozen")) return true;
    for (const std::string& folder : library_folders()) {
      if (name.starts_with(folder)) return true;
    }
    return false;
  }

  std::array<std::atomic<uintptr_t>, kSize> entries_{};
  size_t count_ = 0;
};

CodeTable& codes() {
  static auto* table = new CodeTable;
  return *table;
}

_PyInterpreterFrame* current_frame(PyThreadState* state) {
#if PY_VERSION_HEX >= 0x030D0000
  return state->current_frame;
#else
  return state->cframe != nullptr ? state->cframe->current_frame : nullptr;
#endif
}

PyCodeObject* code_of(_PyInterpreterFrame* frame) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* executable = frame->f_executable;
  return executable != nullptr && PyCode_Check(executable) ? reinterpret_cast<PyCodeObject*>(executable) : nullptr;
#else
  return frame->f_code;
#endif
}

// Byte offset of the frame's current instruction.
int32_t instruction_of(_PyInterpreterFrame* frame) {
  return static_cast<int32_t>(_PyInterpreterFrame_LASTI(frame)) * 2;
}

// The forward lines by autograd sequence number, for the backward pass.
struct ForwardLine {
  std::atomic<uint64_t> sequence{~uint64_t{0}};
  std::atomic<uint64_t> code{0};
  std::atomic<int32_t> instruction{-1};
};
constexpr size_t kForwardLines = 1 << 16;
std::array<ForwardLine, kForwardLines>& forward_lines() {
  static auto* lines = new std::array<ForwardLine, kForwardLines>;
  return *lines;
}

constexpr uint32_t kBackward = 0x8000'0000;

// Inline: a call more is felt by each op.
[[gnu::always_inline]] inline ir::SourceRef frame_source(PyThreadState* state) {
  ir::SourceRef innermost;
  int depth = 0;
  for (_PyInterpreterFrame* frame = current_frame(state); frame != nullptr && depth < 64; frame = frame->previous) {
    PyCodeObject* code = code_of(frame);
    if (code == nullptr) continue;
    CodeTable::Kind kind = codes().find(code);
    if (kind == CodeTable::Kind::kUnknown) {
      const PyGILState_STATE gil = PyGILState_Ensure();
      kind = codes().insert(code);
      PyGILState_Release(gil);
    }
    ++depth;
    if (kind == CodeTable::Kind::kUser || innermost.code == 0) {
      innermost.code = reinterpret_cast<uint64_t>(code);
      innermost.instruction = instruction_of(frame);
      if (kind == CodeTable::Kind::kUser) return innermost;
    }
  }
  return innermost;
}

}  // namespace

ir::SourceRef capture_source(bool* backward) {
  const auto node = torch::autograd::get_current_node();
  *backward = node != nullptr;
  if (node) {
    const uint64_t sequence = node->sequence_nr();
    const ForwardLine& line = forward_lines()[sequence % kForwardLines];
    if (line.sequence.load(std::memory_order_acquire) == sequence) {
      return {line.code.load(std::memory_order_relaxed), line.instruction.load(std::memory_order_relaxed), kBackward};
    }
  }
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return {};
  const ir::SourceRef source = frame_source(state);
  if (source.code != 0 && c10::GradMode::is_enabled()) {
    // The op's node has been made already: its number is the one before the next.
    const uint64_t sequence = at::sequence_number::peek() - 1;
    ForwardLine& line = forward_lines()[sequence % kForwardLines];
    line.code.store(source.code, std::memory_order_relaxed);
    line.instruction.store(source.instruction, std::memory_order_relaxed);
    line.sequence.store(sequence, std::memory_order_release);
  }
  return source;
}

namespace {

constexpr int32_t kText = -2;  // SourceRef::instruction: `code` is a str

// "  File "train.py", line 12, in forward" of its last entry.
std::string describe_text(PyObject* text) {
  const char* utf8 = PyUnicode_AsUTF8(text);
  if (utf8 == nullptr) return {};
  const std::string_view trace(utf8);
  constexpr std::string_view kFile = "File \"", kLine = "\", line ", kIn = ", in ";
  const size_t file = trace.rfind(kFile);
  if (file == trace.npos) return {};
  const size_t line = trace.find(kLine, file), in = trace.find(kIn, line);
  if (line == trace.npos || in == trace.npos) return {};
  const size_t end = std::min(trace.find('\n', in), trace.size());
  const auto part = [&](size_t from, size_t to) { return std::string(trace.substr(from, to - from)); };
  return part(file + kFile.size(), line) + ":" + part(line + kLine.size(), in) + " in " + part(in + kIn.size(), end);
}

}  // namespace

ir::SourceRef text_source(PyObject* stack_trace) {
  static PyObject* const kept = PyDict_New();  // equal texts once; never given back, as code objects are not
  PyObject* text = PyDict_SetDefault(kept, stack_trace, stack_trace);
  if (text == nullptr) {
    PyErr_Clear();
    return {};
  }
  return {reinterpret_cast<uint64_t>(text), kText, 0};
}

ir::SourceRef user_line() {
  PyThreadState* state = PyGILState_GetThisThreadState();
  return state != nullptr ? frame_source(state) : ir::SourceRef();
}

std::string describe_source(const ir::SourceRef& source) {
  if (source.code == 0 || !Py_IsInitialized()) return {};
  const PyGILState_STATE gil = PyGILState_Ensure();
  if (source.instruction == kText) {
    const std::string text = describe_text(reinterpret_cast<PyObject*>(source.code));
    PyErr_Clear();
    PyGILState_Release(gil);
    return text;
  }
  auto* code = reinterpret_cast<PyCodeObject*>(source.code);
  std::string text;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const char* name = PyUnicode_AsUTF8(code->co_qualname);
  if (file != nullptr) {
    const int line = PyCode_Addr2Line(code, source.instruction);
    text = std::string(file) + ":" + std::to_string(line) + " in " + (name != nullptr ? name : "?");
    if (source.sequence & kBackward) text += " (backward)";
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

void add_library_folder(const std::string& folder) { library_folders().push_back(folder); }

}  // namespace torch_remote::frontend
