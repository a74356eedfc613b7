#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "worker/process/main.h"
#include "worker/targets/cpu/cpu_target.h"

// For tests: a worker whose sessions test what they can access before they open their device. They print a line "probe
// NAME ERRNO" to standard error for each attempt; 0 means that it succeeded. $TORCH_REMOTE_TEST_SECRET: a file that no
// session may read. $TORCH_REMOTE_TEST_SIBLING: a process of the same user.
namespace torch_remote::worker {
namespace {

void say(const char* name, long result) { std::fprintf(stderr, "probe %s %d\n", name, result >= 0 ? 0 : errno); }

long run_program() {
  const pid_t pid = fork();
  if (pid == 0) {
    execl("/bin/true", "true", nullptr);
    _exit(1);
  }
  if (pid > 0) waitpid(pid, nullptr, 0);
  return pid;
}

void probe() {
  const char* secret = std::getenv("TORCH_REMOTE_TEST_SECRET");
  const char* text = std::getenv("TORCH_REMOTE_TEST_SIBLING");
  const pid_t sibling = text != nullptr ? std::atoi(text) : 0;
  say("environ", open("/proc/self/environ", O_RDONLY | O_CLOEXEC));
  if (secret != nullptr) say("secret", open(secret, O_RDONLY | O_CLOEXEC));
  say("passwd", open("/etc/passwd", O_RDONLY | O_CLOEXEC));
  say("listener_memory", open(("/proc/" + std::to_string(getppid()) + "/mem").c_str(), O_RDONLY | O_CLOEXEC));
  say("write", open("/tmp/torch_remote_probe", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  say("socket", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  say("local_socket", socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  say("process", run_program());
  if (sibling != 0) {
    const long traced = ptrace(PTRACE_SEIZE, sibling, nullptr, nullptr);
    say("ptrace", traced);
    if (traced == 0) ptrace(PTRACE_DETACH, sibling, nullptr, nullptr);
    say("signal", kill(sibling, 0));
  }
  rlimit core{1, 1};
  (void)getrlimit(RLIMIT_CORE, &core);
  std::fprintf(stderr, "probe core %d\n", core.rlim_max == 0 ? EPERM : 0);
  std::fprintf(stderr, "probe dumpable %d\n", prctl(PR_GET_DUMPABLE) == 0 ? EPERM : 0);
  std::fprintf(stderr, "probe privileges %d\n", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? EPERM : 0);
}

Status open_probing_device(remote::Transport& transport, const DeviceOptions& options,
                           std::function<tr_client_activity()> client_activity, OpenDevice* opened) {
  probe();
  return open_cpu(transport, options, std::move(client_activity), opened);
}

}  // namespace
}  // namespace torch_remote::worker

int main(int argc, char** argv) {
  using namespace torch_remote::worker;
  std::vector<Target> targets = all_targets();
  targets.front().open = [](const std::string&) { return open_probing_device; };
  return run_worker(argc, argv, targets);
}
