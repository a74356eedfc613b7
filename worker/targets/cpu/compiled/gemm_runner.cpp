#include "worker/targets/cpu/compiled/gemm_runner.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "worker/targets/cpu/compiled/gemm.h"
#include "worker/targets/cpu/compiled/kernel_runner.h"
#include "worker/targets/cpu/compiled/library_gemm.h"
#include "worker/targets/cpu/compiled/loop_program.h"

namespace torch_remote::worker::kernels {
namespace {

class GemmProgram final : public LoopProgram {
 public:
  GemmProgram(const GemmRunnerOptions& options, const ir::Graph& graph)
      : LoopProgram(graph, ir::GroupKind::kMatmul), options_(options), candidates_(count()) {}

 private:
  // The implementations that can compute a GEMM.
  struct Candidates {
    std::unique_ptr<SmallGemm> loops;
    std::unique_ptr<LibraryGemm> library;
    bool by_library = false;
  };

  bool bind(size_t index, const ir::Node& node, std::span<const int64_t> values) override {
    Candidates& candidates = candidates_[index];
    candidates = {};
    const GemmLoops* loops = gemm_loops(host_target());
    if (loops == nullptr) return false;
    candidates.loops = SmallGemm::bind(graph(), node, values, *loops);
    candidates.library = LibraryGemm::bind(graph(), node, values);
    if (candidates.loops != nullptr && candidates.loops->scratch() > kMaxScratch) candidates.loops.reset();
    return candidates.loops != nullptr || candidates.library != nullptr;
  }
  bool wants(size_t index) override {
    Candidates& candidates = candidates_[index];
    const GemmShape shape = candidates.loops != nullptr ? candidates.loops->shape() : candidates.library->shape();
    const GemmChoices::Algorithm algorithm = options_.choices->algorithm(shape);
    candidates.by_library = algorithm == GemmChoices::Algorithm::kOneDnn && candidates.library != nullptr;
    return candidates.by_library || (algorithm == GemmChoices::Algorithm::kLoops && candidates.loops != nullptr);
  }
  bool execute(size_t index, std::span<const tr_buffer> buffers, tr_error* error) override {
    const Candidates& candidates = candidates_[index];
    if (!candidates.by_library) {
      candidates.loops->run(buffers, options_.threads);
      return true;
    }
    if (candidates.library->run(buffers, options_.choices->library())) return true;
    reject(index);  // the op computes it in the next run, or reports why it cannot
    std::snprintf(error->exception_type, sizeof(error->exception_type), "RuntimeError");
    std::snprintf(error->message, sizeof(error->message), "oneDNN does not support this matmul");
    error->retry_as_nodes = 1;
    return false;
  }
  std::string reason(size_t index) const override {
    const Candidates& candidates = candidates_[index];
    if (candidates.loops == nullptr && candidates.library == nullptr) {
      return "neither loops nor oneDNN compute this matmul with these strides and dtypes";
    }
    return "ATen's matmul of this shape is faster on this machine, or is being timed";
  }
  double points(size_t index) const override {
    const Candidates& candidates = candidates_[index];
    return candidates.loops != nullptr ? candidates.loops->points() : candidates.library->points();
  }

  const GemmRunnerOptions& options_;
  std::vector<Candidates> candidates_;
};

class GemmRunner final : public Runner {
 public:
  explicit GemmRunner(GemmRunnerOptions options) : options_(std::move(options)) {}

  std::string name() const override { return "matmul loops"; }
  std::string description() const override { return {}; }
  bool accepts(const ir::Graph&, uint32_t) override { return false; }
  bool accepts_group(const ir::Graph&, const ir::Group& group) override {
    return group.kind == ir::GroupKind::kMatmul && group.first == group.last;
  }
  uint64_t generation() const override { return options_.choices->generation(); }
  // The worker is idle: measures a GEMM.
  void on_idle() override {
    if (!options_.choices->wants_measuring()) return;
    if (options_.notify_threads) options_.notify_threads(true);
    options_.choices->measure();
  }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<GemmProgram>(options_, request.graph);
    return {};
  }

 private:
  const GemmRunnerOptions options_;
};

}  // namespace

std::unique_ptr<Runner> make_gemm_runner(GemmRunnerOptions options) {
  return std::make_unique<GemmRunner>(std::move(options));
}

}  // namespace torch_remote::worker::kernels
