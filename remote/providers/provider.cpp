#include "remote/providers/provider.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>

#include "remote/net/dial.h"
#include "remote/net/worker_url.h"
#include "remote/providers/child_process.h"
#include "remote/transport/forwarding_transport.h"
#include "remote/transport/stream_transport.h"
#include "remote/transport/unix_transport.h"

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kSocket = "socket:", kChannel = "channel:";
constexpr auto kAfterEndOfFile = 500ms;  // the connection ends shortly before the process does
constexpr auto kAfterCloseSession = 2s;
constexpr auto kAfterTerminate = 1s;

// The path in a unix:// URL.
std::string path_of(std::string_view name) {
  WorkerUrl url;
  (void)parse_worker_url(name, &url);
  return url.path;
}

// The connection to a child process. When it is lost, the error says how the child ended.
class ChildTransport : public ForwardingTransport {
 public:
  ChildTransport(std::unique_ptr<Transport> transport, std::shared_ptr<ChildProcess> child)
      : ForwardingTransport(std::move(transport)), child_(std::move(child)) {}

  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override {
    return explain(inner().send(header, control, std::move(attachment)));
  }
  Status receive(Frame* frame, std::chrono::nanoseconds timeout) override {
    return explain(inner().receive(frame, timeout));
  }

 private:
  Status explain(Status status) {
    if (status.code() != ErrorCode::kLost) return status;
    const std::string worker = "the worker (pid " + std::to_string(child_->pid()) + ") ";
    if (const auto end = child_->wait(kAfterEndOfFile)) return {ErrorCode::kLost, "remote: " + worker + *end};
    return {ErrorCode::kLost, status.message() + ", but " + worker + "still runs"};
  }

  std::shared_ptr<ChildProcess> child_;
};

class LocalWorker : public WorkerHandle {
 public:
  LocalWorker(int socket, int pid)
      : child_(std::make_shared<ChildProcess>(pid)),
        transport_(std::make_unique<ChildTransport>(make_unix_transport(socket), child_)) {}

  ~LocalWorker() override {
    if (abandoned_) return;
    transport_ = nullptr;
    if (child_->wait(kAfterCloseSession)) return;
    child_->signal(SIGTERM);
    if (child_->wait(kAfterTerminate)) return;
    child_->signal(SIGKILL);
    (void)child_->wait(kAfterTerminate);
  }

  std::unique_ptr<Transport> take_transport() override { return std::move(transport_); }
  int process() const override { return child_->pid(); }
  void abandon() override {
    abandoned_ = true;
    if (transport_) transport_.release()->abandon();
  }

 private:
  std::shared_ptr<ChildProcess> child_;
  std::unique_ptr<Transport> transport_;
  bool abandoned_ = false;
};

class ListeningWorker : public WorkerHandle {
 public:
  explicit ListeningWorker(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}
  std::unique_ptr<Transport> take_transport() override { return std::move(transport_); }
  int process() const override { return -1; }
  void abandon() override {
    if (transport_) transport_.release()->abandon();
  }

 private:
  std::unique_ptr<Transport> transport_;
};

class InprocWorker : public WorkerHandle {
 public:
  using Serve = int (*)(void* transport, const char* plugin, const char* python, int threads);

  InprocWorker(Serve serve, const std::string& plugin, const std::string& python) {
    auto [ours, theirs] = make_inproc_transport();
    transport_ = std::move(ours);
    thread_ = std::thread([serve, plugin, python, transport = std::move(theirs)] {
      serve(transport.get(), plugin.c_str(), python.c_str(), 0);
    });
  }
  ~InprocWorker() override {
    transport_ = nullptr;
    if (thread_.joinable()) thread_.join();
  }

  std::unique_ptr<Transport> take_transport() override { return std::move(transport_); }
  int process() const override { return -1; }
  void abandon() override {
    thread_.detach();  // the forked child does not have this thread
    if (transport_) transport_.release()->abandon();
  }

 private:
  std::unique_ptr<Transport> transport_;
  std::thread thread_;
};

Status check_file(const std::string& path, int access_mode, const char* what, const char* fix) {
  if (access(path.c_str(), access_mode) == 0) return {};
  return {ErrorCode::kUnsupported,
          std::string("remote: ") + what + " '" + path + "': " + std::strerror(errno) + "; " + fix};
}

}  // namespace

Status start_local_worker(const LocalWorkerOptions& options, std::unique_ptr<WorkerHandle>* worker) {
  constexpr const char* kReinstall = "install torch-remote again (pip install --force-reinstall torch-remote)";
  if (Status status = check_file(options.binary, F_OK, "the worker's program", kReinstall); !status) return status;
  if (Status status = check_file(options.binary, X_OK, "the worker's program is not executable:", "chmod +x it");
      !status)
    return status;
  if (Status status = check_file(options.plugin, R_OK, "the worker's ATen plugin", kReinstall); !status) return status;
  if (!options.torch_lib.empty()) {
    if (Status status = check_file(options.torch_lib + "/libtorch_cpu.so", R_OK, "torch's library",
                                   "install torch again, the version that torch-remote was built for");
        !status) {
      return status;
    }
  }
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    return system_error("cannot make a socket for the worker");
  std::vector<std::string> arguments = {options.binary, "--socket-fd",  std::to_string(ChildProcess::kSocket),
                                        "--plugin",     options.plugin, "--allow-files=/"};
  if (!options.python.empty()) arguments.push_back("--allow-python=" + options.python);
  if (options.threads > 0) {
    arguments.push_back("--threads");
    arguments.push_back(std::to_string(options.threads));
  }
  int pid;
  const Status status = ChildProcess::start(arguments, "TORCH_REMOTE_TORCH_LIB=" + options.torch_lib, sockets[1], &pid);
  close(sockets[1]);
  if (!status) {
    close(sockets[0]);
    return status;
  }
  *worker = std::make_unique<LocalWorker>(sockets[0], pid);
  return {};
}

Status start_inproc_worker(const std::string& library, const std::string& plugin, const std::string& python,
                           std::unique_ptr<WorkerHandle>* worker) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Status::invalid("remote: a worker in this process (inproc) needs " + library + ": " + dlerror());
  }
  const auto serve = reinterpret_cast<InprocWorker::Serve>(dlsym(handle, "torch_remote_inproc_serve"));
  if (serve == nullptr) return Status::invalid("remote: " + library + " is of another version: " + dlerror());
  *worker = std::make_unique<InprocWorker>(serve, plugin, python);
  return {};
}

Status connect_unix_worker(const std::string& path, std::unique_ptr<WorkerHandle>* worker) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Status::invalid("remote: the path of a Unix socket has 1 to " +
                           std::to_string(sizeof(address.sun_path) - 1) + " bytes, not " + std::to_string(path.size()) +
                           ": 'unix://" + path + "'");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return system_error("cannot make a socket for the worker");
  const auto result = TEMP_FAILURE_RETRY(connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)));
  if (result != 0) {
    const Status status = {ErrorCode::kLost, "remote: no worker at unix://" + path + ": " + std::strerror(errno) +
                                                 "; start one with: torch-remote-worker --listen unix://" + path +
                                                 " (or python -m torch_remote.worker --listen unix://" + path + ")"};
    close(socket);
    return status;
  }
  *worker = std::make_unique<ListeningWorker>(make_unix_transport(socket));
  return {};
}

Status connect_network_worker(const std::string& url, const KeepWaiting& keep_waiting,
                              std::unique_ptr<WorkerHandle>* worker) {
  return connect_worker({url, {}, {}, -1}, keep_waiting, worker);
}

Status connect_worker(const Endpoint& endpoint, const KeepWaiting& keep_waiting,
                      std::unique_ptr<WorkerHandle>* worker) {
  const std::string& url = endpoint.url;
  if (url == kSocket) {
    *worker = std::make_unique<ListeningWorker>(make_unix_transport(endpoint.socket));
    return {};
  }
  if (url.starts_with(kChannel)) {
    auto stream = make_socket_stream(endpoint.socket, url.substr(kChannel.size()));
    *worker = std::make_unique<ListeningWorker>(
        std::make_unique<StreamTransport>(std::move(stream), StreamTransport::Options()));
    return {};
  }
  if (scheme_of(url) == WorkerUrl::Scheme::kUnix) return connect_unix_worker(path_of(url), worker);
  if (!is_network_url(url)) {
    return Status::invalid("remote: a provider says that its worker is at '" + url +
                           "', which is not an address; it must give unix://PATH, tcp://HOST:PORT or tls://HOST:PORT");
  }
  DialOptions options;
  Status status;
  if (endpoint.token.empty()) {
    status = dial_options_from_environment(&options);
  } else {
    options.token = endpoint.token;
    options.tls = tls_files_from_environment();
  }
  const auto take = [](const std::string& given, std::string& to) {
    if (!given.empty()) to = given;
  };
  take(endpoint.tls.certificate, options.tls.certificate);
  take(endpoint.tls.key, options.tls.key);
  take(endpoint.tls.authorities, options.tls.authorities);
  std::unique_ptr<Transport> transport;
  if (status.ok()) status = dial(url, options, keep_waiting, &transport);
  if (status.ok()) *worker = std::make_unique<ListeningWorker>(std::move(transport));
  return status;
}

bool is_worker_name(std::string_view name) {
  if (name == "local" || name == "inproc" || scheme_of(name) == WorkerUrl::Scheme::kUnix) return true;
  return is_network_url(name) && name.find('?') == std::string_view::npos;  // with options it is a machine's URL
}

Status start_worker(const std::string& name, const WorkerFiles& files, int threads, const KeepWaiting& keep_waiting,
                    std::unique_ptr<WorkerHandle>* worker) {
  if (name == "local")
    return start_local_worker({files.worker, files.plugin, files.torch_lib, threads, files.python}, worker);
  if (name == "inproc") return start_inproc_worker(files.inproc, files.plugin, files.python, worker);
  if (scheme_of(name) == WorkerUrl::Scheme::kUnix) return connect_unix_worker(path_of(name), worker);
  if (is_network_url(name)) return connect_network_worker(name, keep_waiting, worker);
  return Status::invalid("remote: '" + name +
                         "' is not a worker (TORCH_REMOTE_WORKER or --worker); use 'local' (the default), 'inproc', "
                         "'unix://path', 'tcp://host:port' or 'tls://host:port'");
}

}  // namespace torch_remote::remote
