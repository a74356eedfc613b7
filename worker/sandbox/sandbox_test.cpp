#include "worker/sandbox/sandbox.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "worker/sandbox/filter.h"

namespace torch_remote::worker {
namespace {

// Runs `act` in a process of its own that is confined like this (or not at all), and returns its result.
int confined(const SandboxOptions* options, const std::function<int(const SandboxReport&)>& act) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    SandboxReport report;
    if (options != nullptr && !enter_sandbox(*options, &report).ok()) _exit(100);
    _exit(act(report));
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

int error_of(long result) { return result >= 0 ? 0 : errno; }

int open_file(const std::string& path, int flags = O_RDONLY) {
  return error_of(open(path.c_str(), flags | O_CLOEXEC, 0600));
}

class SandboxTest : public testing::Test {
 protected:
  SandboxTest() {
    const char* folder = std::getenv("TEST_TMPDIR");
    std::string name = std::string(folder ? folder : "/tmp") + "/sandbox_XXXXXX";
    folder_ = mkdtemp(name.data());
    for (const char* made : {"/open", "/cache", "/closed"}) mkdir((folder_ + made).c_str(), 0700);
    for (const char* made : {"/open/file", "/cache/file", "/closed/secret"}) std::ofstream(folder_ + made) << "text";
    options_.readable = {folder_ + "/open"};
    options_.writable = {folder_ + "/cache"};
  }

  // `act` returns 0 without a sandbox. In a sandbox with this part it returns `error`, and the report has the part.
  void expect_closed(Confinement part, int error, const std::function<int()>& act) {
    EXPECT_EQ(confined(nullptr, [&](const SandboxReport&) { return act(); }), 0) << "without a sandbox";
    const auto checked = [&](const SandboxReport& report) {
      const int result = act();
      if (report.has(part)) return result == error ? 0 : result == 0 ? 101 : result;
      // If the kernel lacks the part, the report must say so.
      for (const std::string& what : report.missing) {
        if (what.starts_with(name_of(part))) return 0;
      }
      return 102;
    };
    EXPECT_EQ(confined(&options_, checked), 0) << "101: it was not denied, 102: nothing says that it is missing";
  }

  std::string folder_;
  SandboxOptions options_;
};

TEST_F(SandboxTest, FilesThatAreNotNamedAreClosed) {
  const std::string secret = folder_ + "/closed/secret";
  expect_closed(Confinement::kFiles, EACCES, [&] { return open_file(secret); });
  expect_closed(Confinement::kFiles, EACCES, [&] { return open_file(secret, O_WRONLY); });
  expect_closed(Confinement::kFiles, EACCES, [&] { return open_file(folder_ + "/new", O_WRONLY | O_CREAT); });
  expect_closed(Confinement::kFiles, EACCES, [&] { return open_file(folder_ + "/open/file", O_WRONLY); });
  expect_closed(Confinement::kFiles, EACCES, [&] { return open_file(folder_, O_RDONLY | O_DIRECTORY); });
  // Through a link in an accessible folder.
  ASSERT_EQ(symlink(secret.c_str(), (folder_ + "/cache/link").c_str()), 0);
  expect_closed(Confinement::kFiles, EACCES, [&] { return open_file(folder_ + "/cache/link"); });
  expect_closed(Confinement::kFiles, EACCES, [&] { return open_file("/etc/passwd"); });
  expect_closed(Confinement::kFiles, EACCES, [] { return open_file("/proc/self/environ"); });
  expect_closed(Confinement::kFiles, EACCES, [] { return open_file("/proc/self/mem", O_RDWR); });
  const std::string parent = "/proc/" + std::to_string(getpid());
  expect_closed(Confinement::kFiles, EACCES, [&] { return open_file(parent + "/environ"); });
  expect_closed(Confinement::kFiles, EACCES, [&] { return open_file(parent + "/mem"); });
}

TEST_F(SandboxTest, FilesThatAreNamedAreOpen) {
  const auto act = [&](const SandboxReport&) {
    if (int error = open_file(folder_ + "/open/file")) return error;
    if (int error = open_file(folder_ + "/cache/file", O_RDWR | O_TRUNC)) return error;
    if (int error = open_file(folder_ + "/cache/new", O_WRONLY | O_CREAT)) return error;
    if (int error = error_of(rename((folder_ + "/cache/new").c_str(), (folder_ + "/cache/other").c_str()))) {
      return error;
    }
    if (int error = error_of(unlink((folder_ + "/cache/other").c_str()))) return error;
    for (const char* path : {"/proc/self/status", "/proc/self/maps", "/proc/meminfo", "/proc/stat", "/dev/urandom"}) {
      if (int error = open_file(path)) return error;
    }
    return open_file("/dev/null", O_RDWR);
  };
  EXPECT_EQ(confined(&options_, act), 0);
}

TEST_F(SandboxTest, NoSocketsUnlessTheNetworkIsAllowed) {
  const auto tcp = [] { return error_of(socket(AF_INET, SOCK_STREAM, 0)); };
  const auto local = [] { return error_of(socket(AF_UNIX, SOCK_STREAM, 0)); };
  const auto waiting = [] {  // Connects to a listening socket.
    const int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    auto* address = reinterpret_cast<sockaddr*>(&at);
    if (bind(listener, address, size) != 0 || listen(listener, 1) != 0) return errno;
    (void)getsockname(listener, address, &size);
    return error_of(connect(client, address, size));
  };
  expect_closed(Confinement::kNoNetwork, EPERM, tcp);
  expect_closed(Confinement::kNoNetwork, EPERM, local);
  expect_closed(Confinement::kNoNetwork, EBADF, [&] {
    const int error = waiting();
    return error == EPERM ? EBADF : error;
  });
  options_.network = true;
  EXPECT_EQ(confined(&options_, [&](const SandboxReport&) { return waiting(); }), 0);
  expect_closed(Confinement::kSystemCalls, EPERM, local);
}

int run_true() {
  const pid_t pid = fork();
  if (pid < 0) return errno;
  if (pid == 0) {
    execl("/bin/true", "true", nullptr);
    _exit(errno);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WEXITSTATUS(status);
}

TEST_F(SandboxTest, NoProcessesUnlessTheyAreAllowed) {
  expect_closed(Confinement::kNoProcesses, EPERM, run_true);
  expect_closed(Confinement::kNoProcesses, EPERM, [] {
    execl("/bin/true", "true", nullptr);
    return errno;
  });
  expect_closed(Confinement::kNoProcesses, EPERM, [] {
    const char* arguments[] = {"true", nullptr};
    return error_of(syscall(SYS_execveat, AT_FDCWD, "/bin/true", arguments, arguments + 1, 0));
  });
  const auto thread = [](const SandboxReport&) {
    int done = 1;
    std::thread([&done] { done = 0; }).join();
    return done;
  };
  EXPECT_EQ(confined(&options_, thread), 0);
  options_.processes = true;
  EXPECT_EQ(confined(&options_, [](const SandboxReport&) { return run_true(); }), 0);
}

TEST_F(SandboxTest, NoOtherProcessIsTouched) {
  // A sibling, which waits to be killed.
  const pid_t sibling = fork();
  if (sibling == 0) {
    for (;;) pause();
  }
  expect_closed(Confinement::kSystemCalls, EPERM, [sibling] {
    const int error = error_of(ptrace(PTRACE_SEIZE, sibling, nullptr, nullptr));
    if (error == 0) ptrace(PTRACE_DETACH, sibling, nullptr, nullptr);
    return error;
  });
  static int value = 7;
  expect_closed(Confinement::kSystemCalls, EPERM, [sibling] {
    int copy = 0;
    const iovec to{&copy, sizeof(copy)}, from{&value, sizeof(value)};
    return error_of(process_vm_readv(sibling, &to, 1, &from, 1, 0));
  });
  expect_closed(Confinement::kSystemCalls, EPERM, [sibling] { return error_of(kill(sibling, 0)); });
  expect_closed(Confinement::kSystemCalls, EPERM, [sibling] { return error_of(syscall(434, sibling, 0)); });
  rlimit limit{};
  expect_closed(Confinement::kSystemCalls, EPERM,
                [&] { return error_of(prlimit(sibling, RLIMIT_CORE, nullptr, &limit)); });
  EXPECT_EQ(confined(&options_, [](const SandboxReport&) { return error_of(kill(getpid(), 0)); }), 0);
  options_.processes = true;
  expect_closed(Confinement::kSystemCalls, EPERM, [sibling] {
    const int error = error_of(ptrace(PTRACE_SEIZE, sibling, nullptr, nullptr));
    if (error == 0) ptrace(PTRACE_DETACH, sibling, nullptr, nullptr);
    return error;
  });
  kill(sibling, SIGKILL);
  waitpid(sibling, nullptr, 0);
}

TEST_F(SandboxTest, NoCoreFilesNoPrivilegesNoDumps) {
  const auto act = [](const SandboxReport& report) {
    rlimit core{1, 1};
    if (getrlimit(RLIMIT_CORE, &core) != 0 || core.rlim_cur != 0 || core.rlim_max != 0) return 1;
    if (prctl(PR_GET_DUMPABLE) != 0) return 2;
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return 3;
    for (Confinement part : {Confinement::kNoCoreFile, Confinement::kNotDumpable, Confinement::kNoNewPrivileges}) {
      if (!report.has(part)) return 4;
    }
    return 0;
  };
  EXPECT_EQ(confined(&options_, act), 0);
  options_.processes = true;
  EXPECT_EQ(confined(&options_, act), 0);
}

TEST_F(SandboxTest, AThreadThatComesLaterIsConfinedToo) {
  const auto act = [&](const SandboxReport& report) {
    int error = 0;
    std::thread([&] { error = open_file(folder_ + "/closed/secret"); }).join();
    return error == (report.has(Confinement::kFiles) ? EACCES : 0) ? 0 : 1;
  };
  EXPECT_EQ(confined(&options_, act), 0);
}

TEST_F(SandboxTest, TheReportSaysWhatIsActiveAndWhatIsNot) {
  const auto text_of = [this](std::string* text) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(confined(&options_,
                       [&](const SandboxReport& report) {
                         const std::string made = report.text() + "\n" + to_json(report);
                         return write(ends[1], made.data(), made.size()) == static_cast<ssize_t>(made.size()) ? 0 : 1;
                       }),
              0);
    close(ends[1]);
    char bytes[4096];
    const ssize_t size = read(ends[0], bytes, sizeof(bytes));
    close(ends[0]);
    text->assign(bytes, size > 0 ? static_cast<size_t>(size) : 0);
  };
  std::string text, why;
  text_of(&text);
  const bool landlock = landlock_version(&why) > 0;
  EXPECT_EQ(text.find("files, ") != std::string::npos, landlock) << text;
  if (!landlock) {
    EXPECT_NE(text.find("not active: files: " + why), std::string::npos) << text;
  }
  options_.processes = true;
  text_of(&text);
  EXPECT_NE(text.find("not active: files, no processes, no network: --allow-python"), std::string::npos) << text;
  options_ = {};
  options_.files = false;
  text_of(&text);
  EXPECT_NE(text.find("not active: files: a GPU's driver"), std::string::npos) << text;
}

TEST_F(SandboxTest, AnotherUserIsTaken) {
  SandboxReport report;
  const auto fails = [](const std::string& user, const std::string& part) {
    return [user, part](const SandboxReport&) {
      SandboxReport unused;
      SandboxOptions options;
      options.user = user;
      return enter_sandbox(options, &unused).message().find(part) != std::string::npos ? 0 : 1;
    };
  };
  EXPECT_EQ(confined(nullptr, fails("no such user", "there is no user 'no such user'")), 0);
  const passwd* nobody = getpwnam("nobody");
  ASSERT_NE(nobody, nullptr);
  if (geteuid() != 0) {
    EXPECT_EQ(confined(nullptr, fails("nobody", "needs a listener that runs as root")), 0);
    return;
  }
  // In a container that maps only root there is no other user.
  std::ifstream map("/proc/self/uid_map");
  uint64_t first = 0, outside = 0, count = 0;
  map >> first >> outside >> count;
  if (count <= nobody->pw_uid) {
    EXPECT_EQ(confined(nullptr, fails("nobody", "cannot become the user 'nobody'")), 0);
    return;
  }
  options_.user = "nobody";
  const uid_t uid = nobody->pw_uid;
  const auto act = [uid](const SandboxReport& its) {
    if (getuid() != uid || geteuid() != uid || !its.has(Confinement::kUser)) return 1;
    if (setuid(0) == 0 || seteuid(0) == 0) return 2;
    if (prctl(PR_GET_DUMPABLE) != 0) return 3;
    gid_t groups[64];
    for (int i = 0, count = getgroups(64, groups); i < count; ++i) {
      if (groups[i] == 0) return 4;
    }
    return std::string(std::getenv("HOME")).empty() ? 5 : 0;
  };
  EXPECT_EQ(confined(&options_, act), 0);
}

}  // namespace
}  // namespace torch_remote::worker
