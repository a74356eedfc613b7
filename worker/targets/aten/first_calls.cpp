#include "worker/targets/aten/first_calls.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/acos.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cosh.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/full.h>
#include <ATen/ops/lgamma.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sinh.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/trunc.h>

namespace torch_remote::worker::aten {

void make_first_calls() {
  static const bool made = [] {
    const c10::InferenceMode inference;
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({1}, 0.5, type);
      for (at::Tensor (*function)(const at::Tensor&) :
           {at::acos,   at::asin, at::atan,  at::cos, at::cosh,  at::erf,   at::erfc,
            at::erfinv, at::exp,  at::expm1, at::log, at::log10, at::log1p, at::log2,
            at::sin,    at::sinh, at::sqrt,  at::tan, at::tanh,  at::trunc, at::lgamma})
        function(x);
    }
    return true;
  }();
  static_cast<void>(made);
}

}  // namespace torch_remote::worker::aten
