#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "codegen/lower/node_emitter.h"

// Indices as values of the kernel, and loads and stores at indices that the kernel reads. If such an index is out of
// bounds, the kernel fails.
namespace torch_remote::codegen {

// The point's index along an axis of the node's space, i64. kNone if no dim of the kernel is exactly that axis.
V axis_index(NodeEmitter& node, uint32_t axis);
// The point's row-major number in the space, i64. kNone if the kernel's dims are not in row-major order.
V linear_index(NodeEmitter& node);
// An index that the node reads, i64, which must be less than `bound` or equal `ignored`. `wraps`: negative indices
// count from the end.
V checked_index(NodeEmitter& node, uint32_t view, int64_t bound, bool wraps = false,
                std::optional<int64_t> ignored = std::nullopt);
// Loads an arbitrary element of an operand to check an index. The load reports a failure unless `index` is a position
// along this axis of the node's space.
V check_index_in_axis(NodeEmitter& node, std::string_view name, V index, uint32_t axis);

// The element of an operand at the indices in these views: one index for each dim that indices choose.
V load_at_indices(NodeEmitter& node, std::string_view name, std::span<const uint32_t> indices, bool wraps = false);
// The element of an operand whose row-major number is in this view; negative numbers count from the end.
V load_at_linear_index(NodeEmitter& node, std::string_view name, uint32_t number);
// Writes the value, or adds it, to the elements at the indices in these views, for the parts that the node writes at
// indices.
void store_at_indices(NodeEmitter& node, std::span<const uint32_t> indices, V value, bool adds, bool wraps = false);

}  // namespace torch_remote::codegen
