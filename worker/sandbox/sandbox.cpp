#include "worker/sandbox/sandbox.h"

#include <dlfcn.h>
#include <grp.h>
#include <link.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "worker/sandbox/filter.h"

namespace torch_remote::worker {
namespace {

constexpr std::pair<Confinement, const char*> kNames[] = {
    {Confinement::kNoNewPrivileges, "no new privileges"},
    {Confinement::kNotDumpable, "memory closed to other processes"},
    {Confinement::kNoCoreFile, "no core files"},
    {Confinement::kFiles, "files"},
    {Confinement::kSystemCalls, "system calls"},
    {Confinement::kNoProcesses, "no processes"},
    {Confinement::kNoNetwork, "no network"},
    {Confinement::kUser, "own user"},
};

// Files of the system that the C library, OpenMP and the worker read.
constexpr const char* kSystemFiles[] = {
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/loadavg",
    "/proc/sys/vm/overcommit_memory",
    "/proc/self/stat",
    "/proc/self/statm",
    "/proc/self/status",
    "/proc/self/maps",
    "/proc/self/smaps_rollup",
    "/proc/self/cgroup",
    "/dev/urandom",
    "/dev/random",
    "/dev/zero",
};
// Files for host names, for processes that open connections.
constexpr const char* kNetworkFiles[] = {"/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf",
                                         "/etc/gai.conf"};

void add(SandboxReport* report, Confinement what, bool done, const std::string& why) {
  if (done) {
    report->active |= static_cast<uint32_t>(what);
  } else {
    report->missing.push_back(std::string(name_of(what)) + ": " + why);
    report->failed = true;
  }
}

std::string reason() { return std::strerror(errno); }

Status become(const std::string& name) {
  errno = 0;
  const passwd* user = getpwnam(name.c_str());
  if (user == nullptr) return Status::invalid("remote: --session-user: there is no user '" + name + "'");
  if (geteuid() == user->pw_uid && getegid() == user->pw_gid) return {};
  if (geteuid() != 0) {
    return Status::invalid("remote: --session-user " + name +
                           " needs a listener that runs as root, which can take another user; start it as root, or "
                           "start it as " +
                           name + " without the option");
  }
  if (user->pw_uid == 0) return Status::invalid("remote: --session-user must not be root");
  const std::string home = user->pw_dir;
  if (setgroups(0, nullptr) != 0 || initgroups(name.c_str(), user->pw_gid) != 0 ||
      setresgid(user->pw_gid, user->pw_gid, user->pw_gid) != 0 ||
      setresuid(user->pw_uid, user->pw_uid, user->pw_uid) != 0 || setuid(0) == 0) {
    return Status::invalid("remote: cannot become the user '" + name + "' (--session-user): " + reason());
  }
  setenv("HOME", home.c_str(), 1);
  setenv("USER", name.c_str(), 1);
  setenv("LOGNAME", name.c_str(), 1);
  unsetenv("XDG_CACHE_HOME");
  return {};
}

}  // namespace

const char* name_of(Confinement what) {
  for (const auto& [bit, name] : kNames) {
    if (bit == what) return name;
  }
  return "";
}

std::string SandboxReport::text() const {
  std::string text;
  const auto add_text = [&text](const char* separator, const std::string& more) {
    text += (text.empty() ? "" : separator) + more;
  };
  for (const auto& [bit, name] : kNames) {
    if (has(bit)) add_text(", ", name);
  }
  if (text.empty()) text = "nothing";
  for (const std::string& what : missing) add_text("; not active: ", what);
  return text;
}

std::string to_json(const SandboxReport& report) {
  const auto list = [](const auto& texts) {
    std::string all;
    for (const std::string_view text : texts) {
      all += all.empty() ? "\"" : ", \"";
      for (const char c : text) all += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
      all += '"';
    }
    return "[" + all + "]";
  };
  std::vector<std::string> active;
  for (const auto& [bit, name] : kNames) {
    if (report.has(bit)) active.emplace_back(name);
  }
  return "{\"active\": " + list(active) + ", \"missing\": " + list(report.missing) + "}";
}

std::vector<std::string> library_folders() {
  std::set<std::string> folders;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* into) {
        std::error_code error;
        const std::filesystem::path path = std::filesystem::canonical(info->dlpi_name, error);
        if (!error && path.is_absolute()) static_cast<std::set<std::string>*>(into)->insert(path.parent_path());
        return 0;
      },
      &folders);
  return {folders.begin(), folders.end()};
}

void protect_secrets(SandboxReport* report) {
  SandboxReport ignored;
  if (report == nullptr) report = &ignored;
  const rlimit none{0, 0};
  add(report, Confinement::kNoCoreFile, setrlimit(RLIMIT_CORE, &none) == 0, reason());
  add(report, Confinement::kNotDumpable, prctl(PR_SET_DUMPABLE, 0) == 0, reason());
}

Status enter_sandbox(const SandboxOptions& options, SandboxReport* report) {
  *report = {};
  if (!options.user.empty()) {
    if (Status status = become(options.user); !status.ok()) return status;
    add(report, Confinement::kUser, true, {});
  }
  protect_secrets(report);  // Again, because a process that changes its user may be traced by that user.
  add(report, Confinement::kNoNewPrivileges, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, reason());
  std::string why;
  if (options.files && !options.processes) {
    SandboxOptions its = options;
    if (its.add_user_options) its.add_user_options(&its);
    its.readable.insert(its.readable.end(), std::begin(kSystemFiles), std::end(kSystemFiles));
    if (options.network) {
      its.readable.insert(its.readable.end(), std::begin(kNetworkFiles), std::end(kNetworkFiles));
    }
    its.writable.emplace_back("/dev/null");
    const bool confined = confine_files(its, &why);
    add(report, Confinement::kFiles, confined, why);
  }
  if (options.processes) {
    report->missing.emplace_back(
        "files, no processes, no network: --allow-python lets clients run any program as this user");
  } else if (!options.files) {
    report->missing.emplace_back("files: a GPU's driver opens files of its own");
  } else if (options.network) {
    report->missing.emplace_back("no network: --peer-host");
  }
  const bool filtered = confine_calls(options, &why);
  add(report, Confinement::kSystemCalls, filtered, why);
  if (!options.processes) {
    add(report, Confinement::kNoProcesses, filtered, why);
    if (!options.network) add(report, Confinement::kNoNetwork, filtered, why);
  }
  return {};
}

}  // namespace torch_remote::worker
