#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ir/graph.h"
#include "remote/capture/capture.h"

// What the tools read: a graph as text (docs/ir.md), a program (ir/program.fbs) or a capture of a session
// (remote/capture/capture.h). A file's first bytes tell which one it is.
namespace torch_remote::tools {

enum class Format : uint8_t { kText, kProgram, kCapture };

struct Input {
  std::string name;  // as messages call it: the path, or "<stdin>"
  Format format = Format::kText;
  std::string bytes;     // all of it; of a capture in a file only the beginning, enough to know that it is one
  bool is_file = false;  // at the path `name`
};

// Reads a file, or the standard input where `path` is "-" or empty. kInvalid if it cannot be read, or is none of the
// three.
Status read_input(const std::string& path, Input* input);

// The message of a failure, with the name of the input that is to blame.
Status blame(const Input& input, const Status& status);

// Which graph of a capture is meant. Texts and programs have one.
struct Choice {
  uint32_t program = 0;  // the client's number; 0: the only one
  bool before_passes = false;
};

// The graph of an input; it verifies. Messages begin with the input's name. In a text they point at a line:
//   net.txt:3:7: expected a dtype, like f32
//     %0: f33[] @b0
//         ^
Status load_graph(const Input& input, const Choice& choice, ir::Graph* graph);

// Opens an input that is a capture. The reader needs `input` no more, unless it came from the standard input.
Status open_capture(const Input& input, std::unique_ptr<remote::CaptureReader>* reader);

// The graph of a program of a capture: as the worker got it, or before the passes; kInvalid if the capture lacks that.
Status graph_of(const Input& input, const remote::CapturedProgram& program, bool before_passes, ir::Graph* graph);

// The next event that is a program, if a capture has one more. Messages begin with the input's name.
Status next_program(const Input& input, remote::CaptureReader& reader, remote::CapturedProgramPtr* program);

// The first one with the number that `choice` says; kInvalid with the numbers that there are.
Status find_program(const Input& input, remote::CaptureReader& reader, const Choice& choice,
                    remote::CapturedProgramPtr* program);

}  // namespace torch_remote::tools
