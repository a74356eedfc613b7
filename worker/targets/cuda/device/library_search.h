#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "worker/targets/cuda/device/library.h"

namespace torch_remote::worker::cuda {

// Finds where this machine has NVIDIA's libraries. `package` is the folder of our own package.
//
// - folders: those of $TORCH_REMOTE_CUDA_LIB, with colons between.
// - packages: the site-packages folders with NVIDIA's packages: next to ours; next to the torch of
//   $TORCH_REMOTE_TORCH_LIB; of $VIRTUAL_ENV and of $CONDA_PREFIX. If none of them has any: those of the `python3` or
//   `python` on $PATH, which this function runs.
// - toolkits: $CUDA_PATH, $CUDA_HOME, $CONDA_PREFIX, /usr/local/cuda.
//
// `driver` stays 0.
LibrarySearchPath find_libraries(const std::filesystem::path& package);

// The site-packages folders of a Python interpreter that contain NVIDIA's packages. `python` is its path, or its name
// on $PATH. Empty if there is no such interpreter, or if it fails or takes longer than ten seconds.
std::vector<std::string> packages_of_python(const std::string& python);

}  // namespace torch_remote::worker::cuda
