#include "worker/process/main.h"

#include <fcntl.h>
#include <pwd.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ir/ops/op_table.h"
#include "remote/net/tls.h"
#include "remote/net/token.h"
#include "remote/transport/stream_transport.h"
#include "remote/transport/unix_transport.h"
#include "remote/wire/environment.h"
#include "worker/device/machine.h"
#include "worker/process/listener.h"
#include "worker/process/session_process.h"
#include "worker/sandbox/sandbox.h"
#include "worker/server/files.h"
#include "worker/targets/cache_folder.h"
#include "worker/targets/probed_part.h"
#include "worker/targets/self_test.h"

// The worker's process. It serves one client over a given socket or over its standard input and output, or any number
// of clients over a socket that it listens on.
namespace torch_remote::worker {
namespace {

constexpr const char* kExamples = R"(Examples:
  torch-remote-worker --listen unix:///tmp/worker.sock
      serves every client that comes until it is stopped (Ctrl-C), each in a process of its own
  TORCH_REMOTE_WORKER=unix:///tmp/worker.sock python train.py
      a client
  TORCH_REMOTE_WORKER=unix:///tmp/a.sock,unix:///tmp/b.sock python train.py
      a client with two devices, remote:0 and remote:1
  torch-remote-worker --listen unix:///tmp/worker.sock --threads 4 --memory-limit 8G --max-sessions 1
      one client at a time, with four threads and at most 8 GiB for its tensors
  torch-remote-worker --listen tls://0.0.0.0:4500 --token-file token --tls-cert cert.pem --tls-key key.pem
      serves clients on other machines that know the token
  TORCH_REMOTE_WORKER=tls://gpu.example.org:4500 TORCH_REMOTE_TOKEN_FILE=token python train.py
      one of them

TORCH_REMOTE_WORKER_LOG=info (debug, trace) shows what it does; docs/workers.md has more.)";

// OpenMP's threads may spin between two ops of a program, but no longer than this.
constexpr std::chrono::microseconds kSpin{1000};

// The number of iterations in that time. A spinning thread pauses in each; the duration depends on the processor.
uint64_t spin_count() {
  constexpr int kPauses = 2000;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kPauses; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  const std::chrono::nanoseconds each = (std::chrono::steady_clock::now() - begin) / kPauses;
  return static_cast<uint64_t>(kSpin / std::max(each, std::chrono::nanoseconds(2)));
}

// The libraries read these variables when they are loaded. When the worker waits for messages, the runner puts the
// threads to sleep at once (worker/targets/aten/threads.h).
void set_thread_pools() {
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  setenv("GOMP_SPINCOUNT", std::to_string(spin_count()).c_str(), 0);
  setenv("KMP_BLOCKTIME", "1", 0);  // Milliseconds.
}

void set_up_log() {
  auto log = spdlog::stderr_color_mt("torch-remote-worker");
  log->set_level(spdlog::level::warn);
  log->set_pattern("%n[%P] %^%l%$: %v");
  spdlog::set_default_logger(std::move(log));
}

void set_log_level() {
  const char* level = std::getenv("TORCH_REMOTE_WORKER_LOG");
  if (level != nullptr && *level != '\0') spdlog::set_level(spdlog::level::from_str(level));
}

int fail(const std::string& message) {
  spdlog::error("{}", message);
  return 1;
}

// Returns when the client is gone.
Status serve_socket(int socket, const ServerOptions& options) {
  const std::unique_ptr<remote::Transport> transport =
      remote::make_unix_transport(socket, remote::MemoryAccess::kReadOnly);
  spdlog::debug("serving {}", transport->description());
  return serve(*transport, options);
}

// Serves over pipes and returns when the client is gone. Other output to standard output goes to standard error.
Status serve_stdio(const ServerOptions& options) {
  const int input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3), output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (input < 0 || output < 0 || nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 ||
      dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    return system_error("--stdio finds no standard input and output", ErrorCode::kInternal);
  }
  close(nothing);
  std::signal(SIGPIPE, SIG_IGN);
  remote::StreamTransport transport(
      remote::make_pipe_stream(input, output, "standard input and output"),
      {.memory = nullptr, .max_attachment_bytes = options.memory_limit ? options.memory_limit : UINT64_MAX});
  return serve(transport, options);
}

// Accepts what begins with an integer, which a unit may follow. Without it, CLI11 reads -5 as 2^64 - 5, and larger
// numbers than 2^64 - 1 as that.
CLI::Validator unsigned_integer(const std::string& fix) {
  return CLI::Validator(
      [fix](const std::string& text) {
        uint64_t number = 0;
        const bool good = std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc();
        return good ? std::string() : "'" + text + "': write " + fix;
      },
      "");
}

// Accepts numbers from 0.01 to 86400. CLI::Range takes NaN, too.
CLI::Validator seconds() {
  return CLI::Validator(
      [](const std::string& text) {
        double value = 0;
        const char* const end = text.data() + text.size();
        const auto read = std::from_chars(text.data(), end, value);
        const bool good = read.ec == std::errc() && read.ptr == end && value >= 0.01 && value <= 86400;
        return good ? std::string() : "'" + text + "': write seconds, from 0.01 to 86400";
      },
      "");
}

void add_network_options(CLI::App& app, ListenOptions* options, std::string* token_file) {
  app.add_option("--token-file", *token_file,
                 "clients over a network must know the token in this file (16 bytes or more), and verify that the "
                 "worker knows it");
  app.add_option("--tls-cert", options->tls.certificate, "the worker's certificate, a PEM file");
  app.add_option("--tls-key", options->tls.key, "its key, a PEM file");
  app.add_option("--tls-client-ca", options->tls.authorities,
                 "clients need a certificate from this authority, a PEM file");
  const auto milliseconds = [&app](const char* name, std::chrono::milliseconds* value, const char* what) {
    app.add_option_function<double>(
           name, [value](double seconds) { *value = std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds)); },
           what)
        ->check(seconds())
        ->default_str(std::to_string(value->count() / 1000));
  };
  milliseconds("--lease", &options->lease, "seconds that a session waits for a client whose connection broke");
  milliseconds("--heartbeat", &options->heartbeat,
               "seconds between messages on an idle connection; a connection without a message for three times as long "
               "is closed");
}

// Runs the self-tests of all targets, adds them to `json`, and returns the largest of their statuses. Unless `as_json`,
// prints each row when it is complete.
int self_test(const std::vector<Target>& targets, const DeviceOptions& options, bool as_json, std::string* json) {
  std::string rows;
  int status = 0;
  for (const Target& target : targets) {
    if (!target.self_test) continue;
    const auto tested = target.self_test(target.open, options, [&](const SelfTestRow& row) {
      rows += (rows.empty() ? "" : ", ") + json_of(row);
      if (as_json) return;
      std::fputs(to_text(row).c_str(), stdout);
      std::fflush(stdout);
    });
    status = std::max(status, status_of(tested));
  }
  *json += (json->empty() ? "" : ", ") + ("\"self_test\": [" + rows + "]");
  return status;
}

// --probe. Prints what all targets find, and returns the largest of their statuses. `tests`: if a GPU can be used, also
// runs the self-tests.
int probe(const std::vector<Target>& targets, const DeviceOptions& options, bool as_json, bool tests) {
  std::string text, json;
  int status = 0;
  for (const Target& target : targets) {
    if (!target.probe) continue;
    const Probed found = target.probe(options);
    text += found.text;
    json += (json.empty() ? "" : ", ") + found.json;
    status = std::max(status, found.status);
  }
  if (!as_json) std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  if (tests && status < 2) status = std::max(status, self_test(targets, options, as_json, &json));
  if (as_json) std::printf("{%s}\n", json.c_str());
  return status;
}

// Implements --list-devices.
int list_devices(const std::vector<Target>& targets) {
  std::string devices, missing;
  for (const Target& target : targets) {
    if (!target.list) continue;
    const DeviceList found = target.list();
    for (const ListedDevice& device : found.devices) {
      devices += (devices.empty() ? "" : ", ") + ("{\"device\": " + json_text(device.device)) +
                 ", \"id\": " + json_text(device.id) + ", \"name\": " + json_text(device.name) + "}";
    }
    if (missing.empty()) missing = found.missing;
  }
  std::printf("{\"devices\": [%s], \"missing\": %s}\n", devices.c_str(), json_text(missing).c_str());
  return 0;
}

// Runs a session's process. `descriptor` comes from the listener.
int serve_listener(int descriptor, ListenOptions listening, const ServerOptions& options) {
  SessionStart start;
  if (const Status status = read_session(descriptor, &start); !status.ok()) return fail(status.message());
  prctl(PR_SET_NAME, std::filesystem::path(listening.command.front()).filename().c_str());
  const Status status = serve_session(std::move(start), std::move(listening), options);
  if (!status.ok()) spdlog::warn("{}", status.message());
  spdlog::default_logger()->flush();
  _exit(status.ok() ? 0 : 1);  // Threads of libraries may still be running.
}

// Implements --probe-sandbox: prints how a session of a listening worker is confined on this machine.
int probe_sandbox(const SandboxOptions& options) {
  SandboxReport report;
  if (const Status status = enter_sandbox(options, &report); !status.ok()) return fail(status.message());
  std::printf("%s\n", to_json(report).c_str());
  return 0;
}

// Converts names or numbers of users to ids; returns an error for CLI11 if there is no such user.
std::string read_users(const std::vector<std::string>& names, std::vector<uid_t>* users) {
  for (const std::string& name : names) {
    uid_t id = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), id);
    const bool is_number = read.ec == std::errc() && read.ptr == name.data() + name.size();
    const passwd* user = is_number ? nullptr : getpwnam(name.c_str());
    if (!is_number && user == nullptr) return "there is no user '" + name + "'";
    users->push_back(is_number ? id : user->pw_uid);
  }
  return {};
}

// Adds the paths that sessions may read and write, in addition to the folders of libraries.
void allow_places(const std::string& files, const ServerOptions& options, SandboxOptions* sandbox) {
  for (const std::string& path : {options.plugin, options.codegen}) {
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(path, error);
    if (!error) sandbox->readable.push_back(real.parent_path());
  }
  if (options.files) sandbox->readable.push_back(files.empty() ? "/" : files);
  sandbox->add_user_options = [](SandboxOptions* its) {
    const std::string cache = cache_folder();
    std::error_code error;
    // Only existing paths can be allowed.
    if (!cache.empty() && std::filesystem::create_directories(cache, error)) {
      std::filesystem::permissions(cache, std::filesystem::perms::owner_all, error);
    }
    if (!cache.empty()) its->writable.push_back(cache);
  };
}

// Default share of the machine's memory that one session of a listening worker may use for tensors.
constexpr double kShare = 0.8;
constexpr size_t kFewestSessions = 16;  // The largest number of devices that a client may have.

// "cpu; cuda:0, cuda:1, ...: an NVIDIA GPU", for --help.
std::string describe(const std::vector<Target>& targets) {
  std::string text;
  for (const Target& target : targets) {
    text += (text.empty() ? "" : "; ") + device_names(target) + ": " + target.about;
  }
  return text;
}

int run(int argc, char** argv, const std::vector<Target>& targets) {
  CLI::App app("The process where tensors of the device 'remote' live. Scripts start local workers automatically.",
               "torch-remote-worker");
  app.footer(kExamples);
  int socket = -1;
  bool stdio = false;
  std::string plugin, token_file;
  ListenOptions listening;
  ServerOptions options;
  auto* given = app.add_option("--socket-fd", socket, "serve one client over this connected socket, then end");
  auto* over_stdio = app.add_flag("--stdio", stdio, "serve one client over standard input and output, then end");
  app.add_option("--listen", listening.url,
                 "serve clients that connect to unix://PATH, tcp://HOST:PORT or tls://HOST:PORT (without a host: "
                 "127.0.0.1; port 0: a free one, which is printed)")
      ->excludes(given)
      ->excludes(over_stdio->excludes(given));
  app.add_option("--plugin", plugin, "the plugin that runs ops; default: libaten_plugin.so of the package");
  app.add_option("--codegen", options.codegen,
                 "the library that compiles kernels; default: libtorch_remote_codegen.so of the package");
  ChosenDevices chosen{&targets.front(), {"0"}};
  app.add_option_function<std::string>(
         "--device",
         [&](const std::string& names) {
           const Status status = choose_devices(names, targets, &chosen);
           if (!status.ok()) throw CLI::ValidationError("--device", status.message());
         },
         "where tensors live. " + describe(targets) +
             ". With --listen also several, with commas between: each session gets the device with the fewest sessions")
      ->default_str(targets.front().name);
  app.add_option("--threads", options.threads, "threads of a session's runner; 0: its default")
      ->check(CLI::Range(0, 4096));
  auto* limit = app.add_option("--memory-limit", options.memory_limit,
                               "bytes of a session's tensors (8G, 500M); 0: what the machine has; default: with "
                               "--listen, on a CPU, 80 % of that")
                    ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
                    ->transform(unsigned_integer("8G, 500M, or 0 for what the machine has"));  // runs first
  std::string folder;
  auto* allows_files = app.add_option("--allow-files", folder,
                                      "clients may load files of this folder (torch.remote.load_file); without a "
                                      "folder: all files that this process can read")
                           ->expected(0, 1);
  auto* allows_python =
      app.add_option("--allow-python", options.python,
                     "clients may call Python functions here (torch_remote.function), with all rights of this user; "
                     "the value is the interpreter, which needs torch; default: python3")
          ->expected(0, 1);
  auto* peer_host = app.add_option("--peer-host", options.peer_host,
                                   "an address of this machine on which sessions accept connections of the workers of "
                                   "other ranks (torch.distributed) and other devices (copies between them). Sessions "
                                   "then also connect to any address that their clients name, and tensors travel "
                                   "unencrypted. Default: with --listen none, else TORCH_REMOTE_PEER_HOST or "
                                   "127.0.0.1");
  auto* most = app.add_option("--max-sessions", listening.max_sessions,
                              "clients at once, with --listen; 0: any number; default: twice the cores, 16 at least")
                   ->check(unsigned_integer("16, or 0 for any number"));
  int session = -1;
  app.add_option("--session-fd", session)->group("");  // For the processes that a listener starts.
  app.add_option(
      "--session-user", listening.sandbox.user,
      "the user that a session runs as after its client is authenticated; needs a listener that runs as root");
  app.add_option_function<std::vector<std::string>>(
      "--allow-user",
      [&listening](const std::vector<std::string>& names) {
        if (const std::string error = read_users(names, &listening.users); !error.empty()) {
          throw CLI::ValidationError("--allow-user", error);
        }
      },
      "with --listen unix://, users (names or numbers) whose processes may connect, in addition to this one and root");
  bool probes = false, tests = false, probes_sandbox = false, as_json = false, lists = false;
  auto* probe_flag =
      app.add_flag("--probe", probes,
                   "print the GPUs, the driver and the libraries of this machine and how to install missing ones, then "
                   "exit; the exit status is 0 if nothing is missing, 1 if something is, 2 if no GPU can be used");
  app.add_flag("--json", as_json, "print the result of --probe as JSON")
      ->needs(probe_flag->excludes(given)->excludes(over_stdio));
  app.add_flag("--self-test", tests,
               "with --probe, also run each kernel file and library on the first GPU and compare the results with "
               "known numbers; the exit status is 1 if a result is wrong")
      ->needs(probe_flag);
  app.add_flag("--list-devices", lists,
               "print as JSON the GPUs that the driver shows to this process, with the values of --device, then exit");
  app.add_flag("--probe-sandbox", probes_sandbox,
               "print as JSON what confines the sessions of a listening worker on this machine, then exit");
  app.add_option("--status-file", listening.status_file,
                 "a file for other programs with the sessions and what they do (torch-remote top)");
  add_network_options(app, &listening, &token_file);
  app.set_version_flag("--version", "torch-remote-worker, op table: " + ir::op_table_version());
  // One line, because other programs show it.
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("remote: ") + error.what() + " (torch-remote-worker --help lists the options)\n";
  });
  CLI11_PARSE(app, argc, argv);
  set_up_log();
  if (const Status status = remote::check_environment(); !status) return fail(status.message());
  set_log_level();
  if (plugin.empty()) plugin = remote::aten_plugin();
  if (options.codegen.empty()) options.codegen = remote::package_folder() / "lib/libtorch_remote_codegen.so";
  options.plugin = plugin;
  if (probes_sandbox) return probe_sandbox(listening.sandbox);
  if (probes) return probe(targets, options, as_json, tests);
  if (lists) return list_devices(targets);
  if (allows_files->count() > 0) {
    if (const Status status = Files::in(folder.empty() ? "/" : folder, &options.files); !status.ok())
      return fail(status.message());
  }
  if (allows_python->count() > 0 && options.python.empty()) options.python = "python3";
  options.python_program = remote::package_folder() / "lib/python_process.py";
  if (socket < 0 && !stdio && listening.url.empty()) {
    return fail(
        "remote: give the worker its clients with --listen, --stdio or --socket-fd; for example torch-remote-worker "
        "--listen unix:///tmp/worker.sock");
  }
  if (peer_host->count() == 0 && listening.url.empty()) {
    const char* host = std::getenv("TORCH_REMOTE_PEER_HOST");
    options.peer_host = host != nullptr && *host != '\0' ? host : "127.0.0.1";
  }
  set_thread_pools();
  // Nanoseconds: the worker sleeps until shortly before the next message (remote/transport/wait_predictor.h).
  prctl(PR_SET_TIMERSLACK, 1000);
  // A stopped worker continues when its client dies, and notices the end of the connection.
  if (socket >= 0) prctl(PR_SET_PDEATHSIG, SIGCONT);
  const Target& target = *chosen.target;
  if (chosen.ids.size() > 1) {
    if (listening.url.empty()) return fail("remote: one client has one device; use several devices with --listen");
    std::ranges::transform(chosen.ids, std::back_inserter(listening.devices), target.open);
  }
  options.open_device = target.open(chosen.ids.front());
  for (const Target& other : targets) {
    if (other.open_reference) options.open_reference = other.open_reference;
  }
  const auto load = [&target](ServerOptions* its) { return target.load ? target.load(its) : Status(); };
  if (!listening.url.empty()) {
    listening.opens_first = target.numbered;
    listening.load = load;
    if (most->count() == 0)
      listening.max_sessions = std::max(kFewestSessions, 2 * static_cast<size_t>(processor_cores()));
    if (limit->count() == 0 && !target.gpu) {
      options.memory_limit = static_cast<uint64_t>(kShare * static_cast<double>(machine_memory()));
    }
    listening.sandbox.files = !target.gpu;
    listening.sandbox.gpu = target.gpu;
    listening.sandbox.processes = !options.python.empty();
    listening.sandbox.network = !options.peer_host.empty();
    allow_places(folder, options, &listening.sandbox);
    listening.command.assign(argv, argv + argc);
    if (session >= 0) return serve_listener(session, std::move(listening), options);
    bool others_read = false;
    if (!token_file.empty()) {
      const Status status = remote::read_token_file(token_file, &listening.token, &others_read);
      if (!status.ok()) return fail(status.message());
    }
    if (others_read) spdlog::warn("other users can read the token: chmod 600 {}", token_file);
    return fail(listen(listening, options).message());
  }
  options.unavailable = load(&options);
  options.trusted = true;
  const Status status = stdio ? serve_stdio(options) : serve_socket(socket, options);
  return status.ok() ? 0 : fail(status.message());
}

}  // namespace

int run_worker(int argc, char** argv, const std::vector<Target>& targets) {
  // Fails if a library has used OpenSSL already: then less is overwritten.
  (void)remote::enable_openssl_cleansing();
  try {
    return run(argc, argv, targets);
  } catch (const std::exception& error) {  // From CLI11 and spdlog.
    return fail(error.what());
  }
}

}  // namespace torch_remote::worker
