#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "ir/status.h"

// The environment variables TORCH_REMOTE_*. This is the only list of them: check_environment() refuses any other name,
// and a test compares the table in docs/workers.md with it. Names that begin with TORCH_REMOTE_TEST_ are reserved for
// the project's tests.
namespace torch_remote::remote {

struct EnvironmentVariable {
  std::string_view name;
  // The allowed values. "number": an integer from 1 to 999999. "": any text, which the code that reads the variable
  // must check. Otherwise, words with '|' between them; the first one is the default, and if it is empty, there is
  // none. An empty value counts as not set.
  std::string_view allowed;
  std::string_view meaning;  // one line of Markdown
};

std::span<const EnvironmentVariable> environment_variables();

// Fails if a TORCH_REMOTE_* variable of this process is unknown or has a value that is not allowed. The message names
// the allowed values or the most similar known name. Called at the first use of a device and when a worker starts to
// listen, not when the package is imported. (TORCH_REMOTE_INTEGRATIONS is the exception: the import reads it.)
Status check_environment();

// Whether a switch is on, that is, set to a value other than "" and "0".
bool is_enabled(const char* name);

// The value of a variable; "" if it is not set.
const char* environment_value(const char* name);

// The folder of the Python package: $TORCH_REMOTE_PACKAGE, or the package whose bin/ holds this executable.
std::filesystem::path package_folder();

// The path of the package's ATen plugin for one version of torch. It is the version of the libraries in
// $TORCH_REMOTE_TORCH_LIB or, if that is not set, in torch/lib next to the package. The file version.py in the folder
// above the libraries names the version. Without that file, the result is the package's plugin for the newest torch.
// The file at the path may not exist.
std::filesystem::path aten_plugin();

}  // namespace torch_remote::remote
