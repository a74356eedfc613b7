#include "worker/targets/aten/checks/guard.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "ir/ops/op_table.h"
#include "worker/targets/aten/checks/indices.h"
#include "worker/targets/aten/checks/relations.h"

namespace torch_remote::worker::aten {
namespace {

// The namespaces, in addition to aten::, that torch registers itself: helpers of its compilers, quantization and
// distributed runtime, whose callers are trusted. `inductor::_reinterpret_tensor` makes a tensor that reaches outside
// of its storage.
constexpr std::array<std::string_view, 29> kTorchNamespaces{"_c10d_functional",
                                                            "_c10d_functional_autograd",
                                                            "_dtensor",
                                                            "_native",
                                                            "_quantized",
                                                            "_test",
                                                            "c10",
                                                            "c10d",
                                                            "cuda",
                                                            "debug_mode_ops",
                                                            "debugprims",
                                                            "export",
                                                            "inductor",
                                                            "inductor_prims",
                                                            "metal",
                                                            "mkl",
                                                            "mkldnn",
                                                            "mkldnn_prepacked",
                                                            "onednn",
                                                            "prepacked",
                                                            "prim",
                                                            "prims",
                                                            "profiler",
                                                            "quantization",
                                                            "quantized",
                                                            "rngprims",
                                                            "sparse",
                                                            "static_runtime",
                                                            "symm_mem"};

void check(bool good, const char* what) { TORCH_CHECK_INDEX(good, "index out of range: ", what); }

bool defined(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

// The elements as int64, row-major.
at::Tensor numbers(const at::Tensor& tensor) { return tensor.to(at::kLong).contiguous(); }

// Checks the indices of a max pooling: positions in the last `dims` dims of its input.
void check_pool(const at::Tensor& self, const at::Tensor& indices, int64_t dims) {
  int64_t plane = 1;
  for (int64_t d = std::max<int64_t>(0, self.dim() - dims); d < self.dim(); ++d) plane *= self.size(d);
  check(all_in_range(indices, plane), "a max pooling's indices lie outside of its input");
}

// The kernel compares the sizes of the pooled planes itself.
template <int64_t dims>
void adaptive_pool(c10::IValue* args) {
  const at::Tensor &grad = args[0].toTensor(), &self = args[1].toTensor();
  check(grad.dim() == self.dim() && self.dim() >= dims &&
            grad.sizes().slice(0, self.dim() - dims) == self.sizes().slice(0, self.dim() - dims),
        "a max pooling's gradient has other planes than its input");
  check_pool(self, args[2].toTensor(), dims);
}

void fractional_pool3d_backward(c10::IValue* args) {
  const at::Tensor &grad = args[0].toTensor(), &self = args[1].toTensor(), &indices = args[4].toTensor();
  check(grad.sizes() == indices.sizes() && grad.dim() == self.dim() && self.dim() >= 3 &&
            grad.sizes().slice(0, self.dim() - 3) == self.sizes().slice(0, self.dim() - 3),
        "a fractional max pooling does not have an index for each element of its gradient");
  check_pool(self, indices, 3);
}

template <int64_t dims>
void pool(c10::IValue* args) {
  check_pool(args[1].toTensor(), args[7].toTensor(), dims);
}

void fractional_pool(c10::IValue* args) {
  const at::Tensor& samples = args[3].toTensor();
  check(samples.numel() == 0 || (samples.ge(0).logical_and_(samples.le(1)).all().item<bool>()),
        "a fractional max pooling's samples are not between 0 and 1");
}

// (grad, x1, x2, p, cdist). The gradient has one element for each pair of a row of x1 and a row of x2; leading dims are
// broadcast.
void cdist_backward(c10::IValue* args) {
  const at::Tensor &grad = args[0].toTensor(), &x1 = args[1].toTensor(), &x2 = args[2].toTensor();
  bool good = x1.dim() >= 2 && x2.dim() >= 2 && x1.size(-1) == x2.size(-1);
  if (good) {
    std::vector<int64_t> sizes = at::infer_size(x1.sizes().slice(0, static_cast<size_t>(x1.dim()) - 2),
                                                x2.sizes().slice(0, static_cast<size_t>(x2.dim()) - 2));
    sizes.insert(sizes.end(), {x1.size(-2), x2.size(-2)});
    good = grad.sizes() == sizes;
  }
  TORCH_CHECK(good, "_cdist_backward: a gradient of sizes ", grad.sizes(), " does not fit the distances between ",
              x1.sizes(), " and ", x2.sizes());
}

// (grad_output, input, grid, interpolation_mode, padding_mode, ...). With padding "border" or "reflection" the kernel
// uses NaN as a position, and reflecting an infinite position gives NaN.
void grid_sampler_backward(c10::IValue* args) {
  constexpr int64_t kZeros = 0, kReflection = 2;
  const int64_t padding = args[4].toInt();
  const at::Tensor &input = args[1].toTensor(), &grid = args[2].toTensor();
  if (padding == kZeros || input.dim() != 4) return;
  check(!grid.isnan().any().item<bool>(), "a grid that is sampled at its border has NaN");
  if (padding != kReflection) return;
  const at::Tensor places = (grid.to(at::kDouble) + 1) * std::max(input.size(2), input.size(3));
  check(places.to(grid.scalar_type()).isfinite().all().item<bool>(), "a grid that is reflected is too far out");
}

void embedding_backward(c10::IValue* args) {
  if (!args[4].toBool()) return;  // otherwise the kernel checks the indices
  check(all_in_range(args[1].toTensor(), args[2].toInt()), "an embedding's indices lie outside of its weight");
}

void check_bags(const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& bags, int64_t rows) {
  check(all_in_range(indices, rows), "an embedding bag's indices lie outside of its weight");
  check(bags.numel() == indices.numel() && grad.dim() == 2 && all_in_range(bags, grad.size(0)),
        "an embedding bag's bags lie outside of its gradient");
}

// With mode "mean" the kernel reads the size of each bag.
void check_sizes(const at::Tensor& grad, const at::Tensor& sizes, int64_t mode) {
  constexpr int64_t kSum = 0;
  check((mode == kSum && sizes.numel() == 0) || sizes.numel() >= grad.size(0),
        "an embedding bag has fewer sizes than bags");
}

void embedding_bag_backward(c10::IValue* args) {
  constexpr int64_t kMax = 2;  // with this mode, the kernel checks its indices
  const at::Tensor &grad = args[0].toTensor(), &sizes = args[3].toTensor();
  if (args[7].toInt() == kMax) return;
  check_bags(grad, args[1].toTensor(), args[2].toTensor(), args[5].toInt());
  check_sizes(grad, sizes, args[7].toInt());
}

// (grad, indices, offsets, offset2bag, …). The op computes offset2bag itself if that is empty.
void embedding_bag_composed_backward(c10::IValue* args) {
  const at::Tensor &grad = args[0].toTensor(), &indices = args[1].toTensor(), &offsets = args[2].toTensor();
  if (indices.numel() == 0 || args[3].toTensor().numel() != 0) {
    c10::IValue dense[] = {args[0], args[1], args[3], args[4], args[5], args[6], args[7], args[8]};
    return embedding_bag_backward(dense);
  }
  const at::Tensor& sizes = args[4].toTensor();
  check(grad.dim() == 2 && all_in_range(offsets, indices.numel() + 1) &&
            offsets.lt(indices.numel()).sum().item<int64_t>() <= grad.size(0) && all_in_range(indices, args[6].toInt()),
        "an embedding bag's offsets or indices lie outside of its gradient or weight");
  check_sizes(grad, sizes, args[8].toInt());
}

void embedding_bag_weights_backward(c10::IValue* args) {
  const at::Tensor &grad = args[0].toTensor(), &weight = args[1].toTensor(), &indices = args[2].toTensor();
  const at::Tensor& given = args[4].toTensor();
  check(weight.dim() == 2, "an embedding bag's weight is not a matrix");
  if (given.numel() != 0 || indices.numel() == 0) return check_bags(grad, indices, given, weight.size(0));
  // The op counts the bags that begin before each index.
  const at::Tensor offsets = numbers(args[3].toTensor());
  const int64_t* begins = offsets.const_data_ptr<int64_t>();
  const int64_t before_end =
      std::count_if(begins, begins + offsets.numel(), [&](int64_t begin) { return begin < indices.numel(); });
  check(all_in_range(indices, weight.size(0)), "an embedding bag's indices lie outside of its weight");
  check(all_in_range(offsets, indices.numel() + 1) && offsets.numel() > 0 && begins[0] == 0 && grad.dim() == 2 &&
            before_end <= grad.size(0),
        "an embedding bag's offsets lie outside of its indices or gradient");
}

// Checks segments along an axis of `data`, given by their lengths or by offsets (where each begins and the last ends).
// Returns their number.
int64_t check_segments(const at::Tensor& data, const c10::IValue& lengths, const c10::IValue& offsets, int64_t axis) {
  const bool by_length = defined(lengths);
  check(by_length || defined(offsets), "a segment reduction has no segments");
  const at::Tensor segments = numbers((by_length ? lengths : offsets).toTensor());
  if (axis < 0) axis += data.dim();
  check(axis >= 0 && axis < data.dim() && segments.dim() == axis + 1 &&
            segments.sizes().slice(0, axis) == data.sizes().slice(0, axis),
        "a segment reduction's segments do not fit its data");
  const int64_t size = data.size(axis), count = segments.size(axis);
  const int64_t* row = segments.const_data_ptr<int64_t>();
  const int64_t rows = count == 0 ? 0 : segments.numel() / count;
  for (int64_t r = 0; r < rows; ++r, row += count) {
    int64_t end = 0;
    bool good = true;
    for (int64_t i = 0; i < count && good; ++i) {
      // `end` is at most `size`, so this cannot overflow.
      good = by_length ? row[i] >= 0 && row[i] <= size - end : row[i] >= end && row[i] <= size;
      end = by_length ? end + row[i] : row[i];
    }
    check(good, "a segment reduction's segments lie outside of its data");
  }
  return by_length ? count : std::max<int64_t>(count - 1, 0);
}

void segment_reduce(c10::IValue* args) { check_segments(args[0].toTensor(), args[2], args[4], args[5].toInt()); }

void segment_reduce_backward(c10::IValue* args) {
  const at::Tensor& data = args[2].toTensor();
  int64_t axis = args[6].toInt();
  std::vector<int64_t> sizes = data.sizes().vec();
  const int64_t count = check_segments(data, args[4], args[5], axis);
  sizes[static_cast<size_t>(axis < 0 ? axis + data.dim() : axis)] = count;
  check(args[0].toTensor().sizes() == sizes && args[1].toTensor().sizes() == sizes,
        "a segment reduction's gradient does not have an entry for each segment");
}

std::vector<int64_t> lengths_of(const c10::IValue& value) {
  if (!value.isTensor()) return value.toIntVector();
  const at::Tensor lengths = numbers(value.toTensor());
  return {lengths.const_data_ptr<int64_t>(), lengths.const_data_ptr<int64_t>() + lengths.numel()};
}

// Checks the labels of each sequence; padding may have any value.
void check_labels(const at::Tensor& log_probs, const at::Tensor& targets, const std::vector<int64_t>& lengths) {
  const at::Tensor labels = numbers(targets);
  const int64_t* label = labels.const_data_ptr<int64_t>();
  const bool padded = labels.dim() == 2;
  const int64_t most = padded ? labels.size(1) : labels.numel();
  check(log_probs.dim() == 3 && labels.dim() <= 2, "a CTC loss has no sequences");
  check(!padded || labels.size(0) >= static_cast<int64_t>(lengths.size()), "a CTC loss has too few targets");
  int64_t begin = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = lengths[i];
    check(length >= 0 && length <= most - (padded ? 0 : begin), "a CTC loss has too few targets");
    const int64_t* first = label + (padded ? static_cast<int64_t>(i) * most : begin);
    check(std::all_of(first, first + length, [&](int64_t l) { return l >= 0 && l < log_probs.size(2); }),
          "a CTC loss has targets that are not classes");
    begin += length;
  }
}

void ctc_loss(c10::IValue* args) { check_labels(args[0].toTensor(), args[1].toTensor(), lengths_of(args[3])); }

void ctc_loss_backward(c10::IValue* args) {
  const at::Tensor &grad = args[0].toTensor(), &log_probs = args[1].toTensor();
  const at::Tensor &loss = args[5].toTensor(), &alpha = args[6].toTensor();
  const std::vector<int64_t> inputs = lengths_of(args[3]), lengths = lengths_of(args[4]);
  check_labels(log_probs, args[2].toTensor(), lengths);
  const int64_t batch = log_probs.size(1), longest = lengths.empty() ? 0 : *std::ranges::max_element(lengths);
  const bool inputs_fit = std::ranges::all_of(inputs, [&](int64_t n) { return n >= 0 && n <= log_probs.size(0); });
  check(inputs_fit && static_cast<int64_t>(inputs.size()) == batch && static_cast<int64_t>(lengths.size()) == batch &&
            grad.numel() >= batch && loss.numel() >= batch && alpha.dim() == 3 && alpha.size(0) >= batch &&
            alpha.size(1) >= log_probs.size(0) && alpha.size(2) >= 2 * longest + 1 && args[7].toInt() >= 0 &&
            args[7].toInt() < log_probs.size(2),
        "a CTC loss's gradient does not fit its input");
}

// Returns the tensor with row-major strides, also for dims of one element, where is_contiguous() ignores the stride.
at::Tensor row_by_row(const at::Tensor& tensor) {
  int64_t expected = 1;
  bool plain = true;
  for (int64_t d = tensor.dim(); d-- > 0;) {
    plain = plain && tensor.stride(d) == expected;
    expected *= tensor.size(d);
  }
  return plain ? tensor : at::empty(tensor.sizes(), tensor.options()).copy_(tensor);
}

// (grad_output, input, weight, bias_sizes, stride, …). For strided 1x1 kernels on channels-last images with few
// channels, oneDNN 3.12's gradient of the weights writes outside of its scratch memory
// (github.com/uxlfoundation/oneDNN, issue 6035). So we pass row-major copies.
void convolution_backward(c10::IValue* args) {
  constexpr int64_t kFew = 16;  // channels: a block of AVX-512's
  const at::Tensor& weight = args[2].toTensor();
  if (weight.dim() < 3 || weight.size(1) >= kFew || weight.scalar_type() != at::kFloat) return;
  const bool one_place = std::ranges::all_of(weight.sizes().slice(2), [](int64_t size) { return size == 1; });
  if (!one_place || std::ranges::all_of(args[4].toIntVector(), [](int64_t step) { return step == 1; })) return;
  for (size_t i = 0; i < 3; ++i) args[i] = row_by_row(args[i].toTensor());
}

// (grad_in, input_sizes, dim, size, step). The gradient has one window for each position that the window slides to.
void unfold_backward(c10::IValue* args) {
  const at::Tensor& grad = args[0].toTensor();
  const std::vector<int64_t> sizes = args[1].toIntVector();
  const auto rank = static_cast<int64_t>(sizes.size());
  const int64_t dim = args[2].toInt() + (args[2].toInt() < 0 ? rank : 0), size = args[3].toInt();
  const int64_t step = args[4].toInt();
  if (rank == 0 && grad.dim() == 1) return;
  bool good = grad.dim() == rank + 1 && dim >= 0 && dim < rank && size >= 0 && step > 0 && grad.size(rank) == size;
  for (int64_t d = 0; good && d < rank; ++d) {
    const int64_t input = sizes[static_cast<size_t>(d)];
    good = grad.size(d) == (d == dim ? (input - size) / step + 1 : input) && (d != dim || input >= size);
  }
  TORCH_CHECK(good, "unfold_backward: a gradient of sizes ", grad.sizes(), " does not fit an input of sizes ", sizes);
}

// (LD, pivots, B, …). B broadcasts to the batch of LD, but not the other way around unless LD is one matrix. As torch's
// factorization of the lower triangle makes them, a block of two rows has the same negative pivot twice.
void ldl_solve(c10::IValue* args) {
  const at::Tensor &factors = args[0].toTensor(), &right = args[2].toTensor();
  check(factors.dim() >= 2 && right.dim() >= 2, "matrices have fewer than two dims");
  const at::IntArrayRef batch = factors.sizes().slice(0, factors.dim() - 2);
  check(batch.empty() || at::infer_size(batch, right.sizes().slice(0, right.dim() - 2)) == batch,
        "there are fewer LDL factorizations than right-hand sides");
  const at::Tensor pivots = numbers(args[1].toTensor());
  const int64_t count = pivots.dim() == 0 ? 0 : pivots.size(-1);
  check(pivots.dim() + 1 == factors.dim() && factors.size(-1) == count,
        "an LDL factorization does not have a pivot for each row");
  const int64_t* row = pivots.const_data_ptr<int64_t>();
  for (int64_t r = 0; count > 0 && r < pivots.numel() / count; ++r, row += count) {
    for (int64_t i = 0; i < count; ++i) {
      if (row[i] > 0) continue;
      check(i + 1 < count && row[i + 1] == row[i], "the pivots of an LDL factorization are invalid");
      ++i;
    }
  }
}

void need(bool holds, const char* op, const char* what) {
  TORCH_CHECK(holds, "remote: the arguments of '", op, "' do not fit: it needs ", what);
}

#include "worker/targets/aten/checks/relations_generated.h"

}  // namespace

const char* refusal_reason(std::string_view name) {
  const std::string_view space = name.substr(0, name.find("::"));
  const ir::Opcode opcode = ir::find_op(name);
  if (opcode < ir::kFirstOpaque) return nullptr;
  if (space == "aten") {
    if (std::ranges::binary_search(kAllowed, name)) return nullptr;
    constexpr std::string_view kOtherTensors[] = {"mkldnn", "nested", "quantize", "sparse"};
    const auto is_for = [name](std::string_view kind) { return name.find(kind) != std::string_view::npos; };
    if (std::ranges::any_of(kOtherTensors, is_for)) {
      return "the device has no sparse, nested, quantized or mkldnn tensors in programs";
    }
    return "is not known to stay inside of its operands' memory for all arguments (ir/ops/allowed_ops.txt); use ops of "
           "docs/operators.md instead";
  }
  if (std::ranges::find(kTorchNamespaces, space) == kTorchNamespaces.end()) return nullptr;
  return "is a helper of torch that does not check its arguments; call the corresponding aten:: op";
}

Guard find_guard(std::string_view name) {
  const auto* found = std::ranges::lower_bound(kGuards, name, {}, &std::pair<std::string_view, Guard>::first);
  return found != std::end(kGuards) && found->first == name ? found->second : Guard();
}

}  // namespace torch_remote::worker::aten
