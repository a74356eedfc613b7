#pragma once

#include "codegen/cpu/plan.h"
#include "codegen/gpu/launch.h"
#include "codegen/loop/loop_ir.h"
#include "ir/status.h"

// Chooses the structure of a kernel's code at compile time, from the kernel alone.
namespace torch_remote::codegen::gpu {

// A kernel after `expand_functions`, and the plans of its functions. No values are spilled to memory between phases:
// those that are not in registers are recomputed.
struct Plans {
  explicit Plans(const Kernel& expanded);
  const Kernel& kernel;
  Schedule schedule;
  cpu::Plan main, finish;
};

// Returns kUnsupported with a reason if a GPU cannot compute the kernel.
Status make_recipe(const Plans& plans, Recipe* recipe);

}  // namespace torch_remote::codegen::gpu
