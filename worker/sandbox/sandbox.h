#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/sandbox/options.h"

// What a session's process may still do, once its client is known and before anything of the client's is read: limits
// that the kernel enforces, so that they also hold for a client that took the process over. None of them can be undone.
// A kernel without one of them is no error: the report says which are active, and why the others are not.
namespace torch_remote::worker {

enum class Confinement : uint32_t {
  kNoNewPrivileges = 1,  // setuid programs and file capabilities give nothing (PR_SET_NO_NEW_PRIVS)
  kNotDumpable = 2,      // other processes of the user can neither trace it nor read its memory (PR_SET_DUMPABLE)
  kNoCoreFile = 4,       // RLIMIT_CORE
  kFiles = 8,            // no file but those that are named (Landlock); no signals to processes outside either
  kSystemCalls = 16,     // what no session needs (seccomp)
  kNoProcesses = 32,     // part of that: no program is started, no process forked
  kNoNetwork = 64,       // part of that: no socket is opened
  kUser = 128,           // another user than the listener's
};

struct SandboxReport {
  uint32_t active = 0;               // bits of Confinement
  std::vector<std::string> missing;  // what is not active, and why

  bool has(Confinement what) const { return (active & static_cast<uint32_t>(what)) != 0; }
  // "no new privileges, not dumpable, ...", then what is not active, and why.
  std::string text() const;
};

// What costs nothing and can be done before the client is known: no core file, no memory that others read.
void protect_secrets(SandboxReport* report = nullptr);

// Confines the calling process; there must be no other thread. Not ok: the user cannot be taken, or there is no such
// user; nothing else fails.
Status enter_sandbox(const SandboxOptions& options, SandboxReport* report);

// The name of each bit.
const char* name_of(Confinement what);
// As programs read it: {"active": ["files", ...], "missing": [...]}.
std::string to_json(const SandboxReport& report);

// The folders of the libraries that this process has loaded.
std::vector<std::string> library_folders();

}  // namespace torch_remote::worker
