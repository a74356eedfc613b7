#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

// The results of a target's self-test (`torch-remote-worker --probe --self-test`).
namespace torch_remote::worker {

// kSkipped: this machine does not need the part, or lacks an optional one. kNotRun: an earlier failure prevented it.
enum class SelfTestState : uint8_t { kOk, kFailed, kSkipped, kNotRun };

struct SelfTestRow {
  std::string name;  // "run sort.cu", "GEMM (cuBLASLt)"
  SelfTestState state = SelfTestState::kOk;
  std::string reason = {};   // Why the state is not kOk, and what to do. Empty for kOk.
  std::string program = {};  // For a failed row: the program that ran, in the text form of the IR.
  double milliseconds = 0;
};

// Gets each row when it is complete.
using SelfTestReport = std::function<void(const SelfTestRow& row)>;

// "ok", "failed", "skipped", "not run"
const char* name(SelfTestState state);

// A line of the table, with a newline.
std::string to_text(const SelfTestRow& row);
std::string json_of(const SelfTestRow& row);

// Exit status of the self-test: 0 if each row is ok or skipped, otherwise 1.
int status_of(std::span<const SelfTestRow> rows);

}  // namespace torch_remote::worker
