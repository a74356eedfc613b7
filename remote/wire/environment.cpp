#include "remote/wire/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace torch_remote::remote {
namespace {

constexpr std::string_view kPrefix = "TORCH_REMOTE_";
constexpr std::string_view kTests = "TORCH_REMOTE_TEST_";
constexpr std::string_view kNumber = "number";

constexpr auto kVariables = std::to_array<EnvironmentVariable>({
    {"TORCH_REMOTE_WORKER", "",
     "where tensors live: `local` (default: a child process), `inproc` (this process), a worker that listens "
     "(`unix://PATH`, `tcp://HOST:PORT`, `tls://HOST:PORT`), or a machine on which a worker is started "
     "(`ssh://USER@HOST`, [machines.md](machines.md)); several, separated by commas, are `remote:0`, `remote:1`, … (up "
     "to 16)"},
    {"TORCH_REMOTE_SSH", "", "the command for machines of `ssh://`, with options: `ssh -i key`; default: `ssh`"},
    {"TORCH_REMOTE_TOKEN_FILE", "", "file with the token of the worker at `tcp://` or `tls://`"},
    {"TORCH_REMOTE_TOKEN", "", "the token itself"},
    {"TORCH_REMOTE_TLS_CA", "",
     "PEM file with the authority that a worker's certificate must come from; default: those that the system trusts"},
    {"TORCH_REMOTE_TLS_CERT", "", "PEM file with this client's certificate, for workers that require one"},
    {"TORCH_REMOTE_TLS_KEY", "", "PEM file with the key of that certificate"},
    {"TORCH_REMOTE_WORKER_THREADS", kNumber, "threads of a local worker; default: as many as torch uses"},
    {"TORCH_REMOTE_WORKER_LOG", "warn|off|critical|error|info|debug|trace", "what a worker writes to standard error"},
    {"TORCH_REMOTE_SYNC", "0|1", "each op runs when it is called: for debugging"},
    {"TORCH_REMOTE_LOG", "|flush",
     "one line for each trace sent: ops, hit or miss and why, bytes, µs, the user's line"},
    {"TORCH_REMOTE_FALLBACK", "error|warn|allow",
     "ops that even the worker cannot run (custom ops of this process) raise an error, or run on this process's CPU "
     "with or without a warning"},
    {"TORCH_REMOTE_ENABLED", "1|0",
     "`0`: the same script on the CPU, without a worker ([python-api.md](python-api.md#without-the-device))"},
    {"TORCH_REMOTE_AUTOLOAD", "0|1", "`import torch` imports `torch_remote` ([integrations.md](integrations.md))"},
    {"TORCH_REMOTE_INTEGRATIONS", "",
     "`1` (default), `0`, or the bridges to libraries to leave out: `-lightning,-dlpack` "
     "([integrations.md](integrations.md))"},
    {"TORCH_REMOTE_DUMP", "", "folder for the graph of each new program before the first pass and after every pass"},
    {"TORCH_REMOTE_VERIFY", "0|1", "verify the graph between passes"},
    {"TORCH_REMOTE_FUSION", "1|0", "ops that one kernel can compute are grouped ([fusion.md](fusion.md))"},
    {"TORCH_REMOTE_PASSES", "",
     "options of passes, and 0 for a pass to skip: `cse=0,fuse.limit=3` (`remote-opt --list` has all)"},
    {"TORCH_REMOTE_SHADOW", "",
     "the share of runs whose results the worker compares with its reference: `0.01` "
     "([tools.md](tools.md#shadow-runs)); "
     "default: the first 200 runs of a GPU"},
    {"TORCH_REMOTE_WAIT_COMPILE", "0|1", "a worker's runs wait until their kernels are compiled"},
    {"TORCH_REMOTE_PEER_HOST", "",
     "the address of this machine by which workers of other ranks and devices reach a local worker "
     "([distributed.md](distributed.md)); default: 127.0.0.1"},
    {"TORCH_REMOTE_KERNEL_CACHE", "",
     "folder where a worker caches compiled kernels, at most 256 MB; it touches no other files there, and ignores a "
     "folder that other users can write to; default: `torch-remote/kernels` in `$XDG_CACHE_HOME` or `~/.cache`"},
    {"TORCH_REMOTE_CUDA_LIB", "",
     "folders of NVIDIA's libraries (`libcublasLt.so.13`, `libcudnn.so.9`), with colons between. A worker on a GPU "
     "looks there first, and then [where it looks without the variable](workers.md#on-a-gpu)"},
    {"TORCH_REMOTE_PROGRAM_LIMIT", "",
     "approximate limit in bytes of the programs on a worker: `100M`, `512M` (default); beyond it, the least recently "
     "used programs are dropped, and built again when they are needed ([above](workers.md#programs))"},
    {"TORCH_REMOTE_CAPTURE", "",
     "file to which the session is written, so that `remote-replay` can run it again ([tools.md](tools.md)); `%p` in "
     "the name is the process id"},
    {"TORCH_REMOTE_CAPTURE_LIMIT", "", "bytes at which a capture ends: `500M`, `4G` (default)"},
    {"TORCH_REMOTE_RESTORE", "|replay",
     "`replay`: a lost worker is replaced, and its tensors are recomputed "
     "([above](workers.md#tensors-that-outlive-their-worker))"},
    {"TORCH_REMOTE_RESTORE_FOLDER", "",
     "folder for the log of sent messages that `replay` needs; default: the system's folder for temporary files"},
    {"TORCH_REMOTE_RESTORE_LIMIT", "",
     "limit in bytes of that log, in addition to the last checkpoint: `500M`, `1G` (default)"},
    {"TORCH_REMOTE_WORKER_BINARY", "", "the program of local workers; default: the package's own"},
    {"TORCH_REMOTE_PACKAGE", "", "folder of the package `torch_remote`, for programs that were moved out of it"},
    {"TORCH_REMOTE_TORCH_LIB", "", "folder of `libtorch_cpu.so`, for programs that do not find it by themselves"},
    {"TORCH_REMOTE_PYTHON", "", "the interpreter that builds the project ([build.md](build.md))"},
    {"TORCH_REMOTE_TORCH", "", "further versions of torch that the project is built for ([install.md](install.md))"},
});

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> all;
  for (;;) {
    const size_t end = text.find('|');
    all.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return all;
    text.remove_prefix(end + 1);
  }
}

// Levenshtein distance.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t corner = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = corner + (a[i] != b[j]);
      corner = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

Status unknown(std::string_view name) {
  const auto& nearest = *std::ranges::min_element(
      kVariables, {}, [&](const EnvironmentVariable& variable) { return distance(name, variable.name); });
  std::string text = "remote: " + std::string(name) + " is set, but is not a variable of torch_remote; ";
  if (2 * distance(name, nearest.name) <= name.size() - kPrefix.size()) {
    text += "did you mean " + std::string(nearest.name) + "? Correct it, or unset it";
  } else {
    text += "unset it; there are ";
    for (const EnvironmentVariable& variable : kVariables) {
      if (&variable != kVariables.data()) text += &variable == &kVariables.back() ? " and " : ", ";
      text += variable.name;
    }
  }
  return Status::invalid(std::move(text));
}

bool is_number(std::string_view value) {
  return value.size() <= 6 && value.find_first_not_of("0123456789") == std::string_view::npos &&
         value.find_first_not_of('0') != std::string_view::npos;
}

Status check(const EnvironmentVariable& variable, std::string_view value) {
  if (value.empty() || variable.allowed.empty()) return {};
  const std::string text = "remote: " + std::string(variable.name) + "='" + std::string(value) + "' is not a setting; ";
  if (variable.allowed == kNumber) {
    return is_number(value) ? Status() : Status::invalid(text + "use an integer from 1 to 999999");
  }
  std::vector<std::string_view> all = words(variable.allowed);
  if (std::ranges::find(all, value) != all.end()) return {};
  const bool has_default = !all[0].empty();
  if (!has_default) all.erase(all.begin());
  std::string use = "use ";
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0) use += i + 1 == all.size() ? " or " : ", ";
    use += "'" + std::string(all[i]) + "'";
    if (i == 0 && has_default) use += " (the default)";
  }
  return Status::invalid(text + use + (has_default ? "" : ", or unset it"));
}

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

Status check_environment() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with(kPrefix) || text.starts_with(kTests)) continue;
    const std::string_view name = text.substr(0, text.find('='));
    const auto* variable = std::ranges::find(kVariables, name, &EnvironmentVariable::name);
    Status status = variable == kVariables.end()
                        ? unknown(name)
                        : check(*variable, text.substr(std::min(name.size() + 1, text.size())));
    if (!status) return status;
  }
  return {};
}

const char* environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_enabled(const char* name) {
  const std::string_view value = environment_value(name);
  return !value.empty() && value != "0";
}

std::filesystem::path package_folder() {
  if (const char* folder = std::getenv("TORCH_REMOTE_PACKAGE"); folder != nullptr && *folder != '\0') return folder;
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path();
}

namespace {

// "2.13" for libraries of torch 2.13.0, whose folder has torch's version.py next to it. Empty: there is no such file.
std::string torch_minor(const std::filesystem::path& libraries) {
  std::ifstream file(libraries.parent_path() / "version.py");
  constexpr std::string_view kBegin = "__version__ = '";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kBegin)) continue;
    const size_t minor = line.find('.', kBegin.size());
    const size_t end = minor == std::string::npos ? minor : line.find_first_of(".'+", minor + 1);
    if (end != std::string::npos) return line.substr(kBegin.size(), end - kBegin.size());
  }
  return {};
}

// The folder of the package for the newest torch. Empty: there is none.
std::filesystem::path newest_torch(const std::filesystem::path& package) {
  std::filesystem::path newest;
  std::pair<unsigned, unsigned> newest_version;  // major, minor
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(package, error)) {
    std::pair<unsigned, unsigned> version;
    if (std::sscanf(entry.path().filename().c_str(), "torch%u.%u", &version.first, &version.second) != 2) continue;
    if (version > newest_version) newest = entry.path();
    newest_version = std::max(version, newest_version);
  }
  return newest;
}

}  // namespace

std::filesystem::path aten_plugin() {
  const std::filesystem::path package = package_folder();
  const std::string given = environment_value("TORCH_REMOTE_TORCH_LIB");
  const std::string minor =
      torch_minor(given.empty() ? package.parent_path() / "torch/lib" : std::filesystem::path(given));
  return (minor.empty() ? newest_torch(package) : package / ("torch" + minor)) / "libaten_plugin.so";
}

}  // namespace torch_remote::remote
