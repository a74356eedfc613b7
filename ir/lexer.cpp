#include "ir/lexer.h"

#include <bit>
#include <charconv>

#include "ir/text.h"

namespace torch_remote::ir::text {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void fail(Token& token, std::string what) {
  token.kind = TokenKind::kError;
  token.text = std::move(what);
}

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

void Lexer::skip_blanks(bool* first_on_line) {
  *first_on_line = position_ == 0;
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c == '\n') {
      *first_on_line = true;
      ++line_;
      line_start_ = position_ + 1;
    } else if (c == '/' && at(1) == '/') {
      while (position_ < text_.size() && text_[position_] != '\n') ++position_;
      continue;
    } else if (c != ' ' && c != '\t' && c != '\r') {
      return;
    }
    ++position_;
  }
}

Token Lexer::next() {
  Token token;
  skip_blanks(&token.first_on_line);
  token.line = line_;
  token.column = static_cast<uint32_t>(position_ - line_start_) + 1;
  if (position_ >= text_.size()) return token;
  const char c = text_[position_];
  if (is_name_start(c)) {
    name(token);
  } else if (c == '%') {
    view(token);
  } else if (is_digit(c) || (c == '-' && is_digit(at(1)))) {
    number(token);
  } else if (c == '"') {
    string(token);
  } else if (c == '-' && at(1) == '>') {
    token.kind = TokenKind::kArrow;
    position_ += 2;
  } else if (c == '.' && at(1) == '.') {
    token.kind = TokenKind::kRange;
    position_ += 2;
  } else if (std::string_view("()[]{},:=+-*@!?").find(c) != std::string_view::npos) {
    token.kind = TokenKind::kPunct;
    token.text = c;
    ++position_;
  } else {
    fail(token, "a character that has no meaning here");
  }
  return token;
}

void Lexer::name(Token& token) {
  const size_t begin = position_;
  for (;;) {
    while (is_name_char(at(0))) ++position_;
    if (at(0) == ':' && at(1) == ':' && is_name_start(at(2))) {
      position_ += 2;
    } else if (at(0) == '.' && is_name_start(at(1))) {
      position_ += 1;
    } else {
      break;
    }
  }
  token.kind = TokenKind::kName;
  token.text = text_.substr(begin, position_ - begin);
}

void Lexer::view(Token& token) {
  const char* begin = text_.data() + position_ + 1;
  uint32_t index = 0;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), index);
  if (error != std::errc()) return fail(token, "after % must come the number of a view");
  token.kind = TokenKind::kView;
  token.integer = index;
  position_ += static_cast<size_t>(end - begin) + 1;
}

void Lexer::number(Token& token) {
  size_t length = 1;
  while (is_digit(at(length))) ++length;
  bool is_float = false;
  if (at(length) == '.' && is_digit(at(length + 1))) {
    is_float = true;
    ++length;
    while (is_digit(at(length))) ++length;
  }
  if (at(length) == 'e') {
    const size_t digits = length + (at(length + 1) == '+' || at(length + 1) == '-' ? 2 : 1);
    if (is_digit(at(digits))) {
      is_float = true;
      length = digits;
      while (is_digit(at(length))) ++length;
    }
  }
  const char* begin = text_.data() + position_;
  if (is_float) {
    double value = 0;
    // from_chars fails for a number outside of double's range.
    if (std::from_chars(begin, begin + length, value).ec != std::errc())
      return fail(token, "a number that no double holds");
    token.kind = TokenKind::kFloat;
    token.integer = std::bit_cast<int64_t>(value);
  } else {
    if (std::from_chars(begin, begin + length, token.integer).ec != std::errc()) {
      return fail(token, "a number that does not fit 64 bits");
    }
    token.kind = TokenKind::kInt;
  }
  position_ += length;
}

void Lexer::string(Token& token) {
  ++position_;
  while (at(0) != '"') {
    char c = at(0);
    if (position_ >= text_.size() || c == '\n') return fail(token, "a string that does not end on its line");
    if (c == '\\') {
      ++position_;
      c = at(0);
      if (c == 'n') {
        c = '\n';
      } else if (c == 'x') {
        const int high = hex_digit(at(1));
        const int low = hex_digit(at(2));
        if (high < 0 || low < 0) return fail(token, "after \\x must come two hexadecimal digits");
        c = static_cast<char>(high * 16 + low);
        position_ += 2;
      } else if (c != '"' && c != '\\') {
        return fail(token, "an escape that has no meaning; there are \\n, \\\", \\\\ and \\xhh");
      }
    }
    token.text += c;
    ++position_;
  }
  ++position_;
  token.kind = TokenKind::kString;
}

}  // namespace torch_remote::ir::text
