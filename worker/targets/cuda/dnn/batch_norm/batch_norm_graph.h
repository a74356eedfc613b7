#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/targets/cuda/dnn/cudnn.h"

// Batch norm in training mode, and its gradients, as cuDNN graphs of one operation each.
namespace torch_remote::worker::cuda {

// One call, without addresses and numbers. Images are [batch, channel, space...] with 2 or 3 space dims, channels last
// and without gaps. Per-channel tensors are contiguous f32.
struct BatchNormProblem {
  bool backward = false;
  bool deterministic = false;  // Only the heuristic's first choice may run, even if memory is short.
  bool tune = false;           // The fastest algorithm is found by timing. Not together with `deterministic`.
  // Forward: running statistics are read, and the updated ones are written to other memory.
  bool has_running_stats = false;
  dnn::Type type = dnn::Type::kFloat32;
  std::vector<int64_t> sizes;
  auto operator<=>(const BatchNormProblem&) const = default;
  // Everything that a plan depends on except the machine, as one word.
  std::string key_of() const;
};

// The strides of contiguous channels-last images with these sizes: [batch, channel, space...].
std::vector<int64_t> channels_last_strides(const std::vector<int64_t>& sizes);

// Tensors of the graphs.
enum class BatchNormId : uint8_t {
  kInput = 1,
  kOutput,
  kScale,
  kBias,
  kMean,
  kInverseStd,  // 1 / sqrt(variance + epsilon)
  kMeanBefore,
  kVarianceBefore,
  kMeanAfter,
  kVarianceAfter,
  kEpsilon,   // An f32 on the host, as kMomentum.
  kMomentum,  // The weight of the new statistics.
  kGrad,
  kGradInput,
  kGradScale,
  kGradBias,
};

// Builds the graph. `made` receives its descriptor and those of everything in it.
Status describe_batch_norm(const dnn::Table& table, dnn::Handle handle, const BatchNormProblem& problem,
                           std::vector<dnn::Descriptor>* made, dnn::Descriptor* graph);

}  // namespace torch_remote::worker::cuda
