#include "worker/cuda/convolution_library.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "worker/cuda/cudnn_descriptors.h"

namespace torch_remote::worker::cuda {
namespace {

using dnn::Attribute;
using dnn::Is;
using dnn::Kind;

constexpr size_t kMostKnown = 1024;
constexpr std::string_view kForWhat = "a convolution";

enum Id : int64_t { kImageId = 1, kFilterId, kOutputId, kBiasId, kBetweenId };

std::vector<int64_t> strides_of(const std::vector<int64_t>& sizes, bool channels_last) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  const auto lay = [&](size_t d) {
    strides[d] = step;
    step *= sizes[d];
  };
  if (channels_last) lay(1);
  for (size_t d = sizes.size(); d-- > 2;) lay(d);
  if (!channels_last) lay(1);
  lay(0);
  return strides;
}

}  // namespace

PreparedConvolution::~PreparedConvolution() { dnn::destroy(table_, made_); }

ConvolutionLibrary::ConvolutionLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options)
    : gpu_(std::move(gpu)), memory_(memory), options_(std::move(options)), table_(*options_.table) {}

Status ConvolutionLibrary::open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                                std::unique_ptr<ConvolutionLibrary>* opened) {
  std::unique_ptr<ConvolutionLibrary> library(new ConvolutionLibrary(std::move(gpu), memory, std::move(options)));
  Status status = dnn::to_status(library->table_, library->table_.create(&library->handle_), "cudnnCreate");
  const std::string about = library->gpu_->name() + " sm_" + std::to_string(library->gpu_->sm()) + " cudnn " +
                            std::to_string(library->table_.get_version()) + " " +
                            std::to_string(library->options_.workspace);
  if (status.ok()) library->file_ = ChoiceFile(library->options_.folder, about, "convolutions");
  if (status.ok()) *opened = std::move(library);
  return status;
}

ConvolutionLibrary::~ConvolutionLibrary() {
  const Current current(*gpu_);
  gpu_->queue().clear();
  for (const auto& [problem, known] : known_) {
    if (known.prepared == nullptr || gpu_->is_lost()) continue;
    known.prepared->choice_.destroy_marks(*gpu_);
  }
  known_.clear();
  if (handle_ != nullptr) (void)table_.destroy(handle_);
}

// --- graphs ----------------------------------------------------------------------------------------------------------

Status ConvolutionLibrary::prepare(const ConvolutionProblem& problem, std::shared_ptr<PreparedConvolution>* made) {
  const auto known = known_.find(problem);
  if (known != known_.end()) {
    *made = known->second.prepared;
    return known->second.status;
  }
  std::shared_ptr<PreparedConvolution> prepared(new PreparedConvolution(table_));
  prepared->problem_ = problem;
  Status status = describe(*prepared);
  if (status.ok() && !take_kept(*prepared)) status = ask(*prepared);
  if (!status.ok()) prepared = nullptr;
  // What is wrong but not because of the problem may go.
  if (!status.ok() && status.code() != ErrorCode::kUnsupported) return status;
  if (known_.size() >= kMostKnown) {
    std::erase_if(known_, [](const auto& entry) {
      const auto& old = entry.second.prepared;
      return old == nullptr || (old.use_count() == 1 && old->choice_.is_quiet());
    });
  }
  known_[problem] = {prepared, status};
  *made = std::move(prepared);
  return status;
}

Status ConvolutionLibrary::describe(PreparedConvolution& prepared) {
  const ConvolutionProblem& problem = prepared.problem_;
  const bool wide = problem.type == dnn::Type::kFloat64;
  const dnn::Type precision = wide ? dnn::Type::kFloat64 : dnn::Type::kFloat32;
  dnn::Builder builder(table_, &prepared.made_);
  const auto tensor = [&](Id id, const std::vector<int64_t>& sizes, dnn::Type type, int64_t alignment) {
    builder.make(Kind::kTensor)
        .set_one(Attribute::kTensorType, Is::kDataType, type)
        .set(Attribute::kTensorSizes, Is::kInt64, sizes)
        .set(Attribute::kTensorStrides, Is::kInt64, strides_of(sizes, problem.channels_last))
        .set_one(Attribute::kTensorId, Is::kInt64, static_cast<int64_t>(id))
        .set_one(Attribute::kTensorAlignment, Is::kInt64, alignment);
    if (id == kBetweenId) builder.set_one(Attribute::kTensorIsVirtual, Is::kBool, true);
    return builder.finish();
  };
  const dnn::Descriptor image = tensor(kImageId, problem.image, problem.type, dnn::kAlignment);
  const dnn::Descriptor filter = tensor(kFilterId, problem.filter, problem.type, dnn::kAlignment);
  const dnn::Descriptor output = tensor(kOutputId, problem.output, problem.type, dnn::kAlignment);
  // What the convolution makes, where that is not all.
  const dnn::Descriptor made =
      problem.adds_bias ? tensor(kBetweenId, problem.output, precision, dnn::kAlignment) : output;
  builder.make(Kind::kConvolution)
      .set_one(Attribute::kConvolutionType, Is::kDataType, precision)
      .set_one(Attribute::kConvolutionMode, Is::kConvolutionMode, dnn::ConvolutionMode::kCrossCorrelation)
      .set_one(Attribute::kConvolutionDims, Is::kInt64, static_cast<int64_t>(problem.stride.size()))
      .set(Attribute::kConvolutionDilations, Is::kInt64, problem.dilation)
      .set(Attribute::kConvolutionStrides, Is::kInt64, problem.stride)
      .set(Attribute::kConvolutionPaddings, Is::kInt64, problem.padding)
      .set(Attribute::kConvolutionPaddingsAfter, Is::kInt64, problem.padding_after);
  const dnn::Descriptor convolution = builder.finish();
  Kind kind = Kind::kForward;
  Attribute first = Attribute::kForwardAlpha;
  if (problem.pass == ConvolutionPass::kBackwardData) {
    kind = Kind::kBackwardData;
    first = Attribute::kBackwardDataAlpha;
  } else if (problem.pass == ConvolutionPass::kBackwardFilter) {
    kind = Kind::kBackwardFilter;
    first = Attribute::kBackwardFilterAlpha;
  }
  const auto attribute = [&](int i) { return static_cast<Attribute>(static_cast<int>(first) + i); };
  builder.make(kind);
  for (const int i : {0, 1}) {  // 1 * what it makes + 0 * what was there
    if (wide) {
      builder.set_one(attribute(i), Is::kDouble, i == 0 ? 1.0 : 0.0);
    } else {
      builder.set_one(attribute(i), Is::kFloat, i == 0 ? 1.0F : 0.0F);
    }
  }
  builder.set_one(attribute(2), Is::kDescriptor, convolution)
      .set_one(attribute(3), Is::kDescriptor, filter)
      .set_one(attribute(4), Is::kDescriptor, image)
      .set_one(attribute(5), Is::kDescriptor, made);
  std::vector<dnn::Descriptor> operations = {builder.finish()};
  if (problem.adds_bias) {
    std::vector<int64_t> sizes(problem.output.size(), 1);
    sizes[1] = problem.output[1];
    const dnn::Descriptor bias = tensor(kBiasId, sizes, problem.type, dnn::item_size(problem.type));
    builder.make(Kind::kPointwise)
        .set_one(Attribute::kPointwiseMode, Is::kPointwiseMode, dnn::PointwiseMode::kAdd)
        .set_one(Attribute::kPointwisePrecision, Is::kDataType, precision);
    const dnn::Descriptor add = builder.finish();
    builder.make(Kind::kPointwiseOperation)
        .set_one(Attribute::kPointwiseOperation, Is::kDescriptor, add)
        .set_one(Attribute::kPointwiseLeft, Is::kDescriptor, made)
        .set_one(Attribute::kPointwiseRight, Is::kDescriptor, bias)
        .set_one(Attribute::kPointwiseResult, Is::kDescriptor, output);
    operations.push_back(builder.finish());
  }
  builder.make(Kind::kGraph)
      .set_one(Attribute::kGraphHandle, Is::kHandle, handle_)
      .set(Attribute::kGraphOperations, Is::kDescriptor, operations);
  prepared.graph_ = builder.finish();
  return builder.status();
}

// --- plans -----------------------------------------------------------------------------------------------------------

namespace {

// All that a choice depends on but for the machine.
std::string key_of(const ConvolutionProblem& problem) {
  std::string key = std::to_string(static_cast<int>(problem.pass)) + "t" +
                    std::to_string(static_cast<int>(problem.type)) + (problem.channels_last ? "l" : "") +
                    (problem.adds_bias ? "b" : "") + (problem.tf32 ? "x" : "");
  for (const std::vector<int64_t>* const list : {&problem.image, &problem.filter, &problem.output, &problem.padding,
                                                 &problem.padding_after, &problem.stride, &problem.dilation}) {
    key += ":";
    for (const int64_t number : *list) key += std::to_string(number) + ",";
  }
  return key;
}

}  // namespace

bool ConvolutionLibrary::take_kept(PreparedConvolution& prepared) {
  if (prepared.problem_.deterministic) return false;
  const std::string* const kept = file_.find(key_of(prepared.problem_));
  if (kept == nullptr) return false;
  (void)add_plans(prepared, dnn::mode_of(*kept), true, kept);
  if (prepared.plans() == 0) return false;
  ++found_;
  prepared.choice_.settle(true);
  return true;
}

// Torch's words.
Status not_deterministic() {
  return {ErrorCode::kUnsupported,
          "A convolution of these sizes does not have a deterministic implementation, but you set "
          "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation",
          "RuntimeError"};
}

// Sums that come out the same each time are preferred, however slow.
Status ConvolutionLibrary::ask(PreparedConvolution& prepared) {
  ++asked_;
  Status status;
  for (const bool varies : {false, true}) {
    for (const dnn::HeuristicsMode mode : {dnn::HeuristicsMode::kA, dnn::HeuristicsMode::kFallback}) {
      // One may know nothing of what the other one does.
      const Status asked = add_plans(prepared, mode, varies);
      if (!asked.ok()) status = asked;
      if (prepared.plans() == 0) continue;
      const bool deterministic = prepared.problem_.deterministic;
      if (deterministic && varies) return not_deterministic();
      if (deterministic || prepared.plans() == 1) prepared.choice_.settle(false);
      return {};
    }
  }
  return status.ok() ? dnn::to_status(table_, dnn::Result::kNotSupported, "cudnnBackendFinalize") : status;
}

Status ConvolutionLibrary::add_plans(PreparedConvolution& prepared, dnn::HeuristicsMode mode, bool varies,
                                     const std::string* only) {
  // Whether an engine computes what is asked for: f32 stays f32, if it may not be tf32. `varies`: sums need not come
  // out the same.
  const auto suits = [&](const std::vector<dnn::Note>& notes) {
    return std::ranges::none_of(notes, [&](dnn::Note note) {
      if (note == dnn::Note::kNondeterministic) return !varies;
      return note == dnn::Note::kDownConvertInputs && prepared.problem_.type == dnn::Type::kFloat32 &&
             !prepared.problem_.tf32;
    });
  };
  return dnn::add_plans(table_, handle_, prepared.graph_, mode, options_.workspace, options_.timed, suits, only,
                        &prepared.made_, &prepared.choice_.plans());
}

// --- calls -----------------------------------------------------------------------------------------------------------

Status ConvolutionLibrary::call(const PreparedConvolution& prepared, const dnn::Plan& plan,
                                const ConvolutionPointers& pointers, DevicePointer workspace, Stream stream) const {
  std::vector<int64_t> ids = {kImageId, kFilterId, kOutputId};
  std::vector<DevicePointer> addresses = {pointers.image, pointers.filter, pointers.output};
  if (prepared.problem_.adds_bias) {
    ids.push_back(kBiasId);
    addresses.push_back(pointers.bias);
  }
  return dnn::execute(table_, handle_, plan.plan, ids, addresses, workspace, stream);
}

Status ConvolutionLibrary::run(const std::shared_ptr<PreparedConvolution>& prepared,
                               const ConvolutionPointers& pointers) {
  if (gpu_->is_lost()) return {};
  dnn::PlanChoice& choice = prepared->choice_;
  if (choice.decide(*gpu_)) file_.add(key_of(prepared->problem_), choice.plans()[choice.best()].choice);
  if (!choice.is_proven()) return first_run(*prepared, pointers);
  size_t chosen = 0;
  dnn::Workspace workspace;
  if (Status status = choice.take(memory_, prepared->problem_.deterministic, kForWhat, &workspace, &chosen);
      !status.ok()) {
    return status;
  }
  const DevicePointer address = workspace.address();
  gpu_->queue().add({.words = {pointers.image, pointers.filter, pointers.output, pointers.bias, address, chosen},
                     .what = prepared,
                     .queue = [this, prepared, pointers, address, chosen](Stream stream) {
                       return call(*prepared, prepared->choice_.plans()[chosen], pointers, address, stream);
                     }});
  return {};
}

Status ConvolutionLibrary::first_run(PreparedConvolution& prepared, const ConvolutionPointers& pointers) {
  const auto once = [&](const dnn::Plan& plan, DevicePointer workspace, Stream stream) {
    return call(prepared, plan, pointers, workspace, stream);
  };
  const bool settled = prepared.problem_.deterministic;
  const bool kept = prepared.choice_.is_kept();
  Status status = prepared.choice_.first_run(*gpu_, memory_, once, settled, kForWhat);
  if (status.ok() || !kept) return status;
  prepared.choice_ = {};
  status = ask(prepared);
  return status.ok() ? prepared.choice_.first_run(*gpu_, memory_, once, settled, kForWhat) : status;
}

}  // namespace torch_remote::worker::cuda
