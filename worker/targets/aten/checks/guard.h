#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>

// What a program may call, and with what. Torch's kernels trust each other; a program comes from another process.
namespace torch_remote::worker::aten {

// Why programs must not have this op ("aten::add.Tensor"), as the end of a sentence that begins with its name; or null.
// Allowed is what the op table lists, the ops of aten:: that ir/ops/allowed_ops.txt lists because //tests/guards found
// nothing wrong with them, and what libraries that the worker's process has loaded register in namespaces of their own.
const char* why_refused(std::string_view name);

// What torch's kernel of an op does not check itself, as ir/ops/relations.toml says: how the sizes of operands belong
// together, and whether the elements of indices lie inside of what they point to.
struct Guard {
  // Throws c10::Error if arguments do not fit: a c10::IndexError if it is because of elements. May replace arguments by
  // copies that lie otherwise in memory. `results`: the memory that the kernel is to write, or null.
  void (*check)(const char* op, c10::IValue* arguments, const c10::IValue* results) = nullptr;
  bool reads_elements = false;
};

// Without a check: the op's kernel looks itself.
Guard find_guard(std::string_view name);

}  // namespace torch_remote::worker::aten
