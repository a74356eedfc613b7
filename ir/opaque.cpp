#include "ir/opaque.h"

#include <string>

namespace torch_remote::ir {
namespace {

bool same_signature(const OpDesc& desc, std::span<const OpaqueArg> args, std::span<const ResultDesc> results,
                    uint32_t flags) {
  if (desc.flags != flags || desc.args.size() != args.size() || desc.results.size() != results.size()) return false;
  for (size_t i = 0; i < args.size(); ++i) {
    const ArgDesc& known = desc.args[i];
    if (known.name != args[i].name || known.kind != args[i].kind || known.writes != args[i].writes ||
        known.keyword_only != args[i].keyword_only) {
      return false;
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (desc.results[i].kind != results[i].kind || desc.results[i].alias != results[i].alias) return false;
  }
  return true;
}

}  // namespace

Status declare_opaque(std::string_view name, std::span<const OpaqueArg> args, std::span<const ResultDesc> results,
                      uint32_t flags, Opcode* opcode) {
  *opcode = register_opaque(name, args, results, flags);
  const std::string op = "remote: op '" + std::string(name.substr(0, 200)) + "' ";
  if (*opcode == kInvalidOpcode) {
    return {ErrorCode::kUnsupported, op + "cannot be registered: this process knows too many ops outside its table"};
  }
  if (*opcode < kFirstOpaque) {
    return {ErrorCode::kUnsupported, op + "is described by its signature alone, but this side's op table has it; use "
                                          "versions of torch-remote that agree about this op on both sides"};
  }
  if (!same_signature(op_desc(*opcode), args, results, flags)) {
    return {
        ErrorCode::kUnsupported,
        op + "is known here with another signature; use the same version of the library that defines it on both sides"};
  }
  return {};
}

}  // namespace torch_remote::ir
