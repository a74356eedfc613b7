#include "worker/targets/aten/kernels/special.h"

#include <torch/library.h>

#include <algorithm>
#include <iterator>

#include "worker/targets/aten/kernels/special_generated.h"

namespace torch_remote::worker::aten {
namespace {

// For code that reads an op's arguments here. These ops have only the special kernels.
TORCH_LIBRARY_FRAGMENT(remote, library) {
  for (const char* schema : kOwnSchemas) library.def(schema);
}

const SpecialOp* find_row(ir::Opcode opcode) {
  const auto* const found = std::ranges::lower_bound(kSpecialOps, opcode, {}, &SpecialOp::opcode);
  return found != std::end(kSpecialOps) && found->opcode == opcode ? found : nullptr;
}

}  // namespace

Special find_special(std::string_view name) {
  if (const SpecialOp* const row = find_row(ir::find_op(name))) return row->kernel;
  const auto* const found = std::ranges::find(kSpecialNames, name, &SpecialName::name);
  return found != std::end(kSpecialNames) ? found->kernel : nullptr;
}

Special find_special(const ir::Node& node, const ir::Graph& graph) {
  const SpecialOp* const row = find_row(node.opcode);
  return row != nullptr && row->choose != nullptr ? row->choose(node, graph)
                                                  : find_special(ir::op_desc(node.opcode).name);
}

}  // namespace torch_remote::worker::aten
