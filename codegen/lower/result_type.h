#pragma once

#include <cstdint>
#include <optional>

#include "ir/graph.h"

// The dtypes in which elementwise ops compute.
namespace torch_remote::codegen {

// torch::promote_types for real dtypes.
ir::DType promoted(ir::DType a, ir::DType b);

// torch::result_type: tensors with dims come first, then zero-dim tensors, then numbers. The dtypes of a group are
// promoted. A later group replaces the result of the earlier ones only if its category (bool, integer, float) is
// higher.
class ResultType {
 public:
  void tensor(ir::DType dtype, bool has_dims) { join(has_dims ? dims_ : zero_dims_, dtype); }
  void number(ir::DType dtype) { join(numbers_, dtype); }
  // Adds a tensor or a number. False: the argument is neither.
  bool argument(const ir::Graph& graph, const ir::Arg& arg);
  // The result type of all that was added; nothing if nothing was added.
  std::optional<ir::DType> get() const;
  // The result type of the tensors alone; nothing if there are none.
  std::optional<ir::DType> of_tensors() const;

 private:
  static void join(std::optional<ir::DType>& known, ir::DType dtype) {
    known = known ? promoted(*known, dtype) : dtype;
  }
  std::optional<ir::DType> dims_, zero_dims_, numbers_;
};

// The types of an op's expression.
struct ExpressionTypes {
  ir::DType common;   // the operands' result type
  ir::DType compute;  // the type that the expression is computed in: f32 for half types
  ir::DType result;   // the type that the result is stored from
};
// `item`: for ops over lists of tensors, the index in each list. `result`: the dtype of the first result. Returns
// nothing if no kernel computes the op with these arguments.
std::optional<ExpressionTypes> expression_types(const ir::Graph& graph, const ir::Node& node, uint32_t item,
                                                ir::DType result);

}  // namespace torch_remote::codegen
