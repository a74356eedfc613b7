#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "ir/rnn.h"
#include "ir/status.h"
#include "worker/device/memory.h"
#include "worker/targets/cuda/device/gpu.h"
#include "worker/targets/cuda/dnn/cudnn.h"

// Recurrent layers with cuDNN. One call computes all time steps of one layer, in one or both directions. Another one
// computes the layer's gradients.
namespace torch_remote::worker::cuda {

// One layer, without addresses. The input is [steps, batch, inputs], the output [steps, batch, directions * units], and
// states [directions, batch, units], all contiguous. f32 is never rounded to tf32.
struct RnnProblem {
  ir::RnnMode mode = ir::RnnMode::kTanh;
  dnn::Type type = dnn::Type::kFloat32;
  bool biases = true;
  int64_t steps = 1, batch = 1, inputs = 1, units = 1, directions = 1;
  auto operator<=>(const RnnProblem&) const = default;
};

// Bytes that the layer's calls need, and the offset of each weight in cuDNN's weight space. For each direction there
// are the weights of the input, gate by gate, then those of the hidden state. Matrices are [units, inputs] for the
// input and [units, units] for the hidden state.
struct RnnSpace {
  struct Weights {
    uint64_t matrix = 0, bias = 0;  // Bytes from the start of the weight space; `bias` is 0 without biases.
  };
  uint64_t weights = 0;
  uint64_t forward_workspace = 0;       // Workspace of forward().
  uint64_t workspace = 0, reserve = 0;  // Workspace and reserve space of backward().
  std::vector<Weights> weight_offsets;
};

// Descriptors for a problem's calls, made once.
class PreparedRnn {
 public:
  ~PreparedRnn();
  PreparedRnn(const PreparedRnn&) = delete;
  PreparedRnn& operator=(const PreparedRnn&) = delete;

  const RnnSpace& space() const { return space_; }

 private:
  friend class RnnLibrary;
  explicit PreparedRnn(const dnn::Table& table) : table_(table) {}

  const dnn::Table& table_;
  RnnProblem problem_;
  RnnSpace space_;
  dnn::RnnDescriptor rnn_ = nullptr;
  dnn::RnnDataDescriptor input_ = nullptr, output_ = nullptr;
  dnn::TensorDescriptor state_ = nullptr;
};

// Addresses on the GPU; 0: absent or not wanted. forward() needs `input`, `output`, `weights` and `workspace`, and uses
// no gradients and no `reserve`. In backward(), only `hy`, `cy`, gradients of states, `grad_weights`, and parts that
// the layer lacks may be 0.
struct RnnPointers {
  DevicePointer input = 0, hx = 0, cx = 0, output = 0, hy = 0, cy = 0, weights = 0, workspace = 0, reserve = 0;
  DevicePointer grad_output = 0, grad_hy = 0, grad_cy = 0, grad_input = 0, grad_hx = 0, grad_cx = 0;
  DevicePointer grad_weights = 0;  // The gradients are added to it.
};

// cuDNN's recurrent layers on one GPU's work stream. Used by one thread, with the GPU's context current. The table must
// outlive it.
class RnnLibrary {
 public:
  struct Options {
    const dnn::Table* table = nullptr;
  };
  static Status open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                     std::unique_ptr<RnnLibrary>* library);
  ~RnnLibrary();

  // kUnsupported: cuDNN does not support the problem. This answer is cached, and other errors are not.
  Status prepare(const RnnProblem& problem, std::shared_ptr<PreparedRnn>* prepared);

  // Both call cuDNN at once. They cannot be part of a CUDA graph, as cuDNN uses streams of its own. If the GPU is lost,
  // they do nothing and return ok.
  Status forward(const PreparedRnn& prepared, const RnnPointers& pointers);
  // Runs the forward pass again, as only cuDNN can read what it stores, then the backward pass. Also writes the output.
  Status backward(const PreparedRnn& prepared, const RnnPointers& pointers);

 private:
  struct CachedRnn {
    std::shared_ptr<PreparedRnn> prepared;
    Status status;
  };

  RnnLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, const dnn::Table& table)
      : gpu_(std::move(gpu)), memory_(memory), table_(table) {}

  Status describe(PreparedRnn& prepared);
  Status measure(PreparedRnn& prepared);
  Status run_forward(const PreparedRnn& prepared, const RnnPointers& pointers, bool trains);

  const std::shared_ptr<Gpu> gpu_;
  CachingAllocator& memory_;
  const dnn::Table& table_;
  dnn::Handle handle_ = nullptr;
  std::map<RnnProblem, CachedRnn> cached_;
};

}  // namespace torch_remote::worker::cuda
