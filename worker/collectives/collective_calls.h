#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/collectives/charge.h"
#include "worker/collectives/collectives.h"
#include "worker/collectives/device_collectives.h"
#include "worker/collectives/reduction.h"

// Ops of process groups and of copies between workers: their names and arguments, and what hosts do for one.
namespace torch_remote::worker::collective {

inline constexpr std::string_view kNamespace = "remote_c10d::";
inline constexpr int64_t kMostRanks = 1024;

enum class Op : uint8_t {
  kListen,
  kJoin,
  kLeave,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kReceive,
  kReceiveAny,
  kCopyListen,
  kCopyAccept,
  kCopyConnect,
  kCopySend,
  kCopyReceive,
  kCopyLeave,
};

// A letter an argument: t, a tensor; i, a number; s, a text; l, a list of numbers. Tensors that are written are large.
struct OpForm {
  std::string_view name, args;
};
const OpForm& form_of(Op op);
// Of an op's name, with its namespace. None: there is no such op.
std::optional<Op> find_op(std::string_view name);
// Which arguments an op has was decided by the client's schema: none of it is to be trusted.
Status check_node(const ir::Node& node, const OpForm& form);

// What it reads others get.
bool sends_data(Op op);
// What devices may do for it.
CollectiveOp name_of(Op op);

// What a node says, with the values of a run.
struct Call {
  struct Tensor {
    ir::DType dtype = ir::DType::kUInt8;
    void* data = nullptr;  // on the device
    uint64_t nbytes = 0;
    std::span<std::byte> bytes;  // here
    std::vector<std::byte> copy;
    Charge charge = {};  // of `copy`
  };
  std::vector<Tensor> tensors;
  std::vector<int64_t> numbers;
  std::vector<std::vector<int64_t>> lists;
  std::string_view text;
};

// Bytes for each rank.
std::vector<uint64_t> bytes_of(const std::vector<int64_t>& counts, ir::DType dtype);

// By this process and those of the other ranks.
Status perform(Op op, const Call& call, Reduction reduction, Collectives&& collectives);

}  // namespace torch_remote::worker::collective
