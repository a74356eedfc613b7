#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <span>
#include <string_view>

// Ops that this runner computes itself instead of calling torch's kernel. Random ops, because their numbers must depend
// on seed and offset alone. Attention and recurrent layers, which are this project's own ops. Embedding bags, matmuls
// with a given result dtype, gradients of slices, max pooling with unused indices, upsampling by two. The parts of
// batch norm over several processes, for which the CPU has no kernels.
namespace torch_remote::worker::aten {

struct SpecialCall {
  std::span<const c10::IValue> args;  // all arguments of the schema
  // A tensor for each result of the schema that the op creates, with the right sizes. It is undefined for a result that
  // is unused or is an argument. The tensors of a list follow each other in the list's position.
  std::span<const at::Tensor> results;
  uint64_t seed = 0;
  uint64_t offset = 0;
};

using Special = void (*)(const SpecialCall&);

// Null if torch's kernel should be called.
Special find_special(std::string_view name);

Special find_random(std::string_view name);
Special find_attention(std::string_view name);
Special find_add_slice(std::string_view name);
Special find_embedding(std::string_view name);
Special find_matmul_dtype(std::string_view name);
Special find_rnn(std::string_view name);
Special find_sync_batch_norm(std::string_view name);

}  // namespace torch_remote::worker::aten
