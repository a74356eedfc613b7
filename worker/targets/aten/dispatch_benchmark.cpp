#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>

#include "worker/targets/aten/testing.h"

// Measures what the runner adds to the cost of torch's kernel per op: runs a chain of tiny ops as one program, and
// calls the same ops directly.
//   bazel run //worker/targets/aten:dispatch_benchmark
namespace torch_remote::worker::aten {
namespace {

constexpr int kOps = 4000;
const int64_t kOther = std::bit_cast<int64_t>(1.0001) ^ std::bit_cast<int64_t>(1.0002);

template <typename F>
double best_us(F&& f) {
  double best = 1e30;
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

at::Tensor wrapped(double value) {
  at::Tensor tensor = at::scalar_tensor(value, at::kDouble);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

void measure(const char* name, bool in_place, bool scalar, at::IntArrayRef size) {
  TestRunner runner;
  const at::Tensor first = at::randn(size), other = at::randn(size), number = wrapped(1.0001);
  TestGraph builder;
  at::Tensor x = first;
  std::vector<at::Tensor> keep;
  for (int i = 0; i < kOps; ++i) {
    const at::Tensor& operand = scalar ? number : other;
    if (in_place) {
      if (i % 2) {
        builder.call("aten::add_.Tensor", {x, operand, 1}, {});
      } else {
        builder.call("aten::mul_.Tensor", {x, operand}, {});
      }
    } else {
      const at::Tensor y = at::empty(size);
      keep.push_back(y);
      if (i % 2) {
        builder.call("aten::add.Tensor", {x, operand, 1}, {y});
      } else {
        builder.call("aten::mul.Tensor", {x, operand}, {y});
      }
      x = y;
    }
  }
  TestRunner::Loaded program(runner, builder);
  program.run(true);
  const double same = best_us([&] { program.run(false); });
  const double changed = best_us([&] {
    for (int64_t& value : builder.params) {
      if (value == std::bit_cast<int64_t>(1.0001) || value == std::bit_cast<int64_t>(1.0002)) value ^= kOther;
    }
    program.run(true);
  });
  const double direct = best_us([&] {
    const c10::InferenceMode inference;
    at::Tensor y = first;
    for (int i = 0; i < kOps; ++i) {
      if (in_place) {
        scalar ? (i % 2 ? y.add_(1.0001) : y.mul_(1.0001)) : (i % 2 ? y.add_(other) : y.mul_(other));
      } else {
        y = scalar ? (i % 2 ? y.add(1.0001) : y.mul(1.0001)) : (i % 2 ? y.add(other) : y.mul(other));
      }
    }
  });
  std::printf("%-28s runner %.3f us/op, with new symbols %.3f, direct calls %.3f\n", name, same / kOps, changed / kOps,
              direct / kOps);
}

}  // namespace
}  // namespace torch_remote::worker::aten

int main() {
  using torch_remote::worker::aten::measure;
  measure("mul/add scalar 16x16", false, true, {16, 16});
  measure("mul/add tensor 16x16", false, false, {16, 16});
  measure("mul_/add_ scalar 16x16", true, true, {16, 16});
  measure("mul_/add_ tensor 16x16", true, false, {16, 16});
  measure("mul/add scalar 128x128", false, true, {128, 128});
}
