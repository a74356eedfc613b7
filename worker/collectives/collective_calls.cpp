#include "worker/collectives/collective_calls.h"

#include <algorithm>
#include <array>
#include <string>

#include "ir/ops/op_table.h"

namespace torch_remote::worker::collective {
namespace {

constexpr auto kOps = std::to_array<OpForm>({
    {"listen", "TTi"},            // port, host, group
    {"join", "tiiii"},            // plan, group, rank, size, timeout
    {"leave", "ti"},              // unused, group
    {"all_reduce_", "Tiis"},      // tensor, group, sequence, reduction
    {"reduce_", "Tiisi"},         // tensor, group, sequence, reduction, root
    {"broadcast_", "Tiii"},       // tensor, group, sequence, root
    {"all_gather", "Ttii"},       // output, input, group, sequence
    {"reduce_scatter", "Ttiis"},  // output, input, group, sequence, reduction
    {"all_to_all", "Ttiill"},     // output, input, group, sequence, elements from and for each rank
    {"gather", "Ttiii"},          // output, input, group, sequence, root
    {"scatter", "Ttiii"},         // output, input, group, sequence, root
    {"barrier", "Tii"},           // token (is set to 0), group, sequence
    {"send", "tiii"},             // tensor, group, to, tag
    {"recv", "Tiii"},             // tensor, group, from, tag
    {"recv_any", "TTii"},         // tensor, from (i64[1]), group, tag
    {"copy_listen", "Ti"},        // answer (u8, text and zeros), pair
    {"copy_accept", "ti"},        // plan, pair
    {"copy_connect", "Tti"},      // answer, plan, pair
    {"copy_send", "tii"},         // tensor, pair, number
    {"copy_receive", "Tii"},      // tensor, pair, number
    {"copy_leave", "tii"},        // unused, pair, whether at once
});

}  // namespace

const OpForm& form_of(Op op) { return kOps[static_cast<size_t>(op)]; }

std::optional<Op> find_op(std::string_view name) {
  if (!name.starts_with(ir::kCollectiveNamespace)) return std::nullopt;
  name.remove_prefix(ir::kCollectiveNamespace.size());
  const auto found = std::ranges::find(kOps, name, &OpForm::name);
  return found == kOps.end() ? std::nullopt : std::optional(static_cast<Op>(found - kOps.begin()));
}

bool sends_data(Op op) {
  return (op >= Op::kAllReduce && op <= Op::kSend && op != Op::kBarrier) || op == Op::kCopySend;
}

Status check_node(const ir::Node& node, const OpForm& form) {
  bool fits = node.args.size() == form.args.size() && node.results.empty();
  for (size_t i = 0; fits && i < form.args.size(); ++i) {
    const ir::Arg& arg = node.args[i];
    switch (form.args[i]) {
      case 'i':
        fits = arg.tag == ir::ArgTag::kInt;
        break;
      case 's':
        fits = arg.tag == ir::ArgTag::kString;
        break;
      case 'l':
        fits = arg.tag == ir::ArgTag::kList &&
               std::ranges::all_of(arg.items, [](const ir::Arg& item) { return item.tag == ir::ArgTag::kInt; });
        break;
      default:
        fits = arg.tag == ir::ArgTag::kView;
        if (form.args[i] == 'T') fits = fits && ir::op_desc(node.opcode).args[i].writes;
    }
  }
  if (fits) return {};
  return Status::invalid("remote: the collective op " + std::string(form.name) +
                         " has other arguments in the client's version");
}

CollectiveOp device_op_of(Op op) {
  switch (op) {
    case Op::kAllReduce:
      return CollectiveOp::kAllReduce;
    case Op::kReduce:
      return CollectiveOp::kReduce;
    case Op::kBroadcast:
      return CollectiveOp::kBroadcast;
    case Op::kAllGather:
      return CollectiveOp::kAllGather;
    case Op::kReduceScatter:
      return CollectiveOp::kReduceScatter;
    case Op::kAllToAll:
      return CollectiveOp::kAllToAll;
    default:
      return CollectiveOp::kNone;
  }
}

std::vector<uint64_t> bytes_of(const std::vector<int64_t>& counts, ir::DType dtype) {
  std::vector<uint64_t> bytes;
  bytes.reserve(counts.size());
  for (const int64_t count : counts) {
    bytes.push_back(std::min(static_cast<uint64_t>(count), uint64_t{1} << 40) * ir::item_size(dtype));
  }
  return bytes;
}

Status perform(Op op, const Call& call, Reduction reduction, Collectives&& collectives) {
  const ir::DType dtype = call.tensors[0].dtype;
  const auto first = call.tensors[0].bytes;
  const std::span<const std::byte> input = call.tensors.size() > 1 ? call.tensors[1].bytes : first;
  const int root = call.numbers.size() > 2 ? static_cast<int>(std::clamp<int64_t>(call.numbers[2], -1, kMostRanks)) : 0;
  if (call.tensors.size() > 1 && call.tensors[1].dtype != dtype) {
    return collective_failed("remote: " + std::string(form_of(op).name) + " needs tensors of one dtype", "ValueError");
  }
  switch (op) {
    case Op::kAllReduce:
      return collectives.all_reduce(dtype, reduction, first);
    case Op::kReduce:
      return collectives.reduce(dtype, reduction, root, first);
    case Op::kBroadcast:
      return collectives.broadcast(dtype, root, first);
    case Op::kAllGather:
      return collectives.all_gather(dtype, input, first);
    case Op::kReduceScatter:
      return collectives.reduce_scatter(dtype, reduction, input, first);
    case Op::kAllToAll:
      return collectives.all_to_all(dtype, input, bytes_of(call.lists[1], dtype), first,
                                    bytes_of(call.lists[0], dtype));
    case Op::kGather:
      return collectives.gather(dtype, root, input, first);
    case Op::kScatter:
      return collectives.scatter(dtype, root, input, first);
    default:
      std::ranges::fill(first, std::byte{0});
      return collectives.barrier();
  }
}

}  // namespace torch_remote::worker::collective
