#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "ir/graph.h"

// Ops that this runner computes itself instead of calling torch's kernel. Random ops, because their numbers must depend
// on seed and offset alone. Attention and recurrent layers, which are this project's own ops. Embedding bags, matmuls
// with a given result dtype, gradients of slices, max pooling with unused indices, upsampling by two. The parts of
// batch norm over several processes, for which the CPU has no kernels. Ops in dtypes that the CPU's kernels refuse.
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

// Chooses the kernel for a node; null if torch's kernel should be called.
using SpecialChoice = Special (*)(const ir::Node& node, const ir::Graph& graph);

// The columns `aten` and `aten_if` of ir/ops/*.toml, by opcode and for ops outside the table by name
// (special_generated.h). A kernel "random.uniform" is the function random_kernels::uniform. One of the two is null.
struct SpecialOp {
  ir::Opcode opcode;
  Special kernel;
  SpecialChoice choose;
};
struct SpecialName {
  std::string_view name;
  Special kernel;
};

// The kernel that computes all nodes of this op. Null: torch's kernel computes some or all.
Special find_special(std::string_view name);
// The kernel that computes this node. Null: torch's kernel should be called.
Special find_special(const ir::Node& node, const ir::Graph& graph);

}  // namespace torch_remote::worker::aten
