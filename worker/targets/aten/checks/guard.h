#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>

// Checks which ops a program may call, and with which arguments. Torch's kernels trust their callers, but a program
// comes from another process.
namespace torch_remote::worker::aten {

// Why programs must not use this op ("aten::add.Tensor"), as the end of a sentence that begins with its name; null if
// they may. Three kinds of ops are allowed: those in the op table; those of aten:: in ir/ops/allowed_ops.txt, for which
// //tests/guards found no harmful arguments; and those that libraries in the worker's process register in namespaces of
// their own.
const char* refusal_reason(std::string_view name);

// Checks what torch's kernel of an op does not check itself, as ir/ops/relations.toml states it: the relations of
// operand sizes, and whether the elements of index tensors are in range.
struct Guard {
  // Throws c10::Error if arguments do not fit, and c10::IndexError if the reason is an element of a tensor. May replace
  // arguments by copies with other strides. `results`: the memory that the kernel will write, or null.
  void (*check)(const char* op, c10::IValue* arguments, const c10::IValue* results) = nullptr;
  bool reads_elements = false;  // `check` reads elements of tensors
};

// Returns a guard without `check` if the op's kernel checks its arguments itself.
Guard find_guard(std::string_view name);

}  // namespace torch_remote::worker::aten
