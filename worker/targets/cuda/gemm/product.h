#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/math_modes.h"
#include "ir/status.h"
#include "worker/targets/cuda/gemm/cublaslt.h"
#include "worker/targets/cuda/launch/place.h"

// Products of matrices: which nodes are one, and which calls of cuBLASLt do a node with given sizes and strides. No GPU
// here.
namespace torch_remote::worker::cuda {

inline constexpr uint32_t kNoView = 0xFFFFFFFF;

// How the dims of a view are those of a matrix; before these there may be one of a batch.
enum class Lies : uint8_t {
  kMatrix,
  kColumn,  // a vector: [n, 1]
  kRow,     // a vector: [1, n]
  kNumber,  // [1, 1]
};

enum class Activation : uint8_t {
  kNone,
  kRelu,
  kGeluTanh,
  kGelu,  // by a kernel behind the product: cuBLASLt has the other one
};

// result = activation(beta * added + alpha * left right)
struct Product {
  uint32_t left = kNoView, right = kNoView, added = kNoView, result = kNoView;  // views
  Lies left_lies = Lies::kMatrix, right_lies = Lies::kMatrix, result_lies = Lies::kMatrix;
  const ir::Arg *alpha = nullptr, *beta = nullptr;  // null: 1. Of no meaning without `added`: beta
  bool conjugates = false;                          // the left one
  bool sums_batch = false;                          // over a batch that the result has not
  Activation activation = Activation::kNone;
  // Of float8: views of f32 numbers that the operands are multiplied with.
  uint32_t left_scale = kNoView, right_scale = kNoView;
  bool fast_accumulation = false;
};

// Whether nodes of this op may be one.
bool is_product_op(ir::Opcode opcode);

// False: the node is none, or none that cuBLASLt has types for. `product` points into the node.
bool find_product(const ir::Graph& graph, const ir::Node& node, Product* product);
// Nodes of a group of this kind: a product, then an activation of nothing but its result.
bool find_epilogue(const ir::Graph& graph, const ir::Group& group, Product* product);

// -- What is called ---------------------------------------------------------------------------------------------------

// A matrix as cuBLASLt has it: columns are `ld` elements apart. Another one of the batch is `batch_stride` elements on.
struct Stored {
  lt::Type type = lt::Type::kFloat32;
  int64_t rows = 1, columns = 1, ld = 1, batch_stride = 0;
  uint32_t alignment = 16;  // bytes of which its address is a multiple, at most 16
  bool operator==(const Stored&) const = default;
};

// d = epilogue(alpha * op(a) * op(b) + beta * c). What there is to know of a call but addresses and numbers.
struct Problem {
  Stored a, b, c, d;
  lt::Operation op_a = lt::Operation::kNone, op_b = lt::Operation::kNone;
  int32_t batch = 1;
  lt::Compute compute = lt::Compute::kFloat32;
  lt::Type scale = lt::Type::kFloat32;  // of alpha and beta
  bool adds = false;                    // beta is not 0
  uint32_t epilogue = lt::kDefault;
  lt::Type bias = lt::Type::kFloat32;
  uint32_t bias_alignment = 16;
  bool is_scaled = false;  // of float8
  bool fast_accumulation = false;
  bool deterministic = false;  // always done in the same way, whichever is fastest
  bool operator==(const Problem&) const = default;
};

struct ProductCall {
  Place a, b, c, d, bias, a_scale, b_scale;
  bool first = true;  // later ones add to what the first has written: alpha is as given, beta is 1
};

// What is done for a node: fills, then moves, calls, moves. Nothing at all where the result has no elements.
struct ProductPlan {
  std::vector<uint64_t> scratch;  // bytes of each
  std::vector<uint32_t> zeros;    // those that are filled with 0
  std::vector<Moved> before, after;
  Problem problem;       // of all calls but for `adds`
  Problem problem_next;  // of those after the first
  std::vector<ProductCall> calls;
};

// The kinds of numbers on which a plan depends.
struct ProductNumbers {
  bool alpha_is_0 = false, beta_is_0 = true, beta_is_1 = false;
  bool operator==(const ProductNumbers&) const = default;
};

// Real and imaginary part of an argument; 1 for none.
struct Number {
  double real = 1, imaginary = 0;
};
Number number_of(const ir::Arg* arg, std::span<const int64_t> values);
ProductNumbers numbers_of(const Product& product, std::span<const int64_t> values);

// kUnsupported: there is no such call, and the message says why.
Status plan_product(const ir::Graph& graph, const Product& product, std::span<const int64_t> values, ir::MathModes math,
                    ProductPlan* plan);

}  // namespace torch_remote::worker::cuda
