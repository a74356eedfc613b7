#include "frontend/inspect/shadow.h"

#include <atomic>
#include <filesystem>
#include <system_error>
#include <utility>

#include "frontend/device/device_state.h"
#include "frontend/device/without_gil.h"
#include "frontend/source/source.h"
#include "remote/capture/session_writer.h"
#include "remote/client/shadow.h"
#include "remote/client/types.h"

namespace torch_remote::frontend {
namespace {

PyObject* report_function = nullptr;  // set once, never released
std::atomic<bool> pending{false};

int call_report(void*) {
  pending.store(false);
  PyObject* const result = PyObject_CallNoArgs(report_function);
  if (result == nullptr) return -1;
  Py_DECREF(result);
  return 0;
}

// Runs on any thread, with a client's locks held.
void schedule_report() {
  if (pending.exchange(true)) return;
  if (Py_AddPendingCall(call_report, nullptr) != 0) pending.store(false);  // too many are pending: the next one tries
}

// Returns whether the step was written. A full disk must not hide the difference.
bool write(const remote::ShadowDifference& difference, std::vector<std::string> lines, const std::string& file) {
  if (difference.graph.empty()) return false;
  ir::Graph graph;
  check(ir::decode_program(difference.graph.data(), difference.graph.size(), &graph));
  graph.source_lines = std::move(lines);
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  if (std::filesystem::create_directories(folder, ignored)) {
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, ignored);
  }
  return remote::save_run(file, graph, graph, difference.params, difference.inputs, difference.math_modes).ok();
}

}  // namespace

py::object shadow_report(int device, bool wait, const std::string& file) {
  check_not_forked();
  const std::shared_ptr<remote::Client> worker = running_client(checked_device(device));
  if (worker == nullptr || !worker->shadow().is_on()) return py::none();
  remote::ShadowCounts counts;
  std::optional<remote::ShadowDifference> difference;
  std::vector<std::string> lines;
  bool written = false;
  {
    const WithoutGil without_gil;
    check(worker->shadow().ask(wait, keep_waiting, &counts, &difference));
    if (difference) {
      lines = describe_sources(difference->sources);
      written = write(*difference, lines, file);
    }
  }
  py::dict report;
  report["runs"] = counts.runs;
  report["steps"] = counts.steps;
  report["left_out"] = counts.left_out;
  report["bytes"] = counts.bytes;
  report["copying_seconds"] = static_cast<double>(counts.copying_ns) * 1e-9;
  report["checking_seconds"] = static_cast<double>(counts.checking_ns) * 1e-9;
  report["differences"] = counts.differences;
  report["difference"] = py::none();
  if (!difference) return report;
  py::dict found;
  found["op"] = difference->op;
  found["line"] = difference->record < lines.size() ? lines[difference->record] : std::string();
  found["what"] = difference->what;
  found["runner"] = difference->runner;
  found["file"] = written ? py::object(py::str(file)) : py::object(py::none());
  report["difference"] = std::move(found);
  return report;
}

void watch_shadow_differences(py::object report) {
  report_function = report.release().ptr();
  remote::on_shadow_difference.store(schedule_report);
}

}  // namespace torch_remote::frontend
