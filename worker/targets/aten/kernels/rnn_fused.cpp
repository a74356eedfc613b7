#include "worker/targets/aten/kernels/rnn_fused.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "worker/targets/aten/kernels/multiply.h"
#include "worker/targets/aten/kernels/parallel.h"
#include "worker/targets/cpu/loops/host.h"

namespace torch_remote::worker::aten {
namespace {

using at::Tensor;

// For this many steps or fewer, w_hh is not packed: a library's GEMM reads it in place.
constexpr int64_t kFewSteps = 2;
// The number of weights that fits into a thread's L2 cache, and the rows that a thread needs to profit from it.
constexpr int64_t kCachedWeights = 1 << 18;  // floats
constexpr int64_t kRowsOfThread = 4;
// Number of multiplications per step from which on it pays that threads synchronize after each step.
constexpr int64_t kMinSyncWork = 1 << 16;
constexpr int64_t kWorthThread = 1 << 20;  // of all steps: from this number on it pays to wake a thread

// Returns the tensor with a last dim of stride 1.
Tensor with_rows(const Tensor& tensor) {
  return !tensor.defined() || tensor.size(-1) == 1 || tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}
float* data(const Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr; }

RnnCell cell_of(ir::RnnMode mode) {
  switch (mode) {
    case ir::RnnMode::kRelu:
      return RnnCell::kRelu;
    case ir::RnnMode::kTanh:
      return RnnCell::kTanh;
    case ir::RnnMode::kLstm:
      return RnnCell::kLstm;
    case ir::RnnMode::kGru:
      return RnnCell::kGru;
  }
  return RnnCell::kLstm;
}

// A direction's arguments for the loops, and the tensors that own the memory they point to.
struct Bound {
  const RnnDirection& d;
  RnnCall call;
  Tensor hx, cx, w_hh, output, gates, cells, hidden_new, bias, weights, hidden_projection;
  // For the backward pass.
  Tensor grad_output, grad_hy, carry, grad_input_projections, grad_hidden_projections, grad_hx;

  explicit Bound(const RnnDirection& direction) : d(direction) {
    hx = d.hx.contiguous();
    if (d.cx.defined()) cx = d.cx.contiguous();
    w_hh = d.w_hh.contiguous();
    output = with_rows(d.output);
    call.cell = cell_of(d.mode);
    call.reverse = d.reverse;
    call.steps = d.steps();
    call.batch = d.batch();
    call.units = d.hidden();
    call.hx = data(hx);
    call.cx = data(cx);
    call.output = data(output);
    call.output_step = output.stride(0);
    call.output_line = output.stride(1);
  }

  Tensor make(c10::IntArrayRef sizes) const { return at::empty(sizes, d.hx.options()); }
  int64_t width() const { return d.gates() * d.hidden(); }
  int64_t rows() const { return d.steps() * d.batch(); }
  bool few() const { return d.steps() <= kFewSteps; }

  void save_in(const Tensor& saved_gates, const Tensor& rest) {
    gates = saved_gates;
    call.gates = data(gates);
    if (d.mode == ir::RnnMode::kLstm) {
      cells = rest;
      call.cells = data(cells);
      call.cells_step = rest.dim() == 2 ? 0 : d.batch() * d.hidden();
    } else if (d.mode == ir::RnnMode::kGru) {
      hidden_new = rest;
      call.hidden_new = data(hidden_new);
    }
  }

  void set_forward(const RnnLoops& loops) {
    const bool saves = d.reserve.defined() && ir::rnn_reserve(d.mode) > 0;
    call.save_gates = saves;
    if (saves) {
      save_in(d.saved(0, d.gates()), d.saved(d.gates(), 1));
    } else {
      save_in(make({d.steps(), d.batch(), d.gates(), d.hidden()}),
              d.mode == ir::RnnMode::kLstm ? make({d.batch(), d.hidden()}) : Tensor());
    }
    gemm_into(gates.view({rows(), width()}), d.input.reshape({rows(), d.input.size(2)}), d.w_ih.t());
    set_bias();
    if (!few()) weights = make({loops.forward_weights(call)});
    call.weights = data(weights);
  }

  void set_backward(const RnnLoops& loops, const RnnGradients& gradients) {
    if (ir::rnn_reserve(d.mode) > 0) save_in(d.saved(0, d.gates()), d.saved(d.gates(), 1));
    grad_output = with_rows(gradients.output);
    if (grad_output.defined()) {
      call.grad_output = data(grad_output);
      call.grad_step = grad_output.stride(0);
      call.grad_line = grad_output.stride(1);
    }
    if (gradients.hy.defined()) grad_hy = gradients.hy.contiguous();
    call.grad_hy = data(grad_hy);
    carry = gradients.cy.defined() ? gradients.cy.clone(at::MemoryFormat::Contiguous)
                                   : at::zeros_like(d.hx, at::MemoryFormat::Contiguous);
    call.carry = data(carry);
    grad_input_projections = make({rows(), width()});
    grad_hidden_projections = d.mode == ir::RnnMode::kGru ? make({rows(), width()}) : grad_input_projections;
    call.grad_input_projections = data(grad_input_projections);
    call.grad_hidden_projections = data(grad_hidden_projections);
    grad_hx = make({d.batch(), d.hidden()});
    call.grad_hx = data(grad_hx);
    if (!few()) weights = make({loops.backward_weights(call)});
    call.weights = data(weights);
  }

 private:
  // Both biases of a gate are added to its sum. The third gate of a GRU saves them apart, one for each part.
  void set_bias() {
    const int64_t own = d.mode == ir::RnnMode::kGru ? 2 * d.hidden() : width();
    bias = make({width() + d.hidden()});
    float* sum = data(bias);
    std::fill_n(sum, bias.numel(), 0.0f);
    call.bias = sum;
    if (!d.b_ih.defined()) return;
    const Tensor ih = d.b_ih.contiguous(), hh = d.b_hh.contiguous();
    std::copy_n(ih.const_data_ptr<float>(), width(), sum);
    for (int64_t i = 0; i < own; ++i) sum[i] += hh.const_data_ptr<float>()[i];
    if (own < width()) std::copy_n(hh.const_data_ptr<float>() + own, d.hidden(), sum + width());
  }
};

// A member's part of [0, count).
struct Share {
  int64_t begin, end;
  Share(int64_t count, int64_t index, int64_t members)
      : begin(count * index / members), end(count * (index + 1) / members) {}
};

using Pack = void (*)(const RnnCall&, const float*, float*, int64_t, int64_t);
using Step = void (*)(const RnnCall&, int64_t, const RnnPart&);

// Runs steps first, first + by, ... up to `last` of all directions, with packed w_hh, on a team of threads.
void run_packed(std::span<Bound> all, Pack pack, Step step, int64_t blocks, int64_t first, int64_t last) {
  const RnnCall& call = all[0].call;
  const int64_t work = call.batch * all[0].w_hh.numel(), directions = static_cast<int64_t>(all.size());
  const int64_t by = first <= last ? 1 : -1;
  const auto by_rows = [&](int64_t members) {
    return call.batch >= kRowsOfThread * members && all[0].w_hh.numel() <= kCachedWeights;
  };
  const int64_t threads = at::get_num_threads();
  const bool meets = work >= kMinSyncWork || by_rows(threads);
  const int64_t most = meets ? threads : std::min(threads, directions);
  run_team(work * call.steps * directions >= kWorthThread ? most : 1, [&](const TeamMember& member) {
    // Each direction has its own members, or all members process one direction after the other.
    const int64_t groups = directions > 1 && member.count % directions == 0 ? directions : 1;
    const int64_t size = member.count / groups, index = member.index % size;
    const std::span<Bound> mine = groups == 1 ? all : all.subspan(static_cast<size_t>(member.index / size), 1);
    const Share packed(blocks, index, size);
    for (Bound& bound : mine) {
      pack(bound.call, bound.w_hh.const_data_ptr<float>(), data(bound.weights), packed.begin, packed.end);
    }
    member.wait();
    const bool rows = by_rows(size);
    const Share row(rows ? call.batch : 1, rows ? index : 0, rows ? size : 1);
    const Share block(blocks, rows ? 0 : index, rows ? 1 : size);
    const RnnPart part{row.begin, rows ? row.end : call.batch, block.begin, block.end};
    for (const Bound& bound : mine) {
      for (int64_t i = first; i != last + by; i += by) {
        step(bound.call, i, part);
        if (!rows && size > 1) member.wait();
      }
    }
  });
}

// Runs one step whose GEMM is done; threads share its rows.
void run_step(const RnnCall& call, Step step, int64_t blocks, int64_t i) {
  const int64_t grain = std::max<int64_t>(1, 4096 / call.units);
  run_parallel(call.batch, grain, [&](int64_t begin, int64_t end) { step(call, i, {begin, end, 0, blocks}); });
}

}  // namespace

const RnnLoops* rnn_loops() {
  static const auto all = loops_of_host(kRnnLevels);
  return all.empty() ? nullptr : all[0].loops;
}

// If the sizes do not fit together, torch's implementation reports what is wrong.
bool supports_fused(const RnnDirection& d) {
  return d.is_consistent(at::kFloat) && d.hx.numel() != 0 && d.input.numel() != 0;
}

std::vector<RnnStates> fused_forward(const RnnLoops& loops, std::span<const RnnDirection> directions) {
  std::vector<Bound> all(directions.begin(), directions.end());
  for (Bound& bound : all) bound.set_forward(loops);
  const int64_t blocks = loops.forward_blocks(all[0].call), steps = all[0].d.steps();
  if (!all[0].few()) {
    run_packed(all, loops.pack_forward, loops.forward, blocks, 0, steps - 1);
  } else {
    for (Bound& bound : all) {
      bound.hidden_projection = bound.make({bound.d.batch(), bound.width()});
      bound.call.hidden_projection = data(bound.hidden_projection);
      for (int64_t i = 0; i < steps; ++i) {
        at::mm_out(bound.hidden_projection, i == 0 ? bound.hx : bound.output[bound.d.at(i - 1)], bound.w_hh.t());
        run_step(bound.call, loops.forward, blocks, i);
      }
    }
  }
  std::vector<RnnStates> states;
  for (const Bound& bound : all) {
    const RnnDirection& d = bound.d;
    if (!bound.output.is_same(d.output)) d.output.copy_(bound.output);
    Tensor cy;
    if (bound.cells.defined())
      cy = bound.call.cells_step == 0 ? bound.cells : bound.cells[d.at(steps - 1)].select(1, 0);
    states.push_back({bound.output[d.at(steps - 1)], cy});
  }
  return states;
}

std::vector<RnnBackward> fused_backward(const RnnLoops& loops, std::span<const RnnDirection> directions,
                                        std::span<const RnnGradients> gradients) {
  std::vector<Bound> all(directions.begin(), directions.end());
  for (size_t i = 0; i < all.size(); ++i) {
    const RnnDirection& d = directions[i];
    TORCH_CHECK(d.reserve.defined() || ir::rnn_reserve(d.mode) == 0, "remote: the layer was run without gradients");
    const auto fits = [](const Tensor& gradient, const Tensor& of) {
      return !gradient.defined() || (gradient.scalar_type() == at::kFloat && gradient.sizes().equals(of.sizes()));
    };
    TORCH_CHECK(fits(gradients[i].output, d.output) && fits(gradients[i].hy, d.hx) && fits(gradients[i].cy, d.hx),
                "remote: the gradients of a recurrent layer do not have the sizes of its results");
    all[i].set_backward(loops, gradients[i]);
  }
  const int64_t blocks = loops.backward_blocks(all[0].call), steps = all[0].d.steps();
  if (!all[0].few()) {
    run_packed(all, loops.pack_backward, loops.backward, blocks, steps - 1, -1);
  } else {
    for (Bound& bound : all) {
      const RnnDirection& d = bound.d;
      bound.hidden_projection = bound.make({d.batch(), d.hidden()});
      bound.call.hidden_projection = data(bound.hidden_projection);
      for (int64_t i = steps - 1; i >= -1; --i) {
        if (i < steps - 1) {
          at::mm_out(bound.hidden_projection,
                     bound.grad_hidden_projections.narrow(0, d.at(i + 1) * d.batch(), d.batch()), bound.w_hh);
        }
        run_step(bound.call, loops.backward, blocks, i);
      }
    }
  }
  std::vector<RnnBackward> results;
  for (const Bound& bound : all) {
    results.push_back({bound.grad_input_projections, bound.grad_hidden_projections, bound.grad_hx, bound.carry});
  }
  return results;
}

}  // namespace torch_remote::worker::aten
