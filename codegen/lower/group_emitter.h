#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "codegen/lower/emitter.h"
#include "ir/fusion/domain.h"
#include "ir/fusion/kernel_dims.h"

namespace torch_remote::codegen {

// State that the members of a group share while their kernel is built.
struct GroupEmitter {
  GroupEmitter(const ir::Graph& graph, std::span<const int64_t> values, const ir::IterationDomain& domain,
               const ir::KernelDims& dims, Launch& launch)
      : graph(graph), values(values), domain(domain), dims(dims), launch(launch), emitter(launch) {
    Kernel& kernel = launch.kernel;
    kernel.rows = static_cast<uint32_t>(dims.row.size());
    kernel.columns = static_cast<uint32_t>(dims.columns.size());
    for (const ir::MergedDims& dim : dims.row) launch.sizes.push_back(dim.size);
    for (const ir::MergedDims& dim : dims.columns) launch.sizes.push_back(dim.size);
    for (const ir::MergedDims& dim : dims.outer) launch.outer.push_back(dim.size);
    launch.remainder_columns = dims.remainder;
  }

  // Returns the number of the kernel's operand for this access. If the kernel has no equal operand yet, adds one, with
  // its binding. `node`: the node that accesses it.
  uint32_t operand(const ir::IterationDomain::Access& access, uint32_t node) {
    const ir::View& view = graph.views[access.part.view];
    Operand operand;
    operand.dtype = view.dtype;
    Binding binding;
    binding.buffer = view.buffer;
    binding.offset = access.offset;
    const auto add = [&](const ir::MergedDims& dim, int64_t times) {
      const int64_t stride = dim.stride(access) * times;
      if (stride != 0) operand.dims |= 1u << binding.strides.size();
      binding.strides.push_back(stride);
      return stride;
    };
    for (const ir::MergedDims& dim : dims.row) add(dim, dims.row_length != 0 ? dims.row_length : 1);
    int64_t inner = 0;
    for (const ir::MergedDims& dim : dims.columns) inner = add(dim, 1);
    const uint32_t last = static_cast<uint32_t>(binding.strides.size());
    operand.strided = last != 0 && (operand.dims >> (last - 1) & 1) != 0 && !dims.columns.empty() && inner != 1;
    for (const ir::MergedDims& dim : dims.outer) binding.outer.push_back(dim.stride(access));
    operand.indexed = static_cast<uint8_t>(access.indexed.size());
    for (const ir::IterationDomain::IndexedDim& dim : access.indexed) {
      binding.strides.push_back(dim.stride);
      binding.bounds.push_back(dim.size);
    }
    for (uint32_t i = 0; i < launch.operands.size(); ++i) {
      const Binding& known = launch.operands[i];
      if (operand.indexed != 0 && launch.nodes[i] != node) continue;  // each node has its own error message
      if (launch.kernel.operands[i] == operand && known.buffer == binding.buffer && known.offset == binding.offset &&
          known.strides == binding.strides && known.outer == binding.outer && known.bounds == binding.bounds) {
        return i;
      }
    }
    launch.kernel.operands.push_back(operand);
    launch.operands.push_back(std::move(binding));
    launch.nodes.push_back(node);
    return static_cast<uint32_t>(launch.operands.size() - 1);
  }

  // Adds the stores of the values that are used outside of the group. If a buffer is written several times, the last
  // value is stored. Returns false if an operand must be zeroed first (Binding::needs_zero_fill) and its layout is not
  // supported for that. Supported operands vary only along the last column, with stride 1, and along their indexed dim.
  bool store() {
    for (const auto& [buffer, written] : results) {
      if (graph.buffers[buffer].group_local) continue;
      launch.kernel.stores.push_back({operand(*written.access, written.node), written.value, {}, false});
    }
    for (const IndexedStore& written : at_indices) {
      if (graph.buffers[graph.views[written.access->part.view].buffer].group_local) continue;
      const uint32_t to = operand(*written.access, written.node);
      launch.kernel.stores.push_back({to, written.value, written.indices, written.adds});
      Binding& binding = launch.operands[to];
      binding.needs_zero_fill = !written.access->part.reads;
      if (!binding.needs_zero_fill) continue;
      const auto is_zero = [](int64_t stride) { return stride == 0; };
      const bool apart =
          !dims.columns.empty() && !std::ranges::all_of(binding.strides.begin(), binding.strides.end() - 2, is_zero);
      if (apart || launch.kernel.operands[to].strided || !std::ranges::all_of(binding.outer, is_zero)) return false;
    }
    return true;
  }

  struct EmittedResult {
    V value = kNone;
    const ir::IterationDomain::Access* access = nullptr;
    uint32_t node = 0;
    bool rounds = false;  // readers get the value as a store would round it
  };

  struct IndexedStore {
    std::vector<V> indices;
    V value = kNone;
    const ir::IterationDomain::Access* access = nullptr;
    uint32_t node = 0;
    bool adds = false;
  };

  const ir::Graph& graph;
  std::span<const int64_t> values;
  const ir::IterationDomain& domain;
  const ir::KernelDims& dims;
  Launch& launch;
  Emitter emitter;
  std::map<uint32_t, EmittedResult> results;  // by buffer
  std::vector<IndexedStore> at_indices;
};

}  // namespace torch_remote::codegen
