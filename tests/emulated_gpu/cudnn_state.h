#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/emulated_gpu/emulated_cudnn.h"
#include "worker/targets/cuda/dnn/cudnn.h"

// The state of the emulated cuDNN's descriptors, and the functions that compute graphs.
namespace torch_remote::worker::cuda::dnn {

struct HandleState {
  Stream stream = nullptr;
};

struct Value {
  AttributeType type = AttributeType::kInt64;
  int64_t count = 0;
  std::vector<std::byte> bytes;
};

struct DescriptorState {
  DescriptorType kind = DescriptorType::kTensor;
  bool finalized = false;
  std::map<Attribute, Value> values;
};

// Descriptors of recurrent layers. A 0 means that the value was never set.
struct TensorDescriptorState {
  Type type = Type::kFloat32;
  std::vector<int> sizes, strides;
};
struct RnnDataDescriptorState {
  Type type = Type::kFloat32;
  int steps = 0, batch = 0, elements = 0;
};
struct RnnDescriptorState {
  int mode = 0, inputs = 0, units = 0, directions = 0;
  bool biases = false;
  Type type = Type::kFloat32;
};

}  // namespace torch_remote::worker::cuda::dnn

namespace torch_remote::worker::cuda::emulated {

// A tensor of a graph, with the attributes of its descriptor.
struct DnnTensor {
  dnn::Type type = dnn::Type::kFloat32;
  std::vector<int64_t> sizes, strides;
  int64_t id = 0, alignment = 0;
  bool is_virtual = false;
  bool is_host_scalar = false;  // a scalar in host memory, read when the plan executes

  uint64_t nbytes() const;
  int64_t count() const;
};

// A graph of one convolution. A forward pass may be followed by a bias.
struct DnnGraph {
  dnn::DescriptorType pass = dnn::DescriptorType::kForward;
  DnnTensor image, filter, output;  // operands of the convolution
  DnnTensor bias, sum;
  bool adds_bias = false;
  bool computes_in_f64 = false;  // computes in float64
  std::vector<int64_t> padding, padding_after, stride, dilation;

  const DnnTensor& result() const;
  std::vector<const DnnTensor*> operands() const;  // tensors in memory, without the result
};

// Computes the graph. The addresses are host addresses.
struct DnnAddresses {
  const std::byte *image = nullptr, *filter = nullptr, *output = nullptr, *bias = nullptr;
  std::byte* result = nullptr;
};
void compute(const DnnGraph& graph, Engine engine, const DnnAddresses& addresses);

// -- graphs of arbitrary operations; only attention can be computed

struct DnnOperation {
  dnn::DescriptorType kind = dnn::DescriptorType::kMatmulOperation;
  dnn::PointwiseMode pointwise = dnn::PointwiseMode::kAdd;
  dnn::ReductionMode reduction = dnn::ReductionMode::kAdd;
  int64_t axis = 0;
  std::vector<int64_t> operands;  // tensor ids: left, right, third
  int64_t result = 0;
};

struct DnnOperations {
  std::vector<DnnOperation> operations;
  std::map<int64_t, DnnTensor> tensors;
  std::set<int64_t> computed;  // ids of tensors that an operation computes

  bool has_memory(const DnnTensor& tensor) const { return !tensor.is_virtual && !tensor.is_host_scalar; }
};

// -- a graph of batch norm, forward or backward

struct DnnNorm {
  bool backward = false;
  std::map<dnn::Attribute, DnnTensor> tensors;

  const DnnTensor* find(dnn::Attribute attribute) const {
    const auto found = tensors.find(attribute);
    return found == tensors.end() ? nullptr : &found->second;
  }
  // Whether the operation writes the tensor.
  bool writes(dnn::Attribute attribute) const;
};

inline bool is_norm(dnn::DescriptorType kind) {
  return kind == dnn::DescriptorType::kNormForward || kind == dnn::DescriptorType::kNormBackward;
}
// Checks an operation when it is finalized, and fills *norm if it is a batch norm. On an error, *why has the reason.
dnn::Result read_norm(const dnn::DescriptorState& operation, DnnNorm* norm, std::string* why);
// Whether some engine supports it.
dnn::Result supports_norm(const DnnNorm& norm, std::string* why);
void compute(const DnnNorm& norm, const std::map<int64_t, std::byte*>& addresses,
             const std::map<int64_t, float>& numbers);

// Checks the sizes of an operation (not a convolution) when it is finalized. On an error, *why has the reason.
dnn::Result check_operation_sizes(const dnn::DescriptorState& state, std::string* why);
// Reads the operations of a graph; each is already finalized. On an error, *why has the reason.
dnn::Result read_operations(const std::vector<dnn::Descriptor>& descriptors, DnnOperations* graph, std::string* why);
// Whether the graph is an attention that the library's engines support.
dnn::Result supports_attention(const DnnOperations& graph, std::string* why);
// Computes the graph. Both maps are keyed by tensor id: host addresses of tensors, and values of host scalars.
void compute(const DnnOperations& graph, const std::map<int64_t, std::byte*>& addresses,
             const std::map<int64_t, float>& numbers);
// Calls f(at, bytes) for each row of adjacent elements. `at` is a byte offset from the tensor's address.
void for_each_row(const DnnTensor& tensor, const std::function<void(uint64_t at, uint64_t bytes)>& f);

// -- recurrent layers

void add_rnn_functions(dnn::Table& table);

// -- descriptors

inline const dnn::Value* find(const dnn::DescriptorState& state, dnn::Attribute attribute) {
  const auto found = state.values.find(attribute);
  return found == state.values.end() ? nullptr : &found->second;
}
// T may be a pointer type; then the pointers themselves are copied.
template <typename T>
constexpr size_t kItem = sizeof(T);  // NOLINT(bugprone-sizeof-expression)
template <typename T>
std::vector<T> get_list(const dnn::DescriptorState& state, dnn::Attribute attribute) {
  const dnn::Value* const value = find(state, attribute);
  if (value == nullptr) return {};
  std::vector<T> values(static_cast<size_t>(value->count));
  std::memcpy(static_cast<void*>(values.data()), value->bytes.data(), values.size() * kItem<T>);
  return values;
}
template <typename T>
T get_scalar(const dnn::DescriptorState& state, dnn::Attribute attribute) {
  const dnn::Value* const value = find(state, attribute);
  T first = {};
  if (value != nullptr && value->bytes.size() >= kItem<T>)
    std::memcpy(static_cast<void*>(&first), value->bytes.data(), kItem<T>);
  return first;
}
DnnTensor tensor_of(const dnn::DescriptorState& state);

// Converts one element of memory from and to float.
float load_element(dnn::Type type, const std::byte* from);
void store_element(dnn::Type type, float value, std::byte* to);

}  // namespace torch_remote::worker::cuda::emulated
