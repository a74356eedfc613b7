#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "ir/status.h"

// What all tools do alike: arguments, messages, output, exit status.
namespace torch_remote::tools {

enum Exit : int {
  kExitOk = 0,
  kExitDifferent = 1,  // it ran, and found a difference or a failure
  kExitBadInput = 2,   // wrong arguments, or an input that is damaged, missing or of another version
};

// Reads the arguments. False: *exit is the process's exit status (0 after --help and --version).
bool parse_arguments(CLI::App& app, int argc, char** argv, int* exit);

// "TOOL: message" on stderr; returns kExitBadInput.
int fail(std::string_view tool, const std::string& message);
inline int fail(std::string_view tool, const Status& status) { return fail(tool, status.message()); }

// A tool's main: `run`, whose exceptions (of libraries, no memory) become messages.
int run_tool(std::string_view tool, int (*run)(int argc, char** argv), int argc, char** argv);

// To a file, or to the standard output where `path` is "-" or empty. A reader that has closed the pipe is no error.
Status write_output(const std::string& path, std::string_view bytes);

}  // namespace torch_remote::tools
