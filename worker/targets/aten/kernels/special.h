#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <span>
#include <string_view>

// Ops that this runner computes itself instead of calling torch's kernel: random ones (whose numbers must depend on
// seed and offset alone), attention and recurrent layers (this project's own ops), bags of embeddings, matrix products
// of a dtype that the caller names, gradients of slices, max pooling whose indices nobody reads, upsampling by two, and
// the parts of batch norm over several processes, for which CPU has no kernels.
namespace torch_remote::worker::aten {

struct SpecialCall {
  std::span<const c10::IValue> args;  // as the schema says, all of them
  // A tensor for each result of the schema that is to be made, already of the right sizes; undefined for one that
  // nobody wants or that is an argument. A list's tensors stand in its place.
  std::span<const at::Tensor> results;
  uint64_t seed = 0;
  uint64_t offset = 0;
};

using Special = void (*)(const SpecialCall&);

// Null if torch's kernel is to be called.
Special find_special(std::string_view name);

Special find_random(std::string_view name);
Special find_attention(std::string_view name);
Special find_add_slice(std::string_view name);
Special find_embedding(std::string_view name);
Special find_product(std::string_view name);
Special find_rnn(std::string_view name);
Special find_sync_batch_norm(std::string_view name);

}  // namespace torch_remote::worker::aten
