#include "tests/random_programs/graph_inputs.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>
#include <string_view>

#include "ir/testing/random_graph.h"
#include "passes/pass.h"

namespace torch_remote::fuzz {
namespace {

constexpr std::string_view kWords[] = {"graph",
                                       "(",
                                       ")",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "=",
                                       "+",
                                       "-",
                                       "*",
                                       "@",
                                       "!",
                                       "?",
                                       "->",
                                       "..",
                                       "\n",
                                       "\n  ",
                                       " ",
                                       "//",
                                       "op",
                                       "loc",
                                       "none",
                                       "true",
                                       "false",
                                       "input",
                                       "fresh",
                                       "survives",
                                       "written_once",
                                       "may_reuse",
                                       "s0",
                                       "s1",
                                       "s7",
                                       "s4294967295",
                                       "b0",
                                       "b1",
                                       "b9",
                                       "%0",
                                       "%1",
                                       "%2",
                                       "%77",
                                       "@b0",
                                       "f32",
                                       "i64",
                                       "bool",
                                       "c64",
                                       "bf16",
                                       "float",
                                       "complex",
                                       "philox",
                                       "tensor",
                                       "number",
                                       "floordiv",
                                       "mod",
                                       "max",
                                       "min",
                                       "self",
                                       "other",
                                       "alpha",
                                       "dim",
                                       "Tensor",
                                       "Tensor?",
                                       "Tensor[]",
                                       "Tensor@0",
                                       "int[]?",
                                       "Scalar",
                                       "Generator",
                                       "pure",
                                       "in_place",
                                       "flag31",
                                       "aten::add.Tensor",
                                       "aten::relu",
                                       "aten::relu_",
                                       "aten::cat",
                                       "aten::sum.dim_IntList",
                                       "aten::_foreach_add.List",
                                       "aten::nonzero",
                                       "aten::native_dropout",
                                       "my::op",
                                       "my::",
                                       "::",
                                       "channels_last",
                                       "preserve",
                                       "\"",
                                       "\"text\"",
                                       "\"\\x00\"",
                                       "\"\\q\"",
                                       "\"\xff\xfe\""};

constexpr std::string_view kNumbers[] = {"0",
                                         "1",
                                         "-1",
                                         "2",
                                         "63",
                                         "64",
                                         "65",
                                         "127",
                                         "128",
                                         "255",
                                         "256",
                                         "65535",
                                         "16777215",
                                         "16777216",
                                         "2147483647",
                                         "2147483648",
                                         "4294967294",
                                         "4294967295",
                                         "4294967296",
                                         "9223372036854775807",
                                         "-9223372036854775808",
                                         "9223372036854775808",
                                         "18446744073709551616",
                                         "0.5",
                                         "-0.0",
                                         "1e308",
                                         "1e309",
                                         "5e-324",
                                         "1e-400",
                                         "00",
                                         "1.",
                                         "1e"};

template <typename T, size_t N>
const T& any_of(Rng& rng, const T (&list)[N]) {
  return list[rng() % N];
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == ':'; }

// Splits a text into tokens. Whitespace is a token, too, so joining them gives the text.
std::vector<std::string> tokens_of(std::string_view text) {
  std::vector<std::string> out;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    if (is_word(text[i])) {
      while (end < text.size() && is_word(text[end])) ++end;
    }
    out.emplace_back(text.substr(i, end - i));
    i = end;
  }
  return out;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return out;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string out;
  for (const std::string& piece : pieces) out += piece;
  return out;
}

// Applies one change to a list of tokens or lines. `others` is the source of foreign pieces.
void damage_pieces(Rng& rng, std::vector<std::string>& pieces, const std::vector<std::string>& others) {
  if (pieces.empty() || others.empty()) return;
  const size_t at = rng() % pieces.size();
  const auto place = pieces.begin() + static_cast<ptrdiff_t>(at);
  switch (rng() % 5) {
    case 0:
      pieces.erase(place);
      break;
    case 1:
      pieces.insert(place, pieces[rng() % pieces.size()]);
      break;
    case 2:
      std::swap(*place, pieces[rng() % pieces.size()]);
      break;
    case 3:
      *place = pieces[rng() % pieces.size()];
      break;
    default:
      *place = others[rng() % others.size()];
  }
}

void change_number(Rng& rng, std::vector<std::string>& tokens) {
  for (int attempt = 0; attempt < 20 && !tokens.empty(); ++attempt) {
    std::string& token = tokens[rng() % tokens.size()];
    const size_t digit = token.find_first_of("0123456789");
    if (digit == std::string::npos) continue;
    token.replace(digit, std::string::npos, any_of(rng, kNumbers));
    return;
  }
}

void damage_character(Rng& rng, std::string& text) {
  if (text.empty()) return;
  const size_t at = rng() % text.size();
  switch (rng() % 4) {
    case 0:
      text.erase(at, 1 + rng() % 8);
      break;
    case 1:
      text.insert(at, 1, static_cast<char>(rng()));
      break;
    case 2:
      text.insert(at, 1 + rng() % 300, "[({%,9a\""[rng() % 8]);
      break;
    default:
      text.resize(at);
  }
}

std::string words_in_no_order(Rng& rng) {
  std::string text = rng() % 4 == 0 ? "" : "graph(s0..s3) {\n  b0: input survives\n  %0: f32[s0]{1} @b0\n";
  for (uint64_t i = rng() % 60; i > 0; --i) {
    text += rng() % 5 == 0 ? any_of(rng, kNumbers) : any_of(rng, kWords);
    if (rng() % 3 == 0) text += ' ';
  }
  return rng() % 2 == 0 ? text : text + "\n}\n";
}

// A random graph. Half of them went through the pipeline, so they have memory plans and expressions.
ir::Graph any_graph(Rng& rng) {
  ir::Graph graph = ir::testing::random_graph(rng, {.max_nodes = 1 + static_cast<uint32_t>(rng() % 12)});
  if (rng() % 2 == 0 && !passes::run_pipeline(graph).ok()) return {};
  return graph;
}

}  // namespace

std::string damaged_text(Rng& rng) {
  if (rng() % 8 == 0) return words_in_no_order(rng);
  std::string text = ir::print(any_graph(rng));
  for (uint64_t damages = rng() % 5; damages > 0; --damages) {
    const uint64_t how = rng() % 8;
    if (how == 0) {
      damage_character(rng, text);
    } else if (how < 3) {
      std::vector<std::string> lines = lines_of(text);
      damage_pieces(rng, lines, lines_of(ir::print(any_graph(rng))));
      text = joined(lines);
    } else {
      std::vector<std::string> tokens = tokens_of(text);
      if (how < 5) {
        change_number(rng, tokens);
      } else {
        damage_pieces(rng, tokens, {std::begin(kWords), std::end(kWords)});
      }
      text = joined(tokens);
    }
  }
  return text;
}

std::vector<uint8_t> damaged_program(Rng& rng) {
  std::vector<uint8_t> bytes = ir::encode_program(any_graph(rng));
  for (uint64_t damages = rng() % 5; damages > 0 && bytes.size() > 16; --damages) {
    const size_t at = rng() % (bytes.size() - 4);
    switch (rng() % 6) {
      case 0: {
        constexpr uint32_t kEdges[] = {0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF};
        const uint32_t value = rng() % 2 == 0 ? any_of(rng, kEdges) : static_cast<uint32_t>(rng() % 64);
        std::memcpy(&bytes[at / 4 * 4], &value, 4);
        break;
      }
      case 1: {  // an offset or a struct from elsewhere
        const size_t from = rng() % (bytes.size() - 4);
        std::memmove(&bytes[at / 4 * 4], &bytes[from / 4 * 4], 4);
        break;
      }
      case 2: {
        const size_t size = std::min<size_t>(1 + rng() % 40, bytes.size() - at);
        const size_t from = rng() % (bytes.size() - size + 1);
        std::memmove(&bytes[at], &bytes[from], size);
        break;
      }
      case 3:
        bytes.resize(at + 1);
        break;
      default:
        bytes[at] = rng() % 2 == 0 ? static_cast<uint8_t>(rng()) : static_cast<uint8_t>(bytes[at] ^ 1u << rng() % 8);
    }
  }
  return bytes;
}

}  // namespace torch_remote::fuzz
