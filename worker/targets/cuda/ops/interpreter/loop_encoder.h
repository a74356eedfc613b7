#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/lower/launch.h"
#include "ir/status.h"
#include "worker/targets/cuda/kernels/interpret_arguments.h"

// Encodes LoopIR kernels for the interpreter (kernels/interpret.cu). Needs no GPU.
namespace torch_remote::worker::cuda {

// The launches of a kernel. Addresses, scalars and the record of failures are set in a run.
struct EncodedKernel {
  InterpretArguments main;
  std::optional<InterpretArguments> finish;  // after `main`: what depends on reductions over all rows
  std::vector<ir::Sym> symbols;              // of the interpreter's scalars, in order
  uint64_t scratch_bytes = 0;                // of InterpretArguments::totals

  struct Size {
    int64_t grid = 0;  // 0: nothing to compute
    unsigned block = 0;
  };
  static Size size_of(const InterpretArguments& arguments);
};

// Whether the value is an integer division, which is an error of the op if the divisor (Value::b) is 0.
bool divides_integers(const codegen::Value& value);

// `first_failure`: the number that failures of the kernel's first operand report. The other operands follow,
// and then divisions by zero. Returns kUnsupported if the kernel has too many values, or adds to elements at
// indices.
Status encode(const codegen::Launch& launch, uint32_t first_failure, EncodedKernel* encoded);

}  // namespace torch_remote::worker::cuda
