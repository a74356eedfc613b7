#include "ir/ops/composed_ops.h"

#include <algorithm>

namespace torch_remote::ir {

const ComposedOp* find_composed(std::string_view name) {
  const std::span<const ComposedOp> ops = composed_ops();
  const auto found = std::ranges::lower_bound(ops, name, {}, &ComposedOp::name);
  return found != ops.end() && found->name == name ? &*found : nullptr;
}

}  // namespace torch_remote::ir
