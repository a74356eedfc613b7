#pragma once

#include "codegen/cpu/plan.h"
#include "codegen/gpu/launch.h"
#include "codegen/loop/loop_ir.h"
#include "ir/status.h"

// Which shape a kernel's code has: chosen when it is compiled, from the kernel alone.
namespace torch_remote::codegen::gpu {

// A kernel after `expand_functions`, and what each of its functions computes. Nothing is kept in memory between phases:
// what is not held in registers is computed again.
struct Plans {
  explicit Plans(const Kernel& expanded);
  const Kernel& kernel;
  Schedule schedule;
  cpu::Plan main, finish;
};

// kUnsupported: nothing here computes such a kernel, and the message says why.
Status make_recipe(const Plans& plans, Recipe* recipe);

}  // namespace torch_remote::codegen::gpu
