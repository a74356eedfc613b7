#include "worker/process/session_process.h"

#include <fcntl.h>
#include <malloc.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include "remote/net/tls.h"
#include "remote/net/worker_url.h"
#include "remote/transport/unix_transport.h"
#include "worker/process/network_session.h"
#include "worker/process/status_file.h"
#include "worker/sandbox/sandbox.h"

namespace torch_remote::worker {
namespace {

// Descriptors in the new process: the memory file, then those of SessionStart.
constexpr int kFirst = 3, kAbove = 16;
constexpr size_t kMostBytes = 1 << 18, kMostText = 4096;

// Serializes the fields of SessionStart.
class Writer {
 public:
  ~Writer() { explicit_bzero(bytes_.data(), bytes_.size()); }
  Writer() { bytes_.reserve(kMostBytes); }  // Growing would leave copies of secrets behind.
  void number(uint64_t value) { raw(&value, sizeof(value)); }
  void text(std::string_view text) {
    number(text.size());
    raw(text.data(), text.size());
  }
  void raw(const void* data, size_t size) { bytes_.append(static_cast<const char*>(data), size); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  uint64_t number() {
    uint64_t value = 0;
    raw(&value, sizeof(value));
    return value;
  }
  std::string text() {
    const uint64_t size = number();
    good_ = good_ && size <= left_.size();
    const std::string text(good_ ? left_.substr(0, size) : std::string_view());
    if (good_) left_.remove_prefix(size);
    return text;
  }
  void raw(void* data, size_t size) {
    good_ = good_ && size <= left_.size();
    if (!good_) return;
    std::memcpy(data, left_.data(), size);
    left_.remove_prefix(size);
  }
  bool done() const { return good_ && left_.empty(); }

 private:
  std::string_view left_;
  bool good_ = true;
};

Status write_file(const SessionStart& start, int* descriptor) {
  Writer writer;
  writer.number(static_cast<uint64_t>(getpid()));
  writer.number(start.network);
  writer.number(start.control >= 0);
  writer.number(start.status >= 0);
  writer.number(start.status_slot);
  writer.number(start.device);
  writer.raw(&start.client_hello, sizeof(start.client_hello));
  writer.text(start.token);
  writer.text(start.refusal.substr(0, kMostText));
  writer.number(start.has_warned);
  writer.number(start.libraries.size());
  for (const std::string& folder : start.libraries) writer.text(folder);
  const std::string& bytes = writer.bytes();
  const int file = memfd_create("torch-remote-session", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return system_error("cannot create a memory file for a session", ErrorCode::kInternal);
  const ssize_t written = write(file, bytes.data(), bytes.size());
  if (written != static_cast<ssize_t>(bytes.size()) ||
      fcntl(file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    const Status status = system_error("cannot create a memory file for a session", ErrorCode::kInternal);
    close(file);
    return status;
  }
  *descriptor = file;
  return {};
}

bool has_secret(std::string_view variable) {
  return variable.starts_with("TORCH_REMOTE_TOKEN") || variable.starts_with("TORCH_REMOTE_TLS_");
}

// Variables that the worker, the C library, torch, OpenMP, BLAS libraries, NVIDIA's libraries and sanitizers read.
bool is_for_libraries(std::string_view variable) {
  constexpr std::string_view kPrefixes[] = {
      "TORCH",   "PYTORCH_", "ATEN_",           "OMP_",    "GOMP_",    "KMP_",      "MKL_",  "OPENBLAS_", "DNNL_",
      "ONEDNN_", "LC_",      "CUDA_",           "NVIDIA_", "NCCL_",    "CUBLAS",    "CUDNN", "LD_",       "MALLOC_",
      "ASAN_",   "UBSAN_",   "LSAN_",           "TSAN_",   "TERM=",    "PATH=",     "HOME=", "USER=",     "LANG=",
      "TZ=",     "TMPDIR=",  "XDG_CACHE_HOME=", "GLIBC_",  "LOGNAME=", "LANGUAGE=",
  };
  return std::ranges::any_of(kPrefixes, [variable](std::string_view prefix) { return variable.starts_with(prefix); });
}

// The two argument objects of posix_spawn.
struct Spawn {
  Spawn() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
  }
  ~Spawn() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
};

void exit_with_listener(pid_t listener) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != listener) _exit(0);  // The listener ended before prctl().
}

// While this is on, freed memory is overwritten, so that no copies of secrets stay in it.
void overwrite_freed(bool on) {
#if defined(__GLIBC__)
  mallopt(M_PERTURB, on ? 0x5A : 0);
#endif
}

void forget(std::string* secret) {
  explicit_bzero(secret->data(), secret->size());
  secret->clear();
}

}  // namespace

Status start_session(const SessionStart& start, const std::vector<std::string>& command, const sigset_t& mask,
                     bool whole_environment, pid_t* pid) {
  int file = -1;
  if (Status status = write_file(start, &file); !status.ok()) return status;
  // Copies the descriptors above all target numbers, so that none is overwritten before it is duplicated.
  std::array<int, 4> copies;
  size_t count = 0;
  bool room = true;
  for (const int descriptor : {file, start.client, start.control, start.status}) {
    if (descriptor < 0) continue;
    copies[count] = fcntl(descriptor, F_DUPFD_CLOEXEC, kAbove);
    room = room && copies[count++] >= 0;
  }
  Spawn spawn;
  posix_spawn_file_actions_addopen(&spawn.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&spawn.files, STDERR_FILENO, STDOUT_FILENO);
  for (size_t i = 0; i < count; ++i) {
    posix_spawn_file_actions_adddup2(&spawn.files, copies[i], kFirst + static_cast<int>(i));
  }
  posix_spawn_file_actions_addclosefrom_np(&spawn.files, kFirst + static_cast<int>(count));
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGCHLD);
  posix_spawnattr_setsigmask(&spawn.attributes, &mask);
  posix_spawnattr_setsigdefault(&spawn.attributes, &defaults);
  posix_spawnattr_setflags(&spawn.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  // The option comes before the others, because one of them may have an optional value.
  const std::string option = "--session-fd=" + std::to_string(kFirst);
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
    if (arguments.size() == 1) arguments.push_back(const_cast<char*>(option.c_str()));
  }
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (has_secret(*variable) || (!whole_environment && !is_for_libraries(*variable))) continue;
    environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  // /proc/self/exe is this very program, even if another one was installed at its path meanwhile.
  int error = EMFILE;
  if (room) {
    error = posix_spawn(pid, "/proc/self/exe", &spawn.files, &spawn.attributes, arguments.data(), environment.data());
  }
  for (size_t i = 0; i < count; ++i) {
    if (copies[i] >= 0) close(copies[i]);
  }
  close(file);
  errno = error;
  return error == 0 ? Status() : system_error("cannot start a session's process", ErrorCode::kInternal);
}

Status read_session(int descriptor, SessionStart* start) {
  overwrite_freed(true);
  std::string bytes(kMostBytes, '\0');
  const ssize_t size = pread(descriptor, bytes.data(), bytes.size(), 0);
  close(descriptor);
  const std::string_view come(bytes.data(), size > 0 ? static_cast<size_t>(size) : 0);
  Reader reader(come);
  const auto listener = static_cast<pid_t>(reader.number());
  int next = descriptor + 1;
  start->network = reader.number() != 0;
  start->client = next++;
  start->control = reader.number() != 0 ? next++ : -1;
  start->status = reader.number() != 0 ? next++ : -1;
  start->status_slot = reader.number();
  start->device = reader.number();
  reader.raw(&start->client_hello, sizeof(start->client_hello));
  start->token = reader.text();
  start->refusal = reader.text();
  start->has_warned = reader.number() != 0;
  const uint64_t folders = reader.number();
  for (uint64_t i = 0; i < folders && !reader.done(); ++i) start->libraries.push_back(reader.text());
  explicit_bzero(bytes.data(), bytes.size());
  if (!reader.done()) return Status::invalid("remote: --session-fd is for a listener's own use");
  for (int made = descriptor + 1; made < next; ++made) fcntl(made, F_SETFD, FD_CLOEXEC);
  exit_with_listener(listener);
  protect_secrets();
  return {};
}

Status serve_session(SessionStart start, ListenOptions options, ServerOptions server) {
  SessionStatus* const counts = start.status >= 0 ? StatusFile::attach(start.status, start.status_slot) : nullptr;
  options.token = std::move(start.token);
  if (!options.devices.empty()) {
    server.open_device = options.devices[std::min<size_t>(start.device, options.devices.size() - 1)];
  }
  SandboxOptions sandbox = options.sandbox;
  std::ranges::copy(start.libraries, std::back_inserter(sandbox.readable));
  const auto confine = [&options, sandbox = std::move(sandbox), listener = getppid(), has_warned = start.has_warned] {
    forget(&options.token);
    overwrite_freed(false);
    SandboxReport report;
    Status status = enter_sandbox(sandbox, &report);
    exit_with_listener(listener);  // A change of user resets it.
    const bool warns = report.failed && !has_warned;
    spdlog::log(warns ? spdlog::level::warn : spdlog::level::debug, "confined: {}", report.text());
    return status;
  };
  options.load = [confine, load = options.load](ServerOptions* its) {
    const Status status = confine();
    return status.ok() ? load(its) : status;
  };
  try {
    if (start.network) {
      std::shared_ptr<const remote::TlsContext> tls;
      if (remote::scheme_of(options.url) == remote::WorkerUrl::Scheme::kTls) {
        if (Status status = remote::TlsContext::for_worker(options.tls, &tls); !status) return status;
      }
      return serve_network_client(start.client, start.client_hello, start.control, std::move(options), std::move(tls),
                                  server, counts);
    }
    std::unique_ptr<remote::Transport> transport =
        remote::make_unix_transport(start.client, remote::MemoryAccess::kReadOnly);
    if (counts != nullptr) transport = std::make_unique<CountingTransport>(std::move(transport), counts);
    spdlog::debug("serving {}", transport->description());
    if (!start.refusal.empty()) {
      if (Status status = confine(); !status.ok()) return status;
      server.hello_timeout = kRefusedHelloTimeout;
      server.unavailable = {ErrorCode::kUnsupported, start.refusal};
    } else if (Status status = options.load(&server); !status.ok()) {
      server.unavailable = status;
    }
    return serve(*transport, server);
  } catch (const std::exception& error) {
    return Status::internal(std::string("remote: the session ends: ") + error.what());
  }
}

}  // namespace torch_remote::worker
