#include "tools/dump/sequence_diff.h"

#include <algorithm>
#include <functional>

namespace torch_remote::tools {
namespace {

constexpr size_t kContext = 3;
constexpr int64_t kMaxEdits = 2000;  // the search stores a row of up to this many numbers per edit

// Searches the middle part, between the common beginning and end. `out` gets pairs relative to it.
class Myers {
 public:
  Myers(std::span<const uint64_t> a, std::span<const uint64_t> b)
      : a_(a), b_(b), n_(static_cast<int64_t>(a.size())), m_(static_cast<int64_t>(b.size())) {}

  // Returns false if more than kMaxEdits edits are needed.
  bool run(Pairs& out) {
    const int64_t limit = std::min(n_ + m_, kMaxEdits);
    offset_ = limit + 1;
    std::vector<int64_t> furthest(static_cast<size_t>(2 * limit + 3), 0);
    for (int64_t d = 0; d <= limit; ++d) {
      rows_.emplace_back(furthest.begin() + (offset_ - d), furthest.begin() + (offset_ + d + 1));
      for (int64_t k = -d; k <= d; k += 2) {
        const bool down = k == -d || (k != d && at(furthest, k - 1) < at(furthest, k + 1));
        int64_t x = down ? at(furthest, k + 1) : at(furthest, k - 1) + 1;
        while (x < n_ && x - k < m_ && a_[static_cast<size_t>(x)] == b_[static_cast<size_t>(x - k)]) ++x;
        at(furthest, k) = x;
        if (x < n_ || x - k < m_) continue;
        trace(d, out);
        return true;
      }
    }
    return false;
  }

 private:
  int64_t& at(std::vector<int64_t>& row, int64_t k) const { return row[static_cast<size_t>(offset_ + k)]; }

  // Walks from the end back to the beginning. rows_[d] holds how far each diagonal had come before step d.
  void trace(int64_t d, Pairs& out) const {
    int64_t x = n_;
    int64_t y = m_;
    for (; d >= 0; --d) {
      const int64_t k = x - y;
      const auto before = [&](int64_t diagonal) {
        const int64_t index = diagonal + d;
        return index < 0 || index > 2 * d ? -1 : rows_[static_cast<size_t>(d)][static_cast<size_t>(index)];
      };
      const bool down = k == -d || (k != d && before(k - 1) < before(k + 1));
      const int64_t previous_x = d == 0 ? 0 : before(down ? k + 1 : k - 1);
      const int64_t previous_y = d == 0 ? 0 : previous_x - (down ? k + 1 : k - 1);
      const int64_t begin = d == 0 ? 0 : (down ? previous_x : previous_x + 1);
      for (; x > begin; --x, --y) out.emplace_back(x - 1, y - 1);
      x = previous_x;
      y = previous_y;
    }
    std::ranges::reverse(out);
  }

  std::span<const uint64_t> a_, b_;
  int64_t n_, m_;
  int64_t offset_ = 0;
  std::vector<std::vector<int64_t>> rows_;
};

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

struct Edit {
  char mark;  // ' ', '-' or '+'
  std::string_view line;
};

std::vector<Edit> edits_of(const std::vector<std::string_view>& a, const std::vector<std::string_view>& b) {
  const auto hashes = [](const std::vector<std::string_view>& lines) {
    std::vector<uint64_t> out;
    out.reserve(lines.size());
    for (const std::string_view line : lines) out.push_back(std::hash<std::string_view>()(line));
    return out;
  };
  Pairs pairs = common_elements(hashes(a), hashes(b));
  std::erase_if(pairs, [&](const auto& pair) { return a[pair.first] != b[pair.second]; });
  pairs.emplace_back(a.size(), b.size());
  std::vector<Edit> edits;
  size_t i = 0;
  size_t j = 0;
  for (const auto& [next_i, next_j] : pairs) {
    for (; i < next_i; ++i) edits.push_back({'-', a[i]});
    for (; j < next_j; ++j) edits.push_back({'+', b[j]});
    if (i < a.size()) edits.push_back({' ', a[i]});
    ++i;
    ++j;
  }
  return edits;
}

}  // namespace

Pairs common_elements(std::span<const uint64_t> a, std::span<const uint64_t> b) {
  Pairs pairs;
  size_t begin = 0;
  while (begin < a.size() && begin < b.size() && a[begin] == b[begin]) {
    pairs.emplace_back(begin, begin);
    ++begin;
  }
  size_t tail = 0;
  while (tail < std::min(a.size(), b.size()) - begin && a[a.size() - 1 - tail] == b[b.size() - 1 - tail]) ++tail;
  Pairs middle;
  const auto part = [&](std::span<const uint64_t> all) { return all.subspan(begin, all.size() - tail - begin); };
  if (Myers(part(a), part(b)).run(middle)) {
    for (const auto& [i, j] : middle) pairs.emplace_back(begin + i, begin + j);
  }
  for (size_t i = tail; i > 0; --i) pairs.emplace_back(a.size() - i, b.size() - i);
  return pairs;
}

std::string unified_diff(std::string_view a, std::string_view b, const std::string& name_a, const std::string& name_b) {
  if (a == b) return {};
  const std::vector<Edit> edits = edits_of(lines_of(a), lines_of(b));
  std::vector<bool> shown(edits.size());
  for (size_t i = 0; i < edits.size(); ++i) {
    if (edits[i].mark == ' ') continue;
    for (size_t j = i < kContext ? 0 : i - kContext; j <= std::min(i + kContext, edits.size() - 1); ++j)
      shown[j] = true;
  }
  std::string out = "--- " + name_a + "\n+++ " + name_b + "\n";
  size_t line_a = 1;
  size_t line_b = 1;
  for (size_t i = 0; i < edits.size(); ++i) {
    if (shown[i] && (i == 0 || !shown[i - 1])) {
      size_t count_a = 0;
      size_t count_b = 0;
      for (size_t j = i; j < edits.size() && shown[j]; ++j) {
        count_a += edits[j].mark != '+';
        count_b += edits[j].mark != '-';
      }
      out += "@@ -" + std::to_string(line_a) + "," + std::to_string(count_a) + " +" + std::to_string(line_b) + "," +
             std::to_string(count_b) + " @@\n";
    }
    if (shown[i]) out.append(1, edits[i].mark).append(edits[i].line).append(1, '\n');
    line_a += edits[i].mark != '+';
    line_b += edits[i].mark != '-';
  }
  return out;
}

}  // namespace torch_remote::tools
