#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "remote/capture/capture.h"

// The inputs of the tools: a graph as text (docs/ir.md), a program (ir/program.fbs), or a capture of a session
// (remote/capture/capture.h). The format is detected from a file's first bytes.
namespace torch_remote::tools {

enum class Format : uint8_t { kText, kProgram, kCapture };

struct Input {
  std::string name;  // the name in messages: the path, or "<stdin>"
  Format format = Format::kText;
  std::string bytes;     // the contents; for a capture in a file only the first bytes, enough to detect the format
  bool is_file = false;  // the input is a file with the path `name`
};

// Reads a file, or the standard input if `path` is "-" or empty. Returns kInvalid if the input cannot be read or has
// none of the three formats.
Status read_input(const std::string& path, Input* input);

// "1, 2, 3 and 5 more": at most 20 numbers of programs, for a message.
std::string number_list(const std::vector<uint32_t>& numbers);

// Adds the name of the faulty input to an error message.
Status with_input_name(const Input& input, const Status& status);

// Selects a graph of a capture. Text and programs have only one.
struct GraphSelection {
  uint32_t program = 0;  // the client's number of the program; 0: the only one
  bool before_passes = false;
};

// Loads and verifies the graph of an input. Messages begin with the input's name. For text they point at a line:
//   net.txt:3:7: expected a dtype, like f32
//     %0: f33[] @b0
//         ^
Status load_graph(const Input& input, const GraphSelection& choice, ir::Graph* graph);

// Opens an input that is a capture. The reader does not refer to `input` unless it came from the standard input.
Status open_capture(const Input& input, std::unique_ptr<remote::CaptureReader>* reader);

// The graph of a captured program: as the worker received it, or before the passes. Returns kInvalid if the capture
// does not contain it.
Status graph_of(const Input& input, const remote::CapturedProgram& program, bool before_passes, ir::Graph* graph);

// Skips to the next program event; *program is null if the capture has no more. Messages begin with the input's name.
Status next_program(const Input& input, remote::CaptureReader& reader, remote::CapturedProgramPtr* program);

// Finds the first program whose number is `choice.program`. Returns kInvalid, with the existing numbers, if there is
// none.
Status find_program(const Input& input, remote::CaptureReader& reader, const GraphSelection& choice,
                    remote::CapturedProgramPtr* program);

}  // namespace torch_remote::tools
