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

// A loaded program: one tensor for each view, one storage for each buffer, one Operation for each node, all made once.
// A run puts the buffers' addresses into the storages and calls the kernels.
namespace torch_remote::worker::aten {

class AtenProgram {
 public:
  // Throws if an op is not known here or an argument does not fit its schema. `host` and `threads` must outlive it.
  // `tune`: its first runs find out which nodes gain by several threads. `wanted`: one a node, whether runs may have
  // it; null: all.
  AtenProgram(const tr_host& host, Threads& threads, ir::Graph graph, bool tune, const uint8_t* wanted = nullptr);

  // Runs nodes [run.first, run.last). Throws; *node is then the one that failed.
  void run(tr_run& run, uint32_t* node);

  // The buffer's memory comes from the op that makes it.
  bool creates_buffer(uint32_t buffer) const { return buffers_[buffer].created; }

 private:
  class PackedWeights;
  class TurnedImage;
  struct BufferState {
    c10::Storage storage;
    void* data = nullptr;  // what the storage points to
    uint64_t nbytes = 0;
    bool created = false;
    bool survives = false;
  };
  struct NodeState {
    std::vector<uint32_t> buffers;     // it touches
    std::vector<uint32_t> dead_after;  // made here, and not needed by later nodes
    bool packs_weights = false;        // of a convolution
    bool depthwise = false;            // may be a convolution that our own loops do
    bool of_images = false;            // may be done by our own loops for images
    bool proven = false;               // kOut: ran with these sizes and left the results' tensors as they were
    bool natural = false;              // kOut: the op itself would order the results' memory like this
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
  // Whether an op of so much work leaves the client a core that all threads would take.
  bool leaves_core(double work) const { return aten::leaves_core(host_, threads_, work < kWorthWaking); }
  bool run_depthwise(uint32_t index);
  bool run_images(uint32_t index);
  void call_out(tr_run& run, uint32_t index);
  // Nobody but the tensor holds its memory, so that it can become a buffer.
  bool is_sole_owner(const at::Tensor& tensor) const;
  bool is_packed(const ir::Node& node) const;
  bool is_natural(const ir::Node& node) const;
  void resolve_written(const ir::Node& node);
  bool results_untouched(const ir::Node& node, const int64_t* symbols) const;
  void take_results(tr_run& run, const ir::Node& node);
  void take_tensor(tr_run& run, const ir::Arg& result, at::Tensor tensor);
  void take_dynamic(tr_run& run, const ir::View& view, at::Tensor tensor);
  void add_host_result(tr_run& run, const c10::IValue& value, ir::ResultKind kind);
  void allocate_missing(tr_run& run, uint32_t index);

  struct ScalarTensor {
    ir::Sym symbol;
    ir::DType dtype;  // of the symbol's bits
    at::Tensor tensor;
    alignas(16) std::byte memory[16] = {};  // the tensor's
    int64_t last[2] = {0, 0};
    bool set = false;
  };

  const tr_host& host_;
  const Target target_;
  Threads& threads_;
  ir::Graph graph_;
  std::vector<BufferState> buffers_;
  std::vector<at::Tensor> views_;
  std::vector<bool> written_;  // of the views: an op writes each of its elements, so that these must not share memory
  std::deque<ScalarTensor> scalars_;                  // they stay where they are
  std::vector<std::optional<Operation>> operations_;  // of the nodes that are wanted
  std::vector<NodeState> nodes_;
  std::vector<double> work_;    // of the nodes, as estimated
  std::vector<bool> parallel_;  // of the nodes
  double largest_work_ = 0;     // of these
  double parallel_work_ = 0;    // of those that are
  bool awake_ = true;           // the threads were in time for this run, or it is worth waking them
  bool deterministic_ = false;  // this run must give the same bits at any time and load
  std::optional<ThreadTuner> tuner_;
  c10::Stack stack_;
  bool updated_ = false;
};

}  // namespace torch_remote::worker::aten
