#include "worker/targets/self_test.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "worker/targets/probed_part.h"

namespace torch_remote::worker {
namespace {

std::string milliseconds_text(double milliseconds) {
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%.1f", milliseconds);
  return text.data();
}

// At least `width` characters.
std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

}  // namespace

const char* name(SelfTestState state) {
  switch (state) {
    case SelfTestState::kOk:
      return "ok";
    case SelfTestState::kFailed:
      return "failed";
    case SelfTestState::kSkipped:
      return "skipped";
    case SelfTestState::kNotRun:
      return "not run";
  }
  return "?";
}

std::string to_text(const SelfTestRow& row) {
  const std::string line =
      padded(row.name, 32) + padded(name(row.state), 9) + padded(milliseconds_text(row.milliseconds) + " ms", 12);
  return line.substr(0, line.find_last_not_of(' ') + 1) + (row.reason.empty() ? "" : "  " + row.reason) + "\n";
}

std::string json_of(const SelfTestRow& row) {
  return "{\"name\": " + json_text(row.name) + ", \"state\": " + json_text(name(row.state)) +
         ", \"reason\": " + json_text(row.reason) + ", \"milliseconds\": " + milliseconds_text(row.milliseconds) +
         ", \"program\": " + json_text(row.program) + "}";
}

int status_of(std::span<const SelfTestRow> rows) {
  const bool good = std::ranges::all_of(rows, [](const SelfTestRow& row) {
    return row.state == SelfTestState::kOk || row.state == SelfTestState::kSkipped;
  });
  return good ? 0 : 1;
}

}  // namespace torch_remote::worker
