#pragma once

#include <string>

#include "worker/sandbox/options.h"

namespace torch_remote::worker {

// The two kernel interfaces of a sandbox: Landlock and seccomp. The confine functions return false, with the reason, if
// the kernel does not support them. PR_SET_NO_NEW_PRIVS must be set.

// The version of Landlock; 0: it is not available, with the reason.
int landlock_version(std::string* why);
// Landlock: restricts opening files.
bool confine_files(const SandboxOptions& options, std::string* why);
// Seccomp: system calls that no session needs fail with EPERM, in all threads, including later ones.
bool confine_calls(const SandboxOptions& options, std::string* why);

}  // namespace torch_remote::worker
