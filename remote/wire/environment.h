#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "ir/status.h"

// The environment variables TORCH_REMOTE_*. This is the one list of them: what is not in it is refused, and the table
// of docs/workers.md is compared with it. Those that begin with TORCH_REMOTE_TEST_ are this project's tests' own.
namespace torch_remote::remote {

struct EnvironmentVariable {
  std::string_view name;
  // What it may be: words with '|' between them (the first is the default, unless it is empty), "number" (of 1 or
  // more), or "" (any text; who reads it checks it). The empty text counts as not set.
  std::string_view allowed;
  std::string_view meaning;  // one line of Markdown
};

std::span<const EnvironmentVariable> environment_variables();

// Not ok if a variable TORCH_REMOTE_* of this process is unknown or has a value that is not allowed: the message names
// what is, or the known name that is nearest. Looked at where a device is used first and where a worker listens: what
// is set wrongly is never ignored, and never keeps a program from importing the package.
Status check_environment();

// Whether a switch is on: set, and neither empty nor 0.
bool is_set(const char* name);

// A variable's text; empty if it is not set, which is the same.
const char* setting(const char* name);

// The folder of the Python package: $TORCH_REMOTE_PACKAGE, or the one that this program is in (bin/..).
std::filesystem::path package_folder();

}  // namespace torch_remote::remote
