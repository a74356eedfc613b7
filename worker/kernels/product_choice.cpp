#include "worker/kernels/product_choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <utility>
#include <vector>

#include "ir/fusion.h"
#include "worker/kernels/product.h"

namespace torch_remote::worker::kernels {
namespace {

// Columns and depth are measured at powers of two between these.
constexpr int64_t kLeast = 64, kMost = 2048;
// Weights come from beyond the second cache, as those of a model do: so many bytes are gone through in turn.
constexpr size_t kBeyondCache = 8 << 20;
constexpr size_t kSamples = 7;
// The loops must win by so much.
constexpr double kGain = 0.95;
constexpr uint64_t kFileLimit = 256 << 20;  // as of all kernels

// The power of two that is nearest.
int64_t rounded(int64_t size) {
  const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(size, 1))));
  return std::clamp(size - below > 2 * below - size ? 2 * below : below, kLeast, kMost);
}

int64_t rounded_rows(int64_t rows) {
  constexpr std::array<int64_t, 6> kRows = {1, 2, 4, 8, 16, 32};
  for (const int64_t most : kRows) {
    if (rows <= most) return most;
  }
  return ir::kMostProductRows;
}

std::string name_of(const ProductShape& shape) {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16"};
  return std::string("product ") + kTypes[static_cast<size_t>(shape.type)] + " " + std::to_string(shape.rows) + "x" +
         std::to_string(shape.depth) + "x" + std::to_string(shape.columns);
}

int dtype_of(ProductType type) {
  constexpr ir::DType kTypes[] = {ir::DType::kFloat32, ir::DType::kBFloat16, ir::DType::kFloat16};
  return static_cast<int>(kTypes[static_cast<size_t>(type)]);
}

template <typename F>
double seconds(const F& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

ProductChoices::ProductChoices(Options options)
    : options_(std::move(options)), files_(options_.folder, kFileLimit, options_.about) {}

ProductShape ProductChoices::class_of(const ProductShape& shape) {
  return {shape.type, rounded_rows(shape.rows), rounded(shape.columns), rounded(shape.depth)};
}

ProductChoices::Way ProductChoices::way(const ProductShape& shape) {
  if (options_.fixed || !options_.library) return Way::kLoops;
  const ProductShape known = class_of(shape);
  if (const auto found = ways_.find(known); found != ways_.end()) return found->second;
  std::vector<uint8_t> bytes;
  const bool kept = files_.read(name_of(known), &bytes) && bytes.size() == 1 &&
                    (bytes[0] == static_cast<uint8_t>(Way::kLoops) || bytes[0] == static_cast<uint8_t>(Way::kLibrary));
  if (!kept) wanted_.push_back(known);
  return ways_[known] = kept ? static_cast<Way>(bytes[0]) : Way::kUnknown;
}

bool ProductChoices::measure() {
  if (wanted_.empty()) return false;
  const ProductShape shape = wanted_.front();
  wanted_.pop_front();
  const Way way = measured(shape);
  ways_[shape] = way;
  files_.write(name_of(shape), {static_cast<uint8_t>(way)});
  ++generation_;
  return true;
}

ProductChoices::Way ProductChoices::measured(const ProductShape& shape) const {
  const size_t item = shape.type == ProductType::kFloat ? 4 : 2;
  const auto rows = static_cast<size_t>(shape.rows), columns = static_cast<size_t>(shape.columns),
             depth = static_cast<size_t>(shape.depth);
  const size_t weights = columns * depth * item, copies = std::max<size_t>(2, kBeyondCache / weights);
  // (Zeros take as long as other numbers. Memory that nobody has written to would be one page for all.)
  std::vector<std::byte> left(rows * depth * sizeof(float)), right(copies * weights, std::byte{0}),
      result(rows * columns * item);
  ProductCall call;
  call.type = shape.type;
  call.rows = shape.rows;
  call.columns = shape.columns;
  call.depth = call.left_line = call.right_line = shape.depth;
  call.result_line = shape.columns;
  call.result = result.data();
  tr_product product{sizeof(product), dtype_of(shape.type), shape.rows, shape.columns,
                     shape.depth,     left.data(),          nullptr,    result.data()};
  size_t next = 0;
  const auto weights_at = [&] { return right.data() + next++ % copies * weights; };
  bool good = true;
  std::vector<float> converted(shape.type == ProductType::kFloat ? 0 : rows * depth);
  const auto loops = [&] {
    call.right = weights_at();
    call.left = reinterpret_cast<const float*>(left.data());
    if (!converted.empty()) {
      options_.loops->convert(shape.type, left.data(), shape.rows * shape.depth, converted.data());
      call.left = converted.data();
    }
    run_product(*options_.loops, call, options_.threads);
  };
  const auto library = [&] {
    product.right = weights_at();
    good = options_.library(product) && good;
  };
  std::array<double, kSamples> own{}, theirs{};
  for (size_t i = 0; good && i <= kSamples; ++i) {  // the first ones wake threads
    const double a = seconds(loops), b = seconds(library);
    if (i == 0) continue;
    own[i - 1] = a;
    theirs[i - 1] = b;
  }
  if (!good) return Way::kLoops;
  const auto median = [](std::array<double, kSamples>& times) {
    std::ranges::nth_element(times, times.begin() + kSamples / 2);
    return times[kSamples / 2];
  };
  return median(own) < kGain * median(theirs) ? Way::kLoops : Way::kLibrary;
}

}  // namespace torch_remote::worker::kernels
