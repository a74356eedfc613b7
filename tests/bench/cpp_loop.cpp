#include <ATen/core/Tensor.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

// Calls ops from C++, to measure recording without Python's share.
namespace torch_remote::bench {
namespace {

using Tensors = std::vector<at::Tensor>;  // a, b: [n, n]; w: [n]; all float32

template <typename F>
double seconds(int calls, F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
}

double dispatch_alone(const Tensors& t, int n);

const std::map<std::string, std::function<double(const Tensors&, int)>>& loops() {
  static const std::map<std::string, std::function<double(const Tensors&, int)>> all = {
      {"nothing", dispatch_alone},
      {"add", [](const Tensors& t, int n) { return seconds(n, [&] { at::add(t[0], t[1]); }); }},
      {"add_", [](const Tensors& t, int n) { return seconds(n, [&] { t[0].add_(t[1]); }); }},
      {"mul by a number", [](const Tensors& t, int n) { return seconds(n, [&] { at::mul(t[0], 1.5); }); }},
      {"mm", [](const Tensors& t, int n) { return seconds(n, [&] { at::mm(t[0], t[1]); }); }},
      {"addmm", [](const Tensors& t, int n) { return seconds(n, [&] { at::addmm(t[2], t[0], t[1]); }); }},
      {"relu", [](const Tensors& t, int n) { return seconds(n, [&] { at::relu(t[0]); }); }},
      {"sum", [](const Tensors& t, int n) { return seconds(n, [&] { at::sum(t[0]); }); }},
      {"softmax", [](const Tensors& t, int n) { return seconds(n, [&] { at::_softmax(t[0], 1, false); }); }},
      {"layer_norm",
       [](const Tensors& t, int n) {
         return seconds(n, [&] { at::native_layer_norm(t[0], t[2].sizes(), t[2], t[2], 1e-5); });
       }},
      {"cat", [](const Tensors& t, int n) { return seconds(n, [&] { at::cat({t[0], t[1]}); }); }},
      {"view", [](const Tensors& t, int n) { return seconds(n, [&] { t[0].view({-1}); }); }},
      {"t", [](const Tensors& t, int n) { return seconds(n, [&] { t[0].t(); }); }},
      {"slice", [](const Tensors& t, int n) { return seconds(n, [&] { t[0].slice(0, 2, 9); }); }},
      {"empty", [](const Tensors& t, int n) { return seconds(n, [&] { at::empty({16, 16}, t[0].options()); }); }},
  };
  return all;
}

// A boxed kernel that does nothing: the lower bound of all calls.
void nothing(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
  stack->resize(stack->size() - 2);  // of (self, other, alpha); self is the result
}

TORCH_LIBRARY(torch_remote_bench, library) {
  library.def("nothing(Tensor self, Tensor other, Scalar alpha) -> Tensor");
  library.impl("nothing", c10::DispatchKey::PrivateUse1, torch::CppFunction::makeFromBoxedFunction<&nothing>());
  library.impl("nothing", c10::DispatchKey::CPU, torch::CppFunction::makeFromBoxedFunction<&nothing>());
}

double dispatch_alone(const Tensors& t, int n) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torch_remote_bench::nothing", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Scalar&)>();
  return seconds(n, [&] { op.call(t[0], t[1], 1); });
}

}  // namespace

PYBIND11_MODULE(cpp_loop, module) {
  module.def("names", [] {
    std::vector<std::string> names;
    for (const auto& [name, loop] : loops()) names.push_back(name);
    return names;
  });
  module.def(
      "seconds_per_call",
      [](const std::string& name, const Tensors& tensors, int calls) {
        const c10::AutoGradMode no_grad(false);
        return loops().at(name)(tensors, calls);
      },
      pybind11::call_guard<pybind11::gil_scoped_release>());
}

}  // namespace torch_remote::bench
