#include "ir/trace.h"

#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>

namespace torch_remote::ir {
namespace {

constexpr uint64_t kMultiplierLo = 0x9FB21C651E98DF25;
constexpr uint64_t kMultiplierHi = 0xD6E8FEB86659FD93;

inline void fold(Hash128& hash, uint64_t words) {
  hash.lo = (hash.lo ^ words) * kMultiplierLo;
  hash.lo ^= hash.lo >> 31;
  hash.hi = (hash.hi + words) * kMultiplierHi;
  hash.hi ^= hash.hi >> 29;
}

}  // namespace

void Trace::clear() {
  code.clear();
  params.clear();
  records.clear();
  sources.clear();
  buffers.clear();
  views.clear();
  math_modes = 0;
  deterministic = false;
  hash_ = {0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F};
}

void Trace::end_record() {
  const uint32_t* word = code.data() + records.back().code;
  const uint32_t* end = code.data() + code.size();
  for (; word + 2 <= end; word += 2) fold(hash_, word[0] | static_cast<uint64_t>(word[1]) << 32);
  if (word < end) fold(hash_, *word | uint64_t{0xA5A5} << 32);
}

Hash128 Trace::key() const {
  Hash128 hash = hash_;
  uint64_t bits = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    bits = bits << 1 | (buffers[i].owner != nullptr);
    if (i % 63 == 62) fold(hash, bits), bits = 1;
  }
  fold(hash, bits);
  fold(hash, buffers.size() << 32 | uint64_t{deterministic} << 31 | records.size());
  return hash;
}

void Trace::survivors(std::vector<uint64_t>& out) const {
  out.assign((buffers.size() + 63) / 64, 0);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].owner != nullptr) out[i / 64] |= uint64_t{1} << (i % 64);
  }
}

std::vector<uint64_t> Trace::survivors() const {
  std::vector<uint64_t> out;
  survivors(out);
  return out;
}

namespace {

struct Interned {
  std::mutex mutex;
  std::deque<std::string> texts;
  std::unordered_map<std::string_view, uint32_t> numbers;
};

Interned& interned() {
  static auto* table = new Interned;  // never destroyed: threads may record during exit
  return *table;
}

}  // namespace

uint32_t intern_string(std::string_view text) {
  Interned& table = interned();
  std::lock_guard lock(table.mutex);
  auto found = table.numbers.find(text);
  if (found != table.numbers.end()) return found->second;
  const uint32_t number = static_cast<uint32_t>(table.texts.size());
  table.numbers.emplace(table.texts.emplace_back(text), number);
  return number;
}

std::string_view interned_string(uint32_t number) {
  Interned& table = interned();
  std::lock_guard lock(table.mutex);
  return number < table.texts.size() ? std::string_view(table.texts[number]) : std::string_view();
}

}  // namespace torch_remote::ir
