#include "worker/targets/cuda/dnn/rnn/rnn_library.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "worker/targets/cuda/dnn/cudnn_descriptors.h"
#include "worker/targets/cuda/launch/run_memory.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr size_t kMaxCached = 1024;

// NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
void* at(DevicePointer pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace

PreparedRnn::~PreparedRnn() {
  if (rnn_ != nullptr) (void)table_.rnn_destroy(rnn_);
  if (input_ != nullptr) (void)table_.rnn_data_destroy(input_);
  if (output_ != nullptr) (void)table_.rnn_data_destroy(output_);
  if (state_ != nullptr) (void)table_.tensor_destroy(state_);
}

Status RnnLibrary::open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                        std::unique_ptr<RnnLibrary>* opened) {
  std::unique_ptr<RnnLibrary> library(new RnnLibrary(std::move(gpu), memory, *options.table));
  Status status = dnn::to_status(library->table_, library->table_.create(&library->handle_), "cudnnCreate");
  if (status.ok()) *opened = std::move(library);
  return status;
}

RnnLibrary::~RnnLibrary() {
  const ContextGuard current(*gpu_);
  gpu_->queue().flush();
  cached_.clear();
  if (handle_ != nullptr) (void)table_.destroy(handle_);
}

Status RnnLibrary::prepare(const RnnProblem& problem, std::shared_ptr<PreparedRnn>* made) {
  const auto known = cached_.find(problem);
  if (known != cached_.end()) {
    *made = known->second.prepared;
    return known->second.status;
  }
  std::shared_ptr<PreparedRnn> prepared(new PreparedRnn(table_));
  prepared->problem_ = problem;
  Status status = describe(*prepared);
  if (status.ok()) status = measure(*prepared);
  if (!status.ok()) prepared = nullptr;
  // Errors that are not kUnsupported may be temporary, so they are not cached.
  if (!status.ok() && status.code() != ErrorCode::kUnsupported) return status;
  if (cached_.size() >= kMaxCached) {
    std::erase_if(cached_, [](const auto& entry) { return entry.second.prepared.use_count() <= 1; });
  }
  cached_[problem] = {prepared, status};
  *made = std::move(prepared);
  return status;
}

Status RnnLibrary::describe(PreparedRnn& prepared) {
  const RnnProblem& problem = prepared.problem_;
  const int64_t largest = std::max({problem.steps, problem.batch * problem.directions * problem.units, problem.inputs});
  if (largest > std::numeric_limits<int32_t>::max()) {
    return {ErrorCode::kUnsupported, "cudnn: a recurrent layer has more than 2^31 elements in a step"};
  }
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  const bool is_half = problem.type != dnn::Type::kFloat32;
  Status status = dnn::to_status(table_, table_.rnn_create(&prepared.rnn_), "cudnnCreateRNNDescriptor");
  if (!status.ok()) return status;
  status = dnn::to_status(
      table_,
      table_.rnn_set(prepared.rnn_, dnn::RnnAlgorithm::kStandard, number(static_cast<int64_t>(problem.mode)),
                     problem.biases ? dnn::RnnBias::kDouble : dnn::RnnBias::kNone,
                     problem.directions == 2 ? dnn::RnnDirection::kBoth : dnn::RnnDirection::kOne,
                     dnn::RnnInput::kLinear, problem.type, dnn::Type::kFloat32,
                     is_half ? dnn::MathType::kTensorCores : dnn::MathType::kExact, number(problem.inputs),
                     number(problem.units), number(problem.units), 1, nullptr, dnn::kRnnPaddedIo),
      "cudnnSetRNNDescriptor_v8");
  if (!status.ok()) return status;
  const std::vector<int> lengths(static_cast<size_t>(problem.batch), number(problem.steps));
  const auto data = [&](dnn::RnnDataDescriptor* made, int64_t elements) {
    Status set = dnn::to_status(table_, table_.rnn_data_create(made), "cudnnCreateRNNDataDescriptor");
    if (!set.ok()) return set;
    return dnn::to_status(table_,
                          table_.rnn_data_set(*made, problem.type, dnn::RnnLayout::kSteps, number(problem.steps),
                                              number(problem.batch), number(elements), lengths.data(), nullptr),
                          "cudnnSetRNNDataDescriptor");
  };
  status = data(&prepared.input_, problem.inputs);
  if (status.ok()) status = data(&prepared.output_, problem.directions * problem.units);
  if (status.ok()) {
    status = dnn::to_status(table_, table_.tensor_create(&prepared.state_), "cudnnCreateTensorDescriptor");
  }
  if (!status.ok()) return status;
  const int sizes[] = {number(problem.directions), number(problem.batch), number(problem.units)};
  const int strides[] = {sizes[1] * sizes[2], sizes[2], 1};
  return dnn::to_status(table_, table_.tensor_set(prepared.state_, problem.type, 3, sizes, strides),
                        "cudnnSetTensorNdDescriptor");
}

Status RnnLibrary::measure(PreparedRnn& prepared) {
  const RnnProblem& problem = prepared.problem_;
  RnnSpace& space = prepared.space_;
  size_t weights = 0, forward = 0, workspace = 0, reserve = 0, none = 0;
  Status status =
      dnn::to_status(table_, table_.rnn_weight_size(handle_, prepared.rnn_, &weights), "cudnnGetRNNWeightSpaceSize");
  const auto sizes = [&](dnn::ForwardMode mode, size_t* work, size_t* kept) {
    if (!status.ok()) return;
    status = dnn::to_status(table_, table_.rnn_sizes(handle_, prepared.rnn_, mode, prepared.input_, work, kept),
                            "cudnnGetRNNTempSpaceSizes");
  };
  sizes(dnn::ForwardMode::kInference, &forward, &none);
  sizes(dnn::ForwardMode::kTraining, &workspace, &reserve);
  if (!status.ok()) return status;
  space = {weights, forward, workspace, reserve, {}};
  // cuDNN reports offsets as addresses relative to a given base.
  dnn::Workspace memory;
  if (!memory.take(memory_, weights)) return no_memory(weights, "a recurrent layer");
  dnn::TensorDescriptor of_matrix = nullptr, of_bias = nullptr;
  status = dnn::to_status(table_, table_.tensor_create(&of_matrix), "cudnnCreateTensorDescriptor");
  if (status.ok()) status = dnn::to_status(table_, table_.tensor_create(&of_bias), "cudnnCreateTensorDescriptor");
  const auto linears = static_cast<int32_t>(2 * ir::rnn_gates(problem.mode));
  for (int32_t direction = 0; direction < problem.directions; ++direction) {
    for (int32_t linear = 0; linear < linears && status.ok(); ++linear) {
      void *matrix = nullptr, *bias = nullptr;
      status = dnn::to_status(table_,
                              table_.rnn_weight_params(handle_, prepared.rnn_, direction, weights, at(memory.address()),
                                                       linear, of_matrix, &matrix, of_bias, &bias),
                              "cudnnGetRNNWeightParams");
      if (status.ok() && (matrix == nullptr || (problem.biases && bias == nullptr))) {
        status = Status::internal("cudnn: cudnnGetRNNWeightParams returned no address of a weight");
      }
      if (!status.ok()) break;
      const auto from = [&](void* location) { return reinterpret_cast<DevicePointer>(location) - memory.address(); };
      space.weight_offsets.push_back({from(matrix), problem.biases ? from(bias) : 0});
    }
  }
  if (of_matrix != nullptr) (void)table_.tensor_destroy(of_matrix);
  if (of_bias != nullptr) (void)table_.tensor_destroy(of_bias);
  return status;
}

Status RnnLibrary::run_forward(const PreparedRnn& prepared, const RnnPointers& pointers, bool trains) {
  const RnnSpace& space = prepared.space_;
  return dnn::to_status(
      table_,
      table_.rnn_forward(handle_, prepared.rnn_, trains ? dnn::ForwardMode::kTraining : dnn::ForwardMode::kInference,
                         nullptr, prepared.input_, at(pointers.input), prepared.output_, at(pointers.output),
                         prepared.state_, at(pointers.hx), at(pointers.hy), prepared.state_, at(pointers.cx),
                         at(pointers.cy), space.weights, at(pointers.weights),
                         trains ? space.workspace : space.forward_workspace, at(pointers.workspace),
                         trains ? space.reserve : 0, trains ? at(pointers.reserve) : nullptr),
      "cudnnRNNForward");
}

Status RnnLibrary::forward(const PreparedRnn& prepared, const RnnPointers& pointers) {
  if (gpu_->is_lost()) return {};
  Status status = dnn::to_status(table_, table_.set_stream(handle_, gpu_->work_stream()), "cudnnSetStream");
  return status.ok() ? run_forward(prepared, pointers, false) : status;
}

Status RnnLibrary::backward(const PreparedRnn& prepared, const RnnPointers& pointers) {
  if (gpu_->is_lost()) return {};
  const RnnSpace& space = prepared.space_;
  Status status = dnn::to_status(table_, table_.set_stream(handle_, gpu_->work_stream()), "cudnnSetStream");
  if (status.ok()) status = run_forward(prepared, pointers, true);
  if (!status.ok()) return status;
  status =
      dnn::to_status(table_,
                     table_.rnn_backward_data(
                         handle_, prepared.rnn_, nullptr, prepared.output_, at(pointers.output),
                         at(pointers.grad_output), prepared.input_, at(pointers.grad_input), prepared.state_,
                         at(pointers.hx), at(pointers.grad_hy), at(pointers.grad_hx), prepared.state_, at(pointers.cx),
                         at(pointers.grad_cy), at(pointers.grad_cx), space.weights, at(pointers.weights),
                         space.workspace, at(pointers.workspace), space.reserve, at(pointers.reserve)),
                     "cudnnRNNBackwardData_v8");
  if (!status.ok() || pointers.grad_weights == 0) return status;
  return dnn::to_status(
      table_,
      table_.rnn_backward_weights(handle_, prepared.rnn_, dnn::GradMode::kAdd, nullptr, prepared.input_,
                                  at(pointers.input), prepared.state_, at(pointers.hx), prepared.output_,
                                  at(pointers.output), space.weights, at(pointers.grad_weights), space.workspace,
                                  at(pointers.workspace), space.reserve, at(pointers.reserve)),
      "cudnnRNNBackwardWeights_v8");
}

}  // namespace torch_remote::worker::cuda
