#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/status.h"
#include "worker/device/memory.h"
#include "worker/targets/cuda/device/gpu.h"
#include "worker/targets/cuda/dnn/cudnn.h"
#include "worker/targets/cuda/dnn/cudnn_descriptors.h"

namespace torch_remote::worker::cuda::dnn {

struct Plan {
  Descriptor plan = nullptr;
  uint64_t workspace = 0;  // Bytes.
  std::string choice;      // Its position in the heuristic results: "A0".
};

// The heuristics mode and the position in its results, as text. One version of cuDNN always returns the same results.
std::string choice_of(HeuristicsMode mode, size_t number);
HeuristicsMode mode_of(std::string_view choice);

// Bytes of a plan's workspace, followed by `more` bytes. These begin at the next multiple of 256.
uint64_t bytes_of(const Plan& plan, uint64_t more);

// Several plans for the same graph. The first use finds a plan that works. Unless keep_first() was called, it queues
// all plans again behind it to time them. Later uses check whether the GPU has finished the timing; then the fastest
// plan is used (timed_choice.h). The GPU's context must be current.
class PlanChoice {
 public:
  // Executes or queues a plan with this workspace.
  using Call = std::function<Status(const Plan& plan, DevicePointer workspace, Stream stream)>;

  std::vector<Plan>& plans() { return plans_; }
  const std::vector<Plan>& plans() const { return plans_; }
  size_t best() const { return best_; }
  // Whether no timing is in flight.
  bool is_idle() const { return timing_events_.empty(); }
  // Whether a call has succeeded. Later calls may then be deferred in the work queue.
  bool has_succeeded() const { return has_succeeded_; }

  // Keeps the first plan that works, without timing. `from_file`: the choice file named it.
  void keep_first(bool from_file);
  // Whether the choice file named the plan, and it has not been called yet.
  bool is_from_file() const { return from_file_; }

  // Calls the plans in order, at once, until one works. Plans that fail before it are removed. Then queues all plans
  // again to time them, unless keep_first() was called. plans() must not be empty. Returns the last error if no plan
  // works. If is_from_file() is true then, replace this object by one with other plans, and try again.
  //
  // `settled`: the first plan that works stays in use. It is neither timed nor replaced by one that needs less memory.
  // `what`: the op, for errors. `more`: see bytes_of().
  Status first_run(Gpu& gpu, CachingAllocator& memory, const Call& call, bool settled, std::string_view what,
                   uint64_t more = 0);
  // Checks whether the timing is done. True: the fastest plan was just found.
  bool decide(Gpu& gpu);
  // Chooses a plan for a call after the first one, and allocates its workspace. `*chosen` is its index in plans(). It
  // is best(), or, if memory is short and `settled` is false, the plan that needs the least memory.
  Status take(CachingAllocator& memory, bool settled, std::string_view what, Workspace* workspace, size_t* chosen,
              uint64_t more = 0) const;
  // The GPU must not be lost.
  void destroy_timing_events(const Gpu& gpu);

 private:
  void time(Gpu& gpu, CachingAllocator& memory, const Call& call, uint64_t more);

  std::vector<Plan> plans_;  // The heuristic's first choice first.
  size_t best_ = 0;
  // While plans are timed: an event before the first timed plan, and one after each. Plans are timed in reverse order.
  std::vector<Event> timing_events_;
  bool has_succeeded_ = false;
  bool decided_ = false;
  bool from_file_ = false;
};

// Adds the plans from one heuristics mode to `plans` until there are `max_plans`. Adds their descriptors to `made`,
// whose owner must destroy them after the plans' last use. `workspace`: the most bytes that a plan may need. `wanted`
// filters engines by their notes. `only`: if not null, only the plan with this choice is added. Returns the error of
// the last plan that could not be made, even if others were added. Returns ok if none failed, even if no plan was
// added.
Status add_plans(const Table& table, Handle handle, Descriptor graph, HeuristicsMode mode, uint64_t workspace,
                 size_t max_plans, const std::function<bool(const std::vector<NumericalNote>& notes)>& wanted,
                 const std::string* only, std::vector<Descriptor>* made, std::vector<Plan>* plans);

}  // namespace torch_remote::worker::cuda::dnn
