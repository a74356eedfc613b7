#include "frontend/source/user_frame.h"

#include <algorithm>
#include <memory>
#include <string_view>

namespace torch_remote::frontend {

std::vector<std::string>& library_folders() {
  static auto* folders = new std::vector<std::string>;
  return *folders;
}

Callers& callers() {
  static auto* instance = new Callers;
  return *instance;
}

CodeTable::Kind CodeTable::insert(PyCodeObject* code) {
  const Kind known = find(code);
  if (known != Kind::kUnknown) return known;
  const Kind kind = is_library(code) ? Kind::kLibrary : Kind::kUser;
  if (count_ >= kSize / 2) return Kind::kUnknown;
  ++count_;
  Py_INCREF(code);
  size_t i = slot(code);
  while (entries_[i].load(std::memory_order_relaxed) != 0) i = (i + 1) & (kSize - 1);
  entries_[i].store(reinterpret_cast<uintptr_t>(code) | (kind == Kind::kLibrary), std::memory_order_release);
  return kind;
}

bool CodeTable::is_library(PyCodeObject* code) {
  if (frames::is_internal(code)) return true;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) {
    PyErr_Clear();
    return true;
  }
  const std::string_view name(file);
  if (name.starts_with("<frozen")) return true;
  return std::ranges::any_of(library_folders(), [&](const std::string& folder) { return name.starts_with(folder); });
}

uint32_t new_callers(frames::Frame* frame) {
  struct Owner {
    std::unique_ptr<LastCallers> last = std::make_unique<LastCallers>();
    ~Owner() { last_callers = nullptr; }
  };
  static thread_local Owner owner;
  last_callers = owner.last.get();
  LastCallers& last = *last_callers;
  std::array<frames::Frame*, LastCallers::kMost> chain;
  uint32_t count = 0;
  for (; frame != nullptr && count < LastCallers::kMost; frame = frames::caller(frame)) chain[count++] = frame;
  // The outermost frames that both chains share already have numbers.
  uint32_t same = 0;
  while (same < std::min(count, last.count) &&
         last.at[last.count - 1 - same] == frames::instruction(chain[count - 1 - same])) {
    ++same;
  }
  uint32_t number = same > 0 ? last.numbers[last.count - same] : 0;
  if (count > last.count) {
    std::move_backward(last.at.begin() + last.count - same, last.at.begin() + last.count, last.at.begin() + count);
    std::move_backward(last.numbers.begin() + last.count - same, last.numbers.begin() + last.count,
                       last.numbers.begin() + count);
  } else if (count < last.count) {
    std::move(last.at.begin() + last.count - same, last.at.begin() + last.count, last.at.begin() + count - same);
    std::move(last.numbers.begin() + last.count - same, last.numbers.begin() + last.count,
              last.numbers.begin() + count - same);
  }
  last.count = last.number = 0;  // invalid until the loop below has finished
  for (uint32_t i = count - same; i-- > 0;) {
    PyCodeObject* code = frames::code(chain[i]);
    const void* instruction = frames::instruction(chain[i]);
    if (code != nullptr && !frames::is_internal(code)) {
      if (kind_of(code) == CodeTable::Kind::kUnknown) return 0;
      number = callers().number(number, code, instruction, frames::offset(chain[i], code));
      if (number == 0) return 0;
    }
    last.at[i] = instruction;
    last.numbers[i] = number;
  }
  last.count = count;
  return last.number = number;
}

}  // namespace torch_remote::frontend
