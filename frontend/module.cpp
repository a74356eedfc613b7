#include <ATen/core/CachingHostAllocator.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "frontend/compile/compiled_graph.h"
#include "frontend/compile/graph_ops.h"
#include "frontend/compile/lowering.h"
#include "frontend/compile/plan.h"
#include "frontend/device/current_device.h"
#include "frontend/device/device_state.h"
#include "frontend/device/generator.h"
#include "frontend/device/host_memory.h"
#include "frontend/device/restore.h"
#include "frontend/device/sync_debug.h"
#include "frontend/device/worker_names.h"
#include "frontend/distributed/distributed.h"
#include "frontend/hooks/hooks.h"
#include "frontend/inspect/graph_object.h"
#include "frontend/inspect/kineto.h"
#include "frontend/inspect/profile.h"
#include "frontend/inspect/shadow.h"
#include "frontend/ops/cpu_fallback.h"
#include "frontend/ops/registration.h"
#include "frontend/ops/transformer.h"
#include "frontend/record/direct_copy.h"
#include "frontend/record/recorder.h"
#include "frontend/record/requests.h"
#include "frontend/record/storages.h"
#include "frontend/source/source.h"
#include "remote/wire/environment.h"

// The extension module torch_remote._C: the functions that the Python package calls. Functions that may wait release
// the GIL.

namespace torch_remote::frontend {
namespace {

void initialize(const std::string& worker, const std::string& plugin, const std::string& inproc,
                const std::string& torch_lib, const std::string& python,
                const std::vector<std::string>& library_folders) {
  paths() = {worker, plugin, inproc, torch_lib, python};
  for (const std::string& folder : library_folders) add_library_folder(folder);
  register_device();
  register_ops();
  register_profilers();
}

// Number of graphs from torch.compile and load_exported, and how often such a graph had to be split.
std::atomic<uint64_t> compiled_graphs{0}, compiled_graph_splits{0};

py::dict stats() {
  py::dict all;
  remote::Counters sum;
  uint64_t ops = 0;
  for (int i = 0; i < device_count(); ++i) {
    ops += Recorder::get(static_cast<c10::DeviceIndex>(i)).ops_recorded();
    sum.add(counters(static_cast<c10::DeviceIndex>(i)));
  }
  all["ops_recorded"] = ops;
  for (const remote::CounterField& field : remote::kCounterFields) all[field.name] = sum.*field.value;
  all["compiled_graphs"] = compiled_graphs.load();
  all["compiled_graph_splits"] = compiled_graph_splits.load();
  all["client_fallbacks"] = client_fallbacks();
  uint64_t direct = 0, relayed = 0;
  for (const CopyPath& path : copy_paths()) direct += path.direct, relayed += path.relayed;
  all["direct_copies"] = direct;
  all["relayed_copies"] = relayed;
  return all;
}

void reset_stats() {
  reset_client_fallbacks();
  reset_copy_paths();
  compiled_graphs = compiled_graph_splits = 0;
  for (int i = 0; i < device_count(); ++i) {
    Recorder::get(static_cast<c10::DeviceIndex>(i)).reset_counters();
    reset_counters(static_cast<c10::DeviceIndex>(i));
  }
}

void synchronize(int device) {
  check_not_forked();
  py::gil_scoped_release release;
  Recorder::get(checked_device(device)).synchronize();
}

void cancel(int device) {
  check_not_forked();
  py::gil_scoped_release release;
  Recorder::get(checked_device(device)).cancel();
}

void flush(int device) {
  check_not_forked();
  py::gil_scoped_release release;
  Recorder::get(checked_device(device)).flush("flush");
}

void set_restore_device(int device, bool replay, const std::string& folder, uint64_t limit, uint64_t every) {
  check_not_forked();
  set_restore(checked_device(device), {replay, folder, limit, std::chrono::seconds(every)});
}

void checkpoint_device(int device) {
  check_not_forked();
  py::gil_scoped_release release;
  const c10::DeviceIndex index = checked_device(device);
  Recorder::get(index).synchronize();
  checkpoint(index);
}

uint64_t restored_device(int device) { return times_restored(checked_device(device)); }

void restart_device(int device) {
  check_not_forked();
  py::gil_scoped_release release;
  Recorder::get(checked_device(device)).restart();
}

py::object worker_info(int device) {
  const std::shared_ptr<remote::Client> worker = running_client(checked_device(device));
  if (worker == nullptr) return py::none();
  const remote::ConnectionStatus& connection = worker->connection();
  py::dict info;
  info["session"] = connection.session();
  info["description"] = connection.description();
  info["last_acknowledged"] = connection.last_acknowledged();
  info["last_sent"] = connection.last_sent();
  info["lost"] = connection.health().message();
  info["process"] = worker_process(static_cast<c10::DeviceIndex>(device));
  return info;
}

bool is_busy(int device) {
  const c10::DeviceIndex index = checked_device(device);
  py::gil_scoped_release release;
  const std::shared_ptr<remote::Client> worker = running_client(index);
  return worker != nullptr && worker->connection().is_busy();
}

// Name, allowed values and meaning of each variable (remote/wire/environment.h).
std::vector<std::array<std::string, 3>> environment_variables() {
  std::vector<std::array<std::string, 3>> all;
  for (const remote::EnvironmentVariable& variable : remote::environment_variables()) {
    all.push_back({std::string(variable.name), std::string(variable.allowed), std::string(variable.meaning)});
  }
  return all;
}

// Describes the hardware of the device's worker. Starts the worker if there is none.
py::dict machine(int device) {
  check_not_forked();
  remote::MachineInfo info;
  std::string description;
  {
    py::gil_scoped_release release;
    const std::shared_ptr<remote::Client> worker = client(checked_device(device));
    const remote::ConnectionStatus& connection = worker->connection();
    info = connection.machine();
    description = connection.description();
  }
  py::dict all;
  all["targets"] = info.capabilities.targets;
  all["description"] = description;
  all["processor"] = info.processor;
  all["cores"] = info.cores;
  all["memory"] = info.memory;
  return all;
}

using FileVersion = std::tuple<uint64_t, uint64_t, int64_t>;  // size in bytes, inode, modification time in ns

// Looks up a file on the worker's machine. Returns its version if the worker may read it, whether the worker may read
// files at all, and why it may not.
std::tuple<std::optional<FileVersion>, bool, std::string> find_file(int device, const std::string& path) {
  check_not_forked();
  py::gil_scoped_release release;
  remote::FoundFile file;
  check(client(checked_device(device))->files().find(path, keep_waiting, &file));
  const remote::FileVersion& its = file.version;
  return {file.readable ? std::optional(FileVersion(its.size, its.inode, its.mtime_ns)) : std::nullopt, file.allowed,
          file.reason};
}

at::Tensor read_file(int device, const std::string& path, const FileVersion& version, uint64_t offset,
                     const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  check_not_forked();
  py::gil_scoped_release release;
  const auto [size, inode, mtime_ns] = version;
  return tensor_of_file(path, {size, inode, mtime_ns}, offset, sizes, dtype, checked_device(device));
}

// Returns the worker's session, the call's ticket, and the first buffer id of its results. Tickets and buffer ids are
// per session: after a restart another call may have the same ticket. So the functions below take the session, too.
std::array<uint64_t, 3> send_function_call(int device, const py::bytes& request,
                                           const std::vector<at::Tensor>& tensors) {
  check_not_forked();
  const auto text = static_cast<std::string_view>(request);
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.device().type() == at::kPrivateUse1 && tensor.device().index() == device,
                "remote: the tensors of a call must be on one device");
  }
  py::gil_scoped_release release;
  for (const at::Tensor& tensor : tensors) fill_if_unwritten(tensor);
  return call_function(checked_device(device), std::as_bytes(std::span(text)), tensors);
}

// The device's client if it still has this session, else null.
std::shared_ptr<remote::Client> client_of_session(int device, uint64_t session) {
  std::shared_ptr<remote::Client> worker = running_client(checked_device(device));
  return worker != nullptr && worker->connection().session() == session ? worker : nullptr;
}

// Returns the answer and the results' sizes in bytes, or nothing after `seconds`. If `seconds` is negative, the wait
// has no time limit.
std::optional<std::pair<py::bytes, std::vector<uint64_t>>> wait_function(int device, uint64_t session, uint64_t ticket,
                                                                         double seconds) {
  check_not_forked();
  remote::CallResult result;
  {
    py::gil_scoped_release release;
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                             std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6)));
    bool over = false;
    const auto go_on = [&] {
      over = seconds >= 0 && Clock::now() >= deadline;
      return !over && keep_waiting();
    };
    remote::OpError error;
    const std::shared_ptr<remote::Client> worker = client_of_session(device, session);
    if (worker == nullptr) {
      check(
          Status{ErrorCode::kLost, "remote: the worker that ran the function was restarted before the function ended"});
    }
    const Status status = worker->functions().wait(ticket, go_on, &result, &error);
    if (over && status.code() == ErrorCode::kInterrupted) return std::nullopt;
    if (!error.status.ok()) raise(error);
    check(status);
  }
  return std::pair(py::bytes(reinterpret_cast<const char*>(result.answer.data()), result.answer.size()),
                   std::move(result.sizes));
}

// Does nothing if the session has ended, because its functions ended with it.
void cancel_function(int device, uint64_t session, uint64_t ticket, bool kill) {
  check_not_forked();
  py::gil_scoped_release release;
  if (const auto worker = client_of_session(device, session)) check(worker->functions().cancel(ticket, kill));
}

// Drops a call that no one waits for and whose results no tensor holds.
void drop_function_results(int device, uint64_t session, uint64_t ticket, uint64_t first_result_id) {
  py::gil_scoped_release release;
  const std::shared_ptr<remote::Client> worker = client_of_session(device, session);
  if (worker != nullptr) check(worker->functions().drop_results(ticket, first_result_id));
}

// Makes a tensor of one result of a call: the buffer `id` with `nbytes` bytes.
at::Tensor result_tensor(int device, uint64_t session, uint64_t id, uint64_t nbytes, const std::vector<int64_t>& sizes,
                         at::ScalarType dtype) {
  check_not_forked();
  py::gil_scoped_release release;
  return tensor_of_result(session, id, nbytes, sizes, dtype, checked_device(device));
}

py::dict host_memory_stats() {
  const at::HostStats stats = at::getHostAllocator(at::kPrivateUse1)->get_stats();
  const auto encoded = [](const c10::CachingAllocator::Stat& stat) {
    py::dict all;
    all["current"] = stat.current;
    all["peak"] = stat.peak;
    all["allocated"] = stat.allocated;
    all["freed"] = stat.freed;
    return all;
  };
  py::dict all;
  all["active_requests"] = encoded(stats.active_requests);
  all["active_bytes"] = encoded(stats.active_bytes);
  all["allocations"] = encoded(stats.allocations);
  all["allocated_bytes"] = encoded(stats.allocated_bytes);
  return all;
}

void reset_host_memory_stats(bool peaks) {
  at::HostAllocator* allocator = at::getHostAllocator(at::kPrivateUse1);
  if (peaks) {
    allocator->reset_peak_stats();
  } else {
    allocator->reset_accumulated_stats();
  }
}

double set_fraction(int device, double fraction) {
  check_not_forked();
  py::gil_scoped_release release;
  set_memory_fraction(checked_device(device), fraction);
  return fraction;
}

// Returns the memory limit and the free bytes. With `empty_cache`, the worker first releases cached memory.
std::pair<uint64_t, uint64_t> memory_limits(int device, bool empty_cache) {
  check_not_forked();
  py::gil_scoped_release release;
  remote::MemoryRequest request;
  request.empty_cache = empty_cache;
  const remote::MemoryLimits room = request_memory(checked_device(device), request);
  return {room.limit, room.free};
}

void set_shadow_runs(double rate, uint64_t first_runs) {
  check_not_forked();
  py::gil_scoped_release release;
  set_shadow({rate, first_runs});
}

// Finishes a graph. `places` maps each node that may be an input to the source of its value. The source is a position
// among a call's arguments, or a constant tensor and its copy on the CPU. None means that the call's arguments are the
// inputs, in order.
std::unique_ptr<CompiledGraph> finish(Lowering& lowering, const py::list& outputs,
                                      const std::optional<py::dict>& places, bool low_latency, bool tune) {
  std::unique_ptr<CompiledGraphSpec> spec = lowering.finish(outputs);
  std::vector<CompiledGraph::InputSource> all;
  for (const py::handle node : lowering.inputs()) {
    CompiledGraph::InputSource source{all.size(), {}, {}, py::cast<std::string>(node.attr("name"))};
    if (places) {
      const py::object its = (*places)[node];
      if (PyLong_Check(its.ptr())) {
        source.position = py::cast<size_t>(its);
      } else {
        const auto [tensor, copy] = py::cast<std::pair<py::object, std::optional<at::Tensor>>>(its);
        source.constant = tensor;
        source.copy = copy.value_or(at::Tensor());
      }
    }
    all.push_back(std::move(source));
  }
  return std::make_unique<CompiledGraph>(std::move(spec), std::move(all), remote::ProgramOptions{low_latency, tune});
}

void set_cut_limits(int device, uint32_t least, uint32_t most) {
  TORCH_CHECK(least >= 1 && least <= most, "remote: cut limits must be 1 <= min <= max, got ", least, " and ", most);
  Recorder::get(checked_device(device)).traces().set_limits({least, most});
}

}  // namespace
}  // namespace torch_remote::frontend

PYBIND11_MODULE(_C, module) {
  namespace f = torch_remote::frontend;
  using torch::wrap_pybind_function;
  module.def("initialize", wrap_pybind_function(f::initialize));
  module.def("label_file", wrap_pybind_function(f::label_file));
  module.def("stats", wrap_pybind_function(f::stats));
  module.def("reset_stats", wrap_pybind_function(f::reset_stats));
  module.def("copy_paths", wrap_pybind_function([] {
               std::vector<std::tuple<int, int, uint64_t, uint64_t, std::string, std::string>> all;
               for (const f::CopyPath& path : f::copy_paths()) {
                 all.emplace_back(path.from, path.to, path.direct, path.relayed, path.why, path.transport);
               }
               return all;
             }));
  module.def("synchronize", wrap_pybind_function(f::synchronize));
  module.def("cancel", wrap_pybind_function(f::cancel));
  module.def("flush", wrap_pybind_function(f::flush));
  module.def("restart", wrap_pybind_function(f::restart_device));
  module.def("set_restore", wrap_pybind_function(f::set_restore_device));
  module.def("restores", wrap_pybind_function([](int device) {
               f::RestoreOptions options;
               return f::restore_options(f::checked_device(device), &options).ok() && options.replay;
             }));
  module.def("checkpoint", wrap_pybind_function(f::checkpoint_device));
  module.def("times_restored", wrap_pybind_function(f::restored_device));
  module.def("shutdown", wrap_pybind_function([](bool wait) {
               py::gil_scoped_release release;
               f::shutdown(wait);
             }));
  module.def("in_bad_fork", f::in_bad_fork);
  module.def("is_connected",
             wrap_pybind_function([](int device) { return f::existing_client(f::checked_device(device)) != nullptr; }));
  module.def("environment_variables", f::environment_variables);
  module.def("worker_info", wrap_pybind_function(f::worker_info));
  module.def("is_busy", wrap_pybind_function(f::is_busy));
  module.def("machine", wrap_pybind_function(f::machine));
  module.def("call_function", wrap_pybind_function(f::send_function_call));
  module.def("wait_function", wrap_pybind_function(f::wait_function));
  module.def("cancel_function", wrap_pybind_function(f::cancel_function));
  module.def("drop_function_results", wrap_pybind_function(f::drop_function_results));
  module.def("result_tensor", wrap_pybind_function(f::result_tensor));
  module.def("find_file", wrap_pybind_function(f::find_file));
  module.def("read_file", wrap_pybind_function(f::read_file));
  module.def("memory_limits", wrap_pybind_function(f::memory_limits), py::arg("device"),
             py::arg("empty_cache") = false);
  module.def("host_memory_stats", wrap_pybind_function(f::host_memory_stats));
  module.def("reset_host_memory_stats", f::reset_host_memory_stats);
  module.def("release_host_memory", f::release_host_memory);
  module.def("set_shadow", wrap_pybind_function(f::set_shadow_runs), py::arg("rate"), py::arg("first_runs"));
  module.def("shadow_report", wrap_pybind_function(f::shadow_report), py::arg("device"), py::arg("wait"),
             py::arg("file"));
  module.def("watch_shadow_differences", f::watch_shadow_differences);
  module.def("memory_fraction",
             wrap_pybind_function([](int device) { return f::memory_fraction(f::checked_device(device)); }));
  module.def("set_memory_fraction", wrap_pybind_function(f::set_fraction));
  module.def("set_sync_debug_mode", wrap_pybind_function([](int mode) {
               TORCH_CHECK_VALUE(mode >= 0 && mode <= 2, "remote: sync debug mode must be 0, 1 or 2, got ", mode);
               f::set_sync_debug_mode(static_cast<f::SyncDebugMode>(mode));
             }));
  module.def("sync_debug_mode", [] { return static_cast<int>(f::sync_debug_mode()); });
  module.def("device_count", f::device_count);
  module.def("add_device", wrap_pybind_function([](const std::string& worker) {
               f::check_not_forked();
               return static_cast<int>(f::add_device(worker));
             }));
  module.def("set_worker", wrap_pybind_function([](int device, const std::string& worker) {
               f::set_worker(f::checked_device(device), worker);
             }));
  module.def("worker_names", wrap_pybind_function(f::worker_names));
  module.def("current_device", [] { return static_cast<int>(f::current_device()); });
  module.def("set_device", wrap_pybind_function(f::set_current_device));
  module.def("default_generator",
             wrap_pybind_function([](int device) { return f::default_generator(f::checked_device(device)); }));
  module.def("expect_no_compile", wrap_pybind_function([](int device, bool expect) {
               f::Recorder::get(f::checked_device(device)).expectation().expect_no_compile(expect);
             }));
  module.def("take_unexpected_compile", wrap_pybind_function([](int device) {
               return f::Recorder::get(f::checked_device(device)).expectation().take_miss();
             }));
  f::bind_graphs(module);
  py::class_<f::CompiledGraph>(module, "CompiledGraph", py::dynamic_attr())
      .def("__call__", wrap_pybind_function(&f::CompiledGraph::call), py::arg("arguments"));
  py::class_<f::Slot>(module, "Slot").def(py::init<size_t>());
  py::class_<f::Plan>(module, "Plan", py::dynamic_attr())
      .def(py::init<size_t>())
      .def("add", wrap_pybind_function(&f::Plan::add))
      .def("finish", wrap_pybind_function(&f::Plan::finish))
      .def("__call__", wrap_pybind_function(&f::Plan::call), py::arg("arguments"));
  py::class_<f::Lowering>(module, "Lowering")
      .def(py::init([](int device, bool trust_ranges) {
        return std::make_unique<f::Lowering>(f::checked_device(device), trust_ranges);
      }))
      .def("offer", wrap_pybind_function(&f::Lowering::offer), py::arg("node"), py::kw_only(),
           py::arg("determines_size") = true)
      .def("add", wrap_pybind_function(&f::Lowering::add))
      .def("constant", wrap_pybind_function(&f::Lowering::constant))
      .def("is_host", wrap_pybind_function(&f::Lowering::is_host))
      .def("returns", wrap_pybind_function(&f::Lowering::returns))
      .def("__len__", &f::Lowering::size)
      .def_property_readonly("why_not", &f::Lowering::why_not)
      .def_property_readonly("inputs", &f::Lowering::inputs)
      .def("finish", wrap_pybind_function(&f::finish), py::arg("outputs"), py::arg("places"), py::kw_only(),
           py::arg("low_latency"), py::arg("tune"));
  module.def("count_compiled_graph", [](uint64_t splits) {
    ++f::compiled_graphs;
    f::compiled_graph_splits += splits;
  });
  module.def("restored", wrap_pybind_function(f::restored));
  module.def("is_program_op", wrap_pybind_function(f::is_program_op));
  module.def("is_single_op", wrap_pybind_function(f::is_single_op));
  module.def("multi_head_attention", wrap_pybind_function(f::multi_head_attention));
  module.def("transformer_encoder_layer", wrap_pybind_function(f::transformer_encoder_layer));
  module.def("meta_key_calls", wrap_pybind_function(f::meta_key_calls));
  module.def("set_cut_limits", wrap_pybind_function(f::set_cut_limits));
  f::bind_profile(module);
  f::bind_distributed(module);
}
