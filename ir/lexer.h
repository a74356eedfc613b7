#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace torch_remote::ir::text {

enum class TokenKind : uint8_t {
  kEnd,
  kName,    // s0, survives, aten::add.Tensor
  kView,    // %12; the number is in `integer`
  kInt,     // -3
  kFloat,   // 1.5, -2e+10; the double's bits are in `integer`
  kString,  // the contents are in `text`, without quotes and with escapes replaced
  kArrow,   // ->
  kRange,   // ..
  kPunct,   // one character, in `text`
  kError,   // the error is in `text`
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  bool first_on_line = false;
  uint32_t line = 1;
  uint32_t column = 1;  // in bytes
  int64_t integer = 0;
  std::string text;

  bool is(char c) const { return kind == TokenKind::kPunct && text[0] == c; }
  bool is(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

// Splits the text form of a graph into tokens. "//" begins a comment that ends with its line. `text` must outlive the
// lexer. The tokens after an error have no meaning.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Token next();

 private:
  void skip_blanks(bool* first_on_line);
  void name(Token& token);
  void view(Token& token);
  void number(Token& token);
  void string(Token& token);
  char at(size_t ahead) const { return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0'; }

  std::string_view text_;
  size_t position_ = 0;
  size_t line_start_ = 0;
  uint32_t line_ = 1;
};

}  // namespace torch_remote::ir::text
