#include "worker/targets/cpu/compiled/attention/attention_runner.h"

#include <atomic>
#include <utility>
#include <vector>

#include "worker/targets/cpu/compiled/attention/attention.h"
#include "worker/targets/cpu/compiled/kernel_runner.h"
#include "worker/targets/cpu/compiled/loop_program.h"

namespace torch_remote::worker::kernels {
namespace {

constexpr const char* kNoLoops = "there are no loops for attention of these sizes, strides and dtypes";

class AttentionProgram final : public LoopProgram {
 public:
  AttentionProgram(const AttentionRunnerOptions& options, const ir::Graph& graph, std::atomic<uint64_t>& refused)
      : LoopProgram(graph, ir::GroupKind::kAttention), options_(options), refused_(refused), loops_(count()) {}

 private:
  bool bind(size_t index, const ir::Node& node, std::span<const int64_t> values) override {
    std::unique_ptr<Attention>& attention = loops_[index].attention;
    attention.reset();
    if (const AttentionLoops* loops = attention_loops(host_target())) {
      attention = Attention::bind(graph(), node, values, *loops);
    }
    if (attention != nullptr && attention->scratch() <= kMaxScratch) return true;
    if (std::exchange(loops_[index].refused, true)) return false;
    refused_.fetch_add(1, std::memory_order_relaxed);
    if (options_.on_refusal) {
      options_.on_refusal(ir::op_desc(node.opcode).name, kNoLoops);
    }
    return false;
  }
  bool execute(size_t index, std::span<const tr_buffer> buffers, tr_error*) override {
    loops_[index].attention->run(buffers, options_.threads);
    return true;
  }
  std::string reason(size_t) const override { return kNoLoops; }
  double points(size_t index) const override { return loops_[index].attention->points(); }

  struct Loops {
    std::unique_ptr<Attention> attention;
    bool refused = false;  // already counted in refused_
  };
  const AttentionRunnerOptions& options_;
  std::atomic<uint64_t>& refused_;
  std::vector<Loops> loops_;
};

class AttentionRunner final : public Runner {
 public:
  explicit AttentionRunner(AttentionRunnerOptions options) : options_(std::move(options)) {}

  std::string name() const override { return "attention loops"; }
  std::string description() const override { return {}; }
  bool accepts(const ir::Graph&, uint32_t) override { return false; }
  bool accepts_group(const ir::Graph&, const ir::Group& group) override {
    return group.kind == ir::GroupKind::kAttention && group.first == group.last;
  }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<AttentionProgram>(options_, request.graph, refused_);
    return {};
  }
  uint64_t groups_without_kernel() const override { return refused_.load(std::memory_order_relaxed); }

 private:
  const AttentionRunnerOptions options_;
  std::atomic<uint64_t> refused_ = 0;
};

}  // namespace

std::unique_ptr<Runner> make_attention_runner(AttentionRunnerOptions options) {
  return std::make_unique<AttentionRunner>(std::move(options));
}

}  // namespace torch_remote::worker::kernels
