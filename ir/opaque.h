#pragma once

#include <span>
#include <string_view>

#include "ir/ops/op_table.h"
#include "ir/status.h"

namespace torch_remote::ir {

// Registers a signature that comes from a program or a text (see register_opaque). Fails if the op table has the name,
// or if too many ops are registered. Fails with kUnsupported if this process knows the op with another signature:
// client and worker have different versions of a custom op.
Status declare_opaque(std::string_view name, std::span<const OpaqueArg> args, std::span<const ResultDesc> results,
                      uint32_t flags, Opcode* opcode);

}  // namespace torch_remote::ir
