#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/unistd.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "worker/sandbox/filter.h"

namespace torch_remote::worker {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
constexpr uint32_t kOtherNumbers = 0x40000000;  // The x32 ABI.
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
constexpr uint32_t kOtherNumbers = 0x40000000;
#endif

#if defined(__x86_64__) || defined(__aarch64__)

// System calls that reach other processes, circumvent file permissions, expose the kernel, or circumvent this filter.
// The build's kernel headers may be older than the running kernel, so numbers from 424 on, which all architectures
// share, are literals.
constexpr uint32_t kForbiddenCalls[] = {
    // Other processes.
    __NR_ptrace,
    __NR_process_vm_readv,
    __NR_process_vm_writev,
    __NR_kcmp,
    __NR_tkill,
    __NR_rt_sigqueueinfo,
    __NR_rt_tgsigqueueinfo,
    424 /* pidfd_send_signal */,
    434 /* pidfd_open */,
    438 /* pidfd_getfd */,
    440 /* process_madvise */,
    448 /* process_mrelease */,
    __NR_migrate_pages,
    __NR_move_pages,
    // Access to files without open().
    __NR_name_to_handle_at,
    __NR_open_by_handle_at,
    __NR_mount,
    __NR_umount2,
    __NR_pivot_root,
    __NR_chroot,
    __NR_unshare,
    __NR_setns,
    428 /* open_tree */,
    429 /* move_mount */,
    430 /* fsopen */,
    431 /* fsconfig */,
    432 /* fsmount */,
    433 /* fspick */,
    442 /* mount_setattr */,
    467 /* open_tree_attr */,
    __NR_fanotify_init,
    __NR_swapon,
    __NR_swapoff,
    __NR_quotactl,
    443 /* quotactl_fd */,
    __NR_acct,
    // Rings execute queued operations, which filters do not see.
    425 /* io_uring_setup */,
    426 /* io_uring_enter */,
    427 /* io_uring_register */,
    __NR_io_setup,
    __NR_io_submit,
    // Large attack surfaces of the kernel.
    __NR_bpf,
    __NR_perf_event_open,
    __NR_userfaultfd,
    __NR_add_key,
    __NR_request_key,
    __NR_keyctl,
    __NR_init_module,
    __NR_finit_module,
    __NR_delete_module,
    __NR_kexec_load,
    __NR_reboot,
    __NR_syslog,
    __NR_sethostname,
    __NR_setdomainname,
    __NR_settimeofday,
    __NR_clock_settime,
    __NR_clock_adjtime,
    __NR_adjtimex,
    __NR_vhangup,
    __NR_personality,
    __NR_lookup_dcookie,
    __NR_nfsservctl,
    // Named memory and queues that processes share.
    __NR_shmget,
    __NR_shmat,
    __NR_msgget,
    __NR_msgsnd,
    __NR_msgrcv,
    __NR_semget,
    __NR_mq_open,
    __NR_mq_unlink,
    // Change of user.
    __NR_setuid,
    __NR_setgid,
    __NR_setreuid,
    __NR_setregid,
    __NR_setresuid,
    __NR_setresgid,
    __NR_setgroups,
    __NR_setfsuid,
    __NR_setfsgid,
    __NR_capset,
#if defined(__x86_64__)
    __NR_iopl,
    __NR_ioperm,
    __NR_modify_ldt,
    __NR_uselib,
    __NR_kexec_file_load,
#endif
};

constexpr uint32_t kProcesses[] = {
    __NR_execve,
    __NR_execveat,
#if defined(__x86_64__)
    __NR_fork,
    __NR_vfork,
#endif
};

constexpr uint32_t kConnections[] = {__NR_connect, __NR_bind, __NR_listen, __NR_accept, __NR_accept4};

sock_filter statement(uint16_t code, uint32_t value) { return BPF_STMT(code, value); }

// A filter program that ends with "allow".
class Program {
 public:
  void load(size_t offset) { add(statement(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset))); }
  void load_argument(int index) { load(offsetof(seccomp_data, args) + 8 * static_cast<size_t>(index)); }
  void answer(uint32_t action) { add(statement(BPF_RET | BPF_K, action)); }
  // The next `count` statements run only if the loaded value is `value`.
  void unless_equal_skip(uint32_t value, uint8_t count) { add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, count)); }
  void if_equal_skip(uint32_t value, uint8_t count) { add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, count, 0)); }
  void unless_set_skip(uint32_t bits, uint8_t count) { add(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, count)); }
  void if_set_skip(uint32_t bits, uint8_t count) { add(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, count, 0)); }
  void unless_above_skip(uint32_t value, uint8_t count) { add(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, value, 0, count)); }
  void refuse(uint32_t number, int error = EPERM) {
    unless_equal_skip(number, 1);
    answer(SECCOMP_RET_ERRNO | static_cast<uint32_t>(error));
  }
  // Refuses a system call unless its argument is one of `values`. For other calls, the number stays loaded.
  void only(uint32_t number, int argument, std::initializer_list<uint32_t> values) {
    const auto count = static_cast<uint8_t>(values.size());
    unless_equal_skip(number, static_cast<uint8_t>(count + 3));
    load_argument(argument);
    uint8_t left = count;
    for (const uint32_t value : values) if_equal_skip(value, left--);
    answer(SECCOMP_RET_ERRNO | EPERM);
    answer(SECCOMP_RET_ALLOW);
  }
  sock_fprog done() {
    answer(SECCOMP_RET_ALLOW);
    return {static_cast<unsigned short>(code_.size()), code_.data()};
  }

 private:
  void add(sock_filter one) { code_.push_back(one); }
  std::vector<sock_filter> code_;
};

#endif

}  // namespace

bool confine_calls(const SandboxOptions& options, std::string* why) {
#if defined(__x86_64__) || defined(__aarch64__)
  Program program;
  program.load(offsetof(seccomp_data, arch));
  program.if_equal_skip(kArchitecture, 1);
  program.answer(SECCOMP_RET_KILL_PROCESS);
  program.load(offsetof(seccomp_data, nr));
  program.unless_above_skip(kOtherNumbers, 1);
  program.answer(SECCOMP_RET_ERRNO | EPERM);
  for (const uint32_t number : kForbiddenCalls) program.refuse(number);
  if (!options.processes) {
    for (const uint32_t number : kProcesses) program.refuse(number);
    // Its flags are in memory, which a filter cannot read. On ENOSYS glibc uses clone().
    program.refuse(__NR_clone3, ENOSYS);
    const auto self = static_cast<uint32_t>(getpid());
    program.only(__NR_kill, 0, {self});
    program.only(__NR_tgkill, 0, {self});
    program.only(__NR_prlimit64, 0, {0, self});
    // Threads only.
    program.unless_equal_skip(__NR_clone, 4);
    program.load_argument(0);
    program.if_set_skip(CLONE_THREAD, 1);
    program.answer(SECCOMP_RET_ERRNO | EPERM);
    program.answer(SECCOMP_RET_ALLOW);
    // socketpair() connects to no other process; address families other than these are never opened.
    if (options.network && options.gpu) {
      program.only(__NR_socket, 0, {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK});
    } else if (options.network) {
      program.only(__NR_socket, 0, {AF_INET, AF_INET6});
    } else if (options.gpu) {
      program.only(__NR_socket, 0, {AF_UNIX, AF_NETLINK});
    } else {
      program.refuse(__NR_socket);
      for (const uint32_t number : kConnections) program.refuse(number);
    }
  }
  const sock_fprog code = program.done();
  // Speculation within this process reveals only the client's own data, so the mitigation that slows it down is not
  // needed.
  const uint32_t flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
  if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, flags, &code) == 0) return true;
  *why = errno == ENOSYS || errno == EINVAL ? "this kernel has no seccomp filters"
                                            : std::string("seccomp: ") + std::strerror(errno);
  return false;
#else
  (void)options;
  *why = "there is no filter for this processor";
  return false;
#endif
}

}  // namespace torch_remote::worker
