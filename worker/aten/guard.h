#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>

// What a program may call, and with what. Torch's kernels trust each other; a program comes from another process.
namespace torch_remote::worker::aten {

// Why programs must not have this op ("aten::add.Tensor"), as the end of a sentence that begins with its name; or null.
// Allowed is what the op table lists, what else is in aten::, and what libraries register in namespaces of their own.
const char* why_refused(std::string_view name);

// Looks at the arguments of an op whose kernel takes positions from the elements of a tensor and does not look whether
// they lie inside of the tensor that it reads or writes there. Throws c10::IndexError if one does not. Where a kernel
// writes beyond its memory for tensors that lie in some way, it has them lie in another one.
using Guard = void (*)(c10::IValue* arguments);

// Null: the op's kernel looks itself, or has no such arguments.
Guard find_guard(std::string_view name);

}  // namespace torch_remote::worker::aten
