#include <cmath>

#include "codegen/loop/scalar_ops.h"
#include "codegen/lower/expand.h"

// Optimizer steps over lists of parameters, with the arithmetic of torch's kernels. Numbers that are the same for
// all elements are computed in f64.
namespace torch_remote::codegen {
namespace {

using ir::DType;
using ir::Expansion;
using ir::ScalarOp;

V gradient(NodeEmitter& node, DType type) {
  const V grad = node.operand("grads", type);
  return node.args.bool_value("maximize") ? node.e.op(ScalarOp::kNeg, grad) : grad;
}

// a + weight * (b - a). As in torch, we start from the end that is nearer.
V lerp(NodeEmitter& node, V a, V b, V weight, double known) {
  Emitter& e = node.e;
  const DType type = e.type(a);
  if (std::abs(known) < 0.5) return e.fma(weight, e.sub(b, a), a);
  return e.fma(e.sub(weight, e.constant(type, 1)), e.sub(b, a), b);
}

bool adam(NodeEmitter& node, bool decoupled) {
  Emitter& e = node.e;
  const DType type = node.args.type("self"), wide = DType::kFloat64;
  if (!node.has_part("exp_avgs") || !node.has_part("exp_avg_sqs") || !node.has_part("state_steps")) return false;
  const auto number = [&](std::string_view name) { return node.operand(name, wide); };
  const V one = e.constant(wide, 1), step = node.operand("state_steps", wide);
  const V rest1 = e.sub(one, number("beta1")), rest2 = e.sub(one, number("beta2"));
  const V correction1 = e.sub(one, e.op(ScalarOp::kPow, number("beta1"), step));
  const V correction2 = e.sub(one, e.op(ScalarOp::kPow, number("beta2"), step));
  const V size = e.convert(e.op(ScalarOp::kNeg, e.div(number("lr"), correction1)), type);
  V param = node.operand("self", type), grad = gradient(node, type);
  if (node.args.float_value("weight_decay") != 0) {
    if (decoupled) {
      param = e.mul(param, e.convert(e.sub(one, e.mul(number("lr"), number("weight_decay"))), type));
    } else {
      grad = e.add(grad, e.mul(param, node.operand("weight_decay", type)));
    }
  }
  const V mean =
      lerp(node, node.operand("exp_avgs", type), grad, e.convert(rest1, type), 1 - node.args.float_value("beta1"));
  const V square = e.add(e.mul(node.operand("exp_avg_sqs", type), node.operand("beta2", type)),
                         e.mul(e.mul(e.convert(rest2, type), grad), grad));
  V most = square;
  if (node.args.bool_value("amsgrad")) {
    if (!node.has_part("max_exp_avg_sqs")) return false;
    most = e.op(ScalarOp::kMax, node.operand("max_exp_avg_sqs", type), square);
    node.update("max_exp_avg_sqs", most);
  }
  const V root = e.div(e.op(ScalarOp::kSqrt, most), e.convert(e.op(ScalarOp::kSqrt, correction2), type));
  node.update("exp_avgs", mean);
  node.update("exp_avg_sqs", square);
  node.update("self", e.add(param, e.div(e.mul(size, mean), e.add(root, node.operand("eps", type)))));
  return true;
}

bool sgd(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("self"), wide = DType::kFloat64;
  const V param = node.operand("self", type);
  V grad = gradient(node, type);
  if (node.args.float_value("weight_decay") != 0) grad = e.add(grad, e.mul(param, node.operand("weight_decay", type)));
  if (node.args.float_value("momentum") != 0) {
    if (!node.has_part("momentum_buffer_list")) return false;
    const V momentum = node.operand("momentum", type);
    V buffer = grad;
    if (!node.args.bool_value("is_first_step")) {
      const V rest = e.convert(e.sub(e.constant(wide, 1), node.operand("dampening", wide)), type);
      buffer = e.add(e.mul(node.operand("momentum_buffer_list", type), momentum), e.mul(grad, rest));
    }
    node.update("momentum_buffer_list", buffer);
    grad = node.args.bool_value("nesterov") ? e.add(grad, e.mul(buffer, momentum)) : buffer;
  }
  node.update("self", e.add(param, e.mul(grad, e.op(ScalarOp::kNeg, node.operand("lr", type)))));
  return true;
}

}  // namespace

bool expand_optimizer(NodeEmitter& node) {
  if (node.member.form.expansion == Expansion::kFusedSgd) return sgd(node);
  return adam(node, node.member.form.expansion == Expansion::kFusedAdamW);
}

}  // namespace torch_remote::codegen
