#include <charconv>
#include <limits>
#include <optional>

#include "codegen/loop/loop_ir.h"
#include "codegen/loop/scalar_ops.h"

// Parses the text form; docs/loop_ir.md has its grammar. The parsed kernel may still not verify.
namespace torch_remote::codegen {
namespace {

using ir::DType;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Parser {
 public:
  Parser(std::string_view text, Kernel* kernel) : text_(text), kernel_(*kernel) { kernel_ = Kernel{}; }

  Status run() {
    if (header() && lines()) return {};
    return Status::invalid(error_);
  }

 private:
  // -- Tokens. Each function first skips blanks and comments, and sets the position that errors report ----------------

  char at(size_t ahead = 0) const { return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0'; }

  void skip_blanks() {
    while (position_ < text_.size()) {
      if (at() == '/' && at(1) == '/') {
        while (position_ < text_.size() && at() != '\n') ++position_;
      } else if (at() == ' ' || at() == '\t' || at() == '\r' || at() == '\n') {
        ++position_;
      } else {
        break;
      }
    }
    mark_ = position_;
  }

  // Sets an error at the position of the last token.
  bool fail(const std::string& what) {
    size_t line = 1, begin = 0;
    for (size_t i = 0; i < mark_; ++i) {
      if (text_[i] == '\n') ++line, begin = i + 1;
    }
    error_ = std::to_string(line) + ":" + std::to_string(mark_ - begin + 1) + ": " + what;
    return false;
  }

  bool accept(char c) {
    skip_blanks();
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  bool expect(char c) { return accept(c) || fail(std::string("expected '") + c + "'"); }

  std::string_view peek_word() {
    skip_blanks();
    size_t length = 0;
    if (is_letter(at())) {
      while (is_letter(at(length)) || is_digit(at(length))) ++length;
    }
    return text_.substr(position_, length);
  }
  std::string_view word() {
    const std::string_view result = peek_word();
    position_ += result.size();
    return result;
  }
  bool accept_word(std::string_view expected) {
    if (peek_word() != expected) return false;
    position_ += expected.size();
    return true;
  }

  template <typename T>
  bool number(T* out, const char* what) {
    skip_blanks();
    const char* const begin = text_.data() + position_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), *out);
    if (error == std::errc::result_out_of_range) return fail("a number that is out of range");
    if (error != std::errc()) return fail(what);
    position_ += static_cast<size_t>(end - begin);
    return true;
  }

  // -- Names: s0, a0, %0, i0, j0 --------------------------------------------------------------------------------------

  static std::optional<uint32_t> numbered(std::string_view word, char letter) {
    if (word.size() < 2 || word.size() > 10 || word[0] != letter || (word[1] == '0' && word.size() > 2)) return {};
    uint32_t result = 0;
    const auto [end, error] = std::from_chars(word.data() + 1, word.data() + word.size(), result);
    if (error != std::errc() || end != word.data() + word.size()) return {};
    return result;
  }

  bool known(char letter, size_t count, uint32_t* out) {
    const std::optional<uint32_t> index = numbered(word(), letter);
    if (!index) return fail(std::string("expected a name like ") + letter + "0");
    if (*index >= count) return fail(std::string(1, letter) + std::to_string(*index) + " is not declared");
    *out = *index;
    return true;
  }

  bool value(uint32_t* out) {
    if (!accept('%')) return fail("expected a value, like %0");
    if (!is_digit(at())) return fail("expected a value, like %0");
    const size_t mark = mark_;
    if (!number(out, "expected a value, like %0")) return false;
    mark_ = mark;
    if (*out >= kernel_.values.size()) return fail("%" + std::to_string(*out) + " is not declared before");
    return true;
  }

  bool dim(uint32_t* out) {
    const std::string_view name = word();
    const std::optional<uint32_t> row = numbered(name, 'i');
    const std::optional<uint32_t> column = numbered(name, 'j');
    if (row && *row < kernel_.rows) {
      *out = *row;
    } else if (column && *column < kernel_.columns) {
      *out = kernel_.rows + *column;
    } else {
      return fail("expected a dim of the kernel, like i0");
    }
    return true;
  }

  bool dtype(DType* out) {
    const std::optional<DType> result = ir::dtype_from_name(word());
    if (!result) return fail("expected a type, like f32");
    *out = *result;
    return true;
  }

  bool values(uint32_t count, uint32_t** out) {
    for (uint32_t i = 0; i < count; ++i) {
      if (i != 0 && !expect(',')) return false;
      if (!value(out[i])) return false;
    }
    return true;
  }

  // "a0", "a0[%0, %1]"
  bool place(uint32_t* operand, std::vector<uint32_t>* indices) {
    if (!known('a', kernel_.operands.size(), operand)) return false;
    if (!accept('[')) return true;
    do {
      if (indices->size() == kMaxIndexed) return fail("at most " + std::to_string(kMaxIndexed) + " indices");
      uint32_t index = 0;
      if (!value(&index)) return false;
      indices->push_back(index);
    } while (accept(','));
    return expect(']');
  }

  // -- Lines ----------------------------------------------------------------------------------------------------------

  bool dims_of_kernel(char letter, uint32_t most, uint32_t* count) {
    while (peek_word() != "") {
      if (*count == most) return fail("a kernel has at most " + std::to_string(most) + " dims " + letter);
      if (numbered(word(), letter) != *count) return fail(std::string("expected ") + letter + std::to_string(*count));
      ++*count;
      if (!accept(',')) break;
    }
    return true;
  }

  bool header() {
    if (!accept_word("kernel")) return fail("expected 'kernel'");
    return expect('(') && dims_of_kernel('i', kMaxRows, &kernel_.rows) && expect('|') &&
           dims_of_kernel('j', kMaxColumns, &kernel_.columns) && expect(')') && expect('{');
  }

  bool lines() {
    while (!accept('}')) {
      skip_blanks();
      if (at() == '%' ? !value_line() : accept_word("store") ? !store_line() : !declaration()) return false;
    }
    skip_blanks();
    return position_ == text_.size() || fail("expected the end of the text");
  }

  bool declaration() {
    const std::string_view name = word();
    if (numbered(name, 's') == kernel_.scalars.size()) {
      kernel_.scalars.emplace_back();
      return expect(':') && dtype(&kernel_.scalars.back());
    }
    if (numbered(name, 'a') == kernel_.operands.size()) return expect(':') && operand();
    return fail("expected s" + std::to_string(kernel_.scalars.size()) + ", a" +
                std::to_string(kernel_.operands.size()) + ", %" + std::to_string(kernel_.values.size()) +
                ", 'store' or '}'");
  }

  // "f32[_, i0, j0*]"
  bool operand() {
    Operand result;
    if (!dtype(&result.dtype) || !expect('[')) return false;
    uint32_t next = 0;
    while (!accept(']')) {
      if ((result.indexed != 0 || result.dims != 0) && !expect(',')) return false;
      if (accept_word("_")) {
        if (result.dims != 0) return fail("'_' stands before the dims");
        if (result.indexed == kMaxIndexed) return fail("at most " + std::to_string(kMaxIndexed) + " times '_'");
        ++result.indexed;
        continue;
      }
      uint32_t index = 0;
      if (!dim(&index)) return false;
      if (index < next) return fail("dims stand in the order of the kernel, each once");
      next = index + 1;
      result.dims |= 1u << index;
      if (accept('*')) {
        if (kernel_.columns == 0 || next != kernel_.dims()) return fail("'*' stands at the last column dim");
        result.strided = true;
      }
    }
    kernel_.operands.push_back(result);
    return true;
  }

  bool store_line() {
    Store store;
    if (!place(&store.operand, &store.indices) || !expect(',') || !value(&store.value)) return false;
    store.adds = accept_word("adds");
    kernel_.stores.push_back(std::move(store));
    return true;
  }

  bool value_line() {
    accept('%');
    const size_t mark = mark_;
    uint32_t index = 0;
    if (!number(&index, "expected a value, like %0")) return false;
    if (index != kernel_.values.size()) {
      mark_ = mark;
      return fail("expected %" + std::to_string(kernel_.values.size()) + ": values are numbered in order");
    }
    Value value;
    if (!expect(':') || !dtype(&value.type) || !expect('=') || !definition(value)) return false;
    kernel_.values.push_back(std::move(value));
    return true;
  }

  bool definition(Value& value) {
    const std::string_view what = word();
    uint32_t* inputs[] = {&value.a, &value.b, &value.c};
    for (const Kind kind : {Kind::kConstant, Kind::kScalar, Kind::kIndex, Kind::kLoad, Kind::kConvert, Kind::kBits,
                            Kind::kFma, Kind::kLdexp, Kind::kRandom}) {
      if (what == name(kind)) value.kind = kind;
    }
    if (what == name(value.kind)) {
      switch (value.kind) {
        case Kind::kConstant:
          return constant(value);
        case Kind::kScalar:
          return known('s', kernel_.scalars.size(), &value.a);
        case Kind::kIndex:
          return dim(&value.a);
        case Kind::kLoad:
          return place(&value.operand, &value.indices);
        case Kind::kConvert:
        case Kind::kBits:
          return values(1, inputs);
        case Kind::kLdexp:
          return values(2, inputs);
        default:
          return values(3, inputs);
      }
    }
    for (const Over over : {Over::kColumns, Over::kRows, Over::kLines}) {
      if (what != name(over)) continue;
      value.kind = Kind::kReduce;
      value.over = over;
      return reduction(&value.reduction) && values(1, inputs);
    }
    if (what == name(Kind::kRunning)) {
      value.kind = Kind::kRunning;
      return reduction(&value.reduction) && values(1, inputs);
    }
    const std::optional<ir::ScalarOp> op = scalar_op_from_name(what);
    if (!op) return fail("there is no function '" + std::string(what) + "'");
    value.kind = Kind::kScalarOp;
    value.op = *op;
    return values(info(*op).arity, inputs);
  }

  bool reduction(Reduction* out) {
    const std::string_view what = word();
    for (uint32_t i = 0; i <= static_cast<uint32_t>(Reduction::kLogSumExp); ++i) {
      *out = static_cast<Reduction>(i);
      if (what == name(*out)) return true;
    }
    return fail("expected a reduction: sum, product, max, min, argmax, argmin, logsumexp");
  }

  // A constant of a floating-point type may be written as an integer: 1 is 1.0.
  bool constant(Value& value) {
    if (value.type == DType::kBool) {
      value.integer = accept_word("true") ? 1 : 0;
      return value.integer != 0 || accept_word("false") || fail("expected true or false");
    }
    if (!accepts(OperandTypes::kFloats, value.type)) return number(&value.integer, "expected an integer");
    const bool negative = peek_word().empty() && at() == '-' && is_letter(at(1)) && accept('-');
    if (accept_word("inf")) {
      value.number = negative ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
      return true;
    }
    if (!negative && accept_word("nan")) {
      value.number = std::numeric_limits<double>::quiet_NaN();
      return true;
    }
    if (is_letter(at())) return fail("expected a number, inf, -inf or nan");
    if (!is_digit(at(at() == '-' ? 1 : 0))) return fail("expected a number, inf, -inf or nan");
    return number(&value.number, "expected a number, inf, -inf or nan");
  }

  std::string_view text_;
  Kernel& kernel_;
  size_t position_ = 0;
  size_t mark_ = 0;
  std::string error_;
};

}  // namespace

Status parse_kernel(std::string_view text, Kernel* kernel) { return Parser(text, kernel).run(); }

}  // namespace torch_remote::codegen
