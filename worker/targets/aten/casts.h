#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"

// Supports ops in dtypes that CUDA's kernels accept and the CPU's do not: computes them on copies in a wider dtype.
// The values that an op writes are copied back to its operands, and a result gets the dtype that the program expects.
// The column `computes_in` of ir/ops/*.toml lists ops and dtypes; //tests/ops:test_cuda_dtypes compares the dtypes that
// run with torch's own lists.
namespace torch_remote::worker::aten {

class Casts {
 public:
  // Returns the casts for a node with an operand or result of a dtype that the CPU's kernel lacks.
  static std::optional<Casts> find(const ir::Node& node, const ir::Graph& graph);

  // The stack holds the arguments. Replaces tensors of narrow dtypes by copies in a wider dtype. Also replaces
  // arguments that are narrow dtypes by the wider dtype.
  void widen(c10::Stack& stack) const;

  // The stack holds the results. Converts them to the dtypes that the program expects. `arguments` are the op's
  // original arguments, and `widened` those that widen() made of them. Copies the operands that the op wrote from
  // `widened` to `arguments`.
  void narrow(c10::Stack& stack, const std::vector<c10::IValue>& arguments, const c10::Stack& widened) const;

 private:
  struct Cast {
    c10::ScalarType narrow, wide;
  };

  c10::ScalarType wide(c10::ScalarType dtype) const;
  at::Tensor wide(const at::Tensor& tensor) const;
  at::Tensor narrow(at::Tensor tensor, const std::optional<c10::ScalarType>& dtype) const;

  std::vector<Cast> casts_;
  std::vector<uint32_t> operands_;  // indices of arguments that are tensors or lists of tensors
  std::vector<uint32_t> written_;   // the operands that the op writes
  std::vector<uint32_t> dtypes_;    // indices of arguments that are a dtype
  // per result: its dtypes, one for each tensor of a list
  std::vector<std::vector<std::optional<c10::ScalarType>>> results_;
};

}  // namespace torch_remote::worker::aten
