#include "worker/targets/cpu/compiled/product_runner.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "worker/targets/cpu/compiled/kernel_runner.h"
#include "worker/targets/cpu/compiled/library_product.h"
#include "worker/targets/cpu/compiled/loop_program.h"
#include "worker/targets/cpu/compiled/product.h"

namespace torch_remote::worker::kernels {
namespace {

class ProductProgram final : public LoopProgram {
 public:
  ProductProgram(const ProductRunnerOptions& options, const ir::Graph& graph)
      : LoopProgram(graph, ir::GroupKind::kMatmulEpilogue), options_(options), ways_(count()) {}

 private:
  // The implementations that can compute a GEMM.
  struct Ways {
    std::unique_ptr<Product> loops;
    std::unique_ptr<LibraryProduct> library;
    bool by_library = false;
  };

  bool bind(size_t index, const ir::Node& node, std::span<const int64_t> values) override {
    Ways& ways = ways_[index];
    ways = {};
    const ProductLoops* loops = product_loops(host_target());
    if (loops == nullptr) return false;
    ways.loops = Product::bind(graph(), node, values, *loops);
    ways.library = LibraryProduct::bind(graph(), node, values);
    if (ways.loops != nullptr && ways.loops->scratch() > kMostScratch) ways.loops.reset();
    return ways.loops != nullptr || ways.library != nullptr;
  }
  bool wants(size_t index) override {
    Ways& ways = ways_[index];
    const ProductShape shape = ways.loops != nullptr ? ways.loops->shape() : ways.library->shape();
    const ProductChoices::Way way = options_.products->way(shape);
    ways.by_library = way == ProductChoices::Way::kOneDnn && ways.library != nullptr;
    return ways.by_library || (way == ProductChoices::Way::kLoops && ways.loops != nullptr);
  }
  bool execute(size_t index, std::span<const tr_buffer> buffers, tr_error* error) override {
    const Ways& ways = ways_[index];
    if (!ways.by_library) {
      ways.loops->run(buffers, options_.threads);
      return true;
    }
    if (ways.library->run(buffers, options_.products->library())) return true;
    give_up(index);  // the op computes it in the next run, or reports why it cannot
    std::snprintf(error->kind, sizeof(error->kind), "RuntimeError");
    std::snprintf(error->message, sizeof(error->message), "oneDNN does not do this product of matrices");
    error->repeat = 1;
    return false;
  }
  std::string reason(size_t index) const override {
    const Ways& ways = ways_[index];
    if (ways.loops == nullptr && ways.library == nullptr) {
      return "neither loops nor oneDNN compute this matmul with these strides and dtypes";
    }
    return "ATen's matmul of this shape is faster on this machine, or is being timed";
  }
  double points(size_t index) const override {
    const Ways& ways = ways_[index];
    return ways.loops != nullptr ? ways.loops->points() : ways.library->points();
  }

  const ProductRunnerOptions& options_;
  std::vector<Ways> ways_;
};

class ProductRunner final : public Runner {
 public:
  explicit ProductRunner(ProductRunnerOptions options) : options_(std::move(options)) {}

  std::string name() const override { return "matmul loops"; }
  std::string description() const override { return {}; }
  bool accepts(const ir::Graph&, uint32_t) override { return false; }
  bool accepts_group(const ir::Graph&, const ir::Group& group) override {
    return group.kind == ir::GroupKind::kMatmulEpilogue && group.first == group.last;
  }
  uint64_t generation() const override { return options_.products->generation(); }
  // The worker is idle: measures a GEMM.
  void on_idle() override {
    if (!options_.products->wants_measuring()) return;
    if (options_.begins) options_.begins(true);
    options_.products->measure();
  }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<ProductProgram>(options_, request.graph);
    return {};
  }
  bool has_op(const char*) override { return false; }

 private:
  const ProductRunnerOptions options_;
};

}  // namespace

std::unique_ptr<Runner> make_product_runner(ProductRunnerOptions options) {
  return std::make_unique<ProductRunner>(std::move(options));
}

}  // namespace torch_remote::worker::kernels
