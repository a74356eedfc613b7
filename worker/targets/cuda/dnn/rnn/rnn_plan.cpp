#include "worker/targets/cuda/dnn/rnn/rnn_plan.h"

#include <optional>
#include <string_view>
#include <utility>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/ops/plan/plan_builder.h"
#include "worker/targets/cuda/ops/rnn_sizes.h"

namespace torch_remote::worker::cuda {
namespace {

using ir::DType;
using ir::RnnMode;

class RnnPlanner {
 public:
  RnnPlanner(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, const RnnProblem& problem,
             const RnnSpace& space, RnnPlan* plan, std::vector<ir::Sym>* symbols)
      : node_(graph, node, values, symbols),
        builder_(node_, &plan->steps),
        problem_(problem),
        space_(space),
        plan_(*plan) {}

  Status forward();
  Status backward();

 private:
  // The tensor's location if it is contiguous, else that of a contiguous copy.
  Location read(const OpTensor& tensor);
  Location read_given(std::string_view name);
  Location write(const std::optional<OpTensor>& tensor, bool must = false, uint64_t nbytes = 0);
  void read_layer();
  // Calls f(rows of a weight, offset in the weight space in bytes) for each weight; `weight` returns one by its number.
  template <typename Weight, typename F>
  void for_each_weight(Weight&& weight, F&& f) const;
  OpTensor in_weights(const OpTensor& part, Location weights, uint64_t from) const {
    OpTensor made = part;
    made.strides = packed_strides(part.sizes);
    made.location = {weights.buffer, weights.offset + from};
    return made;
  }
  uint64_t output_bytes() const {
    return static_cast<uint64_t>(problem_.steps * problem_.batch * problem_.directions * problem_.units) *
           dnn::item_size(problem_.type);
  }

  OpNode node_;
  PlanBuilder builder_;
  const RnnProblem& problem_;
  const RnnSpace& space_;
  RnnPlan& plan_;
};

// Whether cuDNN can use the tensor in place.
bool fits(const OpTensor& tensor) { return tensor.is_packed() && tensor.location.offset % dnn::kAlignment == 0; }

Location RnnPlanner::read(const OpTensor& tensor) {
  if (fits(tensor)) return tensor.location;
  return builder_.copy_of(tensor, tensor.dtype, tensor.sizes).location;
}

Location RnnPlanner::read_given(std::string_view name) {
  const auto tensor = node_.tensor(name);
  return tensor && tensor->count() != 0 ? read(*tensor) : Location();
}

Location RnnPlanner::write(const std::optional<OpTensor>& tensor, bool must, uint64_t nbytes) {
  if (!tensor || tensor->count() == 0) return must ? builder_.scratch(nbytes) : Location();
  OpTensor made = *tensor;
  made.strides = packed_strides(tensor->sizes);
  return builder_.output(*tensor, std::move(made), fits(*tensor));
}

template <typename Weight, typename F>
void RnnPlanner::for_each_weight(Weight&& weight, F&& f) const {
  const int64_t gates = ir::rnn_gates(problem_.mode), units = problem_.units;
  const uint64_t item = dnn::item_size(problem_.type);
  const int64_t each = problem_.biases ? 4 : 2;  // Per direction: w_ih, w_hh and both biases.
  for (int64_t direction = 0; direction < problem_.directions; ++direction) {
    for (int64_t which = 0; which < each; ++which) {
      const std::optional<OpTensor> whole = weight(direction * each + which);
      if (!whole) continue;
      const auto offset_of = [&](int64_t gate) {
        const size_t linear = static_cast<size_t>((direction * 2 + which % 2) * gates + gate);
        return which < 2 ? space_.weight_offsets[linear].matrix : space_.weight_offsets[linear].bias;
      };
      const int64_t row = which == 0 ? problem_.inputs : which == 1 ? units : 1;
      for (int64_t gate = 0; gate < gates;) {
        // Gates that are adjacent in the weight space are copied at once.
        int64_t end = gate + 1;
        const auto bytes = static_cast<uint64_t>(units * row) * item;
        while (end < gates && offset_of(end) == offset_of(end - 1) + bytes) ++end;
        OpTensor part = *whole;
        part.location.offset += static_cast<uint64_t>(gate * units * whole->strides[0]) * item;
        part.sizes[0] = (end - gate) * units;
        f(part, offset_of(gate));
        gate = end;
      }
    }
  }
}

void RnnPlanner::read_layer() {
  plan_.input = read_given("input");
  plan_.hx = read_given("hx");
  if (problem_.mode == RnnMode::kLstm) plan_.cx = read_given("cx");
  plan_.weights = builder_.scratch(space_.weights);
  const ir::Arg& list = *node_.argument("weight");
  for_each_weight(
      [&](int64_t number) -> std::optional<OpTensor> {
        return node_.tensor_of(list.items[static_cast<size_t>(number)].a);
      },
      [&](const OpTensor& part, uint64_t from) { builder_.copy(part, in_weights(part, plan_.weights, from)); });
}

Status RnnPlanner::forward() {
  read_layer();
  plan_.workspace = builder_.scratch(space_.forward_workspace);
  plan_.output = write(node_.result(0), true, output_bytes());
  plan_.hy = write(node_.result(1));
  if (problem_.mode == RnnMode::kLstm) plan_.cy = write(node_.result(2));
  if (const auto kept = node_.result(3); kept && kept->count() != 0) {
    if (!kept->is_packed()) return unsupported("with a reserve space that is not contiguous");
    plan_.steps.steps.emplace_back(OpFill{kept->location, kept->nbytes(), 0xFF});
  }
  plan_.before = plan_.steps.steps.size();
  return builder_.finish();
}

Status RnnPlanner::backward() {
  plan_.backward = true;
  read_layer();
  plan_.workspace = builder_.scratch(space_.workspace);
  plan_.reserve = builder_.scratch(space_.reserve);
  plan_.output = builder_.scratch(output_bytes());  // The output is recomputed.
  plan_.grad_output = read_given("grad_output");
  if (plan_.grad_output.buffer == kNoLocation) {
    plan_.grad_output = builder_.scratch(output_bytes());
    builder_.zero(plan_.grad_output, output_bytes());
  }
  plan_.grad_hy = read_given("grad_hy");
  if (problem_.mode == RnnMode::kLstm) plan_.grad_cy = read_given("grad_cy");
  const uint64_t input_bytes =
      static_cast<uint64_t>(problem_.steps * problem_.batch * problem_.inputs) * dnn::item_size(problem_.type);
  plan_.grad_input = write(node_.result(0), true, input_bytes);
  plan_.grad_hx = write(node_.result(1));
  if (problem_.mode == RnnMode::kLstm) plan_.grad_cx = write(node_.result(2));
  const auto grad_weight = [&](int64_t number) { return node_.listed_result(3, static_cast<size_t>(number)); };
  bool any = false;
  for_each_weight(grad_weight, [&](const OpTensor&, uint64_t) { any = true; });
  if (any) {
    plan_.grad_weights = builder_.scratch(space_.weights);
    builder_.zero(plan_.grad_weights, space_.weights);
  }
  plan_.before = plan_.steps.steps.size();
  for_each_weight(grad_weight, [&](const OpTensor& part, uint64_t from) {
    builder_.copy(in_weights(part, plan_.grad_weights, from), part);
  });
  return builder_.finish();
}

}  // namespace

bool is_rnn_op(ir::Opcode opcode) { return opcode == ir::ops::remote_rnn || opcode == ir::ops::remote_rnn_backward; }

bool is_rnn(const ir::Graph& graph, const ir::Node& node) {
  if (!is_rnn_op(node.opcode)) return false;
  std::optional<DType> dtype;
  bool same = true;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    same = same && !graph.views[view].dynamic && dtype.value_or(graph.views[view].dtype) == graph.views[view].dtype;
    dtype = graph.views[view].dtype;
  });
  return same && dtype && dnn::narrow_type_of(*dtype);
}

Status find_rnn_problem(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, RnnProblem* problem,
                        std::vector<ir::Sym>* symbols) {
  OpNode op(graph, node, values, symbols);
  problem->mode = static_cast<RnnMode>(op.integer("mode"));
  const auto input = op.tensor("input"), hx = op.tensor("hx"), cx = op.tensor("cx");
  const ir::Arg* const weights = op.argument("weight");
  if (!input || !hx || input->sizes.size() != 3 || hx->sizes.size() != 3 || weights == nullptr) {
    return unsupported("without operands");
  }
  problem->type = *dnn::narrow_type_of(input->dtype);
  problem->steps = input->sizes[0];
  problem->batch = input->sizes[1];
  problem->inputs = input->sizes[2];
  problem->directions = hx->sizes[0];
  problem->units = hx->sizes[2];
  const bool has_state = problem->mode != RnnMode::kLstm || cx;
  if (input->count() == 0 || hx->count() == 0 || problem->directions > 2 || !has_state)
    return unsupported("of such sizes");
  const auto given = static_cast<int64_t>(weights->items.size());
  if (given != 2 * problem->directions && given != 4 * problem->directions) return unsupported("with such weights");
  problem->biases = given == 4 * problem->directions;
  return has_rnn_sizes(op) ? Status() : unsupported("of sizes that do not match");
}

Status plan_rnn(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, const RnnProblem& problem,
                const RnnSpace& space, RnnPlan* plan, std::vector<ir::Sym>* symbols) {
  *plan = {};
  RnnPlanner planner(graph, node, values, problem, space, plan, symbols);
  return graph.nodes[node].opcode == ir::ops::remote_rnn ? planner.forward() : planner.backward();
}

}  // namespace torch_remote::worker::cuda
