#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/math_modes.h"
#include "ir/status.h"
#include "worker/targets/cuda/gemm/cublaslt.h"
#include "worker/targets/cuda/launch/location.h"

// GEMMs: which nodes are GEMMs, and which cuBLASLt calls execute a node with given sizes and strides. Needs no GPU.
namespace torch_remote::worker::cuda {

inline constexpr uint32_t kNoView = 0xFFFFFFFF;

// How a view's dims map to those of a matrix; a batch dim may come first.
enum class DimLayout : uint8_t {
  kMatrix,
  kColumn,  // a vector: [n, 1]
  kRow,     // a vector: [1, n]
  kNumber,  // [1, 1]
};

enum class Activation : uint8_t {
  kNone,
  kRelu,
  kGeluTanh,
  kGelu,  // Executed by a kernel after the GEMM, as cuBLASLt has only the tanh variant.
};

// result = activation(beta * addend + alpha * (left @ right))
struct Gemm {
  uint32_t left = kNoView, right = kNoView, addend = kNoView, result = kNoView;  // Views.
  DimLayout left_layout = DimLayout::kMatrix, right_layout = DimLayout::kMatrix, result_layout = DimLayout::kMatrix;
  const ir::Arg *alpha = nullptr, *beta = nullptr;  // Null: 1. beta is unused without `addend`.
  bool conjugates_left = false;                     // The left operand is conjugated.
  bool sums_batch = false;                          // Sums over a batch dim that the result lacks.
  Activation activation = Activation::kNone;
  // For float8: views of the f32 scales of the operands.
  uint32_t left_scale = kNoView, right_scale = kNoView;
  bool fast_accumulation = false;
};

// Whether nodes of this op may be GEMMs.
bool is_gemm_op(ir::Opcode opcode);

// False: the node is not a GEMM, or cuBLASLt lacks its types. `gemm` points into the node.
bool find_gemm(const ir::Graph& graph, const ir::Node& node, Gemm* gemm);
// The nodes of a group of this kind: a GEMM, then an activation of its result alone.
bool find_epilogue(const ir::Graph& graph, const ir::Group& group, Gemm* gemm);

// -- cuBLASLt calls ---------------------------------------------------------------------------------------------------

// A matrix as cuBLASLt describes it: column-major with leading dimension `ld`. Matrices of a batch are `batch_stride`
// elements apart.
struct StoredMatrix {
  lt::Type type = lt::Type::kFloat32;
  int64_t rows = 1, columns = 1, ld = 1, batch_stride = 0;
  uint32_t alignment = 16;  // The address's alignment in bytes, at most 16.
  bool operator==(const StoredMatrix&) const = default;
};

// d = epilogue(alpha * op(a) * op(b) + beta * c). Describes a call without addresses and numbers.
struct Problem {
  StoredMatrix a, b, c, d;
  lt::Operation op_a = lt::Operation::kNone, op_b = lt::Operation::kNone;
  int32_t batch = 1;
  lt::Compute compute = lt::Compute::kFloat32;
  lt::Type scale = lt::Type::kFloat32;  // For alpha and beta.
  bool beta_is_nonzero = false;         // beta is not 0.
  uint32_t epilogue = lt::kDefault;
  lt::Type bias = lt::Type::kFloat32;
  uint32_t bias_alignment = 16;
  bool is_scaled = false;  // The call has a_scale and b_scale (float8).
  bool fast_accumulation = false;
  bool deterministic = false;  // Only the heuristic's first choice may run, even if memory is short.
  bool tune = false;           // The fastest algorithm is found by timing. Not together with `deterministic`.
  bool operator==(const Problem&) const = default;
};

struct GemmCall {
  Location a, b, c, d, bias, a_scale, b_scale;
  bool first = true;  // False: the call adds to the result of the calls before (beta is 1).
};

// How to execute a node: fills, copies, calls, copies. Empty if the result has no elements.
struct GemmPlan {
  std::vector<uint64_t> scratch;  // Bytes of each piece.
  std::vector<uint32_t> zeros;    // Pieces of scratch that are zeroed first.
  std::vector<StridedMove> before, after;
  Problem problem;       // For the first call.
  Problem problem_next;  // For later calls: c is the result so far, and beta is 1.
  std::vector<GemmCall> calls;
};

// The properties of alpha and beta on which a plan depends.
struct GemmScalars {
  bool alpha_is_0 = false, beta_is_0 = true, beta_is_1 = false;
  bool operator==(const GemmScalars&) const = default;
};

// The real and imaginary part of an argument; 1 if it is absent.
struct Number {
  double real = 1, imaginary = 0;
};
Number number_of(const ir::Arg* arg, std::span<const int64_t> values);
GemmScalars scalars_of(const Gemm& gemm, std::span<const int64_t> values);

// kUnsupported: there is no such call; the message says why.
Status plan_gemm(const ir::Graph& graph, const Gemm& gemm, std::span<const int64_t> values, ir::MathModes math_modes,
                 GemmPlan* plan);

}  // namespace torch_remote::worker::cuda
