#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "worker/sandbox/filter.h"

namespace torch_remote::worker {
namespace {

// The build's kernel headers may be older than the running kernel (linux/landlock.h).
constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr uint32_t kVersion = 1, kPathBeneath = 1;

constexpr uint64_t kExecute = 1, kWriteFile = 2, kReadFile = 4, kReadFolder = 8, kRemoveFile = 1 << 5,
                   kMakeFile = 1 << 8, kRefer = 1 << 13, kTruncate = 1 << 14, kDeviceControl = 1 << 15;
constexpr uint64_t kFirstRights = (1 << 13) - 1;  // The rights of version 1.
constexpr uint64_t kAbstractSockets = 1, kSignals = 2;

struct Ruleset {
  uint64_t files = 0, network = 0, scoped = 0;
};

struct [[gnu::packed]] PathRule {
  uint64_t allowed = 0;
  int32_t descriptor = -1;
};

// The rights that apply to a file; a folder has more.
constexpr uint64_t kFileRights = kExecute | kWriteFile | kReadFile | kTruncate | kDeviceControl;

// Allows access to a path; a path that does not exist needs no right.
void allow(int ruleset, uint64_t handled, const std::string& path, uint64_t rights) {
  const int descriptor = open(path.c_str(), O_PATH | O_CLOEXEC);
  struct stat info{};
  if (descriptor < 0) return;
  if (fstat(descriptor, &info) == 0) {
    PathRule rule{rights & handled, descriptor};
    if (!S_ISDIR(info.st_mode)) rule.allowed &= kFileRights;
    (void)syscall(kAddRule, ruleset, kPathBeneath, &rule, 0);
  }
  // A file of /proc gets a new inode when it is no longer open, so the rule would apply to the old one.
  if (!path.starts_with("/proc/")) close(descriptor);
}

}  // namespace

int landlock_version(std::string* why) {
  const long version = syscall(kCreateRuleset, nullptr, 0, kVersion);
  if (version > 0) return static_cast<int>(version);
  if (errno == EOPNOTSUPP) {
    *why = "Landlock is switched off in this kernel (its parameter lsm=)";
  } else if (errno == ENOSYS) {
    *why = "this kernel has no Landlock (Linux 5.13 or later has), or a container forbids it";
  } else {
    *why = std::string("Landlock: ") + std::strerror(errno);
  }
  return 0;
}

bool confine_files(const SandboxOptions& options, std::string* why) {
  const int version = landlock_version(why);
  if (version == 0) return false;
  Ruleset rules;
  rules.files = kFirstRights;
  if (version >= 2) rules.files |= kRefer;
  if (version >= 3) rules.files |= kTruncate;
  if (version >= 5) rules.files |= kDeviceControl;
  if (version >= 6) rules.scoped = kAbstractSockets | kSignals;
  const size_t size = version >= 6 ? sizeof(rules) : version >= 4 ? 2 * sizeof(uint64_t) : sizeof(uint64_t);
  const int ruleset = static_cast<int>(syscall(kCreateRuleset, &rules, size, 0));
  bool done = ruleset >= 0;
  if (done) {
    for (const std::string& path : options.readable) allow(ruleset, rules.files, path, kReadFile | kReadFolder);
    for (const std::string& path : options.writable) {
      allow(ruleset, rules.files, path, kReadFile | kReadFolder | kWriteFile | kTruncate | kRemoveFile | kMakeFile);
    }
    done = syscall(kRestrictSelf, ruleset, 0) == 0;
  }
  if (!done) *why = std::string("Landlock: ") + std::strerror(errno);
  if (ruleset >= 0) close(ruleset);
  return done;
}

}  // namespace torch_remote::worker
