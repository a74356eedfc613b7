// Recurrent layers (ops/rnn.cpp).
#include <algorithm>

#include "frontend/shapes/shape_rules.h"
#include "ir/rnn.h"

namespace torch_remote::frontend {
namespace {

using at::Tensor;
using c10::IValue;
using ir::RnnMode;

// What a direction keeps for its gradient, in elements. The parts of ir/rnn.h, or, where the worker computes an LSTM by
// oneDNN (32-bit floats and bfloat16), oneDNN's workspace, a header and the last cell state. The workspace's size is
// oneDNN's own affair: this is what 3.x takes at most, and a worker that finds it too little does without.
int64_t reserve_size(RnnMode mode, int64_t steps, int64_t batch, int64_t inputs, int64_t units, int64_t item_size) {
  const int64_t own = ir::rnn_reserve(mode) * steps * batch * units;
  if (mode != RnnMode::kLstm || item_size > 4) return own;
  constexpr int64_t kPage = 4096, kAreas = 7;
  const auto padded = [](int64_t size) { return (size + 63) / 64 * 64 + 64; };  // rows, against cache conflicts
  const int64_t widest = padded(std::max(inputs, units)), state = padded(units);
  const int64_t gates = steps * padded(4 * units) * item_size;
  const int64_t states = 2 * (steps + 1) * (widest * (item_size + 8) + state * (item_size + 4));
  const int64_t bytes = kPage + batch * (units * item_size + gates + states) + kAreas * kPage;
  return std::max(own, (bytes + 63) / 64 * 64 / item_size);
}

bool rnn_shapes(const OpEntry&, const c10::IValue* args, Inferred& out) {
  const Tensor& input = args[0].toTensor();
  const Tensor& hx = args[4].toTensor();
  const auto mode = static_cast<RnnMode>(args[6].toInt());
  const int64_t steps = input.size(0), batch = input.size(1), directions = hx.size(0), units = hx.size(2);
  if (args[9].toInt() != 1 || args[10].toBool()) return false;  // not made by `run`
  const auto type = input.scalar_type();
  const auto item_size = static_cast<int64_t>(c10::elementSize(type));
  const int64_t kept =
      args[12].toBool() ? directions * reserve_size(mode, steps, batch, input.size(2), units, item_size) : 0;
  out.add({steps, batch, directions * units}, type);
  out.add(hx.sizes(), type);
  out.add(mode == RnnMode::kLstm ? hx.sizes() : c10::IntArrayRef{0}, type);
  out.add({kept}, type);
  out.add({0}, type);  // the flat weights that CUDA makes
  return true;
}

bool rnn_backward_shapes(const OpEntry&, const c10::IValue* args, Inferred& out) {
  const auto add = [&](bool wanted, const IValue& like) {
    if (wanted && !like.isNone() && like.toTensor().defined()) {
      out.add(like.toTensor().sizes(), like.toTensor().scalar_type());
    } else {
      out.add_undefined();
    }
  };
  const auto mask = args[21].toListRef();
  add(mask[0].toBool(), args[0]);
  add(mask[1].toBool(), args[4]);
  add(mask[2].toBool(), args[5]);
  const auto weights = args[1].toListRef();
  const bool wanted = mask[3].toBool();
  out.list_lengths.push_back(wanted ? static_cast<uint32_t>(weights.size()) : 0);
  for (size_t i = 0; wanted && i < weights.size(); ++i) add(true, weights[i]);
  return true;
}

}  // namespace

ShapeRuleFunction find_rnn_rule(ir::ShapeFunction function) {
  using enum ir::ShapeFunction;
  switch (function) {
    case kRnn:
      return rnn_shapes;
    case kRnnBackward:
      return rnn_backward_shapes;
    default:
      return nullptr;
  }
}

}  // namespace torch_remote::frontend
