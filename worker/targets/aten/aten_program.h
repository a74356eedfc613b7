#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "ir/graph.h"
#include "worker/runner/plugin.h"
#include "worker/targets/aten/gpu.h"
#include "worker/targets/aten/operation.h"
#include "worker/targets/aten/thread_tuner.h"
#include "worker/targets/aten/threads.h"

// A loaded program. It has one tensor per view, one storage per buffer and one Operation per node, all created once. A
// run stores the buffers' addresses in the storages and calls the kernels.
namespace torch_remote::worker::aten {

class AtenProgram {
 public:
  // Throws if an op is unknown or an argument does not fit the op's schema. `host` and `threads` must outlive the
  // program. `tune`: the first runs measure which nodes are faster with several threads. `may_run`: one flag per node,
  // whether runs may execute it; null means all nodes.
  AtenProgram(const tr_host& host, Threads& threads, ir::Graph graph, bool tune, const uint8_t* may_run = nullptr);

  // Runs nodes [run.first, run.last). If it throws, *node is the node that failed.
  void run(tr_run& run, uint32_t* node);

  // Whether the op that computes this buffer also allocates its memory.
  bool allocates_buffer(uint32_t buffer) const { return buffers_[buffer].created; }

 private:
  class PackedWeights;
  class ChannelsLastImage;
  struct BufferState {
    c10::Storage storage;
    void* data = nullptr;  // the address that the storage points to
    uint64_t nbytes = 0;
    bool created = false;
    bool survives = false;
  };
  struct NodeState {
    std::vector<uint32_t> buffers;     // the buffers that the node uses
    std::vector<uint32_t> dead_after;  // buffers that this program creates and that no later node needs
    bool packs_weights = false;        // the node is a convolution whose weights may be packed
    bool depthwise = false;            // the node may be a depthwise convolution that our own loops compute
    bool image_kernels = false;        // the node may be one that our own image kernels compute
    bool may_resize = false;           // torch may resize tensors that the node writes
    bool out_variant_checked = false;  // kOut: a call with these sizes did not resize or replace the results' tensors
    bool layout_matches = false;       // kOut: the op itself would choose this layout for the results
  };

  at::Tensor tensor_of(const ir::Arg& arg, const ir::Node& node);
  ir::DType number_type(const ir::Arg& arg, const ir::Node& node) const;
  void find_lifetimes();
  void find_written();
  void update(const int64_t* symbols);
  bool update_view(uint32_t view, const int64_t* symbols);
  void update_threads(const int64_t* symbols);
  void update_scalars(const int64_t* symbols);

  void bind(uint32_t buffer, const tr_buffer& memory);
  template <bool timed, bool tuning>
  void run_nodes(tr_run& run, uint32_t* node, bool missing);
  void run_node(tr_run& run, uint32_t index);
  // Whether an op of this estimated work should leave the client a core that all threads together would use.
  bool should_leave_core(double work) const { return aten::should_leave_core(host_, threads_, work < kMinWakeWork); }
  bool run_depthwise(uint32_t index);
  bool run_images(uint32_t index);
  void call_out(tr_run& run, uint32_t index);
  // Whether only this tensor holds its memory, so that the memory can become a buffer.
  bool is_sole_owner(const at::Tensor& tensor) const;
  bool is_packed(const ir::Node& node) const;
  bool has_expected_layout(const ir::Node& node) const;
  void restore_sizes(const tr_run& run, const ir::Node& node);
  void resolve_written(const ir::Node& node);
  bool results_untouched(const ir::Node& node, const int64_t* symbols) const;
  void store_results(tr_run& run, const ir::Node& node);
  void store_tensor(tr_run& run, const ir::Arg& result, at::Tensor tensor);
  void store_dynamic(tr_run& run, const ir::View& view, at::Tensor tensor);
  void add_host_result(tr_run& run, const c10::IValue& value, ir::ResultKind kind);
  void allocate_missing(tr_run& run, uint32_t index);

  struct ScalarTensor {
    ir::Sym symbol;
    ir::DType dtype;  // of the symbol's bits
    at::Tensor tensor;
    alignas(16) std::byte memory[16] = {};  // of `tensor`
    int64_t last[2] = {0, 0};
    bool set = false;
  };

  const tr_host& host_;
  const Target target_;
  Threads& threads_;
  ir::Graph graph_;
  std::vector<BufferState> buffers_;
  std::vector<at::Tensor> views_;
  std::vector<bool> written_;         // per view: an op writes each of its elements, so they must not share memory
  std::deque<ScalarTensor> scalars_;  // a deque, because addresses must stay valid
  std::vector<std::optional<Operation>> operations_;  // per node; empty for nodes for which runs do not ask
  std::vector<NodeState> nodes_;
  std::vector<double> work_;    // per node: estimated work (ir/cost/work.h)
  std::vector<bool> parallel_;  // per node: whether it runs on several threads
  double largest_work_ = 0;     // largest work_ of a parallel node
  double parallel_work_ = 0;    // sum of work_ over the parallel nodes
  bool use_threads_ = true;     // the threads are awake in this run, or it is worth waking them
  bool deterministic_ = false;  // this run must give the same bits at any time and load
  std::optional<ThreadTuner> tuner_;
  c10::Stack stack_;
  bool updated_ = false;  // tensors and arguments have the values of the last run, and it succeeded
};

}  // namespace torch_remote::worker::aten
