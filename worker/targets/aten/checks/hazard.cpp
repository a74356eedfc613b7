#include "worker/targets/aten/checks/hazard.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "worker/targets/aten/checks/indices.h"

namespace torch_remote::worker::aten {
namespace {

constexpr std::array<std::pair<std::string_view, Hazard>, 12> kHazards{{
    {"aten::index_add_", Hazard::kDimIndices},
    {"aten::index_copy_", Hazard::kDimIndices},
    {"aten::index_fill_", Hazard::kDimIndices},
    {"aten::index_reduce_", Hazard::kDimIndices},
    {"aten::scatter_", Hazard::kDimIndices},
    {"aten::scatter_add_", Hazard::kDimIndices},
    {"aten::scatter_reduce_", Hazard::kDimIndices},
    {"aten::index_put_", Hazard::kListIndices},
    {"aten::_index_put_impl_", Hazard::kListIndices},
    {"aten::put_", Hazard::kFlatIndices},
    {"aten::embedding_renorm_", Hazard::kRowIndices},
    {"aten::masked_scatter_", Hazard::kAny},
}};

constexpr std::array<std::string_view, 4> kDivisions{"aten::div_", "aten::floor_divide_", "aten::remainder_",
                                                     "aten::fmod_"};

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
  const std::string_view base = desc.name.substr(0, desc.name.find('.'));
  if (std::ranges::find(kDivisions, base) != kDivisions.end()) {
    return c10::isIntegralType(static_cast<at::ScalarType>(graph.views[node.args[0].a].dtype), false) ? Hazard::kAny
                                                                                                      : Hazard::kNone;
  }
  const auto found = std::ranges::find(kHazards, base, &std::pair<std::string_view, Hazard>::first);
  return found != kHazards.end() ? found->second : Hazard::kNone;
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
