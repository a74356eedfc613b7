#include "codegen/loop/testing/test_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <utility>

#include "codegen/loop/facts.h"
#include "codegen/loop/half.h"
#include "codegen/loop/scalar_math.h"
#include "codegen/loop/scalar_ops.h"

namespace torch_remote::codegen::testing {
namespace {

using ir::DType;

constexpr size_t kLine = sizeof(TestData::Line);
constexpr size_t kPadding = 70;  // number of elements before and after an operand that belong to none

class Maker {
 public:
  Maker(const Kernel& kernel, Rng& rng, const TestDataOptions& options, TestData& data)
      : kernel_(kernel), rng_(rng), options_(options), data_(data), facts_(facts(kernel)) {}

  void run() {
    wrong_ = options_.wrong_indices && chance(25);
    sizes();
    for (uint32_t i = 0; i < kernel_.operands.size(); ++i) bounds(i);
    scalars();
    for (uint32_t i = 0; i < kernel_.operands.size(); ++i) {
      if (!alias(i)) place(i);
    }
    for (uint32_t i = 0; i < kernel_.operands.size(); ++i) fill_indices(i);
  }

 private:
  uint64_t below(uint64_t count) { return rng_() % count; }
  bool chance(uint32_t percent) { return below(100) < percent; }
  template <typename T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[below(list.size())];
  }

  // -- Sizes, bounds, scalars -----------------------------------------------------------------------------------------

  // One dim may be long: the last column, or the first row.
  void sizes() {
    const uint32_t dims = kernel_.dims();
    if (dims == 0) return;
    const uint32_t main = kernel_.columns == 0 || (kernel_.rows != 0 && chance(15)) ? 0 : dims - 1;
    for (uint32_t d = 0; d < dims; ++d) {
      int64_t size = one_of<int64_t>({1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 64, 65, 100, 130});
      if (d == main && chance(20)) size = one_of<int64_t>({127, 257, 1000, 4096, 4097, 5000, 8200});
      if (chance(3)) size = 0;
      data_.sizes.push_back(size);
    }
    // Rows without columns are executed, too, so sizes of 0 count as 1.
    const auto points = [&] {
      int64_t count = 1;
      for (const int64_t size : data_.sizes) count *= std::max<int64_t>(size, 1);
      return count;
    };
    for (uint32_t d = 0; d < dims && points() > options_.max_points; ++d) {
      if (d != main) data_.sizes[d] = one_of<int64_t>({1, 2, 3});
    }
    const int64_t others = elements(~(1u << main));
    if (others != 0)
      data_.sizes[main] = std::min(data_.sizes[main], std::max<int64_t>(options_.max_points / others, 1));
  }

  int64_t elements(DimSet dims) const {
    int64_t count = 1;
    for (uint32_t d = 0; d < data_.sizes.size(); ++d) count *= (dims >> d & 1) != 0 ? data_.sizes[d] : 1;
    return count;
  }

  const Value& value(uint32_t index) const { return kernel_.values[index]; }
  bool is_unindexed_load(uint32_t index) const {
    return value(index).kind == Kind::kLoad && kernel_.operands[value(index).operand].indexed == 0;
  }

  // A bound is large enough for all positions that stores must keep apart, and for all positions of a dim that is used
  // as index.
  void bounds(uint32_t operand) {
    first_bound_.push_back(data_.bounds.size());
    const uint32_t indexed = kernel_.operands[operand].indexed;
    for (uint32_t i = 0; i < indexed; ++i) {
      int64_t bound = indexed > 1 ? one_of<int64_t>({1, 2, 5}) : one_of<int64_t>({1, 2, 7, 33, 50});
      if (wrong_ && chance(5)) bound = 0;
      const auto make_room = [&](uint32_t index, bool stores, bool distinct) {
        if (value(index).kind == Kind::kIndex && !(wrong_ && chance(50))) {
          const int64_t size = data_.sizes[value(index).a];
          const bool small = indexed == 1 && elements(kernel_.operands[operand].dims) * size < 10 * options_.max_points;
          if (stores || small) bound = std::max(bound, size);
        }
        if (distinct && is_unindexed_load(index)) bound = std::max(bound, elements(facts_[index].dims) + 3);
      };
      for (const Value& load : kernel_.values) {
        if (load.kind == Kind::kLoad && load.operand == operand) make_room(load.indices[i], false, false);
      }
      for (const Store& store : kernel_.stores) {
        if (store.operand == operand) make_room(store.indices[i], true, !store.adds);
      }
      data_.bounds.push_back(bound);
    }
  }

  void scalars() {
    for (const DType type : kernel_.scalars) {
      if (type == DType::kFloat64) {
        data_.scalars.push_back(std::bit_cast<uint64_t>(number(Numbers::kAny)));
      } else if (type == DType::kBool) {
        data_.scalars.push_back(below(2));
      } else {
        data_.scalars.push_back(static_cast<uint64_t>(chance(80) ? static_cast<int64_t>(below(9)) - 2 : integer(true)));
      }
    }
  }

  // -- Layouts --------------------------------------------------------------------------------------------------------

  bool is_stored(uint32_t operand) const {
    return std::ranges::any_of(kernel_.stores, [&](const Store& store) { return store.operand == operand; });
  }
  bool is_loaded(uint32_t operand) const {
    return std::ranges::any_of(kernel_.values,
                               [&](const Value& load) { return load.kind == Kind::kLoad && load.operand == operand; });
  }

  // Lets a stored operand share the memory of another operand that is not stored to.
  bool alias(uint32_t operand) {
    const Operand& wanted = kernel_.operands[operand];
    if (!options_.aliases || !is_stored(operand) || wanted.indexed != 0 || !chance(25)) return false;
    for (uint32_t i = 0; i < operand; ++i) {
      if (kernel_.operands[i] != wanted || is_stored(i) || expanded_[i] || taken_[i] || is_index(i)) continue;
      taken_[i] = true;
      const auto [begin, end] = strides_of(i);
      const std::vector<int64_t> same(data_.strides.begin() + begin, data_.strides.begin() + end);
      begin_operand();
      data_.strides.insert(data_.strides.end(), same.begin(), same.end());
      data_.views.push_back(data_.views[i]);
      return true;
    }
    return false;
  }

  void begin_operand() {
    first_stride_.push_back(data_.strides.size());
    expanded_.push_back(false);
    taken_.push_back(false);
  }
  std::pair<ptrdiff_t, ptrdiff_t> strides_of(uint32_t operand) const {
    const size_t begin = first_stride_[operand];
    return {static_cast<ptrdiff_t>(begin),
            static_cast<ptrdiff_t>(begin + kernel_.dims() + kernel_.operands[operand].indexed)};
  }

  // The dims of an operand, innermost first.
  std::vector<uint32_t> nesting(const Operand& operand) {
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < operand.indexed; ++i) order.push_back(kernel_.dims() + i);
    for (uint32_t d = 0; d < kernel_.dims(); ++d) {
      if ((operand.dims >> d & 1) != 0) order.push_back(d);
    }
    std::ranges::reverse(order);
    const bool unit = !order.empty() && kernel_.columns != 0 && order[0] + 1 == kernel_.dims() && !operand.strided;
    if (chance(20)) std::shuffle(order.begin() + (unit ? 1 : 0), order.end(), rng_);
    return order;
  }

  void place(uint32_t index) {
    const Operand& operand = kernel_.operands[index];
    begin_operand();
    std::vector<int64_t> strides(kernel_.dims() + operand.indexed);
    const bool expandable = !is_stored(index) && !is_index(index);
    const bool gaps = chance(30), turned = chance(15);
    int64_t next = 1, lowest = 0, highest = 0;
    bool empty = false;
    for (const uint32_t d : nesting(operand)) {
      const int64_t extent =
          d < kernel_.dims() ? data_.sizes[d] : data_.bounds[first_bound_[index] + d - kernel_.dims()];
      const bool unit = kernel_.columns != 0 && d + 1 == kernel_.dims() && !operand.strided;
      if (!unit && expandable && chance(5)) {
        expanded_.back() = true;
        continue;
      }
      if (!unit && operand.strided && next == 1) next = static_cast<int64_t>(1 + below(3));
      const int64_t stride = !unit && turned && chance(50) ? -next : next;
      strides[d] = stride;
      empty |= extent == 0;
      (stride < 0 ? lowest : highest) += stride * std::max<int64_t>(extent - 1, 0);
      next *= std::max<int64_t>(extent, 1);
      if (gaps) next += static_cast<int64_t>(below(5));
    }
    data_.strides.insert(data_.strides.end(), strides.begin(), strides.end());
    // An operand without elements must not be accessed at all.
    if (empty) lowest = 0, highest = -1;
    size_t before = kPadding - static_cast<size_t>(lowest);
    if (options_.unaligned && chance(50)) {
      before += below(kLine);
    } else {
      before = (before + kLine - 1) / kLine * kLine;
    }
    data_.views.push_back({static_cast<uint32_t>(data_.buffers.size()), before});
    make_buffer(operand.dtype, before + static_cast<size_t>(highest + 1) + kPadding);
  }

  // -- Elements -------------------------------------------------------------------------------------------------------

  enum class Numbers { kSmall, kTies, kPositive, kWide, kAny };

  double number(Numbers kind) {
    const double unit = static_cast<double>(below(1 << 24)) / (1 << 23) - 1;  // from -1 to 1
    constexpr double kInf = std::numeric_limits<double>::infinity();
    switch (kind) {
      case Numbers::kSmall:
        return unit * 4;
      case Numbers::kTies:
        return one_of({-3.0, -1.0, -0.0, 0.0, 1.0, 2.0});
      case Numbers::kPositive:
        return std::abs(unit) + 0x1p-10;
      case Numbers::kWide:
        return std::ldexp(unit, static_cast<int>(below(200)) - 100);
      case Numbers::kAny:
        break;
    }
    if (chance(95)) return unit * 100;
    return one_of({kInf, -kInf, std::numeric_limits<double>::quiet_NaN(), 0.0, -0.0, 0x1p-149, -0x1p-130, 0x1.8p-24,
                   -0x1p-16, 5e-324, 65504.0, 65520.0, 3.4028234663852886e38, 1.7976931348623157e308, 0x1p31, -0x1p63});
  }

  int64_t integer(bool wide) {
    if (!wide) return static_cast<int64_t>(below(21)) - 10;
    return chance(30) ? one_of<int64_t>({INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, INT16_MIN, INT16_MAX, -128, 127,
                                         255, -1, 0, 1})
                      : static_cast<int64_t>(rng_());
  }

  void make_buffer(DType dtype, size_t elements) {
    data_.buffers.push_back({.dtype = dtype, .elements = elements});
    TestData::Buffer& made = data_.buffers.back();
    made.lines.resize(elements * item_size(dtype) / kLine + 1);
    const bool special = options_.special && chance(30);
    const auto kind =
        special ? Numbers::kAny
                : one_of({Numbers::kSmall, Numbers::kSmall, Numbers::kTies, Numbers::kPositive, Numbers::kWide});
    const DType loaded = loaded_type(dtype);
    for (size_t i = 0; i < elements; ++i) {
      Cell cell;
      if (accepts(OperandTypes::kFloats, loaded)) {
        cell = convert(DType::kFloat64, loaded, to_cell(number(kind)));
      } else {
        cell = to_cell(dtype == DType::kBool ? static_cast<int64_t>(below(2)) : wrapped(dtype, integer(special)));
      }
      store_element(dtype, cell, made.begin() + i * item_size(dtype));
    }
  }

  // -- Indices --------------------------------------------------------------------------------------------------------

  // How the elements of an operand are used as indices.
  struct Index {
    int64_t bound = std::numeric_limits<int64_t>::max();
    bool used = false;
    bool distinct = false;  // all elements must be different
  };

  Index index_of(uint32_t operand) const {
    Index result;
    const auto look = [&](uint32_t index, int64_t bound, bool distinct) {
      if (!is_unindexed_load(index) || value(index).operand != operand) return;
      result.used = true;
      result.distinct |= distinct;
      result.bound = std::min(result.bound, bound);
    };
    for (const Value& load : kernel_.values) {
      for (size_t i = 0; load.kind == Kind::kLoad && i < load.indices.size(); ++i) {
        look(load.indices[i], data_.bounds[first_bound_[load.operand] + i], false);
      }
    }
    for (const Store& store : kernel_.stores) {
      for (size_t i = 0; i < store.indices.size(); ++i) {
        look(store.indices[i], data_.bounds[first_bound_[store.operand] + i], !store.adds);
      }
    }
    return result;
  }
  bool is_index(uint32_t operand) const { return index_of(operand).used; }

  void fill_indices(uint32_t operand) {
    const Index index = index_of(operand);
    if (!index.used) return;
    TestData::Buffer& buffer = data_.buffers[data_.views[operand].buffer];
    if (index.distinct) {
      // The bound is large enough for all elements of the operand, which are fewer than the buffer's. Each element gets
      // its own index, for any strides.
      fill_distinct(operand, index.bound);
      return;
    }
    for (size_t i = 0; i < buffer.elements; ++i) {
      int64_t x = index.bound == 0 ? 0 : static_cast<int64_t>(below(static_cast<uint64_t>(index.bound)));
      if (wrong_ && chance(2)) x = one_of<int64_t>({-1, index.bound, INT64_MAX, INT64_MIN});
      std::memcpy(buffer.begin() + 8 * i, &x, 8);
    }
  }

  void fill_distinct(uint32_t operand, int64_t bound) {
    const DimSet dims = kernel_.operands[operand].dims;
    const int64_t count = elements(dims);
    std::vector<int64_t> values(static_cast<size_t>(std::max(bound, count)));
    std::iota(values.begin(), values.end(), int64_t{0});
    std::ranges::shuffle(values, rng_);
    TestData::Buffer& buffer = data_.buffers[data_.views[operand].buffer];
    for (int64_t i = 0; i < count; ++i) {
      auto at = static_cast<int64_t>(data_.views[operand].first);
      int64_t rest = i;
      for (uint32_t d = kernel_.dims(); d-- > 0;) {
        if ((dims >> d & 1) == 0) continue;
        at += rest % data_.sizes[d] * data_.strides[first_stride_[operand] + d];
        rest /= data_.sizes[d];
      }
      const int64_t x = wrong_ && chance(2) ? -1 - i : values[static_cast<size_t>(i)];
      std::memcpy(buffer.begin() + 8 * at, &x, 8);
    }
  }

  const Kernel& kernel_;
  Rng& rng_;
  const TestDataOptions options_;
  TestData& data_;
  const std::vector<Facts> facts_;
  std::vector<size_t> first_bound_, first_stride_;  // of each operand
  std::vector<bool> expanded_, taken_;
  bool wrong_ = false;
};

std::string list(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t x : numbers) text += (text.empty() ? "" : ", ") + std::to_string(x);
  return "[" + text + "]";
}

std::string written(DType dtype, const uint8_t* element) {
  const Cell cell = load_element(dtype, element);
  const DType loaded = loaded_type(dtype);
  char text[64];
  if (loaded == DType::kFloat32) {
    std::snprintf(text, sizeof(text), "%.9g (%a)", from_cell<float>(cell), from_cell<float>(cell));
  } else if (loaded == DType::kFloat64) {
    std::snprintf(text, sizeof(text), "%.17g (%a)", from_cell<double>(cell), from_cell<double>(cell));
  } else {
    std::snprintf(text, sizeof(text), "%lld", static_cast<long long>(from_cell<int64_t>(cell)));
  }
  return text;
}

bool is_nan(DType dtype, const uint8_t* element) {
  const Cell cell = load_element(dtype, element);
  const DType loaded = loaded_type(dtype);
  return loaded == DType::kFloat32 ? std::isnan(from_cell<float>(cell))
                                   : loaded == DType::kFloat64 && std::isnan(from_cell<double>(cell));
}

}  // namespace

TestData::TestData(const Kernel& kernel, Rng& rng, const TestDataOptions& options) {
  Maker(kernel, rng, options, *this).run();
}

Arguments TestData::arguments() {
  data_.clear();
  for (const View& view : views) {
    Buffer& buffer = buffers[view.buffer];
    data_.push_back(buffer.begin() + view.first * item_size(buffer.dtype));
  }
  return {.sizes = sizes, .data = data_, .strides = strides, .bounds = bounds, .scalars = scalars};
}

std::string TestData::difference(const TestData& other) const {
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    const uint32_t size = item_size(buffer.dtype);
    const uint8_t* const here = buffer.begin();
    const uint8_t* const there = other.buffers[i].begin();
    if (std::memcmp(here, there, size * buffer.elements) == 0) continue;
    for (size_t k = 0; k < buffer.elements; ++k) {
      const uint8_t* const a = here + k * size;
      const uint8_t* const b = there + k * size;
      if (std::memcmp(a, b, size) == 0 || (is_nan(buffer.dtype, a) && is_nan(buffer.dtype, b))) continue;
      std::string names;
      int64_t offset = 0;
      for (size_t v = 0; v < views.size(); ++v) {
        if (views[v].buffer != i) continue;
        names += (names.empty() ? "a" : ", a") + std::to_string(v);
        offset = static_cast<int64_t>(k) - static_cast<int64_t>(views[v].first);
      }
      return names + " at offset " + std::to_string(offset) + ": " + written(buffer.dtype, a) + " here, " +
             written(buffer.dtype, b) + " there; " + describe();
    }
  }
  return {};
}

std::string TestData::describe() const {
  return "sizes " + list(sizes) + ", strides " + list(strides) + ", bounds " + list(bounds);
}

}  // namespace torch_remote::codegen::testing
