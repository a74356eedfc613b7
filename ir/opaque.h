#pragma once

#include <span>
#include <string_view>

#include "ir/ops/op_table.h"
#include "ir/status.h"

namespace torch_remote::ir {

// register_opaque for a signature that comes from a program or a text: an error if the name is the op table's, if this
// process knows the op with another signature (kUnsupported: client and worker have different versions of a custom op),
// or if there are too many.
Status declare_opaque(std::string_view name, std::span<const OpaqueArg> args, std::span<const ResultDesc> results,
                      uint32_t flags, Opcode* opcode);

}  // namespace torch_remote::ir
