#include <cstring>
#include <utility>

#include "codegen/gpu/launch.h"

// A recipe is encoded as words of 4 bytes, in the order of its members. The length of a list precedes its elements.
namespace torch_remote::codegen::gpu {
namespace {

constexpr uint32_t kMagic = 0x32524754;  // "TGR2"
constexpr uint32_t kMaxItems = 1 << 16;

class Writer {
 public:
  void word(uint32_t value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(value));
    std::memcpy(bytes_.data() + at, &value, sizeof(value));
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  // Returns 0 past the end.
  uint32_t word() {
    uint32_t value = 0;
    good_ = good_ && bytes_.size() >= sizeof(value);
    if (!good_) return 0;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_ = bytes_.subspan(sizeof(value));
    return value;
  }
  uint32_t below(uint32_t bound) {
    const uint32_t value = word();
    good_ = good_ && value < bound;
    return good_ ? value : 0;
  }
  bool at_end() const { return good_ && bytes_.empty(); }

 private:
  std::span<const uint8_t> bytes_;
  bool good_ = true;
};

}  // namespace

std::vector<uint8_t> encode(const Recipe& recipe) {
  Writer writer;
  writer.word(kMagic);
  writer.word(static_cast<uint32_t>(recipe.shape));
  for (const uint32_t value : {recipe.rows, recipe.columns, recipe.vector, recipe.slots, recipe.finish_columns}) {
    writer.word(value);
  }
  writer.word(recipe.finish_in_one_block ? 1 : 0);
  writer.word(static_cast<uint32_t>(recipe.operands.size()));
  for (const Operand& operand : recipe.operands) {
    writer.word(static_cast<uint32_t>(operand.dtype));
    writer.word(operand.dims);
    writer.word(operand.strided ? 1 : 0);
    writer.word(operand.indexed);
  }
  writer.word(static_cast<uint32_t>(recipe.totals.size()));
  for (const Total& total : recipe.totals) {
    writer.word(total.item_size);
    writer.word(total.dims);
  }
  writer.word(static_cast<uint32_t>(recipe.parameters.size()));
  for (const Parameter& parameter : recipe.parameters) {
    writer.word(static_cast<uint32_t>(parameter.kind));
    writer.word(parameter.a);
    writer.word(parameter.b);
  }
  return writer.take();
}

Status decode(std::span<const uint8_t> bytes, Recipe* recipe) {
  Reader reader(bytes);
  Recipe read;
  const bool is_recipe = reader.word() == kMagic;
  bool is_known = true;
  read.shape = static_cast<Shape>(reader.below(static_cast<uint32_t>(Shape::kRows) + 1));
  read.rows = reader.below(kMaxRows + 1);
  read.columns = reader.below(kMaxColumns + 1);
  read.vector = reader.below(kMaxItems);
  read.slots = reader.below(kMaxItems);
  read.finish_columns = reader.below(kMaxItems);
  read.finish_in_one_block = reader.below(2) != 0;
  read.operands.resize(reader.below(kMaxItems));
  for (Operand& operand : read.operands) {
    operand.dtype = static_cast<ir::DType>(reader.below(256));
    is_known = is_known && ir::is_valid(operand.dtype);
    operand.dims = reader.below(1u << kMaxDims);
    operand.strided = reader.below(2) != 0;
    operand.indexed = static_cast<uint8_t>(reader.below(kMaxIndexed + 1));
  }
  read.totals.resize(reader.below(kMaxItems));
  for (Total& total : read.totals) {
    total.item_size = reader.below(9);
    total.dims = reader.below(1u << kMaxDims);
  }
  read.parameters.resize(reader.below(kMaxItems));
  for (Parameter& parameter : read.parameters) {
    parameter.kind =
        static_cast<ParameterKind>(reader.below(static_cast<uint32_t>(ParameterKind::kScalarsAddress) + 1));
    parameter.a = reader.below(kMaxItems);
    parameter.b = reader.below(kMaxItems);
  }
  if (!is_recipe || !is_known || !reader.at_end()) return Status::invalid("gpu: these bytes are not a recipe");
  *recipe = std::move(read);
  return {};
}

}  // namespace torch_remote::codegen::gpu
