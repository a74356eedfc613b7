#include <torch/csrc/python_headers.h>
// Python's headers come first.
#include <ATen/native/CPUFallback.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "frontend/device/device_state.h"
#include "frontend/device/without_gil.h"
#include "frontend/ops/cpu_fallback.h"
#include "frontend/record/wait_span.h"

namespace torch_remote::frontend {
namespace {

std::atomic<uint64_t> calls{0};

enum class Setting { kError, kWarn, kAllow };

Setting setting() {
  const char* text = std::getenv("TORCH_REMOTE_FALLBACK");
  const std::string_view value = text != nullptr && *text != '\0' ? text : "error";
  if (value == "error") return Setting::kError;
  if (value == "warn") return Setting::kWarn;
  TORCH_CHECK(value == "allow", "remote: TORCH_REMOTE_FALLBACK='", std::string(value),
              "' is not a setting; use 'error' (the default), 'warn' or 'allow'");
  return Setting::kAllow;
}

// What the current worker of a device has answered.
struct Answers {
  uint64_t session = 0;  // the worker's
  std::unordered_map<std::string, bool> has_op;
};
struct AllAnswers {
  std::mutex mutex;
  std::array<Answers, kMaxDevices> devices;
};
AllAnswers& all_answers() {
  static auto* instance = new AllAnswers;
  return *instance;
}

// Returns true the first time.
bool is_first_warning(const std::string& name) {
  static std::mutex mutex;
  static auto* warned = new std::unordered_set<std::string>;
  std::lock_guard lock(mutex);
  return warned->insert(name).second;
}

}  // namespace

void run_on_client(const c10::OperatorHandle& op, torch::jit::Stack* stack, std::string_view why) {
  const std::string name = c10::toString(op.operator_name());
  const Setting what = setting();
  TORCH_CHECK_NOT_IMPLEMENTED(
      what != Setting::kError, "remote: '", name, "' ", std::string(why),
      "; TORCH_REMOTE_FALLBACK=allow runs such ops on this process's CPU, and =warn also prints a warning");
  if (what == Setting::kWarn && is_first_warning(name)) {
    // TORCH_WARN would not do: only some callers of ops turn it into a Python warning with the caller's line.
    const std::string text =
        c10::str("remote: '", name, "' ", why, "; it runs on this process's CPU, with copies there ",
                 "and back (TORCH_REMOTE_FALLBACK=warn)");
    pybind11::gil_scoped_acquire gil;
    if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 1) < 0) throw python_error();
  }
  calls.fetch_add(1, std::memory_order_relaxed);
  at::native::cpu_fallback(op, stack);
}

uint64_t client_fallbacks() { return calls.load(std::memory_order_relaxed); }
void reset_client_fallbacks() { calls.store(0, std::memory_order_relaxed); }

bool worker_has(const c10::OperatorHandle& op, c10::DeviceIndex device) {
  if (op.operator_name().name.starts_with("aten::")) return true;
  const std::string name = c10::toString(op.operator_name());
  const WithoutGil without_gil;  // the answer may come after a program whose build needs the GIL
  const std::shared_ptr<remote::Client> worker = client(device);
  const uint64_t session = worker->connection().session();
  AllAnswers& all = all_answers();
  Answers& answers = all.devices[device];
  {
    const std::lock_guard lock(all.mutex);
    if (answers.session != session) answers = {session, {}};
    if (const auto known = answers.has_op.find(name); known != answers.has_op.end()) return known->second;
  }
  bool has = false;
  remote::OpError error;
  const WaitSpan span("has op", wait_line());
  const Status status = worker->has_op(name, keep_waiting, &has, &error);
  if (!error.status.ok()) raise(error);
  check(status);
  const std::lock_guard lock(all.mutex);
  if (answers.session == session) answers.has_op.emplace(name, has);
  return has;
}

}  // namespace torch_remote::frontend
