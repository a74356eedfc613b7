#include "worker/cuda/attention_library.h"

#include <bit>
#include <limits>
#include <string_view>
#include <utility>

#include "worker/cuda/cudnn_descriptors.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr size_t kMostKnown = 1024, kMostAskedFor = 64;
constexpr uint64_t kPieceAlignment = 256;
constexpr std::string_view kForWhat = "attention";

uint64_t padded(uint64_t bytes) { return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment; }

// Bytes that a call wants beside the plan's: sums of rows, and the gradient of queries in f32.
uint64_t delta_bytes(const AttentionProblem& problem) {
  if (problem.pass == AttentionPass::kForward) return 0;
  return padded(static_cast<uint64_t>(problem.batch * problem.heads * problem.queries) * sizeof(float));
}
uint64_t sum_bytes(const AttentionProblem& problem) {
  if (problem.pass == AttentionPass::kForward || !sums_queries_apart(problem)) return 0;
  return padded(static_cast<uint64_t>(problem.batch * problem.heads * problem.queries * problem.size) * sizeof(float));
}

}  // namespace

PreparedAttention::~PreparedAttention() { dnn::destroy(table_, made_); }

AttentionLibrary::AttentionLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options)
    : gpu_(std::move(gpu)), memory_(memory), options_(std::move(options)), table_(*options_.table) {}

Status AttentionLibrary::open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                              std::unique_ptr<AttentionLibrary>* opened) {
  std::unique_ptr<AttentionLibrary> library(new AttentionLibrary(std::move(gpu), memory, std::move(options)));
  const size_t version = library->table_.get_version();
  if (version < kOldest) {
    return {ErrorCode::kUnsupported, "cudnn: attention wants cuDNN 9.18 or later, but this is " +
                                         std::to_string(version) + "; update it: pip install -U nvidia-cudnn-cu13"};
  }
  Status status = dnn::to_status(library->table_, library->table_.create(&library->handle_), "cudnnCreate");
  const std::string about = library->gpu_->name() + " sm_" + std::to_string(library->gpu_->sm()) + " cudnn " +
                            std::to_string(version) + " " + std::to_string(library->options_.workspace);
  if (status.ok()) library->file_ = ChoiceFile(library->options_.folder, about, "attention");
  if (status.ok()) *opened = std::move(library);
  return status;
}

AttentionLibrary::~AttentionLibrary() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  const Current current(*gpu_);
  gpu_->queue().clear();
  for (const auto& [problem, prepared] : known_) {
    if (!gpu_->is_lost()) prepared->choice_.destroy_marks(*gpu_);
  }
  asked_for_.clear();
  known_.clear();
  if (handle_ != nullptr) (void)table_.destroy(handle_);
}

// --- problems --------------------------------------------------------------------------------------------------------

std::shared_ptr<PreparedAttention> AttentionLibrary::find(const AttentionProblem& problem) {
  const auto known = known_.find(problem);
  if (known != known_.end()) return known->second;
  if (known_.size() >= kMostKnown) {
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& entry) {
      return entry.second.use_count() == 1 && (!entry.second->is_made_ || entry.second->choice_.is_quiet());
    });
  }
  std::shared_ptr<PreparedAttention> prepared(new PreparedAttention(table_));
  prepared->problem_ = problem;
  known_[problem] = prepared;
  return prepared;
}

AttentionLibrary::State AttentionLibrary::state(const PreparedAttention& prepared) {
  const std::lock_guard lock(mutex_);
  if (!prepared.is_made_) return State::kWaiting;
  return prepared.status_.ok() ? State::kReady : State::kRefused;
}

Status AttentionLibrary::status(const PreparedAttention& prepared) {
  const std::lock_guard lock(mutex_);
  return prepared.status_;
}

void AttentionLibrary::note_use(const std::shared_ptr<PreparedAttention>& prepared) {
  if (++prepared->uses_ >= kUses) ask(prepared);
}

void AttentionLibrary::ask(const std::shared_ptr<PreparedAttention>& prepared) {
  const std::lock_guard lock(mutex_);
  // Too many: it is asked for by another use.
  if (prepared->is_asked_ || prepared->is_made_ || asked_for_.size() >= kMostAskedFor) return;
  prepared->is_asked_ = true;
  asked_for_.push_back(prepared);
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  wake_.notify_one();
}

void AttentionLibrary::wait(const std::shared_ptr<PreparedAttention>& prepared) {
  while (true) {
    ask(prepared);
    std::unique_lock lock(mutex_);
    if (prepared->is_made_) return;
    // Of those that it was too many for, one is done.
    const size_t before = asked_for_.size();
    made_.wait(lock, [&] { return prepared->is_made_ || (!prepared->is_asked_ && asked_for_.size() < before); });
  }
}

// --- plans -----------------------------------------------------------------------------------------------------------

void AttentionLibrary::serve() {
  const Current current(*gpu_);
  dnn::Handle handle = nullptr;  // one thread uses one at a time
  const Status created = dnn::to_status(table_, table_.create(&handle), "cudnnCreate");
  while (true) {
    std::shared_ptr<PreparedAttention> prepared;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return closing_ || !asked_for_.empty(); });
      if (closing_) break;
      prepared = asked_for_.front();
      asked_for_.pop_front();
    }
    Status status = created.ok() ? make(*prepared, handle) : created;
    {
      const std::lock_guard lock(mutex_);
      prepared->status_ = std::move(status);
      prepared->is_made_ = true;
    }
    prepared.reset();
    made_.notify_all();
  }
  if (handle != nullptr) (void)table_.destroy(handle);
}

// By the thread; nobody else looks at it before it is made.
Status AttentionLibrary::make(PreparedAttention& prepared, dnn::Handle handle) {
  const AttentionProblem& problem = prepared.problem_;
  dnn::Descriptor graph = nullptr;
  if (Status status = describe_attention(table_, handle, problem, &prepared.made_, &graph); !status.ok()) return status;
  const auto any = [](const std::vector<dnn::Note>&) { return true; };
  const auto add = [&](dnn::HeuristicsMode mode, size_t most, const std::string* only) {
    return dnn::add_plans(table_, handle, graph, mode, options_.workspace, most, any, only, &prepared.made_,
                          &prepared.choice_.plans());
  };
  if (!problem.deterministic && !prepared.distrusts_file_) {
    if (const std::string* const kept = file_.find(problem.key_of()); kept != nullptr) {
      (void)add(dnn::mode_of(*kept), 1, kept);
      if (prepared.plans() != 0) {
        const std::lock_guard lock(mutex_);
        ++found_;
        prepared.choice_.settle(true);
        return {};
      }
    }
  }
  {
    const std::lock_guard lock(mutex_);
    ++asked_;
  }
  Status status;
  for (const dnn::HeuristicsMode mode : {dnn::HeuristicsMode::kA, dnn::HeuristicsMode::kFallback}) {
    status = add(mode, problem.deterministic ? 1 : options_.timed, nullptr);
    if (prepared.plans() == 0) continue;
    if (problem.deterministic || prepared.plans() == 1) prepared.choice_.settle(false);
    return {};
  }
  return status.ok() ? dnn::to_status(table_, dnn::Result::kNotSupported, "cudnnBackendFinalize") : status;
}

// --- calls -----------------------------------------------------------------------------------------------------------

// `memory`: the plan's, padded, then that of delta, then that of sums.
Status AttentionLibrary::call(const PreparedAttention& prepared, const dnn::Plan& plan,
                              const AttentionPointers& pointers, DevicePointer memory, Stream stream) const {
  const AttentionProblem& problem = prepared.problem_;
  static constexpr float kNothing = -std::numeric_limits<float>::infinity(), kOne = 1;
  std::vector<int64_t> ids;
  std::vector<DevicePointer> addresses;
  const auto add = [&](AttentionId id, DevicePointer address) {
    ids.push_back(static_cast<int64_t>(id));
    addresses.push_back(address);
  };
  const auto number = [](const float& value) { return reinterpret_cast<DevicePointer>(&value); };
  add(AttentionId::kQuery, pointers.query);
  add(AttentionId::kKey, pointers.key);
  add(AttentionId::kValue, pointers.value);
  add(AttentionId::kOut, pointers.out);
  add(AttentionId::kLogSumExp, pointers.logsumexp);
  add(AttentionId::kScale, number(pointers.scale));
  if (problem.has_bias()) add(AttentionId::kBias, pointers.bias);
  if (problem.causal) add(AttentionId::kNothing, number(kNothing));
  if (problem.pass == AttentionPass::kBackward) {
    const DevicePointer delta = memory + padded(plan.workspace);
    add(AttentionId::kGrad, pointers.grad);
    add(AttentionId::kGradQuery, pointers.grad_query);
    add(AttentionId::kGradKey, pointers.grad_key);
    add(AttentionId::kGradValue, pointers.grad_value);
    add(AttentionId::kOne, number(kOne));
    add(AttentionId::kDelta, delta);
    if (sums_queries_apart(problem)) add(AttentionId::kQuerySum, delta + delta_bytes(problem));
  }
  return dnn::execute(table_, handle_, plan.plan, ids, addresses, plan.workspace == 0 ? 0 : memory, stream);
}

Status AttentionLibrary::run(const std::shared_ptr<PreparedAttention>& prepared, const AttentionPointers& pointers) {
  if (gpu_->is_lost()) return {};
  const AttentionProblem& problem = prepared->problem_;
  dnn::PlanChoice& choice = prepared->choice_;
  const uint64_t more = delta_bytes(problem) + sum_bytes(problem);
  const auto once = [&](const dnn::Plan& plan, DevicePointer memory, Stream stream) {
    return call(*prepared, plan, pointers, memory, stream);
  };
  if (choice.decide(*gpu_)) file_.add(problem.key_of(), choice.plans()[choice.best()].choice);
  if (!choice.is_proven()) {
    const bool kept = choice.is_kept();
    Status status = choice.first_run(*gpu_, memory_, once, problem.deterministic, kForWhat, more);
    if (status.ok() || (status.code() == ErrorCode::kOutOfMemory && !kept)) return status;
    status = {ErrorCode::kUnsupported, status.message()};
    {
      const std::lock_guard lock(mutex_);
      prepared->status_ = status;
      if (kept) {  // the file may be wrong: it is asked for again, without that
        prepared->distrusts_file_ = true;
        prepared->is_asked_ = prepared->is_made_ = false;
        prepared->choice_ = {};
      }
    }
    if (kept) ask(prepared);
    return status;
  }
  size_t chosen = 0;
  dnn::Workspace workspace;
  if (Status status = choice.take(memory_, problem.deterministic, kForWhat, &workspace, &chosen, more); !status.ok()) {
    return status;
  }
  const DevicePointer memory = workspace.address();
  gpu_->queue().add({.words = {pointers.query, pointers.key, pointers.value, pointers.out, pointers.logsumexp,
                               pointers.bias, pointers.grad, pointers.grad_query, pointers.grad_key,
                               pointers.grad_value, std::bit_cast<uint32_t>(pointers.scale), memory, chosen},
                     .what = prepared,
                     .queue = [this, prepared, pointers, memory, chosen](Stream stream) {
                       return call(*prepared, prepared->choice_.plans()[chosen], pointers, memory, stream);
                     }});
  return {};
}

uint64_t AttentionLibrary::asked() {
  const std::lock_guard lock(mutex_);
  return asked_;
}
uint64_t AttentionLibrary::found() {
  const std::lock_guard lock(mutex_);
  return found_;
}

}  // namespace torch_remote::worker::cuda
