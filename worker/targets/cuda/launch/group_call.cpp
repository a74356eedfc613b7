#include "worker/targets/cuda/launch/group_call.h"

#include <algorithm>
#include <utility>

#include "codegen/lower/loops.h"
#include "codegen/lower/lower.h"
#include "ir/fusion/fusion.h"
#include "worker/targets/cuda/device/copy_kernel.h"
#include "worker/targets/cuda/launch/run_memory.h"

namespace torch_remote::worker::cuda {

namespace {

// The range of bytes of its buffer that a view spans: first byte, and one past the last.
std::pair<int64_t, int64_t> reach(const ir::View& view, std::span<const int64_t> values) {
  const auto item = static_cast<int64_t>(ir::item_size(view.dtype));
  int64_t last = values[view.offset];
  for (size_t d = 0; d < view.sizes.size(); ++d) last += (values[view.sizes[d]] - 1) * values[view.strides[d]];
  return {values[view.offset] * item, (last + 1) * item};
}

// Lowers a copy between two views with any strides. (lower_group lowers a copy only if neighboring elements have the
// same layout on both sides.) The dims are those of `to`; `from` is broadcast to them. False: the views may overlap, or
// there are too many dims.
bool lower_copy(const ir::View& from, const ir::View& to, std::span<const int64_t> values, codegen::Launch* launch) {
  std::vector<int64_t> strides_from, strides_to;
  launch->sizes.clear();
  if (from.sizes.size() > to.sizes.size()) return false;
  for (size_t d = 0; d < to.sizes.size(); ++d) {
    const int64_t size = values[to.sizes[d]];
    const size_t missing = to.sizes.size() - from.sizes.size();
    const int64_t given = d >= missing ? values[from.sizes[d - missing]] : 1;
    if (given != 1 && given != size) return false;
    if (size == 1) continue;
    launch->sizes.push_back(size);
    strides_to.push_back(values[to.strides[d]]);
    const bool varies = d >= missing && values[from.sizes[d - missing]] != 1;
    strides_from.push_back(varies ? values[from.strides[d - missing]] : 0);
  }
  if (launch->sizes.empty()) {
    launch->sizes = {1};
    strides_to = strides_from = {1};
  }
  if (std::ranges::find(launch->sizes, 0) == launch->sizes.end() && from.buffer == to.buffer) {
    const auto [from_first, from_end] = reach(from, values);
    const auto [to_first, to_end] = reach(to, values);
    if (from_first < to_end && to_first < from_end) return false;
  }
  if (launch->sizes.size() > codegen::kMaxRows + 1) return false;
  launch->kernel = make_copy_kernel({.from_type = from.dtype,
                                     .to_type = to.dtype,
                                     .sizes = launch->sizes,
                                     .from_strides = strides_from,
                                     .to_strides = strides_to});
  for (const auto& [view, strides] : {std::pair(&from, &strides_from), std::pair(&to, &strides_to)}) {
    codegen::Binding& binding = launch->operands.emplace_back();
    binding.buffer = view->buffer;
    binding.offset = values[view->offset];
    binding.strides = *strides;
  }
  launch->nodes = {0, 0};
  return codegen::verify(launch->kernel).ok();
}

// Lowers the node if it is a copy. False: it is not, or cannot be lowered.
bool lower_copy_node(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, codegen::Launch* launch) {
  ir::KernelForm form;
  if (!ir::find_form(graph, graph.nodes[node], 0, &form) || form.expansion != ir::Expansion::kCopy) return false;
  const auto reads = [](const ir::Part& part) { return part.reads; };
  const auto writes = [](const ir::Part& part) { return part.writes; };
  const auto from = std::ranges::find_if(form.parts, reads), to = std::ranges::find_if(form.parts, writes);
  if (form.parts.size() != 2 || from == form.parts.end() || to == form.parts.end()) return false;
  return lower_copy(graph.views[from->view], graph.views[to->view], values, launch);
}

// Lowers a single node row by row, whatever its strides: a softmax over a dim in the middle. False: it cannot be
// lowered, or has no elements, for which there is no code. Batch norm of images whose channels are adjacent is left to
// cuDNN.
bool lower_by_rows(const ir::Graph& graph, const ir::Group& group, std::span<const int64_t> values,
                   std::vector<codegen::Launch>* launches) {
  const ir::Expansion expansion = ir::expansion_of(graph.nodes[group.first].opcode);
  if (expansion == ir::Expansion::kBatchNorm || expansion == ir::Expansion::kBatchNormBackward) return false;
  const auto is_empty = [](const codegen::Launch& launch) {
    return std::ranges::find(launch.sizes, 0) != launch.sizes.end() ||
           std::ranges::find(launch.outer, 0) != launch.outer.end();
  };
  return codegen::lower_group(graph, group, values, launches, /*in_order=*/true, ir::DomainKind::kNodeByRows).ok() &&
         std::ranges::none_of(*launches, is_empty);
}

}  // namespace

Status GroupCall::request_kernels(CudaDevice& device, const ir::Graph& graph, const ir::Group& group,
                                  std::span<const int64_t> values) {
  prepared_.clear();
  if (Status status = codegen::lower_group(graph, group, values, &launches_, /*in_order=*/true); !status.ok()) {
    codegen::Launch copy;
    if (group.first != group.last || ir::count_items(graph.nodes[group.first]) != 1) return status;
    if (lower_copy_node(graph, group.first, values, &copy)) {
      launches_.clear();
      launches_.push_back(std::move(copy));
    } else if (!lower_by_rows(graph, group, values, &launches_)) {
      return status;
    }
  }
  for (codegen::Launch& launch : launches_) {
    // The kernel reports a bad index only when it is done, too late to prevent the write.
    if (launch.check_indices_first) return {ErrorCode::kUnsupported, "an index selects what is written in place"};
    if (launch.splits_linear_indices)
      return {ErrorCode::kUnsupported, "the number of an element is decomposed into indices"};
    if (Status status = codegen::take_in_loops(&launch); !status.ok()) return status;
    prepared_.emplace_back().request = device.kernels().request(launch.kernel);
  }
  return {};
}

Status GroupCall::finish(CudaDevice& device, const ir::Graph& graph) {
  for (size_t i = 0; i < launches_.size(); ++i) {
    if (Status status = prepare(device, graph, launches_[i], &prepared_[i]); !status.ok()) return status;
  }
  return {};
}

Status GroupCall::prepare(CudaDevice& device, const ir::Graph& graph, const codegen::Launch& launch,
                          Prepared* prepared) {
  if (Status status = device.kernels().get(*prepared->request, &prepared->kernel); !status.ok()) return status;
  bool has_indices = false;
  auto indexed = std::make_shared<std::vector<IndexedOperand>>();
  for (size_t i = 0; i < launch.operands.size(); ++i) {
    const codegen::Binding& binding = launch.operands[i];
    prepared->strides.insert(prepared->strides.end(), binding.strides.begin(), binding.strides.end());
    prepared->bounds.insert(prepared->bounds.end(), binding.bounds.begin(), binding.bounds.end());
    const bool is_indexed = launch.kernel.operands[i].indexed != 0;
    has_indices |= is_indexed;
    const uint32_t node = launch.nodes[i];
    indexed->push_back(is_indexed ? IndexedOperand{node, ir::op_desc(graph.nodes[node].opcode).name}
                                  : IndexedOperand{});
  }
  if (has_indices) prepared->indexed = std::move(indexed);
  prepared->scratch = codegen::gpu::scratch_bytes(prepared->kernel->recipe, launch.sizes, launch.remainder_columns);
  return {};
}

void GroupCall::set_scalars(std::span<const int64_t> values) {
  for (codegen::Launch& launch : launches_) codegen::set_scalars(values, &launch);
}

Status GroupCall::run(CudaDevice& device, std::span<const tr_buffer> buffers, uint64_t run_number) const {
  for (size_t i = 0; i < launches_.size(); ++i) {
    if (Status status = run(device, launches_[i], prepared_[i], buffers, run_number); !status.ok()) return status;
  }
  return {};
}

Status GroupCall::run(CudaDevice& device, const codegen::Launch& made, const Prepared& prepared,
                      std::span<const tr_buffer> buffers, uint64_t run_number) {
  if (std::ranges::find(made.outer, 0) != made.outer.end()) return {};
  codegen::gpu::Call call;
  call.sizes = made.sizes;
  call.strides = prepared.strides;
  call.bounds = prepared.bounds;
  call.scalars = made.scalars;
  call.remainder_columns = made.remainder_columns;
  call.processors = device.gpu().multiprocessors();
  // Released after the launch is queued. Its next user is queued behind the launch.
  tr_buffer scratch{};
  if (prepared.scratch != 0) {
    if (!device.memory().allocate(prepared.scratch, &scratch, Visibility::kPrivate))
      return no_memory(prepared.scratch, "a kernel");
    call.scratch = reinterpret_cast<uint64_t>(scratch.data);
  }
  bool good = true;
  if (prepared.indexed) {
    call.failure = device.take_failure_record(run_number, prepared.indexed);
    good = call.failure != 0 || device.gpu().is_lost();
  }
  std::vector<uint64_t> data(made.operands.size());
  std::vector<int64_t> index(made.outer.size());
  do {
    for (size_t i = 0; good && i < data.size(); ++i) {
      const codegen::Binding& binding = made.operands[i];
      data[i] =
          reinterpret_cast<uint64_t>(buffers[binding.buffer].data) +
          static_cast<uint64_t>(codegen::offset_at(binding, index)) * ir::item_size(made.kernel.operands[i].dtype);
    }
    call.data = data;
    if (good && !device.gpu().is_lost()) (void)launch(device.gpu(), *prepared.kernel, call);
  } while (good && codegen::next_index(made.outer, index));
  if (scratch.release != nullptr) scratch.release(scratch.owner);
  return good ? Status() : no_memory(sizeof(codegen::gpu::IndexRecord), "a kernel");
}

}  // namespace torch_remote::worker::cuda
