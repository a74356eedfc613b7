#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// What is said of each message between the workers of a group.
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
  kLeftOut,  // instead of a copy: why there is none
  kMeet,     // worker/collectives/peer_copies.h
  kPlace,
  kTaken,
  kLast = kTaken,
};

std::string_view name(CollectiveOp op);  // "all_reduce"
bool has_reduction(CollectiveOp op);
bool has_root(CollectiveOp op);

// What a message belongs to. Two ranks that are in the same op say the same.
struct Label {
  enum Kind : uint8_t { kCollective = 1, kPoint = 2, kFailure = 3 };

  uint8_t kind = kCollective;
  uint8_t op = 0;  // CollectiveOp (worker/collectives/collectives.h)
  uint8_t dtype = 0;
  uint8_t reduction = 0;
  int32_t root = 0;
  uint64_t sequence = 0;  // of the collective, counted by the client; of a message from one to another: its tag
  uint64_t count = 0;     // elements of the collective; 0: differs from rank to rank
  bool operator==(const Label&) const = default;
};

// "all_reduce (number 3) of 100 elements of f32, sum"
std::string describe(const Label& label);

}  // namespace torch_remote::worker
