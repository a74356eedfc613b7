#include <torch/csrc/python_headers.h>
// Python's headers come first.
#include <c10/core/AutogradState.h>
#include <pthread.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "frontend/device/build_program.h"
#include "frontend/device/current_device.h"
#include "frontend/device/device_state.h"
#include "frontend/device/restore.h"
#include "frontend/device/without_gil.h"
#include "frontend/device/worker_names.h"
#include "frontend/source/source.h"
#include "remote/capture/capture_writer.h"
#include "remote/client/event_log.h"
#include "remote/wire/environment.h"

namespace torch_remote::frontend {

// The last owner ends the worker: the device, or a thread that uses the client (running_client).
struct DeviceConnection {
  // A restore replaces the worker.
  struct WorkerSlot {
    std::mutex mutex;
    std::unique_ptr<remote::WorkerHandle> worker;
  };
  std::shared_ptr<WorkerSlot> worker_slot;
  std::unique_ptr<remote::Client> client;
  std::shared_ptr<Restore> restore;  // null if lost tensors are not restored

  DeviceConnection() = default;
  DeviceConnection(const DeviceConnection&) = delete;
  DeviceConnection& operator=(const DeviceConnection&) = delete;
  ~DeviceConnection() {
    const WithoutGil without_gil;  // the threads that end here may need it
    if (restore) restore->end();
    restore.reset();
    client.reset();  // sends the CloseSession message
    worker_slot.reset();
  }
};

namespace {

struct State {
  std::mutex mutex;  // guards `connections` and `connecting`; not held while waiting for a worker
  std::condition_variable changed;
  std::array<bool, kMaxDevices> connecting{};                   // a thread is connecting the device
  std::array<std::atomic<bool>, kMaxDevices> cancel_connect{};  // and must stop
  std::array<std::atomic<bool>, kMaxDevices> on_cpu{};
  std::array<std::atomic<remote::Client*>, kMaxDevices> clients{};
  std::array<std::atomic<uint64_t>, kMaxDevices> sessions{};  // of `clients`
  std::array<std::shared_ptr<DeviceConnection>, kMaxDevices> connections;
  std::mutex ended_mutex;  // held while a client is removed and its counters are added to `ended`
  std::array<remote::Counters, kMaxDevices> ended;
  std::array<std::atomic<double>, kMaxDevices> memory_fraction;

  State() {
    for (auto& fraction : memory_fraction) fraction = 1;
  }
  std::atomic<bool> forked{false};
  std::atomic<bool> used{false};
  ConnectionObserver* observer = nullptr;
  std::optional<remote::ShadowSettings> shadow;  // the user's choice
};

State& state() {
  static auto* instance = new State;
  return *instance;
}

// Runs in the child. The worker belongs to the parent, so the child touches nothing of the connection, not even to free
// it.
void after_fork_in_child() {
  State& s = state();
  if (!s.used.load()) return;
  s.forked.store(true);
  for (auto& client : s.clients) {
    if (remote::Client* c = client.exchange(nullptr)) c->abandon();
  }
}

Status start(c10::DeviceIndex device, const remote::KeepWaiting& go_on, DeviceConnection& connection) {
  if (Status status = remote::check_environment(); !status) return status;
  std::shared_ptr<remote::CaptureWriter> capture;
  if (Status status = open_capture(&capture); !status) return status;
  RestoreOptions restore;
  if (Status status = restore_options(device, &restore); !status) return status;
  if (restore.replay && capture) {
    return Status::invalid(
        "remote: a session that is restored (restore='replay') cannot be captured: unset "
        "TORCH_REMOTE_CAPTURE or TORCH_REMOTE_RESTORE");
  }
  const auto worker_slot = std::make_shared<DeviceConnection::WorkerSlot>();
  const auto open = [device, worker_slot](const remote::KeepWaiting& go_on,
                                          std::unique_ptr<remote::Transport>* transport) {
    std::string name;
    if (Status status = worker_name(device, &name); !status) return status;
    std::unique_ptr<remote::WorkerHandle> worker;
    if (Status status = open_worker(device, name, paths(), go_on, store_python_error, &worker); !status) return status;
    *transport = worker->take_transport();
    const std::lock_guard lock(worker_slot->mutex);
    worker_slot->worker.swap(worker);
    return Status();
  };
  connection.worker_slot = worker_slot;
  std::unique_ptr<remote::Transport> transport;
  if (Status status = open(go_on, &transport); !status) return status;
  if (restore.replay) {
    if (Status status = Restore::wrap(restore, open, &transport, &connection.restore); !status) return status;
  }
  if (capture) transport = remote::capture_frames(std::move(transport), capture);
  const auto build = [capture](const remote::BuildRequest& request, std::vector<uint8_t>* program) {
    return build_program(request, capture.get(), program);
  };
  uint64_t program_bytes = remote::kMaxProgramBytes;
  if (const char* limit = remote::environment_value("TORCH_REMOTE_PROGRAM_LIMIT"); *limit != '\0') {
    if (Status status = remote::parse_bytes("TORCH_REMOTE_PROGRAM_LIMIT", limit, &program_bytes); !status) {
      return status;
    }
  }
  Status status = remote::Client::connect(std::move(transport), build, go_on, &connection.client);
  if (status.ok()) connection.client->limit_programs(program_bytes);
  if (!status) {
    connection.restore = nullptr;
  } else if (connection.restore) {
    connection.restore->start(*connection.client);
  }
  return status;
}

// Sends the worker its memory limit.
Status limit_memory(remote::Client& worker, double fraction, const remote::KeepWaiting& keep_waiting) {
  remote::MemoryRequest request;
  request.limit = static_cast<uint64_t>(fraction * static_cast<double>(worker.connection().machine().memory));
  remote::MemoryLimits room;
  return worker.memory(request, keep_waiting, &room);
}

// The first runs of GPUs are checked, because nobody may have run the tests on this GPU and driver.
constexpr uint64_t kFirstRunsOnGpus = 200;

// Sends the worker the user's choice of shadow runs, if there is one.
Status choose_shadow(remote::Client& worker, const std::optional<remote::ShadowSettings>& chosen,
                     const remote::KeepWaiting& keep_waiting) {
  if (chosen) {
    const bool is_off = chosen->rate == 0 && chosen->first_runs == 0;
    return is_off && !worker.shadow().is_on() ? Status() : worker.shadow().set(*chosen, keep_waiting);
  }
  if (!worker.connection().machine().capabilities.compiles_for_gpu()) return {};
  const Status status = worker.shadow().set({0, kFirstRunsOnGpus}, keep_waiting);
  return status.code() == ErrorCode::kUnsupported ? Status() : status;
}

// Requires the GIL. The exception class lives in the Python package.
void set_worker_lost(const std::string& message) {
  const py::object make = py::module_::import("torch_remote.errors").attr("worker_lost");
  py::object session = py::none(), acknowledged = py::none(), device = py::none();
  for (int i = 0; i < device_count(); ++i) {
    const std::shared_ptr<remote::Client> client = running_client(static_cast<c10::DeviceIndex>(i));
    if (client == nullptr || client->connection().health().ok()) continue;
    session = py::int_(client->connection().session());
    acknowledged = py::int_(client->connection().last_acknowledged());
    device = py::int_(i);
  }
  const py::object error = make(message, session, acknowledged, device);
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
}

// The Python exception that a signal handler raised during a wait without the GIL.
thread_local std::unique_ptr<python_error> interrupted;

}  // namespace

constinit thread_local c10::DeviceIndex detail::current_device = 0;

void set_current_device(int device) { detail::current_device = checked_device(device); }

static_assert(kMaxWorkers == kMaxDevices);
int device_count() noexcept { return worker_count(); }

c10::DeviceIndex checked_device(int index) {
  const int last = device_count() - 1;
  TORCH_CHECK(
      index >= 0 && index <= last, "remote: there is no device remote:", index, "; ",
      last == 0 ? std::string("remote:0 is the only one") : "remote:0 to remote:" + std::to_string(last) + " exist",
      " (TORCH_REMOTE_WORKER names a worker for each, with commas between them; torch.remote.add_machine adds one)");
  return static_cast<c10::DeviceIndex>(index);
}

remote::WorkerFiles& paths() {
  static auto* instance = new remote::WorkerFiles;
  return *instance;
}

namespace {

std::optional<remote::ShadowSettings> shadow_choice() {
  const std::lock_guard lock(state().mutex);
  return state().shadow;
}

// Returns true if this thread must connect the device and then call finish_connect. Returns false if another thread has
// connected it, or if the wait was interrupted, in which case *status is set.
bool begin_connect(c10::DeviceIndex device, Status* status) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  while (s.connecting[device]) {
    if (s.changed.wait_for(lock, remote::kWaitStep) == std::cv_status::no_timeout) continue;
    lock.unlock();
    if (!keep_waiting()) {
      *status = {ErrorCode::kInterrupted, "remote: waiting for a worker to start was interrupted"};
      return false;
    }
    lock.lock();
  }
  if (s.clients[device].load(std::memory_order_relaxed) != nullptr) return false;
  return s.connecting[device] = true;
}

// `connection` is null if there is none.
void finish_connect(c10::DeviceIndex device, const std::shared_ptr<DeviceConnection>& connection) {
  State& s = state();
  remote::Client* client = connection ? connection->client.get() : nullptr;
  std::lock_guard lock(s.mutex);
  s.connections[device] = connection;
  s.connecting[device] = false;
  s.sessions[device].store(client ? client->connection().session() : 0, std::memory_order_relaxed);
  s.clients[device].store(client, std::memory_order_release);
  s.changed.notify_all();
}

}  // namespace

bool connect(c10::DeviceIndex device, Status* status) noexcept {
  State& s = state();
  if (s.clients[device].load(std::memory_order_acquire) != nullptr) return true;
  if (s.forked.load()) {
    *status =
        Status(ErrorCode::kUnsupported,
               "Cannot re-initialize remote in forked subprocess. To use remote with multiprocessing, you must use "
               "the 'spawn' start method");
    return false;
  }
  // The thread that connects may need the GIL, which a caller of a recorder may hold: Event.record(), a compiled graph.
  const WithoutGil without_gil;
  bool connecting = false;
  std::shared_ptr<DeviceConnection> connection;
  try {
    connecting = begin_connect(device, status);
    if (!connecting) return s.clients[device].load(std::memory_order_acquire) != nullptr;
    if (!s.used.exchange(true)) {
      pthread_atfork(nullptr, nullptr, after_fork_in_child);
      // Recording does not block, so a backward pass gains nothing from the autograd engine's thread for this device
      // and would pay for two thread switches. This changes only the calling thread;
      // torch.autograd.set_multithreading_enabled reverts it.
      c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    }
    connection = std::make_shared<DeviceConnection>();
    {
      const remote::EventSpan span(remote::Event::Kind::kConnect);
      const auto go_on = [&] { return !s.cancel_connect[device].load() && keep_waiting(); };
      *status = start(device, go_on, *connection);
      const double fraction = s.memory_fraction[device];
      if (status->ok() && fraction < 1) *status = limit_memory(*connection->client, fraction, go_on);
      if (status->ok()) *status = choose_shadow(*connection->client, shadow_choice(), go_on);
    }
    if (!status->ok()) {
      connection = nullptr;
    } else {
      s.on_cpu[device] = connection->client->connection().machine().capabilities.compiles_for_cpu();
      if (s.observer != nullptr) s.observer->connected(device, *connection->client);
    }
    finish_connect(device, connection);
    return connection != nullptr;
  } catch (const std::exception& error) {
    *status = Status::internal(std::string("remote: starting a worker failed: ") + error.what());
    if (!connecting) return false;
    connection = nullptr;
    finish_connect(device, nullptr);
    return false;
  }
}

bool runs_on_cpu(c10::DeviceIndex device) noexcept { return state().on_cpu[device].load(std::memory_order_relaxed); }

std::shared_ptr<remote::Client> client(c10::DeviceIndex device) {
  for (;;) {
    if (std::shared_ptr<remote::Client> found = running_client(device)) return found;
    Status status;
    if (!connect(device, &status) && !status.ok()) raise(status);
  }
}

std::shared_ptr<remote::Client> running_client(c10::DeviceIndex device) noexcept {
  // In a forked child there is no client, and another thread of the parent may have held the mutex.
  if (existing_client(device) == nullptr) return nullptr;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const std::shared_ptr<DeviceConnection>& connection = s.connections[device < 0 ? 0 : device];
  if (connection == nullptr) return nullptr;
  return {connection, connection->client.get()};
}

remote::Client* existing_client(c10::DeviceIndex device) noexcept {
  return state().clients[device < 0 ? 0 : device].load(std::memory_order_acquire);
}

uint64_t session_of(c10::DeviceIndex device) noexcept {
  return existing_client(device) == nullptr ? 0 : state().sessions[device].load(std::memory_order_relaxed);
}

remote::Counters counters(c10::DeviceIndex device) {
  State& s = state();
  std::lock_guard lock(s.ended_mutex);
  remote::Counters all = s.ended[device];
  if (const remote::Client* client = existing_client(device)) all.add(client->connection().counters());
  return all;
}

void reset_counters(c10::DeviceIndex device) {
  State& s = state();
  std::lock_guard lock(s.ended_mutex);
  s.ended[device] = {};
  if (remote::Client* client = existing_client(device)) client->connection().reset_counters();
}

void set_shadow(const remote::ShadowSettings& settings) {
  {
    const std::lock_guard lock(state().mutex);
    state().shadow = settings;
  }
  for (int i = 0; i < device_count(); ++i) {
    const std::shared_ptr<remote::Client> worker = running_client(static_cast<c10::DeviceIndex>(i));
    if (worker != nullptr) check(choose_shadow(*worker, settings, keep_waiting));
  }
}

double memory_fraction(c10::DeviceIndex device) { return state().memory_fraction[device]; }

void set_memory_fraction(c10::DeviceIndex device, double fraction) {
  const std::shared_ptr<remote::Client> worker = client(device);
  state().memory_fraction[device] = fraction;
  check(limit_memory(*worker, fraction, keep_waiting));
}

void observe_connections(ConnectionObserver* observer) { state().observer = observer; }

void begin_restart(c10::DeviceIndex device) {
  State& s = state();
  if (s.observer != nullptr) {
    if (const std::shared_ptr<remote::Client> worker = running_client(device)) s.observer->ending(*worker);
  }
  {
    std::unique_lock lock(s.mutex);
    s.cancel_connect[device] = true;
    s.changed.wait(lock, [&] { return !s.connecting[device]; });
    s.cancel_connect[device] = false;
  }
  if (const std::shared_ptr<remote::Client> worker = running_client(device)) worker->end_waits();
}

std::shared_ptr<DeviceConnection> detach_worker(c10::DeviceIndex device) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const std::lock_guard ended_lock(s.ended_mutex);
  if (remote::Client* client = s.clients[device].exchange(nullptr)) {
    remote::Counters counters = client->connection().counters();
    for (const remote::CounterField& field : remote::kCounterFields) {
      if (field.level) counters.*field.value = 0;
    }
    s.ended[device].add(counters);
  }
  return std::exchange(s.connections[device], nullptr);
}

void end_worker(std::shared_ptr<DeviceConnection> connection) {
  if (connection == nullptr) return;
  if (connection->restore) connection->restore->end();
  connection->client->end_waits();
  connection.reset();
}

int worker_process(c10::DeviceIndex device) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  const std::shared_ptr<DeviceConnection>& connection = s.connections[device];
  if (!connection) return -1;
  std::lock_guard slot_lock(connection->worker_slot->mutex);
  return connection->worker_slot->worker ? connection->worker_slot->worker->process() : -1;
}

void set_restore(c10::DeviceIndex device, const RestoreOptions& options) {
  TORCH_CHECK(
      existing_client(device) == nullptr,
      "remote: set_restore() must be called before the first use of a device, and remote:", static_cast<int>(device),
      " has a worker already; torch.remote.restart() ends that worker and its tensors");
  store_restore_options(device, options);
}

namespace {

std::shared_ptr<Restore> restore_of(c10::DeviceIndex device) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  return s.connections[device] ? s.connections[device]->restore : nullptr;
}

}  // namespace

void checkpoint(c10::DeviceIndex device) {
  const std::shared_ptr<Restore> restore = restore_of(device);
  TORCH_CHECK(restore != nullptr,
              "remote: checkpoint() needs a device with restore='replay', and remote:", static_cast<int>(device),
              " does not have it; call torch.remote.set_restore('replay') before its first use, or set "
              "TORCH_REMOTE_RESTORE=replay");
  bool kept = false;
  check(restore->checkpoint(keep_waiting, &kept));
  TORCH_CHECK(
      kept,
      "remote: checkpoint() wrote no checkpoint, because an op failed; torch.remote.synchronize() raises its error");
}

void end_checkpoints(c10::DeviceIndex device) {
  if (const std::shared_ptr<Restore> restore = restore_of(device)) restore->end();
}

uint64_t times_restored(c10::DeviceIndex device) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  const std::shared_ptr<DeviceConnection>& connection = s.connections[device];
  return connection && connection->restore ? connection->restore->restored() : 0;
}

bool in_bad_fork() { return state().forked.load(std::memory_order_relaxed); }

void check_not_forked() {
  TORCH_CHECK(!in_bad_fork(),
              "Cannot re-initialize remote in forked subprocess. To use remote with multiprocessing, you must use the "
              "'spawn' start method");
}

namespace {

// Adds a message to Python's KeyboardInterrupt, which has none.
void explain_keyboard_interrupt() {
  if (!PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) return;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const py::handle error(value);
  if (py::len(error.attr("args")) == 0) {
    error.attr("args") = py::make_tuple(
        "while waiting for the remote worker, which continues with the queued work; torch.remote.cancel() drops that "
        "work");
  }
  PyErr_Restore(type, value, traceback);
}

}  // namespace

void store_python_error() {
  interrupted = std::make_unique<python_error>();
  interrupted->persist();
}

bool keep_waiting() {
  if (!Py_IsInitialized()) return true;
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return true;
  explain_keyboard_interrupt();
  store_python_error();
  return false;
}

void raise(const Status& status) {
  switch (status.code()) {
    case ErrorCode::kLost: {
      py::gil_scoped_acquire gil;
      set_worker_lost(status.message());
      python_error error;
      error.persist();
      throw error;
    }
    case ErrorCode::kInterrupted:
      if (interrupted) {
        const std::unique_ptr<python_error> error = std::move(interrupted);
        throw python_error(*error);
      }
      TORCH_CHECK(false, status.message());
    case ErrorCode::kOutOfMemory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, status.message());
    case ErrorCode::kOpFailed:
      if (status.exception_type() == "IndexError") TORCH_CHECK_WITH(IndexError, false, status.message());
      if (status.exception_type() == "ValueError") TORCH_CHECK_WITH(ValueError, false, status.message());
      if (status.exception_type() == "TypeError") TORCH_CHECK_WITH(TypeError, false, status.message());
      if (status.exception_type() == "NotImplementedError")
        TORCH_CHECK_WITH(NotImplementedError, false, status.message());
      if (status.exception_type() == "LinAlgError") TORCH_CHECK_WITH(LinAlgError, false, status.message());
      if (status.exception_type() == "OutOfMemoryError") TORCH_CHECK_WITH(OutOfMemoryError, false, status.message());
      TORCH_CHECK(false, status.message());
    default:
      TORCH_CHECK(false, status.message());
  }
}

namespace {

std::string count_of(uint64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string describe_one(const remote::OpError& error) {
  std::string text = error.status.message() + describe_stack(error.source);
  if (error.skipped_updates == 0) return text;
  return text + "\n  " + count_of(error.skipped_updates, "in-place update") +
         (error.skipped_updates == 1 ? " that depends on it was skipped; its tensor keeps its old contents"
                                     : " that depend on it were skipped; these tensors keep their old contents");
}

}  // namespace

std::string describe(const remote::OpError& error) {
  constexpr size_t kShown = 8;
  std::string text = describe_one(error);
  const uint64_t others = error.more_errors.size() + error.omitted_errors;
  if (others == 0) return text;
  text += "\n" + count_of(others, "other failure") + " had not been raised:";
  for (size_t i = 0; i < error.more_errors.size() && i < kShown; ++i)
    text.append("\n").append(describe_one(error.more_errors[i]));
  if (others > kShown) text.append("\nand ").append(std::to_string(others - kShown)).append(" more");
  return text;
}

void raise(const remote::OpError& error) {
  raise(Status(error.status.code(), describe(error), error.status.exception_type()));
}

}  // namespace torch_remote::frontend
