#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"
#include "worker/targets/aten/kernels/special.h"

// Ops in dtypes that CUDA's kernels take and CPU's do not: computed on copies in a wider dtype. What they write goes
// back into its own tensors, and a result gets the dtype that the program says. Which op in which dtype is one table
// (casts.cpp); //tests/ops:test_cuda_dtypes holds it against torch's own lists of dtypes.
namespace torch_remote::worker::aten {

class Casts {
 public:
  // For a node that has an operand or result of a dtype that CPU's kernel lacks.
  static std::optional<Casts> find(const ir::Node& node, const ir::Graph& graph);

  // The stack has the arguments: tensors of narrow dtypes are replaced by copies, narrow dtypes by wide ones.
  void widen(c10::Stack& stack) const;

  // The stack has the results. What the op wrote to the copies, as `widen` left them, goes back to the arguments.
  void narrow(c10::Stack& stack, const std::vector<c10::IValue>& arguments, const c10::Stack& widened) const;

 private:
  struct Cast {
    c10::ScalarType narrow, wide;
  };

  c10::ScalarType wide(c10::ScalarType dtype) const;
  at::Tensor wide(const at::Tensor& tensor) const;
  at::Tensor narrow(at::Tensor tensor, const std::optional<c10::ScalarType>& dtype) const;

  std::vector<Cast> casts_;
  std::vector<uint32_t> operands_;                                    // arguments that are tensors or lists of them
  std::vector<uint32_t> written_;                                     // of these
  std::vector<uint32_t> dtypes_;                                      // arguments that are a dtype
  std::vector<std::vector<std::optional<c10::ScalarType>>> results_;  // a list's together
};

// nansum of complex numbers, which CPU's kernel refuses; null for any other node.
Special find_nansum(const ir::Node& node, const ir::Graph& graph);

}  // namespace torch_remote::worker::aten
