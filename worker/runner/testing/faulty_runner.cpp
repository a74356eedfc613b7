#include "worker/runner/testing/faulty_runner.h"

#include <map>
#include <string>
#include <utility>

namespace torch_remote::worker::testing {
namespace {

class FaultyProgram final : public RunnerProgram {
 public:
  FaultyProgram(std::unique_ptr<RunnerProgram> inner, const ir::Graph& graph, const Fault& fault)
      : inner_(std::move(inner)), graph_(graph), fault_(fault) {}

  bool allocates_buffer(uint32_t buffer) const override { return inner_->allocates_buffer(buffer); }
  bool takes(uint32_t first, uint32_t last, std::span<const int64_t> values) override {
    groups_[first] = last;
    return inner_->takes(first, last, values);
  }
  bool takes_node(uint32_t node, std::span<const int64_t> values, bool wait) override {
    return inner_->takes_node(node, values, wait);
  }
  std::string why_not(uint32_t node) const override { return inner_->why_not(node); }
  std::string why_not_group(uint32_t first) const override { return inner_->why_not_group(first); }
  bool asks_again() const override { return inner_->asks_again(); }
  bool tunes() const override { return inner_->tunes(); }
  void report_time(uint32_t first, uint64_t ns) override { inner_->report_time(first, ns); }
  double work(uint32_t first, uint32_t last) const override { return inner_->work(first, last); }
  bool may_share(uint32_t first, uint32_t made, uint32_t source) const override {
    return inner_->may_share(first, made, source);
  }
  // One node or group at a time: the next one reads what the fault has changed.
  bool run(tr_run& run, tr_error* error) override {
    tr_run piece = run;
    run.result_word_count = 0;
    for (uint32_t n = run.first; n < run.last; n = piece.last) {
      const auto group = groups_.find(n);
      const bool whole = group != groups_.end() && run.first == n && group->second == run.last;
      piece.first = n;
      piece.last = whole ? run.last : n + 1;
      piece.result_words = run.result_words + run.result_word_count;
      piece.result_word_capacity = run.result_word_capacity - run.result_word_count;
      piece.times = run.times ? run.times + (n - run.first) : nullptr;
      if (!inner_->run(piece, error)) return false;
      run.result_word_count += piece.result_word_count;
      piece.symbols_changed = false;
      for (uint32_t k = piece.first; fault_ && k < piece.last; ++k) fault_(graph_, k, {run.buffers, run.buffer_count});
    }
    return true;
  }
  bool begin(tr_run& run, bool stays, std::shared_ptr<BackgroundWork>* work, tr_error* error) override {
    return inner_->begin(run, stays, work, error);
  }

 private:
  const std::unique_ptr<RunnerProgram> inner_;
  const ir::Graph& graph_;
  const Fault& fault_;
  std::map<uint32_t, uint32_t> groups_;  // First node, and end.
};

class FaultyRunner final : public Runner {
 public:
  FaultyRunner(std::unique_ptr<Runner> inner, const Fault& fault) : inner_(std::move(inner)), fault_(fault) {}

  std::string name() const override { return inner_->name(); }
  std::string description() const override { return inner_->description(); }
  bool accepts(const ir::Graph& graph, uint32_t node) override { return inner_->accepts(graph, node); }
  bool may_decline() const override { return inner_->may_decline(); }
  std::string why_accepts_none() const override { return inner_->why_accepts_none(); }
  bool accepts_group(const ir::Graph& graph, const ir::Group& group) override {
    return inner_->accepts_group(graph, group);
  }
  uint64_t generation() const override { return inner_->generation(); }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    std::unique_ptr<RunnerProgram> inner;
    if (Status status = inner_->load(request, &inner); !status.ok() || !inner) return status;
    *program = std::make_unique<FaultyProgram>(std::move(inner), request.graph, fault_);
    return {};
  }
  bool has_op(const char* name) override { return inner_->has_op(name); }
  bool works_in_background() const override { return inner_->works_in_background(); }
  void skip_node(const ir::Graph& graph, uint32_t node, const int64_t* values, const Status& why) override {
    inner_->skip_node(graph, node, values, why);
  }
  void end() override { inner_->end(); }
  uint64_t kernels_compiled() const override { return inner_->kernels_compiled(); }
  uint64_t groups_without_kernel() const override { return inner_->groups_without_kernel(); }
  void on_idle() override { inner_->on_idle(); }
  ParallelFor threads() override { return inner_->threads(); }
  std::function<void(bool)> thread_notifier() override { return inner_->thread_notifier(); }
  std::function<bool(const tr_matmul&)> matmul() override { return inner_->matmul(); }

 private:
  const std::unique_ptr<Runner> inner_;
  const Fault& fault_;
};

}  // namespace

std::unique_ptr<Runner> make_faulty_runner(std::unique_ptr<Runner> inner, const Fault& fault) {
  return std::make_unique<FaultyRunner>(std::move(inner), fault);
}

Fault add_to_results_of(const char* op, float by) {
  return [name = std::string(op), by](const ir::Graph& graph, uint32_t n, std::span<const tr_buffer> buffers) {
    const ir::Node& node = graph.nodes[n];
    const std::string_view its = ir::op_desc(node.opcode).name;
    if (its.substr(0, its.find('.')) != name) return;
    ir::for_each_view(node, [&](uint32_t v, bool writes) {
      const ir::View& view = graph.views[v];
      const tr_buffer& buffer = buffers[view.buffer];
      if (!writes || view.dtype != ir::DType::kFloat32 || buffer.data == nullptr || buffer.nbytes == 0) return;
      *static_cast<float*>(buffer.data) += by;
    });
  };
}

}  // namespace torch_remote::worker::testing
