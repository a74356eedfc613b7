#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/targets/cuda/dnn/cudnn.h"

// Batch norm that trains, and its gradients, as graphs of cuDNN's: one operation each.
namespace torch_remote::worker::cuda {

// A call, but for addresses and numbers. Images have dims [batch, channel, space...], 2 or 3 of space, and lie channels
// last without gaps; what there is a number of for each channel is f32, without gaps.
struct BatchNormProblem {
  bool backward = false;
  bool deterministic = false;  // always done in the same way, whichever is fastest
  bool runs = false;           // forward: statistics that run are read, and what they become is written elsewhere
  dnn::Type type = dnn::Type::kFloat32;
  std::vector<int64_t> sizes;
  auto operator<=>(const BatchNormProblem&) const = default;
  // All that a plan depends on but for the machine, in a word.
  std::string key_of() const;
};

// Tensors of the graphs.
enum class BatchNormId : uint8_t {
  kInput = 1,
  kOutput,
  kScale,
  kBias,
  kMean,
  kDeviation,  // 1 / deviation, epsilon in it
  kMeanBefore,
  kVarianceBefore,
  kMeanAfter,
  kVarianceAfter,
  kEpsilon,   // f32 of the host's, as the next one
  kMomentum,  // the new one's share
  kGrad,
  kGradInput,
  kGradScale,
  kGradBias,
};

// The graph's descriptor, which is among those of `made` then, as is all that it is made of.
Status describe_batch_norm(const dnn::Table& table, dnn::Handle handle, const BatchNormProblem& problem,
                           std::vector<dnn::Descriptor>* made, dnn::Descriptor* graph);

}  // namespace torch_remote::worker::cuda
