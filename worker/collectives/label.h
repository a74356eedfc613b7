#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// The labels of messages between the workers of a group.
namespace torch_remote::worker {

enum class CollectiveOp : uint8_t {
  kNone,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kMessage,
  kCopy,     // worker/collectives/direct_copies.h
  kSkipped,  // Sent instead of a copy: the reason why there is none.
  kMeet,     // worker/collectives/peer_copies.h
  kLocation,
  kReadDone,
  kLast = kReadDone,
};

std::string_view name(CollectiveOp op);  // "all_reduce"
bool has_reduction(CollectiveOp op);
bool has_root(CollectiveOp op);

// Identifies what a message belongs to. Two ranks in the same op use equal labels.
struct Label {
  // kPoint: a message between two ranks. kFailure: the reason why the sender's mesh is broken.
  enum Kind : uint8_t { kCollective = 1, kPoint = 2, kFailure = 3 };

  uint8_t kind = kCollective;
  uint8_t op = 0;  // CollectiveOp.
  uint8_t dtype = 0;
  uint8_t reduction = 0;
  int32_t root = 0;
  // Number of the collective op, counted by the client; for a message between two ranks: its tag.
  uint64_t sequence = 0;
  uint64_t count = 0;  // Elements of the collective op; 0: it differs from rank to rank.
  bool operator==(const Label&) const = default;
};

// "all_reduce (number 3) of 100 elements of f32, sum"
std::string describe(const Label& label);

}  // namespace torch_remote::worker
