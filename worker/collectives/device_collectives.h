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

// Collective ops that devices do between each other, without the hosts' memory: NCCL's. For any thread, but one at a
// time.
namespace torch_remote::worker {

class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;

  // What all ranks of a group must know, which one of them makes.
  using Id = std::array<std::byte, 128>;
  // Asked while others are waited for, and may wait some ms itself; false: it is given up.
  using GoesOn = std::function<bool()>;

  struct Call {
    CollectiveOp op = CollectiveOp::kAllReduce;
    ir::DType dtype = ir::DType::kFloat32;
    Reduction reduction = Reduction::kSum;
    int root = 0;
    // On the device; the same where an op is in place. Of all_gather and reduce_scatter one has `size` times as many
    // bytes as the other one.
    const void* input = nullptr;
    void* output = nullptr;
    uint64_t input_bytes = 0, output_bytes = 0;
    std::span<const uint64_t> sends = {}, receives = {};  // bytes for and from each rank, of all_to_all
  };

  class Group {
   public:
    virtual ~Group() = default;
    // Whether such an op is done at all; else it is the hosts'.
    virtual bool does(CollectiveOp op, ir::DType dtype, Reduction reduction) const = 0;
    // Behind all that was queued on the device. It returns when that is done; `wake` is called once it is, by any
    // thread. After an error the group is no good any more.
    virtual Status run(const Call& call, const GoesOn& goes_on, const std::function<void()>& wake) = 0;
  };

  // Not ok: there is no such library, and how to install it. May take long the first time.
  virtual Status open() = 0;
  virtual Status make_id(Id* id) = 0;
  // Returns when all ranks are there.
  virtual Status join(const Id& id, int rank, int size, const GoesOn& goes_on, std::shared_ptr<Group>* group) = 0;
};

}  // namespace torch_remote::worker
