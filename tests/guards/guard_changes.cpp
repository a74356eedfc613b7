#include "tests/guards/guard_changes.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

namespace torch_remote::worker::aten {
namespace {

using c10::IValue;
using Make = std::function<at::Tensor(const at::Tensor&)>;

constexpr int64_t kFar = 1'000'000'000;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMostElements = int64_t{1} << 21;  // bound for tensors that a change makes larger

at::Tensor filled(const at::Tensor& like, at::IntArrayRef sizes) {
  const at::Tensor result = at::zeros(sizes, like.options());
  if (like.numel() > 0) result.copy_(like.flatten()[0].expand(sizes));
  return result;
}

std::vector<std::pair<std::string, std::vector<int64_t>>> other_sizes(const at::Tensor& tensor) {
  const std::vector<int64_t> sizes = tensor.sizes().vec();
  std::vector<std::pair<std::string, std::vector<int64_t>>> all;
  all.push_back({"no elements", {0}});
  all.push_back({"a number", {}});
  all.push_back({"one element", std::vector<int64_t>(sizes.size(), 1)});
  for (size_t d = 0; d < sizes.size(); ++d) {
    const std::string dim = "dim " + std::to_string(d);
    for (const auto& [what, size] : {std::pair<const char*, int64_t>{" empty", 0},
                                     {" is 1", 1},
                                     {" less one", sizes[d] - 1},
                                     {" one more", sizes[d] + 1},
                                     {" larger", 3 * sizes[d] + 2},
                                     {" much larger", 1500}}) {
      std::vector<int64_t> changed = sizes;
      changed[d] = size;
      if (size >= 0) all.push_back({dim + what, changed});
    }
  }
  std::vector<int64_t> more = sizes, fewer = sizes;
  more.insert(more.begin(), 1);
  all.push_back({"a dim more", more});
  more[0] = 3;
  all.push_back({"a dim of 3 more", more});
  if (!fewer.empty()) {
    fewer.erase(fewer.begin());
    all.push_back({"a dim fewer", fewer});
  }
  all.push_back({"two elements", {2}});
  std::vector<std::pair<std::string, std::vector<int64_t>>> different;
  for (auto& change : all) {
    const auto& [what, changed] = change;
    const bool fits = std::accumulate(changed.begin(), changed.end(), int64_t{1}, std::multiplies<>()) <= kMostElements;
    const bool again = changed == sizes || std::ranges::any_of(different, [&](auto& o) { return o.second == changed; });
    if (fits && !again) different.push_back(std::move(change));
  }
  return different;
}

std::vector<std::pair<std::string, Make>> tensor_changes(const at::Tensor& tensor) {
  std::vector<std::pair<std::string, Make>> all;
  for (const auto& [what, sizes] : other_sizes(tensor)) {
    all.push_back({what, [sizes = sizes](const at::Tensor& t) { return filled(t, sizes); }});
  }
  if (tensor.numel() > 1) {
    all.push_back({"all steps 0", [](const at::Tensor& t) { return filled(t, {1}).squeeze(0).expand(t.sizes()); }});
  }
  if (tensor.dim() >= 2) {
    all.push_back({"transposed", [](const at::Tensor& t) {
                     const at::Tensor turned = at::empty(t.transpose(0, -1).sizes(), t.options()).transpose(0, -1);
                     return turned.copy_(t);
                   }});
  }
  for (const auto type : {at::kChar, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble, at::kBool}) {
    if (type != tensor.scalar_type()) {
      all.push_back({std::string("of ") + c10::toString(type), [type](const at::Tensor& t) { return t.to(type); }});
    }
  }
  if (c10::isIntegralType(tensor.scalar_type(), false) && tensor.numel() > 0) {
    const bool wide = tensor.scalar_type() == at::kLong;
    const auto fill = [&](const std::string& what, int64_t value) {
      all.push_back({"elements " + what, [value](const at::Tensor& t) { return at::full_like(t, value); }});
      if (tensor.numel() > 1) {
        all.push_back({"last element " + what, [value](const at::Tensor& t) {
                         const at::Tensor copy = t.clone(at::MemoryFormat::Contiguous);
                         copy.view({-1})[-1].fill_(value);
                         return copy;
                       }});
      }
    };
    fill("-1", -1);
    fill("5000", 5000);
    fill("far", tensor.element_size() >= 4 ? kFar : 120);
    fill("far below", tensor.element_size() >= 4 ? -kFar : -120);
    if (wide) {
      fill("2^40", int64_t{1} << 40);
      fill("the most", kMost);
      fill("the least", kLeast);
    }
  }
  if (c10::isFloatingType(tensor.scalar_type()) && tensor.numel() > 0) {
    for (const double value :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e9, -1e9, 1e30, -1e30}) {
      all.push_back({"elements " + std::to_string(value),
                     [value](const at::Tensor& t) { return at::full_like(t, value).to(t.scalar_type()); }});
    }
  }
  return all;
}

constexpr std::array<std::pair<const char*, int64_t>, 12> kInts{{{"0", 0},
                                                                 {"1", 1},
                                                                 {"2", 2},
                                                                 {"-1", -1},
                                                                 {"-2", -2},
                                                                 {"7", 7},
                                                                 {"2000", 2000},
                                                                 {"-2000", -2000},
                                                                 {"far", kFar},
                                                                 {"far below", -kFar},
                                                                 {"the most", kMost},
                                                                 {"the least", kLeast}}};

const c10::Type& without_optional(const c10::Type& type) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional ? *optional->getElementType() : type;
}

class Changes {
 public:
  explicit Changes(std::vector<Change>* all) : all_(all) {}

  void argument(size_t i, const c10::Argument& argument, const IValue& value) {
    index_ = i;
    name_ = argument.name();
    const c10::Type& type = without_optional(*argument.type());
    if (argument.type()->kind() == c10::TypeKind::OptionalType && !value.isNone()) set("none", IValue());
    switch (type.kind()) {
      case c10::TypeKind::TensorType:
        if (value.isTensor() && value.toTensor().defined()) tensor(value.toTensor());
        break;
      case c10::TypeKind::IntType:
        for (const auto& [what, number] : kInts) set(what, number);
        break;
      case c10::TypeKind::NumberType:
      case c10::TypeKind::FloatType:
        for (const double number : {0.0, -1.0, 1e30, std::numeric_limits<double>::quiet_NaN()}) {
          set(std::to_string(number), number);
        }
        break;
      case c10::TypeKind::BoolType:
        if (value.isBool()) set("not", !value.toBool());
        break;
      case c10::TypeKind::ListType:
        list(value);
        break;
      default:
        break;
    }
  }

 private:
  void set(const std::string& what, const IValue& value) {
    all_->push_back({name_ + ": " + what, [i = index_, value](Arguments& args) { args[i] = value; }});
  }
  void change(const std::string& what, std::function<void(IValue&)> f) {
    all_->push_back({name_ + ": " + what, [i = index_, f = std::move(f)](Arguments& args) { f(args[i]); }});
  }
  void tensor(const at::Tensor& value) {
    for (auto& [what, make] : tensor_changes(value)) {
      change(what, [make = std::move(make)](IValue& arg) { arg = copy_exactly(make(arg.toTensor())); });
    }
    change("undefined", [](IValue& arg) { arg = at::Tensor(); });
  }
  void list(const IValue& value) {
    if (value.isTensorList()) {
      const auto given = value.toTensorList();
      const size_t count = given.size();
      set("no tensors", IValue(c10::List<at::Tensor>()));
      change("a tensor fewer", [](IValue& arg) {
        const auto old = arg.toTensorVector();
        arg = c10::List<at::Tensor>(c10::ArrayRef(old).slice(0, old.empty() ? 0 : old.size() - 1));
      });
      change("a tensor more", [](IValue& arg) {
        auto all = arg.toTensorVector();
        if (!all.empty()) all.push_back(copy_exactly(all.back()));
        arg = c10::List<at::Tensor>(c10::ArrayRef(all));
      });
      for (const size_t item : {size_t{0}, count - 1}) {
        if (item >= count || (item == 0 && count > 1)) continue;
        for (auto& [what, make] : tensor_changes(given[item])) {
          change("[" + std::to_string(item) + "] " + what, [item, make = std::move(make)](IValue& arg) {
            auto tensors = arg.toTensorList();
            tensors.set(item, copy_exactly(make(tensors.get(item))));
          });
        }
      }
    } else if (value.isOptionalTensorList()) {
      const auto given = value.toOptionalTensorList();
      for (size_t item = 0; item < given.size(); ++item) {
        if (!given.get(item)) continue;
        for (auto& [what, make] : tensor_changes(*given.get(item))) {
          change("[" + std::to_string(item) + "] " + what, [item, make = std::move(make)](IValue& arg) {
            auto tensors = arg.toOptionalTensorList();
            tensors.set(item, copy_exactly(make(*tensors.get(item))));
          });
        }
      }
    } else if (value.isIntList()) {
      const std::vector<int64_t> given = value.toIntVector();
      set("empty", std::vector<int64_t>());
      std::vector<int64_t> other = given;
      other.push_back(other.empty() ? 1 : other.back());
      set("an item more", other);
      if (given.size() > 1) {
        other = given;
        other.pop_back();
        set("an item fewer", other);
      }
      for (const auto& [what, number] : kInts) {
        for (const size_t item : {size_t{0}, given.size() - 1}) {
          if (item >= given.size() || (item == 0 && given.size() > 1 && number > 2 && number != 2000)) continue;
          other = given;
          other[item] = number;
          set("[" + std::to_string(item) + "] " + what, other);
        }
      }
      set("all 64", std::vector<int64_t>(given.size(), 64));
    }
  }

  std::vector<Change>* all_;
  size_t index_ = 0;
  std::string name_;
};

}  // namespace

std::vector<Change> changes_of(const c10::FunctionSchema& schema, const Arguments& args) {
  std::vector<Change> all(1);
  Changes changes(&all);
  for (size_t i = 0; i < args.size(); ++i) changes.argument(i, schema.arguments()[i], args[i]);
  all.push_back({"results: one element", nullptr, Change::Results::kOne});
  all.push_back({"results: more elements", nullptr, Change::Results::kMore});
  return all;
}

at::Tensor copy_exactly(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
  bool overlaps = false;
  for (int64_t d = 0; d < tensor.dim(); ++d) overlaps |= tensor.stride(d) == 0 && tensor.size(d) > 1;
  if (!overlaps) return copy.copy_(tensor);
  at::Tensor inner = tensor, to = copy;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) inner = inner.narrow(d, 0, 1), to = to.narrow(d, 0, 1);
  }
  to.copy_(inner);
  return copy;
}

c10::IValue copy_exactly(const c10::IValue& value) {
  if (value.isTensor()) return copy_exactly(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> copy;
    for (const at::Tensor& tensor : value.toTensorVector()) copy.push_back(copy_exactly(tensor));
    return copy;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> copy;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      copy.push_back(tensor ? std::optional(copy_exactly(*tensor)) : std::nullopt);
    }
    return copy;
  }
  return value;
}

}  // namespace torch_remote::worker::aten
