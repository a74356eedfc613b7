#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "worker/runner/runner.h"
#include "worker/session/buffers.h"
#include "worker/session/failure_log.h"
#include "worker/session/loaded_program.h"

namespace torch_remote::worker {

// Ops that a runner has begun while the session continues. A node that reads or writes what such an op writes waits for
// the op. A node of the same run that writes what the op reads waits, too. A later run first copies such a buffer and
// writes to the copy; it waits only if memory is too short for the copy. All memory that an op uses is retained until
// the op is done. If the op fails, buffers that it would have created are poisoned, and those that it would have
// written lack the update, as if it had failed when it was begun. For one thread.
class BackgroundOps {
 public:
  // The memory of an operand.
  struct Use {
    uint64_t id = 0;  // Id of the buffer.
    MemoryPtr memory;
    bool writes = false;
    bool creates = false;  // The buffer is new: without the op it has no contents.
  };
  struct Op {
    std::shared_ptr<BackgroundWork> work;
    std::shared_ptr<LoadedProgram> program;
    std::vector<int64_t> values;  // Values of the program's symbols.
    uint32_t node = 0;
    uint64_t sequence = 0;
    std::vector<Use> uses = {};
  };

  // All of them outlive this. `cancelled` may be empty; it looks for new messages of the client, and returns whether
  // the client has cancelled the message with this sequence.
  BackgroundOps(Buffers& buffers, FailureLog& failures, const std::function<bool(uint64_t sequence)>& cancelled)
      : buffers_(buffers), failures_(failures), cancelled_(cancelled) {}

  bool empty() const { return ops_.empty(); }

  // Calls start(&op.work), which begins the op. Returns what it returns, false if the op could not be begun.
  template <typename Start>
  bool begin(Op op, Start&& start) {
    ops_.reserve(ops_.size() + 1);  // After the op has begun, nothing may throw.
    const bool good = start(&op.work);
    if (good && op.work) add(std::move(op));
    return good;
  }

  // Handles the end of the ops that are done.
  void settle();
  // Returns when no op is running.
  void wait_for_all();
  // Returns when no op is writing this memory.
  void await_writers(const MemoryPtr& memory);
  // Call it before a run of the program. Waits until no op writes to an input that the run writes, because the run may
  // first copy the contents of such an input. Inputs that the run only reads are left out: the nodes that read them
  // wait.
  void await_inputs(const LoadedProgram& program);
  // Waits for the ops that `concerns` selects. Calls `failed` for each of them that failed.
  void await(const std::function<bool(const Op&)>& concerns,
             const std::function<void(const Op&, const FailurePtr&)>& failed);

 private:
  void add(Op op);
  void wait(Op& op);
  FailurePtr finish(Op& op);

  Buffers& buffers_;
  FailureLog& failures_;
  const std::function<bool(uint64_t sequence)>& cancelled_;
  std::vector<Op> ops_;  // In the order in which they were begun.
};

}  // namespace torch_remote::worker
