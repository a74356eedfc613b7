#pragma once

#include <cstdint>
#include <string>

#include "ir/graph.h"

// What the tools read: a graph as text (docs/ir.md), a program (ir/program.fbs) or a capture of a session
// (remote/capture.h). Which one a file is, its first bytes say.
namespace torch_remote::tools {

enum class Format : uint8_t { kText, kProgram, kCapture };

struct Input {
  std::string name;  // as messages call it: the path, or "<stdin>"
  Format format = Format::kText;
  std::string bytes;  // all of it; of a capture that is a file only the beginning, enough to know that it is one
};

// Reads a file, or the standard input where `path` is "-" or empty. kInvalid if it cannot be read, or is none of the
// three.
Status read_input(const std::string& path, Input* input);

// The graph of a text or a program; it verifies. Messages begin with the input's name. In a text they point at a line:
//   net.txt:3:7: expected a dtype, like f32
//     %0: f33[] @b0
//         ^
Status load_graph(const Input& input, ir::Graph* graph);

}  // namespace torch_remote::tools
