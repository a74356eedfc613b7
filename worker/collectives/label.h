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
  kMessage,   // A message between two ranks: `send` and `recv`.
  kCopy,      // A copy's data (direct_copies.h).
  kSkipped,   // It is sent instead of a copy: the reason why there is none.
  kMeet,      // The first messages of a group of devices (device_group.h), or of copies between devices.
  kLocation,  // The location of a copy's piece (peer_copies.h).
  kReadDone,  // The piece was read (peer_copies.h).
  kLast = kReadDone,
};

// For error messages: "all_reduce", "a direct copy", or "an unknown op" for a number that is no CollectiveOp.
std::string_view name(CollectiveOp op);
bool has_reduction(CollectiveOp op);
bool has_root(CollectiveOp op);

// Identifies what a message belongs to. Two ranks in the same op use equal labels. A label from another rank is not
// trusted: its fields may have any value.
struct Label {
  // kPoint: a message between two ranks. kFailure: the reason why the sender's mesh is broken.
  enum Kind : uint8_t { kCollective = 1, kPoint = 2, kFailure = 3 };

  uint8_t kind = kCollective;
  uint8_t op = 0;  // CollectiveOp.
  uint8_t dtype = 0;
  uint8_t reduction = 0;
  int32_t root = 0;
  // Number of the collective op, counted by the client. For a message between two ranks: its tag. Tags with the highest
  // bit set belong to device_group.h. For a copy: its number, or 0 before the first copy.
  uint64_t sequence = 0;
  // Elements of the collective op; 0: it differs from rank to rank. For kMeet before the first copy: the step.
  uint64_t count = 0;
  bool operator==(const Label&) const = default;
};

// "all_reduce (number 3) of 100 elements of f32, sum"
std::string describe(const Label& label);

}  // namespace torch_remote::worker
