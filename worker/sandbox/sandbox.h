#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/sandbox/options.h"

// Restricts a session's process, once its client is authenticated and before data of the client is read. The kernel
// enforces the limits, so they also hold if a client takes over the process. None of them can be undone. A kernel that
// lacks one of them is not an error: the report lists the active ones, and why the others are not active.
namespace torch_remote::worker {

enum class Confinement : uint32_t {
  kNoNewPrivileges = 1,  // setuid programs and file capabilities have no effect (PR_SET_NO_NEW_PRIVS).
  kNotDumpable = 2,      // Other processes of the user can neither trace it nor read its memory (PR_SET_DUMPABLE).
  kNoCoreFile = 4,       // RLIMIT_CORE.
  kFiles = 8,            // Only named files are accessible, and processes outside get no signals (Landlock).
  kSystemCalls = 16,     // System calls that no session needs fail (seccomp).
  kNoProcesses = 32,     // Part of kSystemCalls: no program is started, no process forked.
  kNoNetwork = 64,       // Part of kSystemCalls: no socket is opened.
  kUser = 128,           // The process runs as a user other than the listener's.
};

struct SandboxReport {
  uint32_t active = 0;               // Bits of Confinement.
  std::vector<std::string> missing;  // Each protection that is not active, and the reason.
  bool failed = false;               // One of them should be active, but could not be set up.

  bool has(Confinement what) const { return (active & static_cast<uint32_t>(what)) != 0; }
  // Lists the active protections ("no new privileges, not dumpable, ..."), then `missing`.
  std::string text() const;
};

// Protections that need no knowledge of the client: no core file, no access to memory by other processes.
void protect_secrets(SandboxReport* report = nullptr);

// Confines the calling process, which must have only one thread. Fails only if the user does not exist or cannot be
// taken.
Status enter_sandbox(const SandboxOptions& options, SandboxReport* report);

// The name of a bit.
const char* name_of(Confinement what);
// For programs: {"active": ["files", ...], "missing": [...]}.
std::string to_json(const SandboxReport& report);

// The folders of the libraries that this process has loaded.
std::vector<std::string> library_folders();

}  // namespace torch_remote::worker
