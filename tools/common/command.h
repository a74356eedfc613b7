#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "ir/status.h"

// Shared by all tools: arguments, messages, output, exit status.
namespace torch_remote::tools {

enum ExitStatus : int {
  kExitOk = 0,
  kExitDifferent = 1,  // the tool ran, and found a difference or a failure
  kExitBadInput = 2,   // wrong arguments, or an input that is damaged, missing or of another version
};

// Parses the arguments. Returns false if the process should end with the exit status *exit (0 after --help and
// --version).
bool parse_arguments(CLI::App& app, int argc, char** argv, int* exit);

// Prints "TOOL: message" on stderr; returns kExitBadInput.
int fail(std::string_view tool, const std::string& message);
inline int fail(std::string_view tool, const Status& status) { return fail(tool, status.message()); }

// A tool's main function: calls `run`, and prints its exceptions (of libraries, out of memory) as messages.
int run_tool(std::string_view tool, int (*run)(int argc, char** argv), int argc, char** argv);

// Writes to a file, or to the standard output if `path` is "-" or empty. A closed pipe is not an error.
Status write_output(const std::string& path, std::string_view bytes);

}  // namespace torch_remote::tools
