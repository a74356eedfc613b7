#include "worker/targets/cpu/compiled/gemm_choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <utility>
#include <vector>

#include "ir/fusion/fusion.h"
#include "worker/targets/cpu/compiled/gemm.h"
#include "worker/targets/cpu/compiled/tuner.h"

namespace torch_remote::worker::kernels {
namespace {

// Columns and depth are rounded to powers of two in this range.
constexpr int64_t kLeast = 64, kMost = 2048;
// Upper bounds for GEMMs that the loops do not support: for each size, and for the multiplications of all batches.
constexpr int64_t kMostRows = 256, kMostOther = 512, kMultiplications = 1 << 25;
// The weights are read from beyond the L2 cache, as a model's weights are: copies of this total size are read in turn.
constexpr size_t kBeyondCache = 8 << 20;
// An alternative must take at most this share of the library's time.
constexpr double kGain = 0.95;
constexpr uint64_t kFileLimit = 256 << 20;  // shared with the compiled kernels

// The nearest power of two.
int64_t rounded(int64_t size, int64_t least, int64_t most) {
  const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(size, 1))));
  return std::clamp(size - below > 2 * below - size ? 2 * below : below, least, most);
}

int64_t rounded_rows(int64_t rows) {
  constexpr std::array<int64_t, 6> kRows = {1, 2, 4, 8, 16, 32};
  for (const int64_t most : kRows) {
    if (rows <= most) return most;
  }
  return ir::kMaxMatmulRows;
}

std::string name_of(const GemmShape& shape) {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16"};
  return std::string("algorithm of matmul ") + kTypes[static_cast<size_t>(shape.type)] + " " +
         (shape.batches == 0 ? "" : std::to_string(shape.batches) + " of ") + std::to_string(shape.rows) +
         (shape.left_transposed ? "'x" : "x") + std::to_string(shape.depth) + (shape.right_row_major ? "'x" : "x") +
         std::to_string(shape.columns);
}

int dtype_of(GemmType type) {
  constexpr ir::DType kTypes[] = {ir::DType::kFloat32, ir::DType::kBFloat16, ir::DType::kFloat16};
  return static_cast<int>(kTypes[static_cast<size_t>(type)]);
}

double seconds_of_machine() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

GemmChoices::Options with_clock(GemmChoices::Options options) {
  if (!options.clock) options.clock = seconds_of_machine;
  return options;
}

}  // namespace

// The memory, the algorithms and the times of one class.
class GemmChoices::Measurement {
 public:
  Measurement(const GemmShape& shape, const Options& options);
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  bool is_done() const { return candidates_.empty() || !tuner_->needs_samples(); }
  // Executes each algorithm once. Times are added if `counts`.
  void run_round(bool counts);
  Algorithm fastest() const;
  bool is_reliable() const { return candidates_.size() == 1 || tuner_->is_reliable(); }

 private:
  struct Candidate {
    Algorithm algorithm;
    std::function<bool()> run;
  };
  std::byte* next_weights() { return right_.data() + next_++ % copies_ * weights_; }

  const GemmShape shape_;
  const Options& options_;
  size_t weights_, copies_, next_ = 0;
  std::vector<std::byte> left_, right_, result_;
  std::vector<float> converted_;
  std::vector<Candidate> candidates_;
  std::optional<Tuner<Algorithm>> tuner_;
};

GemmChoices::GemmChoices(Options options)
    : options_(with_clock(std::move(options))), files_(options_.folder, kFileLimit, options_.about) {}

GemmChoices::~GemmChoices() = default;

GemmShape GemmChoices::class_of(const GemmShape& shape) {
  GemmShape known = shape;
  if (shape.may_be_loops()) {
    known.rows = rounded_rows(shape.rows);
    known.columns = rounded(shape.columns, kLeast, kMost);
    known.depth = rounded(shape.depth, kLeast, kMost);
    return known;
  }
  known.rows = rounded(shape.rows, 1, kMostRows);
  known.columns = rounded(shape.columns, 1, kMostOther);
  known.depth = rounded(shape.depth, 1, kMostOther);
  if (shape.batches != 0) {
    const int64_t each = known.rows * known.columns * known.depth;
    known.batches = rounded(shape.batches, 1, std::max<int64_t>(kMultiplications / each, 1));
  }
  return known;
}

GemmChoices::Algorithm GemmChoices::algorithm(const GemmShape& shape) {
  if (options_.fixed || !options_.library) return fixed_algorithm(shape);
  if (!shape.may_be_loops() && !shape.may_be_onednn()) return Algorithm::kLibrary;
  const GemmShape known = class_of(shape);
  if (const auto found = algorithms_.find(known); found != algorithms_.end()) return found->second;
  std::vector<uint8_t> bytes;
  const bool kept = files_.read(name_of(known), &bytes) && bytes.size() == 1 &&
                    bytes[0] >= static_cast<uint8_t>(Algorithm::kLoops) &&
                    bytes[0] <= static_cast<uint8_t>(Algorithm::kOneDnn);
  if (!kept) wanted_.push_back(known);
  return algorithms_[known] = kept ? static_cast<Algorithm>(bytes[0]) : Algorithm::kUnknown;
}

// The choice if nothing may depend on times.
GemmChoices::Algorithm GemmChoices::fixed_algorithm(const GemmShape& shape) {
  if (shape.may_be_loops()) return Algorithm::kLoops;
  if (!options_.library || !shape.may_be_onednn()) return Algorithm::kLibrary;
  if (!has_onednn_) {
    constexpr int64_t kSize = 8;
    std::array<float, kSize * kSize> zeros{}, result{};
    tr_matmul matmul{};
    matmul.struct_size = sizeof(matmul);
    matmul.dtype = dtype_of(GemmType::kFloat);
    matmul.algorithm = TR_MATMUL_ONEDNN;
    matmul.rows = matmul.columns = matmul.depth = kSize;
    matmul.left = matmul.right = {zeros.data(), 0, kSize, 1};
    matmul.result = {result.data(), 0, kSize, 1};
    has_onednn_ = options_.library(matmul);
  }
  return *has_onednn_ ? Algorithm::kOneDnn : Algorithm::kLibrary;
}

bool GemmChoices::measure() {
  const double end = options_.clock() + kTimeAtOnce;
  bool measured = false;
  bool wakes_threads = true;
  while (!wanted_.empty()) {
    const GemmShape shape = wanted_.front();
    if (measurement_ == nullptr) measurement_ = std::make_unique<Measurement>(shape, options_);
    if (std::exchange(wakes_threads, false)) measurement_->run_round(false);
    if (!measurement_->is_done()) measurement_->run_round(true);
    if (measurement_->is_done()) {
      const Algorithm algorithm = measurement_->fastest();
      algorithms_[shape] = algorithm;
      if (measurement_->is_reliable()) files_.write(name_of(shape), {static_cast<uint8_t>(algorithm)});
      measurement_.reset();
      wanted_.pop_front();
      ++generation_;
      measured = true;
    }
    if (options_.clock() >= end) break;
  }
  return measured;
}

GemmChoices::Measurement::Measurement(const GemmShape& shape, const Options& options)
    : shape_(shape), options_(options) {
  const size_t item = shape.type == GemmType::kFloat ? 4 : 2;
  const int64_t batches = std::max<int64_t>(shape.batches, 1);
  const int64_t lefts = shape.rows * shape.depth, rights = shape.columns * shape.depth;
  const int64_t results = shape.rows * shape.columns;
  weights_ = static_cast<size_t>(batches * rights) * item;
  copies_ = std::max<size_t>(2, kBeyondCache / weights_);
  // Zeros take as long as other numbers. The weights are written, because untouched pages would all map to one zero
  // page.
  left_.resize(static_cast<size_t>(batches * lefts) * sizeof(float));
  right_.resize(copies_ * weights_, std::byte{0});
  result_.resize(static_cast<size_t>(batches * results) * item);
  if (shape.type != GemmType::kFloat) converted_.resize(static_cast<size_t>(lefts));

  tr_matmul matmul{};
  matmul.struct_size = sizeof(matmul);
  matmul.dtype = dtype_of(shape.type);
  matmul.batches = shape.batches;
  matmul.rows = shape.rows;
  matmul.columns = shape.columns;
  matmul.depth = shape.depth;
  matmul.left = shape.left_transposed ? tr_matrix{left_.data(), lefts, 1, shape.rows}
                                      : tr_matrix{left_.data(), lefts, shape.depth, 1};
  matmul.right =
      shape.right_row_major ? tr_matrix{nullptr, rights, shape.columns, 1} : tr_matrix{nullptr, rights, 1, shape.depth};
  matmul.result = {result_.data(), results, shape.columns, 1};
  const auto add_library = [&](Algorithm algorithm, tr_matmul_algorithm by) {
    matmul.algorithm = by;
    candidates_.push_back({algorithm, [this, matmul]() mutable {
                             matmul.right.data = next_weights();
                             return options_.library(matmul);
                           }});
  };
  add_library(Algorithm::kLibrary, TR_MATMUL_AS_OP);
  if (shape.may_be_loops()) {
    GemmCall call;
    call.type = shape.type;
    call.rows = shape.rows;
    call.columns = shape.columns;
    call.depth = call.left_line = call.right_line = shape.depth;
    call.result_line = shape.columns;
    call.result = result_.data();
    candidates_.push_back({Algorithm::kLoops, [this, call]() mutable {
                             call.right = next_weights();
                             call.left = reinterpret_cast<const float*>(left_.data());
                             if (!converted_.empty()) {
                               options_.loops->convert(shape_.type, left_.data(), shape_.rows * shape_.depth,
                                                       converted_.data());
                               call.left = converted_.data();
                             }
                             run_gemm(*options_.loops, call, options_.threads);
                             return true;
                           }});
  }
  if (shape.may_be_onednn()) add_library(Algorithm::kOneDnn, TR_MATMUL_ONEDNN);

  std::vector<Tuner<Algorithm>::Alternative> alternatives;
  for (const Candidate& candidate : candidates_) alternatives.push_back({candidate.algorithm, kGain});
  tuner_.emplace(std::move(alternatives));
}

void GemmChoices::Measurement::run_round(bool counts) {
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    const double begin = options_.clock();
    const bool good = candidate.run();
    const double took = options_.clock() - begin;
    if (!good) {
      tuner_->drop(candidate.algorithm);
    } else if (counts && tuner_->needs_samples()) {
      tuner_->add(static_cast<uint64_t>(took * 1e9));
    }
    return !good;
  });
}

GemmChoices::Algorithm GemmChoices::Measurement::fastest() const {
  return candidates_.empty() ? Algorithm::kLibrary : tuner_->fastest();
}

}  // namespace torch_remote::worker::kernels
