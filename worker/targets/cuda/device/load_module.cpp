#include "worker/targets/cuda/device/load_module.h"

#include <array>
#include <string>

namespace torch_remote::worker::cuda {

bool is_refused_image(Result result) {
  return result == Result::kInvalidImage || result == Result::kNoBinaryForGpu ||
         result == Result::kUnsupportedPtxVersion;
}

Status load_module(const Driver& driver, const void* image, Module* module, bool* refused) {
  std::array<char, 4096> log{};
  JitOption options[] = {JitOption::kErrorLog, JitOption::kErrorLogBytes};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver wants the size in a pointer's place
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  const Result result = driver.module_load_data_ex(module, image, 2, options, values);
  *refused = is_refused_image(result);
  const Status status = to_status(driver, result, "cuModuleLoadDataEx");
  if (status.ok() || log[0] == '\0') return status;
  std::string text = log.data();
  text.resize(text.find_last_not_of(" \n") + 1);
  return {status.code(), status.message() + ": " + text, status.exception_type()};
}

}  // namespace torch_remote::worker::cuda
