#include "tools/viz/shared_json.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace torch_remote::tools {
namespace {

constexpr size_t kShortString = 6;  // strings of at most this length are no longer than a reference to an entry

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 127 && c != '"' && c != '\\'; });
}

// The value as JSON. Numbers and plain strings, of which there are most, do not take dump()'s longer way.
std::string compact(const Json& value) {
  if (value.is_number_unsigned()) return std::to_string(value.get<uint64_t>());
  if (value.is_null()) return "null";
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_string() && is_plain(value.get_ref<const std::string&>())) {
    return "\"" + value.get_ref<const std::string&>() + "\"";
  }
  std::string text = dump(value, -1);
  text.pop_back();  // the final newline
  return text;
}

void append_list(std::string& out, const std::vector<const std::string*>& items) {
  out += '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ',';
    out += *items[i];
  }
  out += ']';
}

}  // namespace

uint32_t SharedJson::add(const Json& value) { return intern(entry(value)); }

std::string SharedJson::child(const Json& value) {
  const bool is_short = value.is_string() && value.get_ref<const std::string&>().size() <= kShortString;
  if (is_short || !(value.is_string() || value.is_structured())) return compact(value);
  return "[" + std::to_string(add(value)) + "]";
}

std::string SharedJson::entry(const Json& value) {
  if (!value.is_structured()) return compact(value);
  std::string text = "[-1";
  if (value.is_object()) {
    std::string names = "[";
    for (const auto& item : value.items()) names += (names.size() > 1 ? "," : "") + compact(item.key());
    const auto [place, added] = key_numbers_.try_emplace(names + "]", static_cast<uint32_t>(keys_.size()));
    if (added) {
      keys_.push_back(&place->first);
      bytes_ += place->first.size() + 1;
    }
    text = "[" + std::to_string(place->second);
  }
  for (const Json& item : value) {
    text += ",";
    text += child(item);
  }
  return text + "]";
}

uint32_t SharedJson::intern(std::string entry) {
  const auto [place, added] = numbers_.try_emplace(std::move(entry), size());
  if (added) {
    entries_.push_back(&place->first);
    bytes_ += place->first.size() + 1;
  }
  return place->second;
}

void SharedJson::truncate(uint32_t size) {
  while (entries_.size() > size) {
    bytes_ -= entries_.back()->size() + 1;
    numbers_.erase(numbers_.find(*entries_.back()));
    entries_.pop_back();
  }
}

std::string SharedJson::text() const {
  std::string out;
  out.reserve(bytes_ + 64);
  out += "{\"keys\":";
  append_list(out, keys_);
  out += ",\"entries\":";
  append_list(out, entries_);
  return out + "}";
}

}  // namespace torch_remote::tools
