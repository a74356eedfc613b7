#include "frontend/record/flush_log.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "frontend/source/source.h"
#include "remote/wire/environment.h"

namespace torch_remote::frontend {
namespace {

bool log_flushes() {
  static const bool on = [] {
    const char* value = std::getenv("TORCH_REMOTE_LOG");
    return value != nullptr && std::string_view(value).find("flush") != std::string_view::npos;
  }();
  return on;
}

struct Notes {
  std::mutex mutex;
  std::vector<FlushNote> pending;
};

Notes& notes() {
  static auto* instance = new Notes;
  return *instance;
}

std::string why(const remote::FlushInfo& info) {
  if (info.hit) return "hit";
  if (info.first_difference == SIZE_MAX) return "miss (no program known)";
  if (info.first_difference >= info.ops) return "miss (other tensors outlive it)";
  return "miss (op " + std::to_string(info.first_difference) + " differs)";
}

}  // namespace

void note_flush(const FlushNote& note) {
  if (!log_flushes()) return;
  std::lock_guard lock(notes().mutex);
  notes().pending.push_back(note);
}

void report_flushes() {
  if (!log_flushes()) return;
  std::vector<FlushNote> pending;
  {
    std::lock_guard lock(notes().mutex);
    pending.swap(notes().pending);
  }
  for (const FlushNote& note : pending) {
    const std::string line = describe_source(note.source);
    std::fprintf(stderr, "remote flush: %zu ops, program %u, %s, %zu bytes, %.1f us, %s, %s\n", note.info.ops,
                 note.info.program, why(note.info).c_str(), note.info.bytes, static_cast<double>(note.ns) * 1e-3,
                 note.reason, line.empty() ? "?" : line.c_str());
  }
}

bool sync_each_op() {
  static const bool on = remote::is_enabled("TORCH_REMOTE_SYNC");
  return on;
}

}  // namespace torch_remote::frontend
