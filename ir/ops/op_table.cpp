#include "ir/ops/op_table.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "ir/ops/op_table_generated.h"

namespace torch_remote::ir {
namespace {

// An opaque op with the storage that its OpDesc refers to.
struct OpaqueOp {
  std::string name;
  std::vector<std::string> arg_names;
  std::vector<ArgDesc> args;
  std::vector<ResultDesc> results;
};

constexpr uint32_t kChunkSize = 256;
constexpr uint32_t kMaxChunks = 256;
constexpr size_t kMaxOpaqueBytes = 32 << 20;  // of all signatures, which are never removed

// Opaque ops, in chunks that never move. A reader needs no lock, because it gets an opcode only after the opcode's slot
// was filled.
struct Registry {
  std::shared_mutex mutex;  // guards all but reads of chunks
  std::unordered_map<std::string_view, Opcode> by_name;
  std::array<std::atomic<OpDesc*>, kMaxChunks> chunks{};
  std::vector<std::unique_ptr<OpaqueOp>> opaque;
  size_t opaque_bytes = 0;

  Registry() {
    by_name.reserve(2 * op_table().size());
    for (const OpDesc& desc : op_table()) by_name.emplace(desc.name, desc.opcode);
  }
};

Registry& registry() {
  static auto* instance = new Registry;  // never destroyed: threads may record during exit
  return *instance;
}

}  // namespace

std::string op_table_version() {
  uint64_t hash = 0;
  for (const OpDesc& desc : op_table()) hash = (hash ^ desc.signature_hash) * 0x9E3779B97F4A7C15;
  char text[64];
  std::snprintf(text, sizeof(text), "%zu ops, %016llx", op_table().size(), static_cast<unsigned long long>(hash));
  return text;
}

const OpDesc& op_desc(Opcode opcode) {
  if (opcode < kFirstOpaque) [[likely]]
    return generated::kOpTable[opcode];
  const uint32_t index = opcode - kFirstOpaque;
  return registry().chunks[index / kChunkSize].load(std::memory_order_acquire)[index % kChunkSize];
}

Opcode find_op(std::string_view name) {
  Registry& table = registry();
  std::shared_lock lock(table.mutex);
  const auto found = table.by_name.find(name);
  return found == table.by_name.end() ? kInvalidOpcode : found->second;
}

Opcode register_opaque(std::string_view name, std::span<const OpaqueArg> args, std::span<const ResultDesc> results,
                       uint32_t flags) {
  Registry& table = registry();
  std::unique_lock lock(table.mutex);
  if (const auto found = table.by_name.find(name); found != table.by_name.end()) return found->second;
  const uint32_t index = static_cast<uint32_t>(table.opaque.size());
  size_t bytes = sizeof(OpaqueOp) + name.size() + results.size() * sizeof(ResultDesc);
  for (const OpaqueArg& arg : args) bytes += sizeof(ArgDesc) + sizeof(std::string) + arg.name.size();
  if (index == kChunkSize * kMaxChunks || bytes > kMaxOpaqueBytes - table.opaque_bytes) return kInvalidOpcode;
  table.opaque_bytes += bytes;

  OpaqueOp& op = *table.opaque.emplace_back(std::make_unique<OpaqueOp>());
  op.name = name;
  op.results.assign(results.begin(), results.end());
  op.arg_names.reserve(args.size());  // the string views below point into it
  op.args.reserve(args.size());
  for (const OpaqueArg& arg : args) {
    op.args.push_back(
        {op.arg_names.emplace_back(arg.name), arg.kind, default_role(arg.kind), arg.writes, arg.keyword_only, false});
  }
  // Torch's own out variants overwrite what they return. For other out variants this is unknown.
  if ((flags & kOpOut) != 0 && name.starts_with("aten::")) {
    for (const ResultDesc& result : op.results) {
      if (result.alias >= 0) op.args[result.alias].overwrites = op.args[result.alias].writes;
    }
  }

  std::atomic<OpDesc*>& chunk = table.chunks[index / kChunkSize];
  if (index % kChunkSize == 0) chunk.store(new OpDesc[kChunkSize]{}, std::memory_order_release);
  const Opcode opcode = kFirstOpaque + index;
  OpDesc& desc = chunk.load(std::memory_order_relaxed)[index % kChunkSize];
  desc.name = op.name;
  desc.family = Family::kOpaque;
  desc.shape_rule = ShapeRule::kNone;
  desc.flags = flags;
  desc.facts = name.starts_with(kCollectiveNamespace) ? uint32_t{kFactInCallOrder} : 0;
  desc.opcode = opcode;
  desc.functional = opcode;
  desc.per_tensor_op = kInvalidOpcode;
  desc.memory_format_from = -1;
  desc.args = op.args;
  desc.results = op.results;
  table.by_name.emplace(desc.name, opcode);
  return opcode;
}

ArgRole default_role(ArgKind kind) {
  switch (kind) {
    case ArgKind::kTensor:
    case ArgKind::kOptionalTensor:
    case ArgKind::kTensorList:
    case ArgKind::kOptionalTensorList:
      return ArgRole::kOperand;
    case ArgKind::kBool:
    case ArgKind::kOptionalBool:
    case ArgKind::kBoolList:
    case ArgKind::kString:
    case ArgKind::kOptionalString:
    case ArgKind::kDType:
    case ArgKind::kMemoryFormat:
      return ArgRole::kStructural;
    case ArgKind::kGenerator:
      return ArgRole::kRandom;
    case ArgKind::kLayout:
    case ArgKind::kDevice:
    case ArgKind::kUnsupported:
      return ArgRole::kClientOnly;
    default:
      return ArgRole::kValue;
  }
}

bool writes_by_strides(const OpDesc& desc) {
  if (desc.flags & kOpOut) {
    // Kernels with several results, medians, histograms and copies may write in order, and not by strides.
    const ShapeRule rule = op_desc(desc.functional).shape_rule;
    const bool reduces = rule == ShapeRule::kReduction || rule == ShapeRule::kCumulative;
    if (desc.results.size() != 1 ||
        !(desc.family == Family::kPointwise || (desc.family == Family::kReduction && reduces)))
      return false;
  }
  switch (desc.family) {
    case Family::kPointwise:  // except rrelu_with_noise, which fills its noise in order
      return !(desc.flags & (kOpRandom | kOpHiddenMutation));
    case Family::kReduction:
    case Family::kIndex:
    case Family::kScatter:
    case Family::kRng:
    case Family::kFactory:
    case Family::kCopy:
      return true;
    case Family::kMultiTensor:  // the other multi-tensor ops are fused optimizers
      return desc.facts & kFactPerTensor;
    default:
      return desc.facts & kFactSkipsOverlapCheck;
  }
}

}  // namespace torch_remote::ir
