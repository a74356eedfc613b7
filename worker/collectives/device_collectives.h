#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "ir/dtype.h"
#include "ir/status.h"
#include "worker/collectives/label.h"
#include "worker/collectives/reduction.h"

// Collective ops that devices execute among each other, without the hosts' memory, such as NCCL's. Any thread may call
// them, but only one thread may use a group at a time. A DeviceCollectives must outlive its groups.
namespace torch_remote::worker {

class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;

  // Identifies a group. One rank makes it with make_id(), and all ranks pass it to join().
  using Id = std::array<std::byte, 128>;
  // Called while other ranks are waited for; it may block for some ms. Returns false to give up.
  using KeepWaiting = std::function<bool()>;

  struct Call {
    CollectiveOp op = CollectiveOp::kAllReduce;
    ir::DType dtype = ir::DType::kFloat32;
    Reduction reduction = Reduction::kSum;  // For ops with has_reduction().
    int root = 0;                           // For ops with has_root(): a rank.
    // On the device. Input and output are the same for an op in place. If the group has n ranks, the output of
    // all_gather has n times the bytes of the input; for reduce_scatter the input has n times the bytes of the output.
    const void* input = nullptr;
    void* output = nullptr;
    uint64_t input_bytes = 0, output_bytes = 0;
    // For all_to_all: bytes for and from each rank. The data is contiguous, in the order of the ranks.
    std::span<const uint64_t> sends = {}, receives = {};
    // The op begins after this point of the device's work. From mark().
    std::shared_ptr<void> after = nullptr;
  };

  class Group {
   public:
    virtual ~Group() = default;
    // Whether the devices support this op; otherwise the hosts execute it.
    virtual bool supports(CollectiveOp op, ir::DType dtype, Reduction reduction) const = 0;
    // Executes the op, concurrently with work that the device gets after `call.after`. Returns when it is done. Calls
    // `keep_waiting` meanwhile, and, on any thread, `wake` when the op is done, so that a `keep_waiting` that blocks
    // can return. The op must be supported. kOpFailed: `keep_waiting` returned false. kLost: the device is lost. After
    // an error the group is unusable.
    virtual Status run(const Call& call, const KeepWaiting& keep_waiting, const std::function<void()>& wake) = 0;
  };

  // Loads the library. If it is missing, the error says how to install it. The first call may take long; later calls
  // return the same result. It must succeed before the functions below are called.
  virtual Status open() = 0;
  virtual Status make_id(Id* id) = 0;
  // Returns the point of the device's work that is reached when all work queued so far is done. For the thread that
  // queues the device's work, unlike the other functions.
  virtual std::shared_ptr<void> mark() = 0;
  // Returns when all ranks have joined. kOpFailed: `keep_waiting` returned false. After an error *group is unchanged.
  virtual Status join(const Id& id, int rank, int size, const KeepWaiting& keep_waiting,
                      std::shared_ptr<Group>* group) = 0;
};

}  // namespace torch_remote::worker
