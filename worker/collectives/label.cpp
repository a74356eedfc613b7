#include "worker/collectives/label.h"

#include <array>

#include "ir/dtype.h"
#include "worker/collectives/reduction.h"

namespace torch_remote::worker {
namespace {

constexpr auto kNames =
    std::to_array<std::string_view>({"nothing", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter",
                                     "all_to_all", "gather", "scatter", "barrier", "send and recv", "a direct copy",
                                     "a direct copy", "the first direct copy", "a direct copy", "a direct copy"});

}  // namespace

std::string_view name(CollectiveOp op) {
  return op <= CollectiveOp::kLast ? kNames[static_cast<size_t>(op)] : "an unknown op";
}

bool has_reduction(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kReduce || op == CollectiveOp::kReduceScatter;
}

bool has_root(CollectiveOp op) {
  return op == CollectiveOp::kReduce || op == CollectiveOp::kBroadcast || op == CollectiveOp::kGather ||
         op == CollectiveOp::kScatter;
}

std::string describe(const Label& label) {
  const std::string op(name(static_cast<CollectiveOp>(label.op)));
  if (label.op >= static_cast<uint8_t>(CollectiveOp::kCopy))
    return op + " (number " + std::to_string(label.sequence) + ")";
  if (label.kind == Label::kPoint) return op + " (tag " + std::to_string(label.sequence) + ")";
  std::string text = op + " (number " + std::to_string(label.sequence) + ")";
  if (label.count != 0) {
    text += " of " + std::to_string(label.count) + " elements of " +
            std::string(ir::name(static_cast<ir::DType>(label.dtype)));
  }
  if (has_reduction(static_cast<CollectiveOp>(label.op))) {
    text += ", " + std::string(label.reduction <= static_cast<uint8_t>(Reduction::kBxor)
                                   ? name(static_cast<Reduction>(label.reduction))
                                   : "unknown");
  }
  if (has_root(static_cast<CollectiveOp>(label.op))) text += ", root " + std::to_string(label.root);
  return text;
}

}  // namespace torch_remote::worker
