#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/collectives/collectives.h"
#include "worker/collectives/device_collectives.h"
#include "worker/collectives/reduction.h"
#include "worker/device/charge.h"

// Ops of process groups and of copies between workers: their names and arguments, and their execution on the host.
namespace torch_remote::worker::collective {

inline constexpr int64_t kMostRanks = 1024;  // The most ranks of a process group.

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

// The name of an op, without the namespace, and its arguments. `args` has one letter per argument: t is a tensor, T a
// tensor that is written, i an integer, s a string, l a list of integers. No op has results.
struct OpForm {
  std::string_view name, args;
};
const OpForm& form_of(Op op);
// Finds an op by its name, with the namespace; nullopt: there is no such op.
std::optional<Op> find_op(std::string_view name);
// Checks the number and the kinds of a node's arguments; returns kInvalid if they do not fit. The client defines the
// schemas of these ops, so they are not trusted. Dtypes, sizes and values are not checked here.
Status check_node(const ir::Node& node, const OpForm& form);

// Whether other workers receive the op's operands.
bool sends_data(Op op);
// The op that devices may execute instead of `op`; kNone: there is none.
CollectiveOp device_op_of(Op op);

// The arguments of a node, with the values of a run: those of each kind in the order of OpForm::args.
struct Call {
  struct Tensor {
    ir::DType dtype = ir::DType::kUInt8;
    void* data = nullptr;  // An address in the device's memory.
    uint64_t nbytes = 0;
    std::span<std::byte> bytes;  // The data in this process: at `data`, or in `copy`.
    std::vector<std::byte> copy;
    Charge charge = {};  // The charge for `copy`.
  };
  std::vector<Tensor> tensors;
  std::vector<int64_t> numbers;
  std::vector<std::vector<int64_t>> lists;
  std::string_view text;
};

// Converts numbers of elements per rank to bytes per rank. Negative numbers, and numbers above 2^40, count as 2^40.
std::vector<uint64_t> bytes_of(const std::vector<int64_t>& counts, ir::DType dtype);

// Executes one of the ops from kAllReduce to kBarrier together with the processes of the other ranks, and returns when
// it is done. The call's tensors need `bytes`.
Status perform(Op op, const Call& call, Reduction reduction, Collectives&& collectives);

}  // namespace torch_remote::worker::collective
