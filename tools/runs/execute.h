#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "tools/runs/compare.h"
#include "tools/runs/device.h"

// Runs one graph without changing its inputs, and compares the results of two runs.
namespace torch_remote::tools {

// A run's inputs as buffers on a device, in the order of the graph's input buffers.
struct Inputs {
  std::vector<uint64_t> ids;
  std::vector<uint64_t> nbytes;
};
Status upload(Device& device, std::span<const Bytes> bytes, Inputs* inputs);
void free(Device& device, const Inputs& inputs);

// A part of a run's outcome: a view of a surviving buffer. Elements that no node writes are undefined (torch.empty), so
// outcomes are compared by the views that nodes write.
struct OutputView {
  bool input = false;  // the buffer is an input; otherwise it is fresh
  uint32_t index = 0;  // index among the graph's input buffers, or among its surviving buffers
  ir::DType dtype = ir::DType::kUInt8;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  auto operator<=>(const OutputView&) const = default;
};
// All views that the graph leaves, except dynamic results. `values`: the result of ir::evaluate.
std::vector<OutputView> output_views(const ir::Graph& graph, std::span<const int64_t> values);

struct Outcome {
  std::optional<std::string> error;  // an error of the worker; the other fields are then empty
  remote::ResultWords result_words;  // dynamic and host results
  std::vector<Bytes> outputs;        // bytes of the requested views, contiguous; then of the dynamic results
};

// Runs a graph on `inputs` (on copies of those that it would change) and reads `views`. Frees all other results.
Status execute(Device& device, const LoadedGraph& loaded, std::span<const int64_t> params, const Inputs& inputs,
               std::span<const OutputView> views, Outcome* outcome);

// The first difference between two runs of graphs that should give the same results, such as "output 3: 12 of 400 ...";
// nothing if they agree.
std::optional<std::string> compare(std::span<const OutputView> views, const Outcome& a, const Outcome& b,
                                   const Tolerance& tolerance);

// The dynamic results that a run's result words describe: the size and layout of each.
std::vector<OutputView> dynamic_results(const ir::Graph& graph, std::span<const int64_t> result_words);

}  // namespace torch_remote::tools
