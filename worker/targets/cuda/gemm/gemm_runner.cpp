#include "worker/targets/cuda/gemm/gemm_runner.h"

#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/gemm/cublaslt_library.h"
#include "worker/targets/cuda/gemm/gemm.h"
#include "worker/targets/cuda/launch/group_call.h"
#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/launch/unit_program.h"

namespace torch_remote::worker::cuda {
namespace {

// The library, opened on first use.
class LazyCublasLt {
 public:
  LazyCublasLt(CudaDevice& device, OpenCublasLt open, std::string folder)
      : device_(device),
        folder_(std::move(folder)),
        opened_(std::async(std::launch::async, [this, open = std::move(open)] { return open(&table_); })) {}

  CudaDevice& device() { return device_; }
  // Null: *status says why.
  CublasLtLibrary* get(Status* status) {
    if (library_ == nullptr && status_.ok()) {
      if (opened_.valid()) status_ = opened_.get();
      if (!status_.ok()) status_ = {ErrorCode::kUnsupported, status_.message()};
      if (status_.ok()) {
        status_ = CublasLtLibrary::open(device_.shared_gpu(), device_.memory(), {.table = &table_, .folder = folder_},
                                        &library_);
      }
    }
    *status = status_;
    return library_.get();
  }

 private:
  CudaDevice& device_;
  const std::string folder_;
  lt::Table table_;
  std::future<Status> opened_;
  Status status_;
  std::unique_ptr<CublasLtLibrary> library_;
};

// gelu of a matrix in place, with a compiled kernel.
class Gelu {
 public:
  Status bind(CudaDevice& device, ir::DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides) {
    std::string dims, steps;
    for (const int64_t size : sizes) dims += (dims.empty() ? "" : ", ") + std::to_string(size);
    for (const int64_t stride : strides) steps += (steps.empty() ? "" : ", ") + std::to_string(stride);
    const std::string text = "graph() {\n  b0: input survives\n  %0: " + std::string(ir::name(dtype)) + "[" + dims +
                             "]{" + steps + "} @b0\n  " + std::string(ir::op_desc(ir::ops::aten_gelu_).name) +
                             "(%0, approximate=\"none\")\n}\n";
    graph_ = {};
    std::vector<int64_t> values;
    Status status = ir::parse_graph(text, &graph_);
    if (status.ok()) status = ir::evaluate(graph_, nullptr, &values);
    if (status.ok()) status = call_.request_kernels(device, graph_, ir::Group{}, values);
    if (status.ok()) status = call_.finish(device, graph_);
    if (status.ok()) call_.set_scalars(values);
    return status;
  }
  Status run(CudaDevice& device, DevicePointer address, uint64_t run_id) const {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
    const tr_buffer buffer{reinterpret_cast<void*>(address), 0, nullptr, nullptr};
    return call_.run(device, {&buffer, 1}, run_id);
  }

 private:
  ir::Graph graph_;
  GroupCall call_;
};

class GemmUnit final : public Unit {
 public:
  GemmUnit(LazyCublasLt& cublaslt, const ir::Graph& graph, const ir::Group& group, const Gemm& gemm, bool tune)
      : Unit(graph, group), cublaslt_(cublaslt), gemm_(gemm), tune_(tune) {}

  Status run(std::span<const tr_buffer> buffers, uint64_t) override;

 private:
  Status plan(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) override;
  bool is_still_valid(std::span<const int64_t> values) const override {
    return scalars_of(gemm_, values) == numbers_ && cublaslt_.device().math_modes() == math_modes_;
  }
  void set_numbers(std::span<const int64_t> values) override {
    alpha_ = number_of(gemm_.alpha, values);
    beta_ = number_of(gemm_.beta, values);
  }
  static Status move(const std::vector<StridedMove>& moves, const RunMemory& memory);
  Status bind_gelu(std::span<const int64_t> values);

  LazyCublasLt& cublaslt_;
  const Gemm gemm_;
  const bool tune_;
  GemmScalars numbers_;
  ir::MathModes math_modes_ = 0;
  GemmPlan plan_;
  std::shared_ptr<PreparedGemm> first_, next_;
  Number alpha_, beta_;
  std::optional<Gelu> gelu_;
  Location gelu_location_;
};

Status GemmUnit::plan(std::span<const int64_t> values, std::vector<ir::Sym>*) {
  numbers_ = scalars_of(gemm_, values);
  math_modes_ = cublaslt_.device().math_modes();
  first_ = nullptr;
  next_ = nullptr;
  gelu_.reset();
  Status status = plan_gemm(graph(), gemm_, values, math_modes_, &plan_);
  if (!status.ok() || plan_.calls.empty()) return status;
  for (Problem* const problem : {&plan_.problem, &plan_.problem_next}) problem->tune = tune_ && !problem->deterministic;
  const ContextGuard current(cublaslt_.device().gpu());
  CublasLtLibrary* const library = cublaslt_.get(&status);
  if (library == nullptr) return status;
  status = library->prepare(plan_.problem, &first_);
  if (status.ok() && plan_.calls.size() > 1) status = library->prepare(plan_.problem_next, &next_);
  if (status.ok() && gemm_.activation == Activation::kGelu) status = bind_gelu(values);
  return status;
}

Status GemmUnit::bind_gelu(std::span<const int64_t> values) {
  const ir::View& view = graph().views[gemm_.result];
  std::vector<int64_t> sizes, strides;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    sizes.push_back(values[view.sizes[d]]);
    strides.push_back(values[view.strides[d]]);
  }
  gelu_location_ = {view.buffer, static_cast<uint64_t>(values[view.offset]) * ir::item_size(view.dtype)};
  return gelu_.emplace().bind(cublaslt_.device(), view.dtype, sizes, strides);
}

Status GemmUnit::move(const std::vector<StridedMove>& moves, const RunMemory& memory) {
  for (const StridedMove& moved : moves) {
    if (Status status = memory.copy(moved); !status.ok()) return status;
  }
  return {};
}

Status GemmUnit::run(std::span<const tr_buffer> buffers, uint64_t run_id) {
  if (plan_.calls.empty()) return {};
  CudaDevice& device = cublaslt_.device();
  RunMemory memory(device, buffers);
  if (Status status = memory.allocate(plan_.scratch, "a matmul"); !status.ok()) return status;
  if (device.gpu().is_lost()) return {};
  for (const uint32_t zeros : plan_.zeros) memory.fill({kScratch + zeros, 0}, plan_.scratch[zeros], 0);
  Status status;
  CublasLtLibrary* const library = cublaslt_.get(&status);
  if (status.ok()) status = move(plan_.before, memory);
  for (const GemmCall& call : plan_.calls) {
    if (!status.ok()) return status;
    const auto at = [&](const Location& location) { return memory.address(location); };
    status = library->run(
        call.first ? first_ : next_,
        {at(call.a), at(call.b), at(call.c), at(call.d), at(call.bias), at(call.a_scale), at(call.b_scale)}, alpha_,
        call.first ? beta_ : Number{});
  }
  if (status.ok()) status = move(plan_.after, memory);
  if (status.ok() && gelu_) status = gelu_->run(device, memory.address(gelu_location_), run_id);
  return status;
}

class GemmProgram final : public UnitProgram {
 public:
  GemmProgram(LazyCublasLt& cublaslt, const LoadRequest& request, uint64_t& refused)
      : UnitProgram(cublaslt.device(), request, refused), cublaslt_(cublaslt), tune_(request.tune) {
    make_units(request);
  }

 private:
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) override {
    Gemm gemm;
    const bool is_gemm = group.last != group.first ? find_epilogue(graph, group, &gemm)
                                                   : find_gemm(graph, graph.nodes[group.first], &gemm);
    return is_gemm ? std::make_unique<GemmUnit>(cublaslt_, graph, group, gemm, tune_) : nullptr;
  }

  LazyCublasLt& cublaslt_;
  const bool tune_;
};

class GemmRunner final : public Runner {
 public:
  GemmRunner(CudaDevice& device, OpenCublasLt open, std::string folder)
      : cublaslt_(device, std::move(open), std::move(folder)) {}

  std::string name() const override { return "cuBLASLt"; }

  bool accepts(const ir::Graph& graph, uint32_t node) override {
    Gemm gemm;
    return find_gemm(graph, graph.nodes[node], &gemm);
  }
  bool accepts_group(const ir::Graph& graph, const ir::Group& group) override {
    Gemm gemm;
    return find_epilogue(graph, group, &gemm);
  }
  bool may_decline() const override { return true; }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<GemmProgram>(cublaslt_, request, refused_);
    return {};
  }
  bool has_opcode(ir::Opcode opcode) override { return is_gemm_op(opcode); }

  uint64_t generation() const override { return refused_; }

 private:
  LazyCublasLt cublaslt_;
  uint64_t refused_ = 0;
};

}  // namespace

std::unique_ptr<Runner> make_gemm_runner(CudaDevice& device, OpenCublasLt open, std::string folder) {
  return std::make_unique<GemmRunner>(device, std::move(open), std::move(folder));
}

uint32_t gemm_group_kind_mask() { return 1u << static_cast<uint32_t>(ir::GroupKind::kMatmul); }

}  // namespace torch_remote::worker::cuda
