#include "worker/cuda/convolution_library.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace torch_remote::worker::cuda {
namespace {

using dnn::Attribute;
using dnn::Is;
using dnn::Kind;

constexpr size_t kMostKnown = 1024;
constexpr int kRepeats = 2;           // of a plan that is timed, after one run that warms up
constexpr int64_t kMostConfigs = 64;  // that are asked for
constexpr int64_t kAlignment = 16;

enum Id : int64_t { kImageId = 1, kFilterId, kOutputId, kBiasId, kBetweenId };

// Descriptors, each made, told what it is, and finalized; those that are kept go into a list. After an error nothing
// else is done.
class Builder {
 public:
  Builder(const dnn::Table& table, std::vector<dnn::Descriptor>* keep) : table_(table), keep_(keep) {}

  Builder& make(Kind kind) {
    current_ = nullptr;
    if (!status_.ok()) return *this;
    if (check(table_.descriptor_create(kind, &current_), "cudnnBackendCreateDescriptor")) keep_->push_back(current_);
    return *this;
  }
  template <typename T>
  Builder& set(Attribute attribute, Is type, const std::vector<T>& values) {
    if (status_.ok()) {
      check(table_.set_attribute(current_, attribute, type, static_cast<int64_t>(values.size()),
                                 static_cast<const void*>(values.data())),
            "cudnnBackendSetAttribute");
    }
    return *this;
  }
  template <typename T>
  Builder& set_one(Attribute attribute, Is type, T value) {
    if (status_.ok())
      check(table_.set_attribute(current_, attribute, type, 1, static_cast<const void*>(&value)),
            "cudnnBackendSetAttribute");
    return *this;
  }
  dnn::Descriptor finish() {
    if (status_.ok()) check(table_.descriptor_finalize(current_), "cudnnBackendFinalize");
    return status_.ok() ? current_ : nullptr;
  }
  const Status& status() const { return status_; }

 private:
  bool check(dnn::Result result, const char* what) {
    if (status_.ok()) status_ = dnn::to_status(table_, result, what);
    return status_.ok();
  }

  const dnn::Table& table_;
  std::vector<dnn::Descriptor>* const keep_;
  dnn::Descriptor current_ = nullptr;
  Status status_;
};

void destroy(const dnn::Table& table, std::vector<dnn::Descriptor>& made) {
  for (size_t i = made.size(); i-- > 0;) (void)table.descriptor_destroy(made[i]);
  made.clear();
}

// Descriptors that are gone with this.
struct Temporary {
  explicit Temporary(const dnn::Table& used) : table(used) {}
  ~Temporary() { destroy(table, made); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const dnn::Table& table;
  std::vector<dnn::Descriptor> made;
};

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

// Memory that is given back at the end: who has it next uses it behind what is queued until then.
struct Workspace {
  ~Workspace() {
    if (buffer.release != nullptr) buffer.release(buffer.owner);
  }
  bool take(CachingAllocator& memory, uint64_t bytes) {
    return bytes == 0 || memory.allocate(bytes, &buffer, Reach::kOwn);
  }
  DevicePointer address() const { return reinterpret_cast<DevicePointer>(buffer.data); }
  tr_buffer buffer{};
};

Status no_memory(uint64_t bytes) {
  return {ErrorCode::kOutOfMemory, "remote: the GPU has no " + std::to_string(bytes) + " bytes left for a convolution",
          "OutOfMemoryError"};
}

}  // namespace

PreparedConvolution::~PreparedConvolution() { destroy(table_, made_); }

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
    for (const Event event : known.prepared->marks_) (void)gpu_->driver().event_destroy(event);
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
      return old == nullptr || (old.use_count() == 1 && old->marks_.empty());
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
  Builder builder(table_, &prepared.made_);
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
  const dnn::Descriptor image = tensor(kImageId, problem.image, problem.type, kAlignment);
  const dnn::Descriptor filter = tensor(kFilterId, problem.filter, problem.type, kAlignment);
  const dnn::Descriptor output = tensor(kOutputId, problem.output, problem.type, kAlignment);
  // What the convolution makes, where that is not all.
  const dnn::Descriptor made = problem.adds_bias ? tensor(kBetweenId, problem.output, precision, kAlignment) : output;
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

// The mode that was asked, and the number of the proposal. (For one version of the library, which the file is of, they
// are the same ones each time.)
std::string choice_of(dnn::HeuristicsMode mode, size_t number) {
  return std::string(mode == dnn::HeuristicsMode::kA ? "A" : "F") + std::to_string(number);
}

}  // namespace

bool ConvolutionLibrary::take_kept(PreparedConvolution& prepared) {
  if (prepared.problem_.deterministic) return false;
  const std::string* const kept = file_.find(key_of(prepared.problem_));
  if (kept == nullptr) return false;
  const auto mode = kept->starts_with("A") ? dnn::HeuristicsMode::kA : dnn::HeuristicsMode::kFallback;
  (void)add_plans(prepared, mode, true, kept);
  if (prepared.plans_.empty()) return false;
  ++found_;
  prepared.kept_ = prepared.decided_ = true;
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
      if (prepared.plans_.empty()) continue;
      const bool deterministic = prepared.problem_.deterministic;
      if (deterministic && varies) return not_deterministic();
      prepared.decided_ = deterministic || prepared.plans_.size() == 1;
      return {};
    }
  }
  return status.ok() ? dnn::to_status(table_, dnn::Result::kNotSupported, "cudnnBackendFinalize") : status;
}

Status ConvolutionLibrary::add_plans(PreparedConvolution& prepared, dnn::HeuristicsMode mode, bool varies,
                                     const std::string* only) {
  Temporary temporary(table_);
  Builder builder(table_, &temporary.made);
  builder.make(Kind::kHeuristics)
      .set_one(Attribute::kHeuristicsGraph, Is::kDescriptor, prepared.graph_)
      .set_one(Attribute::kHeuristicsMode, Is::kHeuristicsMode, mode);
  const dnn::Descriptor heuristics = builder.finish();
  std::vector<dnn::Descriptor> configs;
  for (int64_t i = 0; i < kMostConfigs && builder.status().ok(); ++i) {
    configs.push_back(nullptr);
    builder.make(Kind::kEngineConfig);
    configs.back() = temporary.made.back();
  }
  if (!builder.status().ok()) return builder.status();
  int64_t count = 0;
  Status status = dnn::to_status(table_,
                                 table_.get_attribute(heuristics, Attribute::kHeuristicsResults, Is::kDescriptor,
                                                      kMostConfigs, &count, static_cast<void*>(configs.data())),
                                 "cudnnBackendGetAttribute");
  if (!status.ok()) return status;
  configs.resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, kMostConfigs)));
  for (size_t number = 0; number < configs.size(); ++number) {
    const dnn::Descriptor config = configs[number];
    std::string choice = choice_of(mode, number);
    if (only != nullptr && choice != *only) continue;
    if (prepared.plans_.size() >= options_.timed) break;
    if (!suits(prepared, config, varies)) continue;
    std::vector<dnn::Descriptor> made;
    Builder plan(table_, &made);
    plan.make(Kind::kPlan)
        .set_one(Attribute::kPlanHandle, Is::kHandle, handle_)
        .set_one(Attribute::kPlanConfig, Is::kDescriptor, config);
    const dnn::Descriptor finished = plan.finish();
    int64_t workspace = 0, one = 0;
    const bool good = finished != nullptr &&
                      table_.get_attribute(finished, Attribute::kPlanWorkspace, Is::kInt64, 1, &one, &workspace) ==
                          dnn::Result::kSuccess &&
                      static_cast<uint64_t>(workspace) <= options_.workspace;
    if (good) {
      prepared.plans_.push_back({finished, static_cast<uint64_t>(workspace), std::move(choice)});
      // What a plan was made of stays as long as it does.
      std::erase(temporary.made, config);
      prepared.made_.insert(prepared.made_.end(), {config, finished});
    } else {  // it was only proposed
      if (!plan.status().ok()) status = plan.status();
      destroy(table_, made);
    }
  }
  return status;
}

// Whether its engine computes what is asked for: f32 stays f32, if it may not be tf32. `varies`: sums need not come out
// the same.
bool ConvolutionLibrary::suits(const PreparedConvolution& prepared, dnn::Descriptor config, bool varies) {
  Temporary temporary(table_);
  dnn::Descriptor engine = nullptr;
  if (table_.descriptor_create(Kind::kEngine, &engine) != dnn::Result::kSuccess) return false;
  temporary.made.push_back(engine);
  int64_t count = 0;
  if (table_.get_attribute(config, Attribute::kConfigEngine, Is::kDescriptor, 1, &count, static_cast<void*>(&engine)) !=
      dnn::Result::kSuccess) {
    return false;
  }
  std::array<dnn::Note, dnn::kMostNotes> notes{};
  if (table_.get_attribute(engine, Attribute::kEngineNotes, Is::kNote, dnn::kMostNotes, &count, notes.data()) !=
      dnn::Result::kSuccess) {
    return false;
  }
  return std::none_of(notes.begin(), notes.begin() + std::clamp<int64_t>(count, 0, dnn::kMostNotes),
                      [&](dnn::Note note) {
                        if (note == dnn::Note::kNondeterministic) return !varies;
                        return note == dnn::Note::kDownConvertInputs && prepared.problem_.type == dnn::Type::kFloat32 &&
                               !prepared.problem_.tf32;
                      });
}

// --- calls -----------------------------------------------------------------------------------------------------------

Status ConvolutionLibrary::call(const PreparedConvolution& prepared, const PreparedConvolution::Plan& plan,
                                const ConvolutionPointers& pointers, DevicePointer workspace, Stream stream) const {
  Temporary temporary(table_);
  std::vector<int64_t> ids = {kImageId, kFilterId, kOutputId};
  std::vector<DevicePointer> addresses = {pointers.image, pointers.filter, pointers.output};
  if (prepared.problem_.adds_bias) {
    ids.push_back(kBiasId);
    addresses.push_back(pointers.bias);
  }
  Builder builder(table_, &temporary.made);
  builder.make(Kind::kVariantPack)
      .set(Attribute::kPackIds, Is::kInt64, ids)
      .set(Attribute::kPackPointers, Is::kPointer, addresses)
      .set_one(Attribute::kPackWorkspace, Is::kPointer, workspace);
  const dnn::Descriptor pack = builder.finish();
  if (!builder.status().ok()) return builder.status();
  Status status = dnn::to_status(table_, table_.set_stream(handle_, stream), "cudnnSetStream");
  if (status.ok()) status = dnn::to_status(table_, table_.execute(handle_, plan.plan, pack), "cudnnBackendExecute");
  return status;
}

Status ConvolutionLibrary::run(const std::shared_ptr<PreparedConvolution>& prepared,
                               const ConvolutionPointers& pointers) {
  if (gpu_->is_lost()) return {};
  if (!prepared->marks_.empty()) decide(*prepared);
  if (!prepared->proven_) return first_run(*prepared, pointers);
  size_t chosen = prepared->best_;
  Workspace workspace;
  if (!workspace.take(memory_, prepared->plans_[chosen].workspace)) {
    if (prepared->problem_.deterministic) return no_memory(prepared->plans_[chosen].workspace);
    // Another one may want less.
    const auto least = std::ranges::min_element(prepared->plans_, {}, &PreparedConvolution::Plan::workspace);
    chosen = static_cast<size_t>(least - prepared->plans_.begin());
    if (!workspace.take(memory_, least->workspace)) return no_memory(least->workspace);
  }
  const DevicePointer address = workspace.address();
  gpu_->queue().add({.words = {pointers.image, pointers.filter, pointers.output, pointers.bias, address, chosen},
                     .what = prepared,
                     .queue = [this, prepared, pointers, address, chosen](Stream stream) {
                       return call(*prepared, prepared->plans_[chosen], pointers, address, stream);
                     }});
  return {};
}

// Plans that turn out to do nothing are gone.
Status ConvolutionLibrary::first_run(PreparedConvolution& prepared, const ConvolutionPointers& pointers) {
  Status status;
  while (!prepared.plans_.empty()) {
    const auto plan = prepared.plans_.front();
    Workspace workspace;
    status = workspace.take(memory_, plan.workspace) ? call(prepared, plan, pointers, workspace.address(), gpu_->work())
                                                     : no_memory(plan.workspace);
    if (status.ok()) break;
    if (prepared.plans_.size() == 1 && !prepared.kept_) return status;
    if (prepared.problem_.deterministic && status.code() == ErrorCode::kOutOfMemory) return status;
    prepared.plans_.erase(prepared.plans_.begin());
    if (!std::exchange(prepared.kept_, false)) continue;
    if (Status asked = ask(prepared); !asked.ok()) return asked;
  }
  prepared.proven_ = true;
  prepared.decided_ = prepared.problem_.deterministic || prepared.plans_.size() == 1;
  if (!prepared.decided_) time(prepared, pointers);
  return {};
}

// --- which plan is best ----------------------------------------------------------------------------------------------

// All write the same to the same place; what is there in the end is the first one's.
void ConvolutionLibrary::time(PreparedConvolution& prepared, const ConvolutionPointers& pointers) {
  const auto most = std::ranges::max_element(prepared.plans_, {}, &PreparedConvolution::Plan::workspace);
  Workspace workspace;
  if (!workspace.take(memory_, most->workspace)) {
    prepared.decided_ = true;
    return;
  }
  const Driver& driver = gpu_->driver();
  const Stream stream = gpu_->work();
  const auto repeat = [&](const PreparedConvolution::Plan& plan) {
    return call(prepared, plan, pointers, workspace.address(), stream).ok();
  };
  for (size_t i = prepared.plans_.size(); i-- > 1;) {
    if (!repeat(prepared.plans_[i])) prepared.plans_.erase(prepared.plans_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const auto mark = [&] {
    Event event = nullptr;
    if (!gpu_->check(driver.event_create(&event, kEventDefault), "cuEventCreate")) return;
    prepared.marks_.push_back(event);
    gpu_->check(driver.event_record(event, stream), "cuEventRecord");
  };
  mark();
  for (size_t i = prepared.plans_.size(); i-- > 0;) {
    for (int times = 0; times < kRepeats; ++times) (void)repeat(prepared.plans_[i]);
    mark();
  }
}

void ConvolutionLibrary::decide(PreparedConvolution& prepared) {
  const Driver& driver = gpu_->driver();
  const Result result = driver.event_query(prepared.marks_.back());
  if (result == Result::kNotReady || !gpu_->check(result, "cuEventQuery")) return;
  float least = 0;
  const size_t plans = prepared.plans_.size();
  if (prepared.marks_.size() != plans + 1) return;
  for (size_t i = 0; i < plans; ++i) {
    float milliseconds = 0;
    if (!gpu_->check(driver.event_elapsed_time(&milliseconds, prepared.marks_[i], prepared.marks_[i + 1]),
                     "cuEventElapsedTime")) {
      return;
    }
    if (i != 0 && milliseconds > least) continue;  // of equal ones the favourite
    least = milliseconds;
    prepared.best_ = plans - 1 - i;
  }
  for (const Event event : prepared.marks_) gpu_->check(driver.event_destroy(event), "cuEventDestroy");
  prepared.marks_.clear();
  prepared.decided_ = true;
  file_.add(key_of(prepared.problem_), prepared.plans_[prepared.best_].choice);
}

}  // namespace torch_remote::worker::cuda
