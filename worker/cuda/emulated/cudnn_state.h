#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "worker/cuda/cudnn.h"
#include "worker/cuda/emulated/emulated_cudnn.h"

// What the emulated cuDNN knows of descriptors, and what it computes.
namespace torch_remote::worker::cuda::dnn {

struct HandleState {
  Stream stream = nullptr;
};

struct Value {
  Is type = Is::kInt64;
  int64_t count = 0;
  std::vector<std::byte> bytes;
};

struct DescriptorState {
  Kind kind = Kind::kTensor;
  bool finalized = false;
  std::map<Attribute, Value> values;
};

}  // namespace torch_remote::worker::cuda::dnn

namespace torch_remote::worker::cuda::emulated {

// A tensor of a graph, as its descriptor has it.
struct DnnTensor {
  dnn::Type type = dnn::Type::kFloat32;
  std::vector<int64_t> sizes, strides;
  int64_t id = 0, alignment = 0;
  bool is_virtual = false;

  uint64_t nbytes() const;
  int64_t count() const;
};

// A graph: a convolution and, maybe, a bias behind its forward pass.
struct DnnGraph {
  dnn::Kind pass = dnn::Kind::kForward;
  DnnTensor image, filter, output;  // the convolution's
  DnnTensor bias, sum;
  bool adds_bias = false;
  bool wide = false;  // it computes in f64
  std::vector<int64_t> padding, padding_after, stride, dilation;

  const DnnTensor& result() const;
  std::vector<const DnnTensor*> operands() const;  // that have memory, without the result
};

// Computes it. Addresses are this CPU's.
struct DnnAddresses {
  const std::byte *image = nullptr, *filter = nullptr, *output = nullptr, *bias = nullptr;
  std::byte* result = nullptr;
};
void compute(const DnnGraph& graph, Engine engine, const DnnAddresses& addresses);

}  // namespace torch_remote::worker::cuda::emulated
