#include "ir/fusion/fusion.h"

#include <algorithm>
#include <bit>

// Maps the views of a node to its space.
namespace torch_remote::ir {

bool is_at_indices(const Part& part) {
  return part.mapping == AxisMapping::kNamed && std::ranges::count(part.axes, kByIndex) != 0;
}

bool is_loss(Expansion expansion) {
  switch (expansion) {
    case Expansion::kMseLoss:
    case Expansion::kSmoothL1Loss:
    case Expansion::kHuberLoss:
    case Expansion::kSoftMarginLoss:
    case Expansion::kBceWithLogits:
    case Expansion::kNllLoss:
      return true;
    default:
      return false;
  }
}

bool is_sequential(Expansion expansion) {
  switch (expansion) {
    case Expansion::kCumsum:
    case Expansion::kCumprod:
    case Expansion::kLogCumSumExp:
    case Expansion::kEmbeddingBackward:
    case Expansion::kIndexAdd:
    case Expansion::kIndexCopy:
    case Expansion::kIndexPut:
    case Expansion::kScatter:
    case Expansion::kScatterAdd:
      return true;
    default:
      return false;
  }
}

bool checks_indices(const KernelForm& form) {
  return form.expansion == Expansion::kNllLoss || std::ranges::any_of(form.parts, is_at_indices);
}

bool can_reexecute(const Graph& graph, std::span<const uint32_t> nodes) {
  const bool checks = std::ranges::any_of(nodes, [&](uint32_t n) {
    KernelForm form;
    return find_form(graph, graph.nodes[n], 0, &form) && checks_indices(form);
  });
  if (!checks) return true;
  const auto first_of = [&](uint32_t buffer) {
    for (uint32_t n = 0;; ++n) {
      bool touches = false;
      for_each_view(graph.nodes[n], [&](uint32_t view, bool) { touches |= graph.views[view].buffer == buffer; });
      if (touches) return n;
    }
  };
  bool makes = true;
  for (const uint32_t n : nodes) {
    for_each_access(graph.nodes[n], [&](uint32_t view, Access access) {
      const uint32_t buffer = graph.views[view].buffer;
      if (!makes || access == Access::kReads || access == Access::kCreates) return;
      makes = graph.buffers[buffer].kind == BufferKind::kFresh && std::ranges::count(nodes, first_of(buffer)) != 0;
    });
  }
  return makes;
}

bool indices_exist_before(const Graph& graph, std::span<const uint32_t> nodes) {
  std::vector<uint32_t> written, read;  // buffers
  KernelForm form;
  for (const uint32_t n : nodes) {
    for_each_view(graph.nodes[n], [&](uint32_t view, bool writes) {
      if (writes) written.push_back(graph.views[view].buffer);
    });
    if (!find_form(graph, graph.nodes[n], 0, &form)) continue;
    for (const Part& part : form.parts) {
      if (part.is_index) read.push_back(graph.views[part.view].buffer);
    }
  }
  return std::ranges::none_of(read, [&](uint32_t buffer) { return std::ranges::count(written, buffer) != 0; });
}

bool find_axes(const Graph& graph, const KernelForm& form, const Part& part, std::vector<AxisRange>* axes_out) {
  const View& view = graph.views[part.view];
  const auto rank = static_cast<int>(view.sizes.size());
  const auto axes = static_cast<int>(graph.views[form.space].sizes.size());
  // The axes of the space for an axis of the view that defines the space's sizes.
  const auto range = [&](int axis) -> AxisRange {
    const auto first = static_cast<uint32_t>(axis);
    if (form.channel_groups == 0 || axis < 1) return {first, 1};
    return axis == 1 ? AxisRange{1, 2} : AxisRange{first + 1, 1};
  };
  axes_out->clear();
  for (int d = 0, axis = 0; d < rank; ++d, ++axis) {
    switch (part.mapping) {
      case AxisMapping::kFirst:
        break;
      case AxisMapping::kRest:
        while (axis < axes && (form.reduced >> axis & 1) != 0) ++axis;
        break;
      case AxisMapping::kLast:
        axis = axes - rank + d;
        break;
      case AxisMapping::kReduced:
        axis = d == rank - 1 ? std::countr_zero(form.reduced) : axes;
        break;
      case AxisMapping::kChannel:
        axis = d + 1;
        break;
      case AxisMapping::kNamed:
        axis = part.is_by_index(d) ? axes : static_cast<int>(part.axes[d]);
        break;
    }
    const bool indexed = part.is_by_index(d);
    int64_t size = 0;
    const bool one = graph.is_constant(view.sizes[d], &size) && size == 1;
    if (!indexed && !one && (axis < 0 || axis >= axes)) return false;
    // With AxisMapping::kFirst, dims map to the axes of the split space directly.
    const auto found = part.mapping == AxisMapping::kFirst ? AxisRange{static_cast<uint32_t>(axis), 1} : range(axis);
    axes_out->push_back(indexed || one ? AxisRange{} : found);
  }
  return true;
}

bool find_sizes(const Graph& graph, const KernelForm& form, std::span<const int64_t> values,
                std::vector<int64_t>* sizes) {
  sizes->clear();
  for (const Sym size : graph.views[form.space].sizes) sizes->push_back(values[size]);
  if (form.channel_groups == 0) return true;
  const int64_t channels = (*sizes)[1];
  if (form.channel_groups < 0 || channels % form.channel_groups != 0) return false;
  (*sizes)[1] = form.channel_groups;
  sizes->insert(sizes->begin() + 2, channels / form.channel_groups);
  return true;
}

}  // namespace torch_remote::ir
