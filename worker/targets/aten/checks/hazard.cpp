#include "worker/targets/aten/checks/hazard.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "worker/targets/aten/checks/hazards_generated.h"
#include "worker/targets/aten/checks/indices.h"

namespace torch_remote::worker::aten {
namespace {

// Treats negative indices as out of range, although some ops accept them.
bool inside(const at::Tensor& index, int64_t size) {
  if (index.numel() == 0) return true;
  return (index.scalar_type() == at::kLong || index.scalar_type() == at::kInt) && all_in_range(index, size);
}

bool list_inside(const at::Tensor& self, c10::ArrayRef<c10::IValue> indices) {
  int64_t dim = 0;
  for (const c10::IValue& item : indices) {
    const bool given = item.isTensor() && item.toTensor().defined();
    const bool mask =
        given && (item.toTensor().scalar_type() == at::kBool || item.toTensor().scalar_type() == at::kByte);
    if (given && !mask && (dim >= self.dim() || !inside(item.toTensor(), self.size(dim)))) return false;
    dim += mask ? item.toTensor().dim() : 1;
  }
  return true;
}

}  // namespace

Hazard hazard_of(const ir::Node& node, const ir::Graph& graph) {
  const ir::OpDesc& desc = ir::op_desc(node.opcode);
  if (!(desc.flags & ir::kOpInPlace) || node.args.empty() || node.args[0].tag != ir::ArgTag::kView)
    return Hazard::kNone;
  const auto* const found = std::ranges::lower_bound(kHazards, node.opcode, {}, &std::pair<ir::Opcode, Hazard>::first);
  if (found == std::end(kHazards) || found->first != node.opcode) return Hazard::kNone;
  if (found->second != Hazard::kIntegerDivision) return found->second;
  const auto dtype = static_cast<at::ScalarType>(graph.views[node.args[0].a].dtype);
  return c10::isIntegralType(dtype, false) ? Hazard::kAny : Hazard::kNone;
}

bool may_fail(Hazard hazard, const c10::IValue* args) {
  if (hazard == Hazard::kAny) return true;
  const at::Tensor& self = args[0].toTensor();
  switch (hazard) {
    case Hazard::kDimIndices: {
      const int64_t dim = args[1].toInt();
      const int64_t size = self.dim() == 0 ? 1 : self.size(dim);
      return !inside(args[2].toTensor(), size);
    }
    case Hazard::kListIndices:
      return !list_inside(self, args[1].toListRef());
    case Hazard::kFlatIndices:
      return !inside(args[1].toTensor(), self.numel());
    case Hazard::kRowIndices:
      return self.dim() == 0 || !inside(args[1].toTensor(), self.size(0));
    default:
      return false;
  }
}

}  // namespace torch_remote::worker::aten
