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
  uint64_t workspace = 0;  // bytes
  std::string choice;      // which one of the library's proposals it is: "A0"
};

// The mode that was asked, and the number of the proposal. (For one version of the library they are the same ones each
// time.)
std::string choice_of(HeuristicsMode mode, size_t number);
HeuristicsMode mode_of(std::string_view choice);

// Bytes of a plan and of what lies behind them, at a multiple of 256.
uint64_t bytes_of(const Plan& plan, uint64_t more);

// Plans that do the same. The first use finds one that works, has each do it again behind that, and later ones look
// whether the GPU has come past that; then the fastest one is kept. With the GPU's context current.
class PlanChoice {
 public:
  // Has a plan do it, or queue it, with so much memory.
  using Call = std::function<Status(const Plan& plan, DevicePointer workspace, Stream stream)>;

  std::vector<Plan>& plans() { return plans_; }
  const std::vector<Plan>& plans() const { return plans_; }
  size_t best() const { return best_; }
  // All events are gone.
  bool is_quiet() const { return marks_.empty(); }
  // It was called, so that it can be queued.
  bool is_proven() const { return proven_; }

  // From now on the first plan is the only one, as nothing is to be looked at; `kept`: a file named it.
  void settle(bool kept);
  // Whether a file named the plan, which was not called yet.
  bool is_kept() const { return kept_; }

  // Calls it at once. Plans that turn out to do nothing are gone: without any that is an error, of `is_kept` plans one
  // that asking again may mend. `settled`: plans are neither timed, nor taken for one another where memory is short.
  Status first_run(Gpu& gpu, CachingAllocator& memory, const Call& call, bool settled, std::string_view what,
                   uint64_t more = 0);
  // Looks whether what is timed is done. True: the fastest plan was found right now.
  bool decide(Gpu& gpu);
  // Which plan, and memory for it: another one may want less.
  Status take(CachingAllocator& memory, bool settled, std::string_view what, Workspace* workspace, size_t* chosen,
              uint64_t more = 0) const;
  // Of a GPU that is there.
  void destroy_marks(const Gpu& gpu);

 private:
  void time(Gpu& gpu, CachingAllocator& memory, const Call& call, uint64_t more);

  std::vector<Plan> plans_;  // the library's favourite first
  size_t best_ = 0;
  std::vector<Event> marks_;  // around each of them, while they are timed, the last plan first; one more than plans
  bool proven_ = false;
  bool decided_ = false;
  bool kept_ = false;
};

// The plans of a graph that the library proposes in a mode, of which `wanted` says whether they do (it is asked for the
// engine's notes), until there are so many. `only`: that choice alone. An error says why the last one was not made.
Status add_plans(const Table& table, Handle handle, Descriptor graph, HeuristicsMode mode, uint64_t workspace,
                 size_t most, const std::function<bool(const std::vector<Note>& notes)>& wanted,
                 const std::string* only, std::vector<Descriptor>* made, std::vector<Plan>* plans);

}  // namespace torch_remote::worker::cuda::dnn
