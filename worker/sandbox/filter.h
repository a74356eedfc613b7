#pragma once

#include <string>

#include "worker/sandbox/options.h"

namespace torch_remote::worker {

// The two parts of a sandbox that are the kernel's own interfaces. Both return false, and why, where the kernel has
// none. PR_SET_NO_NEW_PRIVS must be set.

// Its version; 0: there is no Landlock, and why.
int landlock_version(std::string* why);
// Landlock: opens of files.
bool confine_files(const SandboxOptions& options, std::string* why);
// Seccomp: system calls that no session makes fail with EPERM; all threads, also later ones.
bool confine_calls(const SandboxOptions& options, std::string* why);

}  // namespace torch_remote::worker
