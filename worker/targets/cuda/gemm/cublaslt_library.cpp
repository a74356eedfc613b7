#include "worker/targets/cuda/gemm/cublaslt_library.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <complex>
#include <cstdio>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "worker/targets/cuda/launch/run_memory.h"
#include "worker/targets/cuda/launch/timed_choice.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr uint32_t kMaxAlignment = 16;
constexpr size_t kMaxChoices = 4096;
constexpr int kRepeats = 2;                              // Timed runs per algorithm, after one warm-up run.
constexpr size_t kHex = 16 * sizeof(lt::Algorithm) / 8;  // Hex digits.

// Sizes of one class share an algorithm: rounds up to the next number with three significant bits.
int64_t size_class(int64_t size) {
  if (size <= 8) return size;
  const auto shift = static_cast<int>(std::bit_width(static_cast<uint64_t>(size - 1))) - 3;
  return (((size - 1) >> shift) + 1) << shift;
}

// The largest power of two in bytes that divides a distance, at most kMaxAlignment.
uint64_t steps(int64_t elements, lt::Type type) {
  const uint64_t bits = static_cast<uint64_t>(elements) * lt::item_size(type) | kMaxAlignment;
  return bits & (~bits + 1);
}

std::string key_of(const Problem& problem) {
  std::ostringstream key;
  const int64_t k = problem.op_a == lt::Operation::kNone ? problem.a.columns : problem.a.rows;
  const auto size = [&](int64_t is) { return problem.tune ? size_class(is) : is; };
  const auto stride = [&](int64_t elements, lt::Type type) {
    return problem.tune ? steps(elements, type) : static_cast<uint64_t>(elements);
  };
  key << (problem.tune            ? ""
          : problem.deterministic ? "d"
                                  : "e")
      << size(problem.d.rows) << "x" << size(problem.d.columns) << "x" << size(k) << "b" << size(problem.batch) << "o"
      << static_cast<int>(problem.op_a) << static_cast<int>(problem.op_b) << "t" << static_cast<int>(problem.compute)
      << "," << static_cast<int>(problem.scale);
  for (const StoredMatrix* stored : {&problem.a, &problem.b, &problem.c, &problem.d}) {
    key << "," << static_cast<int>(stored->type) << ":" << stored->alignment << ":" << stride(stored->ld, stored->type)
        << ":" << (stored->batch_stride == 0 ? 0 : stride(stored->batch_stride, stored->type));
  }
  key << "e" << problem.epilogue << (problem.beta_is_nonzero ? "+" : "") << (problem.is_scaled ? "s" : "")
      << (problem.fast_accumulation ? "f" : "");
  if ((problem.epilogue & lt::kBias) != 0) key << static_cast<int>(problem.bias) << ":" << problem.bias_alignment;
  return key.str();
}

std::string to_hex(const lt::Algorithm& algorithm) {
  std::string text;
  char word[17];
  for (const uint64_t data : algorithm.data) {
    std::snprintf(word, sizeof(word), "%016llx", static_cast<unsigned long long>(data));
    text += word;
  }
  return text;
}

std::optional<lt::Algorithm> from_hex(std::string_view text) {
  lt::Algorithm algorithm;
  if (text.size() != kHex) return std::nullopt;
  const char* from = text.begin();
  for (uint64_t& data : algorithm.data) {
    const auto read = std::from_chars(from, from + 16, data, 16);
    if (read.ec != std::errc() || read.ptr != from + 16) return std::nullopt;
    from += 16;
  }
  return algorithm;
}

// A number in the scale type that cuBLASLt expects.
class Scalar {
 public:
  Scalar(lt::Type type, Number number) {
    switch (type) {
      case lt::Type::kInt32:
        set(static_cast<int32_t>(number.real));
        break;
      case lt::Type::kFloat64:
        set(number.real);
        break;
      case lt::Type::kComplex64:
        set(std::complex<float>(static_cast<float>(number.real), static_cast<float>(number.imaginary)));
        break;
      case lt::Type::kComplex128:
        set(std::complex<double>(number.real, number.imaginary));
        break;
      default:
        set(static_cast<float>(number.real));
    }
  }
  const void* data() const { return bytes_; }

 private:
  template <typename T>
  void set(T value) {
    std::memcpy(bytes_, &value, sizeof(value));
  }
  alignas(16) std::byte bytes_[16] = {};
};

// The number of bytes from the first element to one past the last.
uint64_t reach(const StoredMatrix& stored, int64_t batch) {
  return static_cast<uint64_t>((stored.columns - 1) * stored.ld + stored.rows + (batch - 1) * stored.batch_stride) *
         lt::item_size(stored.type);
}

}  // namespace

PreparedGemm::~PreparedGemm() {
  for (const lt::Layout layout : {a_, b_, c_, d_}) {
    if (layout != nullptr) (void)table_.layout_destroy(layout);
  }
  if (desc_ != nullptr) (void)table_.desc_destroy(desc_);
}

CublasLtLibrary::CublasLtLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options)
    : gpu_(std::move(gpu)),
      memory_(memory),
      options_([&] {
        // As much as torch uses.
        if (options.workspace == 0) options.workspace = gpu_->sm() >= 90 ? size_t{32} << 20 : size_t{8} << 20;
        return options;
      }()),
      table_(*options_.table) {}

Status CublasLtLibrary::open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                             std::unique_ptr<CublasLtLibrary>* opened) {
  std::unique_ptr<CublasLtLibrary> library(new CublasLtLibrary(std::move(gpu), memory, std::move(options)));
  Status status = lt::to_status(library->table_.create(&library->handle_), "cublasLtCreate");
  if (!status.ok()) return status;
  const std::string environment = library->gpu_->name() + " sm_" + std::to_string(library->gpu_->sm()) + " cublasLt " +
                                  std::to_string(library->table_.get_version()) + " " +
                                  std::to_string(library->options_.workspace);
  library->file_ = ChoiceFile(library->options_.folder, environment, "products");
  *opened = std::move(library);
  return {};
}

CublasLtLibrary::~CublasLtLibrary() {
  const ContextGuard current(*gpu_);
  gpu_->queue().clear();
  if (handle_ != nullptr) (void)table_.destroy(handle_);
  if (gpu_->is_lost()) return;
  for (const auto& choice : timed_) {
    for (const Event event : choice->timing_events) (void)gpu_->driver().event_destroy(event);
  }
  if (workspace_ != 0) gpu_->check(gpu_->free(workspace_), gpu_->memory().free_function());
}

// --- descriptors -----------------------------------------------------------------------------------------------------

Status CublasLtLibrary::prepare(const Problem& problem, std::shared_ptr<PreparedGemm>* made) {
  std::shared_ptr<PreparedGemm> prepared(new PreparedGemm(table_));
  prepared->problem_ = problem;
  Status status = describe(*prepared);
  if (status.ok()) status = choose(*prepared);
  if (status.ok()) *made = std::move(prepared);
  return status;
}

Status CublasLtLibrary::describe(PreparedGemm& prepared) {
  const Problem& problem = prepared.problem_;
  Status status =
      lt::to_status(table_.desc_create(&prepared.desc_, problem.compute, problem.scale), "cublasLtMatmulDescCreate");
  const auto set = [&]<typename T>(lt::DescAttribute attribute, T value) {
    if (!status.ok()) return;
    status = lt::to_status(table_.desc_set_attribute(prepared.desc_, attribute, &value, sizeof(value)),
                           "cublasLtMatmulDescSetAttribute");
  };
  set(lt::DescAttribute::kTransposeA, problem.op_a);
  set(lt::DescAttribute::kTransposeB, problem.op_b);
  set(lt::DescAttribute::kEpilogue, problem.epilogue);
  if ((problem.epilogue & lt::kBias) != 0) {
    set(lt::DescAttribute::kBiasType, static_cast<int32_t>(problem.bias));
    // cuBLASLt derives the alignment from the pointer, so a placeholder with this alignment is set until the first
    // call.
    prepared.bias_ = problem.bias_alignment;
    set(lt::DescAttribute::kBiasPointer, prepared.bias_);
  }
  if (problem.is_scaled) {
    prepared.a_scale_ = prepared.b_scale_ = kMaxAlignment;
    set(lt::DescAttribute::kAScalePointer, prepared.a_scale_);
    set(lt::DescAttribute::kBScalePointer, prepared.b_scale_);
    set(lt::DescAttribute::kFastAccumulation, static_cast<int8_t>(problem.fast_accumulation ? 1 : 0));
  }
  const auto lay = [&](const StoredMatrix& stored, lt::Layout* layout) {
    if (!status.ok()) return;
    status = lt::to_status(table_.layout_create(layout, stored.type, static_cast<uint64_t>(stored.rows),
                                                static_cast<uint64_t>(stored.columns), stored.ld),
                           "cublasLtMatrixLayoutCreate");
    const auto set_layout = [&]<typename T>(lt::LayoutAttribute attribute, T value) {
      if (!status.ok()) return;
      status = lt::to_status(table_.layout_set_attribute(*layout, attribute, &value, sizeof(value)),
                             "cublasLtMatrixLayoutSetAttribute");
    };
    if (problem.batch == 1) return;
    set_layout(lt::LayoutAttribute::kBatchCount, problem.batch);
    set_layout(lt::LayoutAttribute::kBatchStride, stored.batch_stride);
  };
  lay(problem.a, &prepared.a_);
  lay(problem.b, &prepared.b_);
  lay(problem.c, &prepared.c_);
  lay(problem.d, &prepared.d_);
  return status;
}

// --- heuristics ------------------------------------------------------------------------------------------------------

Status CublasLtLibrary::choose(PreparedGemm& prepared) {
  const std::string key = key_of(prepared.problem_);
  prepared.has_timed_ = prepared.has_succeeded_ = false;
  lt::HeuristicResult checked;
  // The algorithm may not support another size of the same class.
  if (const auto known = choices_.find(key); known != choices_.end() && adopt(prepared, known->second)) return {};
  auto choice = std::make_shared<AlgorithmChoice>();
  choice->key = key;
  const std::string* const kept = prepared.problem_.tune ? file_.find(key) : nullptr;
  const std::optional<lt::Algorithm> algorithm = kept != nullptr ? from_hex(*kept) : std::nullopt;
  if (algorithm && check(prepared, *algorithm, &checked)) {
    ++file_hits_;
    checked.algorithm = *algorithm;
    choice->candidates = {checked};
    choice->decided = true;
  } else if (Status status = query_heuristics(prepared, *choice); !status.ok()) {
    return status;
  }
  if (choices_.size() >= kMaxChoices) {
    std::erase_if(choices_, [](const auto& entry) { return entry.second->timing_events.empty(); });
  }
  prepared.choice_ = choice;
  prepared.candidate_ = choice->candidates.front();
  prepared.is_decided_ = choice->decided;
  // An algorithm that does not support this size stays the choice of the other sizes.
  choices_.emplace(key, std::move(choice));
  return {};
}

bool CublasLtLibrary::adopt(PreparedGemm& prepared, std::shared_ptr<AlgorithmChoice> choice) const {
  lt::HeuristicResult candidate = choice->candidates[choice->best];
  if (!prepared.has_timed_) {
    const lt::Algorithm algorithm = candidate.algorithm;
    if (!check(prepared, algorithm, &candidate)) return false;
    candidate.algorithm = algorithm;
    prepared.has_succeeded_ = false;
  }
  prepared.candidate_ = candidate;
  prepared.is_decided_ = choice->decided;
  prepared.choice_ = std::move(choice);
  return true;
}

bool CublasLtLibrary::check(const PreparedGemm& prepared, const lt::Algorithm& algorithm,
                            lt::HeuristicResult* candidate) const {
  const lt::Result result = table_.check_algorithm(handle_, prepared.desc_, prepared.a_, prepared.b_, prepared.c_,
                                                   prepared.d_, &algorithm, candidate);
  return result == lt::Result::kSuccess && candidate->workspace <= (no_workspace_ ? 0 : options_.workspace);
}

Status CublasLtLibrary::query_heuristics(PreparedGemm& prepared, AlgorithmChoice& choice) {
  ++heuristic_calls_;
  const Problem& problem = prepared.problem_;
  lt::Preference preference = nullptr;
  Status status = lt::to_status(table_.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const auto set = [&]<typename T>(lt::PreferenceAttribute attribute, T value) {
    if (!status.ok()) return;
    status = lt::to_status(table_.preference_set_attribute(preference, attribute, &value, sizeof(value)),
                           "cublasLtMatmulPreferenceSetAttribute");
  };
  const bool without = no_workspace_ && !problem.deterministic;
  set(lt::PreferenceAttribute::kWorkspaceBytes, uint64_t{without ? 0 : options_.workspace});
  set(lt::PreferenceAttribute::kReductionSchemes, lt::kReductionComputeType);
  set(lt::PreferenceAttribute::kAlignmentA, problem.a.alignment);
  set(lt::PreferenceAttribute::kAlignmentB, problem.b.alignment);
  set(lt::PreferenceAttribute::kAlignmentC, problem.c.alignment);
  set(lt::PreferenceAttribute::kAlignmentD, problem.d.alignment);
  int count = 0;
  choice.candidates.resize(static_cast<size_t>(options_.requested));
  if (status.ok()) {
    status = lt::to_status(
        table_.find_algorithms(handle_, prepared.desc_, prepared.a_, prepared.b_, prepared.c_, prepared.d_, preference,
                               options_.requested, choice.candidates.data(), &count),
        "cublasLtMatmulAlgoGetHeuristic");
  }
  if (preference != nullptr) (void)table_.preference_destroy(preference);
  if (!status.ok()) return status;
  choice.candidates.resize(static_cast<size_t>(std::max(count, 0)));
  std::erase_if(choice.candidates, [](const lt::HeuristicResult& c) { return c.state != lt::Result::kSuccess; });
  if (choice.candidates.empty()) return lt::to_status(lt::Result::kNotSupported, "cublasLtMatmulAlgoGetHeuristic");
  choice.candidates.resize(
      std::min(choice.candidates.size(), problem.tune ? static_cast<size_t>(options_.timed) : size_t{1}));
  choice.decided = choice.candidates.size() == 1;
  return {};
}

// --- calls -----------------------------------------------------------------------------------------------------------

Status CublasLtLibrary::set_pointers(PreparedGemm& prepared, const GemmPointers& pointers) const {
  Status status;
  const auto set = [&](lt::DescAttribute attribute, DevicePointer pointer, DevicePointer* is) {
    if (!status.ok() || pointer == *is) return;
    status = lt::to_status(table_.desc_set_attribute(prepared.desc_, attribute, &pointer, sizeof(pointer)),
                           "cublasLtMatmulDescSetAttribute");
    *is = pointer;
  };
  if ((prepared.problem_.epilogue & lt::kBias) != 0)
    set(lt::DescAttribute::kBiasPointer, pointers.bias, &prepared.bias_);
  if (prepared.problem_.is_scaled) {
    set(lt::DescAttribute::kAScalePointer, pointers.a_scale, &prepared.a_scale_);
    set(lt::DescAttribute::kBScalePointer, pointers.b_scale, &prepared.b_scale_);
  }
  return status;
}

// It does not count as a tensor's memory.
bool CublasLtLibrary::take_workspace() {
  if (workspace_ != 0) return true;
  if (no_workspace_) return false;
  const Result result = gpu_->memory().allocate(&workspace_, options_.workspace);
  if (result != Result::kSuccess && result != Result::kOutOfMemory) {
    gpu_->check(result, gpu_->memory().allocate_function());
  }
  no_workspace_ = result != Result::kSuccess;
  if (no_workspace_) workspace_ = 0;
  return !no_workspace_;
}

Status CublasLtLibrary::call(const PreparedGemm& prepared, const lt::HeuristicResult& candidate,
                             const GemmPointers& pointers, const void* alpha, const void* beta, Stream stream) const {
  const DevicePointer workspace = candidate.workspace != 0 ? workspace_ : 0;
  return lt::to_status(table_.matmul(handle_, prepared.desc_, alpha, pointers.a, prepared.a_, pointers.b, prepared.b_,
                                     beta, pointers.c, prepared.c_, pointers.d, prepared.d_, &candidate.algorithm,
                                     workspace, workspace != 0 ? options_.workspace : 0, stream),
                       "cublasLtMatmul");
}

Status CublasLtLibrary::run(const std::shared_ptr<PreparedGemm>& prepared, const GemmPointers& pointers, Number alpha,
                            Number beta) {
  if (gpu_->is_lost()) return {};
  if (!prepared->problem_.beta_is_nonzero) beta = {0, 0};
  if (!prepared->choice_->timing_events.empty()) decide(prepared->choice_);
  // If another size of the same class was timed, the fastest algorithm may not support this size.
  if (prepared->is_decided_ != prepared->choice_->decided && !adopt(*prepared, prepared->choice_)) {
    if (Status status = choose(*prepared); !status.ok()) return status;
  }
  if (prepared->candidate_.workspace != 0 && !take_workspace()) {
    if (prepared->problem_.deterministic) return no_memory(options_.workspace, "a product");
    // Chooses another algorithm, which needs no workspace.
    choices_.erase(prepared->choice_->key);
    if (Status status = choose(*prepared); !status.ok()) return status;
  }
  const lt::HeuristicResult candidate = prepared->candidate_;
  const auto queue = [this, prepared, pointers, alpha, beta, candidate](Stream stream) {
    const Scalar alpha_value(prepared->problem_.scale, alpha), beta_value(prepared->problem_.scale, beta);
    Status status = set_pointers(*prepared, pointers);
    if (status.ok()) status = call(*prepared, candidate, pointers, alpha_value.data(), beta_value.data(), stream);
    return status;
  };
  if (prepared->has_succeeded_) {
    std::vector<uint64_t> words = {pointers.a,
                                   pointers.b,
                                   pointers.c,
                                   pointers.d,
                                   pointers.bias,
                                   pointers.a_scale,
                                   pointers.b_scale,
                                   std::bit_cast<uint64_t>(alpha.real),
                                   std::bit_cast<uint64_t>(alpha.imaginary),
                                   std::bit_cast<uint64_t>(beta.real),
                                   std::bit_cast<uint64_t>(beta.imaginary),
                                   workspace_};
    words.insert(words.end(), std::begin(candidate.algorithm.data), std::end(candidate.algorithm.data));
    gpu_->queue().add({.words = std::move(words), .keep_alive = prepared, .queue = queue});
    return {};
  }
  Status status = queue(gpu_->work_stream());
  prepared->has_succeeded_ = status.ok();
  if (status.ok() && !prepared->choice_->decided && prepared->choice_->timing_events.empty()) {
    const Scalar alpha_value(prepared->problem_.scale, alpha), beta_value(prepared->problem_.scale, beta);
    time(*prepared, pointers, alpha_value.data(), beta_value.data());
  }
  return status;
}

// --- timing ----------------------------------------------------------------------------------------------------------

void CublasLtLibrary::time(PreparedGemm& prepared, const GemmPointers& given, const void* alpha, const void* beta) {
  AlgorithmChoice& choice = *prepared.choice_;
  const bool wants_workspace =
      std::ranges::any_of(choice.candidates, [](const lt::HeuristicResult& c) { return c.workspace != 0; });
  tr_buffer scratch{};
  if ((wants_workspace && !take_workspace()) ||
      !memory_.allocate(reach(prepared.problem_.d, prepared.problem_.batch), &scratch, Visibility::kPrivate)) {
    choice.decided = true;  // Not written to the file.
    return;
  }
  GemmPointers pointers = given;
  pointers.d = reinterpret_cast<DevicePointer>(scratch.data);
  const auto mark = [&] {
    Event event = nullptr;
    const Driver& driver = gpu_->driver();
    if (!gpu_->check(driver.event_create(&event, kEventDefault), "cuEventCreate")) return;
    choice.timing_events.push_back(event);
    gpu_->check(driver.event_record(event, gpu_->work_stream()), "cuEventRecord");
  };
  const Stream stream = gpu_->work_stream();
  timed_.push_back(prepared.choice_);
  // Each once to warm up, then again between two marks.
  prepared.has_timed_ = true;
  const lt::HeuristicResult first = choice.candidates.front();
  std::erase_if(choice.candidates, [&](const lt::HeuristicResult& candidate) {
    return !call(prepared, candidate, pointers, alpha, beta, stream).ok();
  });
  if (choice.candidates.empty()) choice.candidates = {first};  // Its call before the timing succeeded.
  mark();
  for (const lt::HeuristicResult& candidate : choice.candidates) {
    for (int i = 0; i < kRepeats; ++i) (void)call(prepared, candidate, pointers, alpha, beta, stream);
    mark();
  }
  scratch.release(scratch.owner);  // The next user is queued behind the timing.
}

void CublasLtLibrary::decide(const std::shared_ptr<AlgorithmChoice>& decided) {
  AlgorithmChoice& choice = *decided;
  const Driver& driver = gpu_->driver();
  const Result result = driver.event_query(choice.timing_events.back());
  if (result == Result::kNotReady || !gpu_->check(result, "cuEventQuery")) return;
  std::vector<float> times(choice.candidates.size());
  for (size_t i = 0; i < times.size(); ++i) {
    if (!gpu_->check(driver.event_elapsed_time(&times[i], choice.timing_events[i], choice.timing_events[i + 1]),
                     "cuEventElapsedTime")) {
      return;
    }
    times[i] /= kRepeats;
  }
  choice.best = fastest(times);
  for (const Event event : choice.timing_events) gpu_->check(driver.event_destroy(event), "cuEventDestroy");
  choice.timing_events.clear();
  std::erase(timed_, decided);
  choice.decided = true;
  file_.add(choice.key, to_hex(choice.candidates[choice.best].algorithm));
}

}  // namespace torch_remote::worker::cuda
