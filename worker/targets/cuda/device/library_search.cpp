#include "worker/targets/cuda/device/library_search.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <system_error>

namespace torch_remote::worker::cuda {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPythonLimit{10};

// Prints the folders of the namespace package `nvidia`. The working folder does not count: its code is not trusted.
constexpr const char* kScript =
    "import sys; sys.path = [p for p in sys.path if p]; import importlib.util; "
    "s = importlib.util.find_spec('nvidia'); print(*(s.submodule_search_locations if s else ()), sep='\\n')";

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

// Whether a site-packages folder has a package with libraries of NVIDIA: nvidia/cublas/lib, nvidia/cu13/lib.
bool has_libraries(const fs::path& packages) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(packages / "nvidia", error)) {
    std::error_code ignored;
    if (fs::is_directory(entry.path() / "lib", ignored)) return true;
  }
  return false;
}

// The site-packages folders of a virtual environment or of conda: lib/python3.12/site-packages.
std::vector<fs::path> packages_of_environment(const std::string& folder) {
  std::vector<fs::path> found;
  if (folder.empty()) return found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(folder) / "lib", error)) {
    if (entry.path().filename().native().starts_with("python3")) found.push_back(entry.path() / "site-packages");
  }
  std::ranges::sort(found);
  return found;
}

// Reads all of a pipe; false: the other end is still open at the deadline.
bool read_all(int pipe, Clock::time_point deadline, std::string* text) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{.fd = pipe, .events = POLLIN, .revents = 0};
    const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    std::array<char, 4096> bytes{};
    const ssize_t count = read(pipe, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count == 0;
    text->append(bytes.data(), static_cast<size_t>(count));
  }
}

// The standard output of a program; empty if it cannot be started, or takes too long.
std::string output_of(std::vector<std::string> command) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const bool started = posix_spawnp(&pid, command[0].c_str(), &actions, nullptr, arguments.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  const bool complete = started && read_all(ends[0], Clock::now() + kPythonLimit, &text);
  close(ends[0]);
  if (started && !complete) kill(pid, SIGKILL);
  while (started && waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return complete ? text : "";
}

}  // namespace

std::vector<std::string> packages_of_python(const std::string& python) {
  std::vector<std::string> packages;
  for (const std::string& line : split(output_of({python, "-c", kScript}), '\n')) {
    const fs::path folder = fs::path(line).parent_path();
    if (folder.is_absolute() && has_libraries(folder)) packages.push_back(folder);
  }
  return packages;
}

LibrarySearchPath find_libraries(const fs::path& package) {
  LibrarySearchPath found;
  found.folders = split(environment("TORCH_REMOTE_CUDA_LIB"), ':');
  std::vector<fs::path> candidates = {package.parent_path()};
  fs::path torch = environment("TORCH_REMOTE_TORCH_LIB");  // site-packages/torch/lib
  if (!torch.has_filename()) torch = torch.parent_path();  // The value ends with a slash.
  if (!torch.empty()) candidates.push_back(torch.parent_path().parent_path());
  for (const char* const variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    for (const fs::path& folder : packages_of_environment(environment(variable))) candidates.push_back(folder);
  }
  for (const fs::path& folder : candidates) {
    const bool is_new = std::ranges::find(found.packages, folder.native()) == found.packages.end();
    if (is_new && has_libraries(folder)) found.packages.push_back(folder);
  }
  for (const char* const python : {"python3", "python"}) {
    if (found.packages.empty()) found.packages = packages_of_python(python);
  }
  for (const char* const variable : {"CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX"}) {
    if (std::string folder = environment(variable); !folder.empty()) found.toolkits.push_back(std::move(folder));
  }
  found.toolkits.emplace_back("/usr/local/cuda");
  return found;
}

}  // namespace torch_remote::worker::cuda
