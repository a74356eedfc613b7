#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "tools/runs/compare.h"
#include "tools/runs/device.h"

// Running one graph on inputs that stay as they are, and comparing what two runs leave.
namespace torch_remote::tools {

// Buffers on a device that a run has as inputs, in the order of the graph's input buffers.
struct Inputs {
  std::vector<uint64_t> ids;
  std::vector<uint64_t> nbytes;
};
Status upload(Device& device, std::span<const Bytes> bytes, Inputs* inputs);
void free(Device& device, const Inputs& inputs);

// Part of a run's outcome: a view of a buffer that survives. Elements that no node writes mean nothing (torch.empty),
// so outcomes are compared by the views that nodes write.
struct OutputView {
  bool input = false;  // of an input buffer, else of a fresh one
  uint32_t index = 0;  // among the graph's input buffers, or its survivors
  ir::DType dtype = ir::DType::kUInt8;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  auto operator<=>(const OutputView&) const = default;
};
// Everything that the graph leaves, but for dynamic results. `values` are evaluate's.
std::vector<OutputView> output_views(const ir::Graph& graph, std::span<const int64_t> values);

struct Outcome {
  std::optional<std::string> error;  // of the worker; nothing else is there then
  remote::Words words;               // dynamic and host results
  std::vector<Bytes> outputs;        // of the views asked for, packed; then the dynamic results
};

// Runs a graph on `inputs` (copies of those that it would change) and reads `views`. Nothing else is left on the
// device.
Status execute(Device& device, const LoadedGraph& loaded, std::span<const int64_t> params, const Inputs& inputs,
               std::span<const OutputView> views, Outcome* outcome);

// The first difference between two runs of graphs that should do the same, or nothing: "output 3: 12 of 400 ...".
std::optional<std::string> compare(std::span<const OutputView> views, const Outcome& a, const Outcome& b,
                                   const Tolerance& tolerance);

// The dynamic results that a run's words tell of: bytes of each, and how to read it.
std::vector<OutputView> dynamic_results(const ir::Graph& graph, std::span<const int64_t> words);

}  // namespace torch_remote::tools
