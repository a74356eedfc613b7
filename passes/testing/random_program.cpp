#include "passes/testing/random_program.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace torch_remote::passes::testing {
namespace {

using ir::DType;
using ir::Opcode;
using ir::Trace;
using Sizes = std::vector<int64_t>;

struct Tensor {
  uint32_t storage = 0;
  DType dtype = DType::kFloat32;
  Sizes sizes;
  Sizes strides;
  int64_t offset = 0;

  bool writable() const {  // no two indices address the same element
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (strides[d] == 0 && sizes[d] > 1) return false;
    }
    return true;
  }
};

Sizes contiguous(const Sizes& sizes) {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

int64_t count(const Sizes& sizes) {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

// Writes records like the frontend's recorder: it knows which view of which storage has a slot.
class Recorder {
 public:
  Tensor make(DType dtype, Sizes sizes, bool input) {
    Tensor tensor{static_cast<uint32_t>(storages_.size()), dtype, sizes, contiguous(sizes), 0};
    storages_.push_back({kUnseen, input, static_cast<uint64_t>(count(sizes)) * ir::item_size(dtype), {}});
    return tensor;
  }

  void begin(const char* op) { trace_.begin_record(ir::find_op(op), {}); }
  void begin(Opcode op) { trace_.begin_record(op, {}); }
  void end() { trace_.end_record(); }

  void operand(const Tensor& tensor) {
    Storage& storage = storages_[tensor.storage];
    for (const uint32_t slot : storage.slots) {
      if (trace_.view_matches(slot, tensor.dtype, tensor.sizes, tensor.strides, tensor.offset)) {
        trace_.use_view(slot);
        return;
      }
    }
    if (storage.ordinal == kUnseen) {
      storage.ordinal = static_cast<uint32_t>(trace_.buffers.size());
      storage.slots.push_back(trace_.new_buffer_view(storage.input ? 100 + tensor.storage : 0, this, storage.nbytes,
                                                     tensor.dtype, tensor.sizes, tensor.strides, tensor.offset));
    } else {
      storage.slots.push_back(
          trace_.new_view(storage.ordinal, tensor.dtype, tensor.sizes, tensor.strides, tensor.offset));
    }
  }

  void integer(int64_t value) { trace_.structural_int(value); }
  void word(uint32_t word) { trace_.word(word); }
  void param(int64_t value) { trace_.param(value); }
  void scalar(double value) {
    trace_.word(static_cast<uint32_t>(ir::ScalarTag::kFloat));
    trace_.param(value);
  }
  void number(double value) {
    trace_.word(ir::kScalarOperand | static_cast<uint32_t>(DType::kFloat64) << 8 | 1);
    trace_.param(value);
  }

  Trace take() { return std::move(trace_); }
  Trace& trace() { return trace_; }

 private:
  static constexpr uint32_t kUnseen = 0xFFFFFFFF;
  struct Storage {
    uint32_t ordinal;
    bool input;
    uint64_t nbytes;
    std::vector<uint32_t> slots;
  };
  Trace trace_;
  std::vector<Storage> storages_;
};

class ProgramBuilder {
 public:
  explicit ProgramBuilder(Rng& rng) : rng_(rng) {}

  Trace make(uint32_t ops) {
    for (int i = 0; i < 6; ++i) tensors_.push_back(recorder_.make(dtype(), shape(), true));
    while (recorder_.trace().records.size() < ops) step();
    Trace trace = recorder_.take();
    for (ir::TraceBuffer& buffer : trace.buffers) {
      if (below(2) == 0) buffer.owner = nullptr;
    }
    return trace;
  }

 private:
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(rng_() % n); }
  DType dtype() { return below(8) == 0 ? DType::kFloat64 : DType::kFloat32; }

  Sizes shape() {
    static constexpr int64_t kDims[] = {1, 3, 4, 4, 0};
    Sizes sizes(below(4));
    for (int64_t& size : sizes) size = kDims[below(sizes.size() > 2 ? 4 : below(6) == 0 ? 5 : 4)];
    return sizes;
  }

  const Tensor& any() { return tensors_[tensors_.size() - 1 - below(std::min<uint32_t>(12, tensors_.size()))]; }

  static bool broadcasts(const Sizes& from, const Sizes& to) {
    if (from.size() > to.size()) return false;
    const size_t shift = to.size() - from.size();
    for (size_t d = 0; d < from.size(); ++d) {
      if (from[d] != 1 && from[d] != to[shift + d]) return false;
    }
    return true;
  }

  // A tensor that broadcasts to the sizes.
  Tensor partner(const Sizes& sizes) {
    for (int i = 0; i < 8; ++i) {
      const Tensor& tensor = any();
      if (broadcasts(tensor.sizes, sizes)) return tensor;
    }
    tensors_.push_back(recorder_.make(DType::kFloat32, below(2) == 0 ? sizes : Sizes{}, true));
    return tensors_.back();
  }

  void step() {
    const Tensor x = any();
    switch (below(14)) {
      case 0:
      case 1:
        return unary("aten::relu", x);
      case 2:
      case 3:
        return binary(x);
      case 4:
      case 5:
      case 6:
        return in_place(x);
      case 7:
        return matmul(x);
      case 8:
        return sum(x);
      case 9:
      case 10:
        return view(x);
      case 11:
        return empty();
      case 12:
        return lists();
      default:
        return others(x);
    }
  }

  void result(const Tensor& tensor) {
    recorder_.operand(tensor);
    tensors_.push_back(tensor);
  }

  void unary(const char* op, const Tensor& x) {
    recorder_.begin(op);
    recorder_.operand(x);
    result(recorder_.make(x.dtype, x.sizes, false));
    recorder_.end();
  }

  void binary(const Tensor& x) {
    Tensor y = partner(x.sizes);
    if (x.sizes.size() == 2 && x.sizes[0] == x.sizes[1] && below(3) == 0) {
      y = x;
      std::swap(y.strides[0], y.strides[1]);
    }
    const bool add = below(2) == 0;
    recorder_.begin(add ? "aten::add.Tensor" : "aten::mul.Tensor");
    recorder_.operand(x);
    if (below(5) == 0) {
      recorder_.number(below(3));
    } else {
      recorder_.operand(y);
    }
    if (add) recorder_.scalar(below(2));
    const bool wide = y.dtype == DType::kFloat64 || x.dtype == DType::kFloat64;
    result(recorder_.make(wide ? DType::kFloat64 : DType::kFloat32, x.sizes, false));
    recorder_.end();
  }

  void in_place(const Tensor& x) {
    if (!x.writable()) return;
    switch (below(5)) {
      case 0:
        recorder_.begin("aten::relu_");
        recorder_.operand(x);
        return recorder_.end();
      case 1:
        recorder_.begin("aten::fill_.Scalar");
        recorder_.operand(x);
        recorder_.scalar(7);
        return recorder_.end();
      case 2:
        return copy(x, partner(x.sizes));
      default: {
        Tensor y = partner(x.sizes);
        if (y.storage == x.storage && !(y.sizes == x.sizes && y.strides == x.strides && y.offset == x.offset)) return;
        recorder_.begin("aten::mul_.Tensor");
        recorder_.operand(x);
        recorder_.operand(y);
        return recorder_.end();
      }
    }
  }

  void copy(const Tensor& to, const Tensor& from) {
    recorder_.begin("aten::copy_");
    recorder_.operand(to);
    recorder_.operand(from);
    recorder_.end();
  }

  void matmul(const Tensor& x) {
    if (x.sizes.size() != 2 || x.dtype != DType::kFloat32) return;
    const Tensor y = recorder_.make(DType::kFloat32, {x.sizes[1], 4}, true);
    recorder_.begin("aten::mm");
    recorder_.operand(x);
    recorder_.operand(y);
    result(recorder_.make(DType::kFloat32, {x.sizes[0], 4}, false));
    recorder_.end();
  }

  void sum(const Tensor& x) {
    if (x.sizes.empty()) return;
    const uint32_t dim = below(static_cast<uint32_t>(x.sizes.size()));
    const bool keep = below(2) == 0;
    recorder_.begin("aten::sum.dim_IntList");
    recorder_.operand(x);
    recorder_.word(1);
    recorder_.integer(below(2) == 0 ? dim : static_cast<int64_t>(dim) - static_cast<int64_t>(x.sizes.size()));
    recorder_.integer(keep);
    recorder_.word(ir::kAbsent);
    Sizes sizes = x.sizes;
    if (keep) {
      sizes[dim] = 1;
    } else {
      sizes.erase(sizes.begin() + dim);
    }
    result(recorder_.make(x.dtype, sizes, false));
    recorder_.end();
  }

  // Views are metadata and are not recorded.
  void view(Tensor x) {
    if (x.sizes.empty()) return;
    const uint32_t d = below(static_cast<uint32_t>(x.sizes.size()));
    const uint32_t e = below(static_cast<uint32_t>(x.sizes.size()));
    switch (below(4)) {
      case 0:
        std::swap(x.sizes[d], x.sizes[e]);
        std::swap(x.strides[d], x.strides[e]);
        break;
      case 1:
        if (x.sizes[d] < 2) return;
        x.offset += x.strides[d];
        x.sizes[d] -= 1;
        break;
      case 2:
        if (x.sizes[d] == 0) return;
        x.offset += x.strides[d] * (x.sizes[d] - 1);
        x.sizes.erase(x.sizes.begin() + d);
        x.strides.erase(x.strides.begin() + d);
        break;
      default:
        if (x.sizes[d] != 1) return;
        x.sizes[d] = 4;
        x.strides[d] = 0;
    }
    tensors_.push_back(x);
  }

  // Like torch's zeros and clone: memory that the next record fills, in most cases.
  void empty() {
    const Tensor like = any();
    const Tensor made = recorder_.make(like.dtype, like.sizes, false);
    tensors_.push_back(made);
    if (below(5) == 0) return;
    if (below(3) == 0) {
      recorder_.begin("aten::zero_");
      recorder_.operand(made);
      return recorder_.end();
    }
    copy(made, like);
  }

  void lists() {
    std::vector<Tensor> list;
    for (int i = 0; i < 2; ++i) {
      const Tensor& x = any();
      const bool taken = std::ranges::any_of(list, [&](const Tensor& t) { return t.storage == x.storage; });
      if (x.writable() && !taken) list.push_back(x);
    }
    const bool in_place = below(2) == 0;
    recorder_.begin(in_place ? "aten::_foreach_add_.Scalar" : "aten::_foreach_add.Scalar");
    recorder_.word(static_cast<uint32_t>(list.size()));
    for (const Tensor& x : list) recorder_.operand(x);
    recorder_.scalar(2);
    if (!in_place) {
      recorder_.word(static_cast<uint32_t>(list.size()));
      for (const Tensor& x : list) result(recorder_.make(x.dtype, x.sizes, false));
    }
    recorder_.end();
  }

  void others(const Tensor& x) {
    static const Opcode mix = [] {
      const ir::OpaqueArg args[] = {{"out", ir::ArgKind::kTensor, true, false},
                                    {"in", ir::ArgKind::kTensor, false, false}};
      return ir::register_opaque("test::mix_", args, {}, ir::kOpHiddenMutation);
    }();
    static const Opcode pure = [] {
      const ir::OpaqueArg args[] = {{"in", ir::ArgKind::kTensor, false, false},
                                    {"n", ir::ArgKind::kBool, false, false}};
      const ir::ResultDesc results[] = {{ir::ResultKind::kTensor, -1}, {ir::ResultKind::kTensor, -1}};
      return ir::register_opaque("test::two_results", args, results, ir::kOpPure);
    }();
    if (below(3) == 0) {
      const Tensor& y = any();
      if (!x.writable() || x.storage == y.storage) return;
      recorder_.begin(mix);
      recorder_.operand(x);
      recorder_.operand(y);
      return recorder_.end();
    }
    if (below(2) == 0) {
      recorder_.begin(pure);
      recorder_.operand(x);
      recorder_.integer(below(2));
      result(recorder_.make(x.dtype, x.sizes, false));
      result(recorder_.make(DType::kFloat32, {3}, false));
      return recorder_.end();
    }
    if (!x.writable()) return;
    recorder_.begin("aten::uniform_");
    recorder_.operand(x);
    for (const double bound : {0.0, 1.0}) {
      int64_t bits = 0;
      std::memcpy(&bits, &bound, 8);
      recorder_.param(bits);
    }
    recorder_.param(1);
    recorder_.param(static_cast<int64_t>(rng_() % 1000));
    recorder_.end();
  }

  Rng& rng_;
  Recorder recorder_;
  std::vector<Tensor> tensors_;
};

// x @ w + b, relu, their gradients, and an in-place update of w.
class Perceptron {
 public:
  Trace make(uint32_t ops) {
    constexpr int64_t kWidth = 64;
    const Tensor input = recorder_.make(DType::kFloat32, {32, kWidth}, true);
    Tensor x = input;
    while (recorder_.trace().records.size() < ops) {
      const Tensor w = recorder_.make(DType::kFloat32, {kWidth, kWidth}, true);
      const Tensor b = recorder_.make(DType::kFloat32, {kWidth}, true);
      Tensor wt = w;
      std::swap(wt.strides[0], wt.strides[1]);
      const Tensor product = apply("aten::mm", {x, wt}, {32, kWidth});
      const Tensor sum = apply("aten::add.Tensor", {product, b}, {32, kWidth}, true);
      in_place("aten::relu_", {sum});
      const Tensor mask = apply("aten::threshold_backward", {product, sum}, {32, kWidth}, true);
      Tensor xt = x;
      std::swap(xt.sizes[0], xt.sizes[1]);
      std::swap(xt.strides[0], xt.strides[1]);
      const Tensor gradient = apply("aten::mm", {xt, mask}, {kWidth, kWidth});
      const Tensor scaled = apply("aten::mul.Tensor", {gradient, w}, {kWidth, kWidth});
      in_place("aten::mul_.Tensor", {w, scaled});
      x = sum;
    }
    Trace trace = recorder_.take();
    for (ir::TraceBuffer& buffer : trace.buffers) {
      if (buffer.fresh) buffer.owner = nullptr;
    }
    trace.buffers.back().owner = &trace;
    return trace;
  }

 private:
  Tensor apply(const char* op, const std::vector<Tensor>& operands, const Sizes& sizes, bool scalar = false) {
    recorder_.begin(op);
    for (const Tensor& tensor : operands) recorder_.operand(tensor);
    if (scalar) recorder_.scalar(1);
    const Tensor made = recorder_.make(DType::kFloat32, sizes, false);
    recorder_.operand(made);
    recorder_.end();
    return made;
  }

  void in_place(const char* op, const std::vector<Tensor>& operands) {
    recorder_.begin(op);
    for (const Tensor& tensor : operands) recorder_.operand(tensor);
    recorder_.end();
  }

  Recorder recorder_;
};

}  // namespace

Trace random_program(Rng& rng, uint32_t ops) { return ProgramBuilder(rng).make(ops); }
Trace perceptron_program(uint32_t ops) { return Perceptron().make(ops); }

}  // namespace torch_remote::passes::testing
