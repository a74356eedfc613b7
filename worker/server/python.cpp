#include "worker/server/python.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "remote/transport/byte_stream.h"

namespace torch_remote::worker {
namespace {

constexpr uint64_t kAligned = 64;
constexpr int kSocket = 3;  // Descriptor number in the process.

uint64_t align(uint64_t size) { return (size + kAligned - 1) / kAligned * kAligned; }

Status damaged() { return Status::internal("remote: the Python process answered with what is no answer"); }

// A process sends a packet without a descriptor when it takes a call, and one with a descriptor to answer it.
enum class Packet { kAccepted, kAnswer, kEnd };

Packet receive_packet(int socket, int* descriptor) {
  char byte;
  if (remote::receive_piece(socket, {&byte, 1}, descriptor, 0) <= 0) return Packet::kEnd;
  return *descriptor < 0 ? Packet::kAccepted : Packet::kAnswer;
}

std::string describe(int status) {
  if (WIFEXITED(status)) return "exited with status " + std::to_string(WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  return "was killed by signal " + std::to_string(number) + " (" + strsignal(number) + ")";
}

// The worker's environment without its secrets: the client writes the function, and the token admits every client.
std::vector<char*> environment() {
  constexpr std::string_view kSecret = "TORCH_REMOTE_TOKEN=";
  std::vector<char*> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with(kSecret)) kept.push_back(*variable);
  }
  kept.push_back(nullptr);
  return kept;
}

bool read_all(int descriptor, uint64_t offset, void* bytes, uint64_t size) {
  auto* at = static_cast<char*>(bytes);
  while (size != 0) {
    const ssize_t count = pread(descriptor, at, std::min<uint64_t>(size, 1u << 30), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    offset += static_cast<uint64_t>(count);
    size -= static_cast<uint64_t>(count);
  }
  return true;
}

}  // namespace

// --- memory ----------------------------------------------------------------------------------------------------------

Parts::~Parts() {
  if (mapped_) munmap(mapped_, nbytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

Parts::Parts(Parts&& other) noexcept { *this = std::move(other); }

Parts& Parts::operator=(Parts&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(mapped_, other.mapped_);
  std::swap(nbytes_, other.nbytes_);
  std::swap(table_, other.table_);
  return *this;
}

Status Parts::make(const std::vector<uint64_t>& sizes, Parts* parts) {
  Parts made;
  uint64_t end = align(sizeof(uint64_t) + sizes.size() * sizeof(Part));
  for (const uint64_t size : sizes) {
    made.table_.push_back({end, size});
    end += align(size);
  }
  made.nbytes_ = end;
  made.descriptor_ = memfd_create("torch-remote-call", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made.descriptor_ < 0 || ftruncate(made.descriptor_, static_cast<off_t>(end)) != 0 ||
      fcntl(made.descriptor_, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    return system_error("no memory for a call");
  }
  void* const mapped = mmap(nullptr, end, PROT_READ | PROT_WRITE, MAP_SHARED, made.descriptor_, 0);
  if (mapped == MAP_FAILED) return system_error("no memory for a call");
  made.mapped_ = static_cast<std::byte*>(mapped);
  const uint64_t count = sizes.size();
  std::memcpy(made.mapped_, &count, sizeof(count));
  std::memcpy(made.mapped_ + sizeof(count), made.table_.data(), made.table_.size() * sizeof(Part));
  *parts = std::move(made);
  return {};
}

Status Parts::open(int descriptor, Parts* parts) {
  Parts opened;
  opened.descriptor_ = descriptor;
  struct stat about;
  uint64_t count = 0;
  if (fstat(descriptor, &about) != 0 || !read_all(descriptor, 0, &count, sizeof(count)) || count == 0 ||
      count > kMostParts) {
    return damaged();
  }
  opened.nbytes_ = static_cast<uint64_t>(about.st_size);
  opened.table_.resize(count);
  if (!read_all(descriptor, sizeof(count), opened.table_.data(), count * sizeof(Part))) return damaged();
  for (const Part& part : opened.table_) {
    if (part.size > opened.nbytes_ || part.offset > opened.nbytes_ - part.size) return damaged();
  }
  *parts = std::move(opened);
  return {};
}

Status Parts::read(size_t part, uint64_t offset, std::byte* bytes, uint64_t size) const {
  return read_all(descriptor_, table_[part].offset + offset, bytes, size) ? Status() : damaged();
}

// --- processes -------------------------------------------------------------------------------------------------------

struct PythonCalls::Process {
  pid_t pid = -1;
  int socket = -1;
  uint64_t call = 0;      // The call that it executes; 0: none.
  Parts pending_request;  // The call's request, until the process has taken it.
  bool answered = false;  // It has answered a call.
  bool ended = false;     // It has ended and was reaped.
  std::thread listener;

  ~Process() {
    if (listener.joinable()) listener.join();
    if (socket >= 0) close(socket);
  }
};

PythonCalls::PythonCalls(std::string interpreter, std::string program, std::function<void()> wake)
    : interpreter_(std::move(interpreter)), program_(std::move(program)), wake_(std::move(wake)) {}

PythonCalls::~PythonCalls() {
  {
    std::lock_guard lock(mutex_);
    for (const auto& process : processes_) {
      if (!process->ended) kill(-process->pid, SIGKILL);
    }
    waiting_.clear();
  }
  processes_.clear();
}

Status PythonCalls::start(std::unique_ptr<Process>* process) {
  if (access(program_.c_str(), R_OK) != 0) {
    return {ErrorCode::kUnsupported, "remote: Python functions need the package torch_remote where the worker is: '" +
                                         program_ + "': " + std::strerror(errno)};
  }
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) return system_error("no socket for a call");
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, sockets[1], kSocket);
#if defined(__GLIBC_PREREQ) && __GLIBC_PREREQ(2, 34)
  posix_spawn_file_actions_addclosefrom_np(&files, kSocket + 1);
#endif
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  for (const int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&defaults, number);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  // Keeps the program's folder, which has modules of the package, out of sys.path.
  const std::string code = "import sys; exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'))";
  const char* arguments[] = {interpreter_.c_str(), "-c", code.c_str(), program_.c_str(), nullptr};
  auto made = std::make_unique<Process>();
  const int error = posix_spawnp(&made->pid, arguments[0], &files, &attributes, const_cast<char* const*>(arguments),
                                 environment().data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  close(sockets[1]);
  made->socket = sockets[0];
  if (error != 0) {
    return {ErrorCode::kUnsupported,
            "remote: cannot start '" + interpreter_ + "' for a Python function: " + std::strerror(error)};
  }
  *process = std::move(made);
  return {};
}

void PythonCalls::listen(Process* process) {
  for (;;) {
    int descriptor = -1;
    const Packet packet = receive_packet(process->socket, &descriptor);
    PythonResult result;
    if (packet == Packet::kAccepted) {
      Parts taken;  // Destroyed without the lock.
      std::lock_guard lock(mutex_);
      taken = std::move(process->pending_request);
      continue;
    }
    if (packet == Packet::kEnd) {
      int status = 0;
      // It may have closed its end and still run. It is not reaped yet, so the process id is valid.
      kill(-process->pid, SIGKILL);
      siginfo_t info{};
      while (waitid(P_PID, static_cast<id_t>(process->pid), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
      }
      std::lock_guard lock(mutex_);  // After waitpid() another process may get the id.
      while (waitpid(process->pid, &status, 0) < 0 && errno == EINTR) {
      }
      process->ended = true;
      if (process->call != 0 && process->answered && process->pending_request.count() != 0) {
        // It ended between two calls (an earlier one was killed or interrupted), so another process executes this one.
        waiting_.emplace_front(std::exchange(process->call, 0), std::move(process->pending_request));
      }
      result.status = {ErrorCode::kOpFailed,
                       "remote: the Python process of a function " + describe(status) + " before the function ended"};
      finish(process, std::move(result));
    } else {
      result.status = Parts::open(descriptor, &result.parts);
      std::lock_guard lock(mutex_);
      process->answered = true;
      finish(process, std::move(result));
    }
    wake_();
    if (packet == Packet::kEnd) return;
  }
}

void PythonCalls::finish(Process* process, PythonResult result) {
  result.call = std::exchange(process->call, 0);
  if (result.call != 0) results_.push_back(std::move(result));
  if (waiting_.empty() || process->ended) return;
  auto [call, request] = std::move(waiting_.front());
  waiting_.pop_front();
  assign(process, call, std::move(request));
}

void PythonCalls::assign(Process* process, uint64_t call, Parts request) {
  process->call = call;
  process->pending_request = std::move(request);
  // If the process is gone, its listener reports that.
  char byte = 0;
  const iovec packet{&byte, 1};
  (void)remote::send_pieces(process->socket, {&packet, 1}, process->pending_request.descriptor(), 0);
}

Status PythonCalls::call(uint64_t call, Parts request) {
  {
    Process* chosen = nullptr;
    std::vector<std::unique_ptr<Process>> gone;  // Joined without the lock.
    std::lock_guard lock(mutex_);
    for (auto& process : processes_) {
      if (process->ended) gone.push_back(std::move(process));
    }
    std::erase(processes_, nullptr);
    for (const auto& process : processes_) {
      if (process->call == 0) chosen = process.get();
    }
    if (chosen) {
      assign(chosen, call, std::move(request));
      return {};
    }
    if (processes_.size() >= std::max(kMostProcesses, std::thread::hardware_concurrency())) {
      waiting_.emplace_back(call, std::move(request));
      return {};
    }
  }
  std::unique_ptr<Process> process;
  if (Status status = start(&process); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  assign(process.get(), call, std::move(request));
  process->listener = std::thread([this, its = process.get()] { listen(its); });
  processes_.push_back(std::move(process));
  return {};
}

void PythonCalls::end(uint64_t call, bool kill) {
  std::lock_guard lock(mutex_);
  if (const auto found = std::ranges::find(waiting_, call, [](const auto& one) { return one.first; });
      found != waiting_.end()) {
    results_.push_back({call, {ErrorCode::kOpFailed, "remote: the function was interrupted before it began"}, {}});
    waiting_.erase(found);
    wake_();
    return;
  }
  for (const auto& process : processes_) {
    if (process->call != call || process->ended) continue;
    if (kill) process->pending_request = {};  // No other process executes it.
    // SIGKILL also ends the processes that it has started.
    ::kill(kill ? -process->pid : process->pid, kill ? SIGKILL : SIGINT);
  }
}

std::vector<PythonResult> PythonCalls::take_results() {
  std::unique_lock lock(mutex_);
  const auto ended = [](const auto& process) { return process->ended; };
  while (!waiting_.empty() && std::ranges::any_of(processes_, ended)) {  // A new process replaces it.
    auto [call, request] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    Status status = this->call(call, std::move(request));
    lock.lock();
    if (!status.ok()) results_.push_back({call, std::move(status), {}});
  }
  return std::exchange(results_, {});
}

}  // namespace torch_remote::worker
