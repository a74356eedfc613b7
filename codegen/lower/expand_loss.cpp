#include "codegen/loop/scalar_ops.h"
#include "codegen/lower/expand.h"

// Losses of pairs of elements, and their gradients. A loss is one number per point, or their sum or mean. Sums of f32
// and half types are accumulated in f64. The formulas are in torch's documentation of each loss.
namespace torch_remote::codegen {
namespace {

using ir::DType;
using ir::Expansion;
using ir::ScalarOp;

class LossEmitter {
 public:
  explicit LossEmitter(NodeEmitter& node)
      : node_(node),
        e_(node.e),
        type_(node.args.type("self")),
        x_(node.operand("self", type_)),
        y_(node.operand("target", type_)) {}

  bool run() {
    if (!ir::is_float(type_)) return false;
    switch (node_.member.form.expansion) {
      case Expansion::kMseLoss:
        return lost(square(difference()));
      case Expansion::kMseLossBackward:
        return gradient(e_.mul(number(2), difference()));
      case Expansion::kSmoothL1Loss:
        return lost(smooth_l1());
      case Expansion::kSmoothL1LossBackward:
        return gradient(limited(e_.div(difference(), given("beta")), given("beta"), number(1)));
      case Expansion::kHuberLoss:
        return lost(huber());
      case Expansion::kHuberLossBackward:
        return gradient(limited(difference(), given("delta"), given("delta")));
      case Expansion::kSoftMarginLoss:
        return lost(e_.op(ScalarOp::kLog1p, e_.op(ScalarOp::kExp, margin())));
      case Expansion::kSoftMarginLossBackward: {
        const V z = e_.op(ScalarOp::kExp, margin());
        return gradient(e_.div(e_.mul(negative(y_), z), e_.add(number(1), z)));
      }
      case Expansion::kBceWithLogits:
        return lost(bce_with_logits());
      case Expansion::kBceBackward:
        return gradient(bce_slope());
      default:
        return false;
    }
  }

 private:
  V number(double value) { return e_.constant(type_, value); }
  V given(std::string_view name) { return node_.operand(name, type_); }
  V negative(V value) { return e_.op(ScalarOp::kNeg, value); }
  V difference() { return e_.sub(x_, y_); }
  V square(V value) { return e_.mul(value, value); }
  V distance() { return e_.op(ScalarOp::kAbs, difference()); }
  V margin() { return e_.mul(negative(y_), x_); }

  // z^2 / (2 beta) below beta, z - beta / 2 above.
  V smooth_l1() {
    const V z = distance(), beta = given("beta"), half = number(0.5);
    return e_.where(e_.op(ScalarOp::kLt, z, beta), e_.div(e_.mul(e_.mul(half, z), z), beta),
                    e_.sub(z, e_.mul(half, beta)));
  }

  // z^2 / 2 up to delta, delta (z - delta / 2) above.
  V huber() {
    const V z = distance(), delta = given("delta"), half = number(0.5);
    return e_.where(e_.op(ScalarOp::kLe, z, delta), e_.mul(e_.mul(half, z), z),
                    e_.mul(delta, e_.sub(z, e_.mul(half, delta))));
  }

  // `slope` if the elements differ by less than `limit`, else `most` with the sign of the difference.
  V limited(V slope, V limit, V most) {
    const V d = difference();
    return e_.where(e_.op(ScalarOp::kLe, d, negative(limit)), negative(most),
                    e_.where(e_.op(ScalarOp::kGe, d, limit), most, slope));
  }

  // (1 - y) x - (1 + (pos_weight - 1) y) log(sigmoid(x)), times the weight; log(sigmoid(x)) = min(x, 0) -
  // log1p(exp(-|x|)).
  V bce_with_logits() {
    const V one = number(1);
    const V log_sigmoid = e_.sub(e_.op(ScalarOp::kMin, x_, number(0)),
                                 e_.op(ScalarOp::kLog1p, e_.op(ScalarOp::kExp, negative(e_.op(ScalarOp::kAbs, x_)))));
    V right = log_sigmoid;
    if (node_.args.has("pos_weight")) {
      const V log_weight = e_.add(e_.mul(e_.sub(given("pos_weight"), one), y_), one);
      right = e_.mul(log_weight, log_sigmoid);
    }
    const V value = e_.sub(e_.mul(e_.sub(one, y_), x_), right);
    return node_.args.has("weight") ? e_.mul(value, given("weight")) : value;
  }

  // (x - y) / max((1 - x) x, 1e-12), times the weight. torch rounds the 1e-12 to f32 for every dtype.
  V bce_slope() {
    const V spread = e_.mul(e_.sub(number(1), x_), x_);
    const V slope = e_.div(difference(), e_.op(ScalarOp::kMax, spread, number(1e-12F)));
    return node_.args.has("weight") ? e_.mul(slope, given("weight")) : slope;
  }

  bool lost(V value) {
    const int64_t reduction = node_.args.int_value("reduction");
    if (reduction != kNoReduction) value = node_.accumulate(Reduction::kSum, value);
    if (reduction == kMeanReduction) value = e_.div(value, node_.reduced_points(sum_type(type_)));
    node_.result(0, value);
    return true;
  }

  bool gradient(V slope) {
    const double points =
        node_.args.int_value("reduction") == kMeanReduction ? static_cast<double>(node_.space_points()) : 1;
    const V part = e_.convert(e_.scalar_float(1 / points), type_);
    node_.result(0, e_.mul(e_.mul(part, slope), node_.operand("grad_output", type_)));
    return true;
  }

  NodeEmitter& node_;
  Emitter& e_;
  const DType type_;
  const V x_, y_;
};

}  // namespace

bool expand_loss(NodeEmitter& node) { return LossEmitter(node).run(); }

}  // namespace torch_remote::codegen
