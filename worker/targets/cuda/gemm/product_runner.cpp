#include "worker/targets/cuda/gemm/product_runner.h"

#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/gemm/product.h"
#include "worker/targets/cuda/gemm/product_library.h"
#include "worker/targets/cuda/launch/group_call.h"
#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/launch/unit_program.h"

namespace torch_remote::worker::cuda {
namespace {

// The library, opened on first use.
class Products {
 public:
  Products(CudaDevice& device, OpenProducts open, std::string folder)
      : device_(device),
        folder_(std::move(folder)),
        opened_(std::async(std::launch::async, [this, open = std::move(open)] { return open(&table_); })) {}

  CudaDevice& device() { return device_; }
  // Null: *status says why.
  ProductLibrary* get(Status* status) {
    if (library_ == nullptr && status_.ok()) {
      if (opened_.valid()) status_ = opened_.get();
      if (!status_.ok()) status_ = {ErrorCode::kUnsupported, status_.message()};
      if (status_.ok()) {
        status_ = ProductLibrary::open(device_.shared_gpu(), device_.memory(), {.table = &table_, .folder = folder_},
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
  std::unique_ptr<ProductLibrary> library_;
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
    if (status.ok()) status = call_.ask(device, graph_, ir::Group{}, values);
    if (status.ok()) status = call_.finish(device, graph_);
    if (status.ok()) call_.set_scalars(values);
    return status;
  }
  Status run(CudaDevice& device, DevicePointer address, uint64_t number) const {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
    const tr_buffer buffer{reinterpret_cast<void*>(address), 0, nullptr, nullptr};
    return call_.run(device, {&buffer, 1}, number);
  }

 private:
  ir::Graph graph_;
  GroupCall call_;
};

class ProductUnit final : public Unit {
 public:
  ProductUnit(Products& products, const ir::Graph& graph, const ir::Group& group, const Product& product)
      : Unit(graph, group), products_(products), product_(product) {}

  Status run(std::span<const tr_buffer> buffers, uint64_t) override;

 private:
  Status begin(std::span<const int64_t> values, std::vector<ir::Sym>* symbols) override;
  bool suits(std::span<const int64_t> values) const override {
    return numbers_of(product_, values) == numbers_ && products_.device().math() == math_;
  }
  void set_numbers(std::span<const int64_t> values) override {
    alpha_ = number_of(product_.alpha, values);
    beta_ = number_of(product_.beta, values);
  }
  static Status move(const std::vector<Moved>& moves, const RunMemory& memory);
  Status bind_gelu(std::span<const int64_t> values);

  Products& products_;
  const Product product_;
  ProductNumbers numbers_;
  ir::MathModes math_ = 0;
  ProductPlan plan_;
  std::shared_ptr<PreparedProduct> first_, next_;
  Number alpha_, beta_;
  std::optional<Gelu> gelu_;
  Place gelu_place_;
};

Status ProductUnit::begin(std::span<const int64_t> values, std::vector<ir::Sym>*) {
  numbers_ = numbers_of(product_, values);
  math_ = products_.device().math();
  first_ = nullptr;
  next_ = nullptr;
  gelu_.reset();
  Status status = plan_product(graph(), product_, values, math_, &plan_);
  if (!status.ok() || plan_.calls.empty()) return status;
  const Current current(products_.device().gpu());
  ProductLibrary* const library = products_.get(&status);
  if (library == nullptr) return status;
  status = library->prepare(plan_.problem, &first_);
  if (status.ok() && plan_.calls.size() > 1) status = library->prepare(plan_.problem_next, &next_);
  if (status.ok() && product_.activation == Activation::kGelu) status = bind_gelu(values);
  return status;
}

Status ProductUnit::bind_gelu(std::span<const int64_t> values) {
  const ir::View& view = graph().views[product_.result];
  std::vector<int64_t> sizes, strides;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    sizes.push_back(values[view.sizes[d]]);
    strides.push_back(values[view.strides[d]]);
  }
  gelu_place_ = {view.buffer, static_cast<uint64_t>(values[view.offset]) * ir::item_size(view.dtype)};
  return gelu_.emplace().bind(products_.device(), view.dtype, sizes, strides);
}

Status ProductUnit::move(const std::vector<Moved>& moves, const RunMemory& memory) {
  for (const Moved& moved : moves) {
    if (Status status = memory.copy(moved); !status.ok()) return status;
  }
  return {};
}

Status ProductUnit::run(std::span<const tr_buffer> buffers, uint64_t number) {
  if (plan_.calls.empty()) return {};
  CudaDevice& device = products_.device();
  RunMemory memory(device, buffers);
  if (Status status = memory.allocate(plan_.scratch, "a product"); !status.ok()) return status;
  if (device.gpu().is_lost()) return {};
  for (const uint32_t zeros : plan_.zeros) memory.fill({kScratch + zeros, 0}, plan_.scratch[zeros], 0);
  Status status;
  ProductLibrary* const library = products_.get(&status);
  if (status.ok()) status = move(plan_.before, memory);
  for (const ProductCall& call : plan_.calls) {
    if (!status.ok()) return status;
    const auto at = [&](const Place& place) { return memory.address(place); };
    status = library->run(
        call.first ? first_ : next_,
        {at(call.a), at(call.b), at(call.c), at(call.d), at(call.bias), at(call.a_scale), at(call.b_scale)}, alpha_,
        call.first ? beta_ : Number{});
  }
  if (status.ok()) status = move(plan_.after, memory);
  if (status.ok() && gelu_) status = gelu_->run(device, memory.address(gelu_place_), number);
  return status;
}

class ProductProgram final : public UnitProgram {
 public:
  ProductProgram(Products& products, const LoadRequest& request, uint64_t& refused)
      : UnitProgram(products.device(), request, refused), products_(products) {
    make_units(request);
  }

 private:
  std::unique_ptr<Unit> make_unit(const ir::Graph& graph, const ir::Group& group) override {
    Product product;
    const bool is_product = group.last != group.first ? find_epilogue(graph, group, &product)
                                                      : find_product(graph, graph.nodes[group.first], &product);
    return is_product ? std::make_unique<ProductUnit>(products_, graph, group, product) : nullptr;
  }

  Products& products_;
};

class ProductRunner final : public Runner {
 public:
  ProductRunner(CudaDevice& device, OpenProducts open, std::string folder)
      : products_(device, std::move(open), std::move(folder)) {}

  std::string name() const override { return "cuBLASLt"; }

  bool accepts(const ir::Graph& graph, uint32_t node) override {
    Product product;
    return find_product(graph, graph.nodes[node], &product);
  }
  bool accepts_group(const ir::Graph& graph, const ir::Group& group) override {
    Product product;
    return find_epilogue(graph, group, &product);
  }
  bool may_decline() const override { return true; }
  Status load(const LoadRequest& request, std::unique_ptr<RunnerProgram>* program) override {
    *program = std::make_unique<ProductProgram>(products_, request, refused_);
    return {};
  }
  bool has_op(const char* name) override {
    const ir::Opcode opcode = ir::find_op(name);
    return opcode != ir::kInvalidOpcode && is_product_op(opcode);
  }

  uint64_t generation() const override { return refused_; }

 private:
  Products products_;
  uint64_t refused_ = 0;
};

}  // namespace

std::unique_ptr<Runner> make_product_runner(CudaDevice& device, OpenProducts open, std::string folder) {
  return std::make_unique<ProductRunner>(device, std::move(open), std::move(folder));
}

uint32_t product_group_kinds() { return 1u << static_cast<uint32_t>(ir::GroupKind::kMatmulEpilogue); }

}  // namespace torch_remote::worker::cuda
