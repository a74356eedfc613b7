#include "codegen/lower/node_arguments.h"

#include <bit>

#include "codegen/loop/scalar_ops.h"
#include "codegen/lower/group_emitter.h"
#include "ir/analysis.h"
#include "ir/fusion/fusion.h"

namespace torch_remote::codegen {

using ir::ArgTag;
using ir::DType;

const ir::Arg& NodeArguments::at(size_t index) const { return ir::item_of(node_.args[index], item_); }

const ir::Arg* NodeArguments::find(std::string_view name) const {
  const ir::Arg* given = ir::find_argument(node_, name);
  return given != nullptr ? &ir::item_of(*given, item_) : nullptr;
}

bool NodeArguments::has(std::string_view name) const {
  const ir::Arg* given = find(name);
  return given != nullptr && given->tag != ArgTag::kNone;
}

const ir::View* NodeArguments::view(std::string_view name) const {
  const ir::Arg* given = find(name);
  return given != nullptr && given->tag == ArgTag::kView ? &group_.graph.views[given->a] : nullptr;
}

DType NodeArguments::type(std::string_view name) const { return loaded_type(view(name)->dtype); }

int64_t NodeArguments::size(std::string_view name, size_t dim) const { return group_.values[view(name)->sizes[dim]]; }

// The caller bases the kernel on this value, so another value of the symbol requires another kernel.
int64_t NodeArguments::symbol(ir::Sym symbol) const {
  group_.launch.depends.push_back(symbol);
  return group_.values[symbol];
}

int64_t NodeArguments::int_value(std::string_view name) const {
  const ir::Arg* given = find(name);
  return given != nullptr && given->tag == ArgTag::kInt ? symbol(given->a) : 0;
}

double NodeArguments::float_value(std::string_view name) const {
  const ir::Arg* given = find(name);
  if (given == nullptr) return 0;
  if (given->tag == ArgTag::kInt) return static_cast<double>(symbol(given->a));
  return given->tag == ArgTag::kFloat ? std::bit_cast<double>(symbol(given->a)) : 0;
}

bool NodeArguments::bool_value(std::string_view name) const {
  const ir::Arg* given = find(name);
  return given != nullptr && given->tag == ArgTag::kBool && symbol(given->a) != 0;
}

std::optional<double> NodeArguments::number(size_t index) const {
  const ir::Arg& given = at(index);
  const bool floats = given.tag == ArgTag::kFloat ||
                      (given.tag == ArgTag::kScalarTensor && ir::is_float(static_cast<DType>(given.b & 0xFF)));
  if (floats) return std::bit_cast<double>(symbol(given.a));
  if (given.tag != ArgTag::kInt && given.tag != ArgTag::kScalarTensor) return std::nullopt;
  return static_cast<double>(symbol(given.a));
}

}  // namespace torch_remote::codegen
