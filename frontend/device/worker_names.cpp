#include <torch/csrc/python_headers.h>
// Python's headers come first.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <sstream>

#include "frontend/device/backward_threads.h"
#include "frontend/device/worker_names.h"

namespace torch_remote::frontend {
namespace {

// The workers that TORCH_REMOTE_WORKER names.
std::vector<std::string> environment_names() {
  const char* setting = std::getenv("TORCH_REMOTE_WORKER");
  std::istringstream all(setting != nullptr ? setting : "");
  std::vector<std::string> names;
  for (std::string name; std::getline(all, name, ',');) names.push_back(name.empty() ? "local" : name);
  if (names.empty()) names.emplace_back("local");
  return names;
}

struct KnownNames {
  std::mutex mutex;
  std::array<std::string, kMaxWorkers> overrides;  // empty: the environment's name
  std::atomic<int> count{static_cast<int>(std::min<size_t>(environment_names().size(), kMaxWorkers))};
};

KnownNames& known_names() {
  static auto* instance = new KnownNames;
  return *instance;
}

// Asks the Python registry for the worker's endpoint.
Status ask_python(c10::DeviceIndex device, const std::string& name, void (*store_python_error)(),
                  remote::Endpoint* endpoint) {
  const py::gil_scoped_acquire gil;
  try {
    const py::object found =
        py::module_::import("torch_remote.providers.registry").attr("connect")(static_cast<int>(device), name);
    const auto text = [&found](const char* attribute) {
      const py::object value = found.attr(attribute);
      return value.is_none() ? std::string() : py::cast<std::string>(py::str(value));
    };
    endpoint->url = text("url");
    endpoint->token = text("token");
    endpoint->tls = {text("certificate"), text("key"), text("authorities")};
    endpoint->socket = py::cast<int>(found.attr("detach")());
    return {};
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_Exception)) {
      return {ErrorCode::kUnsupported, py::cast<std::string>(py::str(error.value()))};
    }
    error.restore();  // KeyboardInterrupt, SystemExit
    store_python_error();
    return {ErrorCode::kInterrupted, "remote: starting a worker was interrupted"};
  }
}

}  // namespace

int worker_count() noexcept { return known_names().count.load(std::memory_order_relaxed); }

c10::DeviceIndex add_device(const std::string& worker) {
  KnownNames& all = known_names();
  const std::lock_guard lock(all.mutex);
  const int index = all.count.load();
  TORCH_CHECK(index < kMaxWorkers, "remote: all ", kMaxWorkers,
              " devices are in use; stop a machine that is not needed (machine.stop(), torch_remote.machines())");
  all.overrides[index] = worker;
  every_thread_runs_backward();  // before the new device can be used
  all.count.store(index + 1);
  return static_cast<c10::DeviceIndex>(index);
}

void set_worker(c10::DeviceIndex device, const std::string& worker) {
  KnownNames& all = known_names();
  const std::lock_guard lock(all.mutex);
  all.overrides[device] = worker;
}

std::vector<std::string> worker_names() {
  KnownNames& all = known_names();
  std::vector<std::string> list = environment_names();
  const std::lock_guard lock(all.mutex);
  list.resize(static_cast<size_t>(all.count.load()));
  for (size_t i = 0; i < list.size(); ++i) {
    if (!all.overrides[i].empty()) list[i] = all.overrides[i];
  }
  return list;
}

Status worker_name(c10::DeviceIndex device, std::string* name) {
  KnownNames& all = known_names();
  {
    const std::lock_guard lock(all.mutex);
    *name = all.overrides[device];
  }
  if (!name->empty()) return {};
  const std::vector<std::string> list = environment_names();  // its current value
  if (list.size() > kMaxWorkers || static_cast<size_t>(device) >= list.size()) {
    return Status::invalid("remote: TORCH_REMOTE_WORKER names " + std::to_string(list.size()) +
                           " workers, and remote:" + std::to_string(device) + " is used; at most " +
                           std::to_string(kMaxWorkers) + " can be named, with commas between them");
  }
  *name = list[device];
  return {};
}

Status open_worker(c10::DeviceIndex device, const std::string& name, const remote::WorkerFiles& files,
                   const remote::KeepWaiting& go_on, void (*store_python_error)(),
                   std::unique_ptr<remote::WorkerHandle>* worker) {
  if (remote::is_worker_name(name)) {
    const char* threads = std::getenv("TORCH_REMOTE_WORKER_THREADS");
    return remote::start_worker(name, files, threads != nullptr ? std::atoi(threads) : 0, go_on, worker);
  }
  remote::Endpoint endpoint;
  if (Status status = ask_python(device, name, store_python_error, &endpoint); !status) return status;
  return remote::connect_worker(endpoint, go_on, worker);
}

}  // namespace torch_remote::frontend
