#include "worker/targets/cuda/dnn/convolution/convolution_runner.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/dnn/convolution/convolution.h"
#include "worker/targets/cuda/dnn/convolution/convolution_library.h"
#include "worker/targets/cuda/dnn/deferred_plan_runner.h"
#include "worker/targets/cuda/launch/group_call.h"
#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/launch/unit_program.h"

namespace torch_remote::worker::cuda {
namespace {

using Convolutions = LazyLibrary<ConvolutionLibrary>;

std::string list(std::span<const int64_t> numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

// A compiled kernel that adds a bias to an image, or sums an image to a bias.
class BiasKernel {
 public:
  Status request(CudaDevice& device, const ChannelBias& work) {
    OpTensor image = work.image;
    for (size_t d = image.sizes.size(); d-- > 2;) {  // Kernels do not need dims of size 1.
      if (image.sizes[d] != 1) continue;
      image.sizes.erase(image.sizes.begin() + static_cast<std::ptrdiff_t>(d));
      image.strides.erase(image.strides.begin() + static_cast<std::ptrdiff_t>(d));
    }
    const std::string dtype(ir::name(image.dtype));
    std::string text = "graph() {\n  b0: input survives\n  b1: " + std::string(work.sums ? "fresh(" : "input survives");
    if (work.sums) text += std::to_string(work.bias.nbytes()) + ") survives";
    text += "\n  %0: " + dtype + "[" + list(image.sizes) + "]{" + list(image.strides) + "} @b0\n";
    if (work.sums) {
      std::vector<int64_t> dims = {0};
      for (size_t d = 2; d < image.sizes.size(); ++d) dims.push_back(static_cast<int64_t>(d));
      text += "  %1: " + dtype + "[" + list(work.bias.sizes) + "]{" + list(work.bias.strides) +
              "} @b1 = " + std::string(ir::op_desc(ir::ops::aten_sum_dim_IntList).name) + "(%0, [" + list(dims) +
              "], false, dtype=none)\n}\n";
    } else {
      std::vector<int64_t> strides(image.sizes.size());
      strides[1] = work.bias.strides[0];
      text += "  %1: " + dtype + "[" + list(image.sizes) + "]{" + list(strides) + "} @b1\n  " +
              std::string(ir::op_desc(ir::ops::aten_add__Tensor).name) + "(%0, %1, alpha=1)\n}\n";
    }
    graph_ = {};
    Status status = ir::parse_graph(text, &graph_);
    if (status.ok()) status = ir::evaluate(graph_, nullptr, &values_);
    if (status.ok()) status = call_.request_kernels(device, graph_, ir::Group{}, values_);
    return status;
  }
  Status finish(CudaDevice& device) {
    Status status = call_.finish(device, graph_);
    if (status.ok()) call_.set_scalars(values_);
    return status;
  }
  Status run(CudaDevice& device, DevicePointer image, DevicePointer bias, uint64_t run_id) const {
    // NOLINTBEGIN(performance-no-int-to-ptr): the driver's addresses are numbers
    const tr_buffer buffers[] = {{reinterpret_cast<void*>(image), 0, nullptr, nullptr},
                                 {reinterpret_cast<void*>(bias), 0, nullptr, nullptr}};
    // NOLINTEND(performance-no-int-to-ptr)
    return call_.run(device, buffers, run_id);
  }

 private:
  ir::Graph graph_;
  std::vector<int64_t> values_;
  GroupCall call_;
};

class ConvolutionUnit final : public Unit {
 public:
  ConvolutionUnit(Convolutions& convolutions, const ir::Graph& graph, const ir::Group& group, bool tune)
      : Unit(graph, group), convolutions_(convolutions), tune_(tune) {}

  Status run(std::span<const tr_buffer> buffers, uint64_t run_id) override;

 private:
  Status plan(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) override;
  Status finish() override;
  bool is_still_valid(std::span<const int64_t>) const override {
    return convolutions_.device().math_modes() == math_modes_;
  }
  void set_numbers(std::span<const int64_t>) override {}
  Status prepare_calls(ConvolutionLibrary& library);
  static Status do_step(const OpStep& step, const RunMemory& memory);

  Convolutions& convolutions_;
  const bool tune_;
  ir::MathModes math_modes_ = 0;
  ConvolutionPlan plan_;
  std::vector<std::shared_ptr<PreparedConvolution>> prepared_;  // One per call.
  bool call_adds_bias_ = false;
  std::optional<BiasKernel> bias_;
};

Status ConvolutionUnit::plan(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) {
  bias_.reset();
  math_modes_ = convolutions_.device().math_modes();
  const ContextGuard current(convolutions_.device().gpu());
  ConvolutionLibrary* const library = convolutions_.get();
  if (library == nullptr) {
    return {ErrorCode::kUnsupported, convolutions_.status().message()};
  }
  Status status;
  for (const ConvolutionLayout layout : {ConvolutionLayout::kPreferred, ConvolutionLayout::kOther}) {
    Status tried = plan_convolution(graph(), group().first, values, layout, &plan_, symbols);
    if (!tried.ok()) return tried;
    tried = prepare_calls(*library);
    if (tried.ok() || status.ok()) status = tried;
    if (tried.ok()) break;
    if (tried.code() != ErrorCode::kUnsupported) return tried;
  }
  if (status.ok() && plan_.bias && !call_adds_bias_) {
    status = bias_.emplace().request(convolutions_.device(), *plan_.bias);
  }
  return status;
}

Status ConvolutionUnit::prepare_calls(ConvolutionLibrary& library) {
  prepared_.assign(plan_.calls.size(), nullptr);
  call_adds_bias_ = false;
  for (size_t i = 0; i < plan_.calls.size(); ++i) {
    ConvolutionProblem problem = plan_.calls[i].problem;
    problem.tf32 = problem.type == dnn::Type::kFloat32 && (math_modes_ & ir::kTf32Convolutions) != 0;
    problem.deterministic = (math_modes_ & ir::kDeterministic) != 0;
    problem.tune = tune_ && !problem.deterministic;
    if (plan_.call_bias) {
      problem.adds_bias = true;
      const Status status = library.prepare(problem, &prepared_[i]);
      call_adds_bias_ = status.ok();
      if (call_adds_bias_) continue;
      if (status.code() != ErrorCode::kUnsupported) return status;
      problem.adds_bias = false;  // A kernel adds the bias.
    }
    if (Status status = library.prepare(problem, &prepared_[i]); !status.ok()) return status;
  }
  return {};
}

Status ConvolutionUnit::finish() { return bias_ ? bias_->finish(convolutions_.device()) : Status(); }

Status ConvolutionUnit::do_step(const OpStep& step, const RunMemory& memory) {
  if (const auto* const moved = std::get_if<StridedMove>(&step)) return memory.copy(*moved);
  const auto& fill = std::get<OpFill>(step);
  memory.fill(fill.to, fill.nbytes, fill.value);
  return {};
}

Status ConvolutionUnit::run(std::span<const tr_buffer> buffers, uint64_t run_id) {
  CudaDevice& device = convolutions_.device();
  RunMemory memory(device, buffers);
  if (Status status = memory.allocate(plan_.steps.scratch, "a convolution"); !status.ok()) return status;
  if (device.gpu().is_lost()) return {};
  Status status;
  ConvolutionLibrary& library = *convolutions_.get();
  const auto at = [&](const Location& location) { return memory.address(location); };
  for (size_t i = 0; i < plan_.before && status.ok(); ++i) status = do_step(plan_.steps.steps[i], memory);
  for (size_t i = 0; i < plan_.calls.size() && status.ok(); ++i) {
    const ConvolutionCall& call = plan_.calls[i];
    status = library.run(
        prepared_[i], {at(call.image), at(call.filter), at(call.output), call_adds_bias_ ? at(*plan_.call_bias) : 0});
  }
  for (size_t i = plan_.before; i < plan_.steps.steps.size() && status.ok(); ++i) {
    status = do_step(plan_.steps.steps[i], memory);
  }
  if (status.ok() && bias_) {
    status = bias_->run(device, at(plan_.bias->image.location), at(plan_.bias->bias.location), run_id);
  }
  return status;
}

class ConvolutionProgram final : public UnitProgram {
 public:
  ConvolutionProgram(Convolutions& convolutions, const LoadRequest& request, uint64_t& refused)
      : UnitProgram(convolutions.device(), request, refused), convolutions_(convolutions), tune_(request.tune) {
    make_units(request);
  }

 private:
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) override {
    if (group.first != group.last || !is_convolution(graph, graph.nodes[group.first])) return nullptr;
    return std::make_unique<ConvolutionUnit>(convolutions_, graph, group, tune_);
  }

  Convolutions& convolutions_;
  const bool tune_;
};

class ConvolutionRunner final : public Runner {
 public:
  ConvolutionRunner(CudaDevice& device, std::shared_ptr<CudnnTable> table, std::string folder)
      : convolutions_(device, std::move(table), std::move(folder)) {}

  std::string name() const override { return "cuDNN convolution"; }

  bool accepts(const ir::Graph& graph, uint32_t node) override { return is_convolution(graph, graph.nodes[node]); }
  bool may_decline() const override { return true; }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<ConvolutionProgram>(convolutions_, request, refused_);
    return {};
  }
  bool has_opcode(ir::Opcode opcode) override { return is_convolution_op(opcode); }
  uint64_t generation() const override { return refused_; }

 private:
  Convolutions convolutions_;
  uint64_t refused_ = 0;
};

}  // namespace

std::unique_ptr<Runner> make_convolution_runner(CudaDevice& device, std::shared_ptr<CudnnTable> table,
                                                std::string folder) {
  return std::make_unique<ConvolutionRunner>(device, std::move(table), std::move(folder));
}

}  // namespace torch_remote::worker::cuda
