#pragma once

#include <Python.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontend/source/frames.h"
#include "ir/trace.h"

// Finds this thread's innermost user frame and the chain of its callers. It is inlined into capture_source(), because
// another function call is measurable per op.
namespace torch_remote::frontend {

constexpr uint32_t kBackward = 0x8000'0000;  // a bit of SourceRef::callers: the record belongs to a backward pass

// Folders whose files are not user code. Written at import; read with the GIL held.
std::vector<std::string>& library_folders();

// All code objects seen so far, and whether each is user code. A hash table with open addressing. Entries are never
// removed and code objects are kept alive, so an address identifies a code object forever. It is read without a lock
// and written with the GIL held.
class CodeTable {
 public:
  enum class Kind { kUnknown, kUser, kLibrary };

  Kind find(PyCodeObject* code) const {
    for (size_t i = slot(code);; i = (i + 1) & (kSize - 1)) {
      const uintptr_t entry = entries_[i].load(std::memory_order_acquire);
      if (entry == 0) return Kind::kUnknown;
      if ((entry & ~uintptr_t{1}) == reinterpret_cast<uintptr_t>(code)) {
        return entry & 1 ? Kind::kLibrary : Kind::kUser;
      }
    }
  }

  // Requires the GIL. Returns kUnknown if the table is full; the code object is then not kept alive.
  Kind insert(PyCodeObject* code);

 private:
  static constexpr size_t kSize = 1 << 16;
  static size_t slot(PyCodeObject* code) {
    return (reinterpret_cast<uintptr_t>(code) >> 4) * 0x9E3779B97F4A7C15ull >> 48;
  }
  // Whether the code is part of a library, or CPython runs it itself.
  static bool is_library(PyCodeObject* code);

  std::array<std::atomic<uintptr_t>, kSize> entries_{};
  size_t count_ = 0;
};

inline CodeTable& codes() {
  static auto* table = new CodeTable;
  return *table;
}

inline CodeTable::Kind kind_of(PyCodeObject* code) {
  CodeTable::Kind kind = codes().find(code);
  if (kind == CodeTable::Kind::kUnknown) [[unlikely]] {
    const PyGILState_STATE gil = PyGILState_Ensure();
    kind = codes().insert(code);
    PyGILState_Release(gil);
  }
  return kind;
}

// Chains of callers, stored as a tree. A number identifies a frame together with the number of its caller; 0 means no
// caller, or that the table is full. Entries are never removed, and their code objects stay alive.
class Callers {
 public:
  struct Frame {
    uint32_t caller = 0;
    PyCodeObject* code = nullptr;
    int32_t instruction = -1;
  };
  static constexpr uint32_t kMost = 1 << 20;

  // Does not need the GIL.
  uint32_t number(uint32_t caller, PyCodeObject* code, const void* at, int32_t instruction) {
    std::lock_guard lock(mutex_);
    const auto [found, added] = numbers_.try_emplace({caller, at}, static_cast<uint32_t>(frames_.size()));
    if (!added) return found->second;
    if (frames_.size() == kMost) {
      numbers_.erase(found);
      return 0;
    }
    frames_.push_back({caller, code, instruction});
    return found->second;
  }
  Frame frame(uint32_t number) {
    std::lock_guard lock(mutex_);
    return number < frames_.size() ? frames_[number] : Frame();
  }

 private:
  struct Hash {
    size_t operator()(const std::pair<uint32_t, const void*>& key) const {
      return (reinterpret_cast<uintptr_t>(key.second) ^ uint64_t{key.first} << 40) * 0x9E3779B97F4A7C15 >> 8;
    }
  };
  std::mutex mutex_;
  std::unordered_map<std::pair<uint32_t, const void*>, uint32_t, Hash> numbers_;
  std::deque<Frame> frames_{Frame()};
};

Callers& callers();

// The call chain of this thread's last record, innermost frame first. `at` has each frame's address inside a code
// object that stays alive, so equal addresses mean the same instruction. A record with the same callers costs one
// comparison per frame.
struct LastCallers {
  static constexpr uint32_t kMost = 128;  // frames outside of these are ignored
  uint32_t count = 0;
  uint32_t number = 0;
  std::array<const void*, kMost> at{};
  std::array<uint32_t, kMost> numbers{};  // number of the chain that starts at that frame
};

// Owned by new_callers().
[[gnu::tls_model("initial-exec")]] constinit inline thread_local LastCallers* last_callers = nullptr;

// The number of the chain that starts with this frame, whose callers are not those of the thread's last record.
[[gnu::noinline]] uint32_t new_callers(frames::Frame* frame);

// The number of the chain that starts with this frame.
[[gnu::always_inline]] inline uint32_t callers_of(frames::Frame* frame) {
  const LastCallers* last = last_callers;
  if (last == nullptr) return new_callers(frame);
  uint32_t i = 0;
  frames::Frame* caller = frame;
  for (; caller != nullptr && i < last->count; caller = frames::caller(caller), ++i) {
    if (frames::instruction(caller) != last->at[i]) return new_callers(frame);
  }
  if (i != last->count || (caller != nullptr && i < LastCallers::kMost)) return new_callers(frame);
  return last->number;
}

// The innermost user frame; without one, the innermost frame.
[[gnu::always_inline]] inline ir::SourceRef frame_source(PyThreadState* state) {
  ir::SourceRef innermost;
  int depth = 0;
  for (frames::Frame* frame = frames::current(state); frame != nullptr && depth < 64; frame = frames::caller(frame)) {
    PyCodeObject* code = frames::code(frame);
    if (code == nullptr) continue;
    const CodeTable::Kind kind = kind_of(code);
    ++depth;
    if (kind == CodeTable::Kind::kUnknown) return {};
    if (kind == CodeTable::Kind::kUser || innermost.code == 0) {
      innermost.code = reinterpret_cast<uint64_t>(code);
      innermost.instruction = frames::offset(frame, code);
      if (kind == CodeTable::Kind::kUser) {
        innermost.callers = callers_of(frames::caller(frame));
        return innermost;
      }
    }
  }
  return innermost;
}

}  // namespace torch_remote::frontend
