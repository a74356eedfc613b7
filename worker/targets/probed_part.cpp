#include "worker/targets/probed_part.h"

#include <array>
#include <cstdio>
#include <string_view>

namespace torch_remote::worker {

void ProbedPart::set_missing(const Status& status) {
  std::string text = status.message();
  for (const std::string_view prefix : {"cuda: ", "gpu: ", "remote: "}) {
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
  }
  const size_t end = text.find("; ");
  missing = text.substr(0, end);
  fix = end == std::string::npos ? "" : text.substr(end + 2);
}

std::string json_text(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> code{};
      (void)std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(c));
      result += code.data();
    } else {
      result += c;
    }
  }
  return result + '"';
}

void add_line(const std::string& name, const std::string& what, std::string* text) {
  *text += name + std::string(name.size() < 10 ? 10 - name.size() : 1, ' ') + what + "\n";
}

void add_part(const ProbedPart& part, std::string* text) {
  if (part.missing.empty()) {
    add_line(part.name, part.version + (part.version.empty() || part.path.empty() ? "" : ", ") + part.path, text);
    return;
  }
  add_line(part.name, "missing: " + part.missing + (part.without.empty() ? "" : ". Without it " + part.without), text);
  if (!part.fix.empty()) add_line("", "-> " + part.fix, text);
}

std::string json_of(const ProbedPart& part) {
  return "{\"name\": " + json_text(part.name) + ", \"path\": " + json_text(part.path) +
         ", \"version\": " + json_text(part.version) + ", \"missing\": " + json_text(part.missing) +
         ", \"fix\": " + json_text(part.fix) + ", \"without\": " + json_text(part.without) + "}";
}

}  // namespace torch_remote::worker
