#include "worker/shadow/step_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "codegen/loop/half.h"
#include "ir/checking/compare.h"
#include "worker/device/strided_copy.h"

namespace torch_remote::worker {
namespace {

using ir::DType;

constexpr double kAmplified = 8;

// The share of the largest element by which elements may differ. 0: they must be equal.
double share_of(DType dtype, ir::MathModes math_modes) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kComplex128:
      return 1e-10;
    case DType::kFloat32:
    case DType::kComplex64:
      return (math_modes & (ir::kTf32Matmuls | ir::kTf32Convolutions)) != 0 ? 5e-3 : 1e-4;
    case DType::kFloat16:
    case DType::kComplex32:
      return 4e-3;
    case DType::kBFloat16:
      return 3e-2;
    default:
      return 0;
  }
}

// Changes elements by up to four roundings of float32 or float64, or by one of a smaller type.
template <class T, class Load, class Store>
void change(Bytes& bytes, double unit, std::minstd_rand& random, const Load& load, const Store& store) {
  std::uniform_real_distribution<double> by(-unit, unit);
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T element;
    std::memcpy(&element, bytes.data() + at, sizeof(T));
    element = store(load(element) * (1 + by(random)));
    std::memcpy(bytes.data() + at, &element, sizeof(T));
  }
}

void change(DType dtype, Bytes& bytes, bool tf32, std::minstd_rand& random) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kComplex128:
      change<double>(bytes, 0x1p-50, random, [](double x) { return x; }, [](double x) { return x; });
      break;
    case DType::kFloat32:
    case DType::kComplex64:
      change<float>(
          bytes, tf32 ? 0x1p-10 : 0x1p-21, random, [](float x) { return static_cast<double>(x); },
          [](double x) { return static_cast<float>(x); });
      break;
    case DType::kBFloat16:
      change<uint16_t>(
          bytes, 0x1p-8, random, [](uint16_t x) { return static_cast<double>(codegen::from_bf16(x)); },
          [](double x) { return codegen::to_bf16(static_cast<float>(x)); });
      break;
    case DType::kFloat16:
    case DType::kComplex32:
      // The neighbors of a number are those of its bits.
      for (size_t at = 0; at + 2 <= bytes.size(); at += 2) {
        uint16_t bits;
        std::memcpy(&bits, bytes.data() + at, 2);
        const uint16_t magnitude = bits & 0x7FFF;
        if (magnitude > 1 && magnitude < 0x7BFF) bits = static_cast<uint16_t>(bits + random() % 3 - 1);
        std::memcpy(bytes.data() + at, &bits, 2);
      }
      break;
    default:
      break;
  }
}

// The elements of a view, packed. Returns false if they are not inside the buffer.
bool pack(const ir::View& view, std::span<const int64_t> values, const Bytes& buffer, Bytes* packed) {
  const uint32_t item = ir::item_size(view.dtype);
  std::vector<int64_t> sizes, strides;
  int64_t count = 1, last = values[view.offset];
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    sizes.push_back(values[view.sizes[d]]);
    strides.push_back(values[view.strides[d]]);
    count *= sizes.back();
    last += (sizes.back() - 1) * strides.back();
  }
  packed->resize(static_cast<size_t>(count) * item);
  if (count == 0) return true;
  if (static_cast<uint64_t>(last + 1) * item > buffer.size()) return false;
  copy_strided(buffer.data() + static_cast<size_t>(values[view.offset]) * item, packed->data(), item, sizes, strides);
  return true;
}

class StepCheck {
 public:
  StepCheck(Reference& reference, const IsolatedStep& step, std::span<const Bytes> inputs, const StepResults& results,
            ir::MathModes math_modes)
      : reference_(reference), step_(step), inputs_(inputs), results_(results), math_modes_(math_modes) {}

  Status run(std::optional<StepDifference>* difference);

 private:
  const Bytes& find(const WrittenView& written, const StepResults& results) const;
  std::optional<StepDifference> compare(const WrittenView& written);
  Status run_changed();

  Reference& reference_;
  const IsolatedStep& step_;
  const std::span<const Bytes> inputs_;
  const StepResults& results_;
  const ir::MathModes math_modes_;
  std::vector<int64_t> values_;
  StepResults expected_;
  std::vector<StepResults> changed_;  // On changed inputs; empty until a difference is found.
  Status unchanged_why_;              // Why they could not be computed.
};

const Bytes& StepCheck::find(const WrittenView& written, const StepResults& results) const {
  const auto index = [](const std::vector<uint32_t>& list, uint32_t b) {
    return static_cast<size_t>(std::ranges::find(list, b) - list.begin());
  };
  if (const size_t i = index(step_.created, written.buffer); i < results.created.size()) return results.created[i];
  return results.inputs[index(step_.inputs, written.buffer)];
}

Status StepCheck::run_changed() {
  const bool tf32 = (math_modes_ & (ir::kTf32Matmuls | ir::kTf32Convolutions)) != 0;
  // The inputs whose elements the step reads, each once.
  std::vector<uint32_t> input_of(step_.graph.buffers.size(), ir::kNoBuffer);
  for (uint32_t b = 0, next = 0; b < step_.graph.buffers.size(); ++b) {
    if (step_.graph.buffers[b].kind == ir::BufferKind::kInput) input_of[b] = next++;
  }
  std::vector<std::pair<uint32_t, DType>> read;
  for (const ir::Node& node : step_.graph.nodes) {
    ir::for_each_access(node, [&](uint32_t v, ir::Access access) {
      const ir::View& view = step_.graph.views[v];
      if (access == ir::Access::kOverwrites || access == ir::Access::kCreates) return;
      const uint32_t input = std::exchange(input_of[view.buffer], ir::kNoBuffer);
      if (input != ir::kNoBuffer) read.emplace_back(input, view.dtype);
    });
  }
  for (const unsigned seed : {1u, 2u}) {
    std::minstd_rand random(seed);
    std::vector<Bytes> inputs(inputs_.begin(), inputs_.end());
    for (const auto& [input, dtype] : read) change(dtype, inputs[input], tf32, random);
    StepResults results;
    Status status = reference_.run(step_, inputs, math_modes_, &results);
    if (!status.ok()) return status;
    changed_.push_back(std::move(results));
  }
  return {};
}

std::optional<StepDifference> StepCheck::compare(const WrittenView& written) {
  const ir::View& view = step_.graph.views[written.view];
  Bytes got, expected;
  if (!pack(view, values_, find(written, results_), &got) ||
      !pack(view, values_, find(written, expected_), &expected)) {
    return std::nullopt;
  }
  const double share = share_of(view.dtype, math_modes_);
  ir::Tolerance tolerance{share, share * ir::largest(view.dtype, expected), /*nonfinite=*/share > 0};
  std::optional<ir::Difference> difference = ir::compare(view.dtype, got, expected, tolerance);
  if (!difference) return std::nullopt;
  if (changed_.empty() && unchanged_why_.ok()) unchanged_why_ = run_changed();
  uint64_t flipped = 0;
  double most = 0;
  for (const StepResults& results : changed_) {
    Bytes changed;
    if (!pack(view, values_, find(written, results), &changed)) continue;
    const auto by = ir::compare(view.dtype, changed, expected, {});
    if (!by) continue;
    flipped = std::max(flipped, by->differing);
    most = std::max(most, by->max_abs);
  }
  if (share > 0) {
    tolerance.atol += kAmplified * most;
    if (!std::isfinite(most)) return std::nullopt;  // Near an overflow.
    difference = ir::compare(view.dtype, got, expected, tolerance);
  } else if (flipped > 0 && difference->differing <= std::max(2 * flipped, difference->elements / 1000)) {
    difference.reset();
  }
  if (!difference) return std::nullopt;
  return StepDifference{written.node, "result " + std::to_string(written.result) + " (" +
                                          std::string(ir::name(view.dtype)) + "): " + ir::to_string(*difference)};
}

Status StepCheck::run(std::optional<StepDifference>* difference) {
  difference->reset();
  if (Status status = ir::evaluate(step_.graph, step_.params.data(), &values_); !status.ok()) return status;
  Status status = reference_.run(step_, inputs_, math_modes_, &expected_);
  if (!status.ok()) return status;
  for (const WrittenView& written : step_.written) {
    *difference = compare(written);
    if (*difference) return {};
  }
  return {};
}

}  // namespace

Status check_step(Reference& reference, const IsolatedStep& step, std::span<const Bytes> inputs,
                  const StepResults& results, ir::MathModes math_modes, std::optional<StepDifference>* difference) {
  return StepCheck(reference, step, inputs, results, math_modes).run(difference);
}

}  // namespace torch_remote::worker
