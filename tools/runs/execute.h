#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/checking/compare.h"
#include "ir/graph.h"
#include "tools/runs/device.h"

// Runs one graph without changing its inputs, and compares the results of two runs.
namespace torch_remote::tools {

// A run's inputs as buffers on a device, in the order of the graph's input buffers.
struct Inputs {
  std::vector<uint64_t> ids;
  std::vector<uint64_t> nbytes;
};
// Creates one buffer for each input. The caller frees the buffers with free(). After an error, *inputs has the buffers
// that exist, and the device is unusable.
Status upload(Device& device, std::span<const Bytes> bytes, Inputs* inputs);
void free(Device& device, const Inputs& inputs);

// A part of a run's outcome: a view of a surviving buffer. Elements that no node writes are undefined (torch.empty), so
// outcomes are compared by the views that nodes write.
struct OutputView {
  bool input = false;  // the buffer is an input; otherwise it is fresh
  uint32_t index = 0;  // index among the graph's input buffers, or among its surviving buffers
  ir::DType dtype = ir::DType::kUInt8;
  std::vector<int64_t> sizes, strides;  // strides are in elements
  int64_t offset = 0;                   // elements
  auto operator<=>(const OutputView&) const = default;
};
// All views of surviving buffers that nodes write, each once, except dynamic results. If one of them covers its whole
// buffer, the other views of that buffer are left out. `values`: the result of ir::evaluate.
std::vector<OutputView> output_views(const ir::Graph& graph, std::span<const int64_t> values);

struct Outcome {
  std::optional<std::string> error;  // an error of the worker; the other fields are then empty
  remote::ResultWords result_words;  // sizes of dynamic results, and host results (RunReply in remote/wire/wire.fbs)
  std::vector<Bytes> outputs;        // contiguous bytes of the requested views, then those of the dynamic results
  std::vector<ir::DType> dynamic_dtypes;  // one per dynamic result
};

// Runs a graph on `inputs`, and on copies of those that it would write or free. Waits for the run, and reads `views`
// and the dynamic results. Frees the copies and all buffers that the run created. An error of the graph or its ops is
// in Outcome::error. A returned error means that the device is unusable.
Status execute(Device& device, const LoadedGraph& loaded, std::span<const int64_t> params, const Inputs& inputs,
               std::span<const OutputView> views, Outcome* outcome);

// The first difference between two runs of graphs that should give the same results, such as "output 3: 12 of 400 ...";
// nothing if they agree. `views`: those that were passed to execute() for both runs. Two runs that failed agree,
// whatever their errors are.
std::optional<std::string> compare(std::span<const OutputView> views, const Outcome& a, const Outcome& b,
                                   const ir::Tolerance& tolerance);

// The dynamic results that a run's result words describe, with the sizes and strides that they have. Results whose
// buffer does not survive are left out.
std::vector<OutputView> dynamic_results(const ir::Graph& graph, std::span<const int64_t> result_words);

}  // namespace torch_remote::tools
