#include "worker/cuda/group_call.h"

#include <algorithm>
#include <utility>

#include "codegen/lower/lower.h"

namespace torch_remote::worker::cuda {

Status take_in_loops(codegen::Launch* launch) {
  codegen::Kernel& kernel = launch->kernel;
  const auto taken = std::min(static_cast<uint32_t>(launch->outer.size()),
                              codegen::kMaxRows - std::min(kernel.rows, codegen::kMaxRows));
  const size_t left = launch->outer.size() - taken;
  for (size_t i = 0; i < kernel.operands.size(); ++i) {
    codegen::Operand& operand = kernel.operands[i];
    codegen::Binding& binding = launch->operands[i];
    operand.dims <<= taken;
    for (uint32_t d = 0; d < taken; ++d) {
      if (binding.outer[left + d] != 0) operand.dims |= 1u << d;
    }
    const auto first = binding.outer.begin() + static_cast<std::ptrdiff_t>(left);
    binding.strides.insert(binding.strides.begin(), first, binding.outer.end());
    binding.outer.resize(left);
    if (binding.packed) operand.strided = true;
    binding.packed = false;
  }
  for (codegen::Value& value : kernel.values) {
    if (value.kind == codegen::Kind::kIndex) value.a += taken;
  }
  kernel.rows += taken;
  launch->sizes.insert(launch->sizes.begin(), launch->outer.begin() + static_cast<std::ptrdiff_t>(left),
                       launch->outer.end());
  launch->outer.resize(left);
  if (taken == 0) return {};
  const Status status = codegen::verify(kernel);
  return status.ok() ? status : Status{ErrorCode::kUnsupported, status.message()};
}

Status GroupCall::bind(CudaDevice& device, const ir::Graph& graph, const ir::Group& group,
                       std::span<const int64_t> values) {
  prepared_.clear();
  if (Status status = codegen::lower_group(graph, group, values, &launches_); !status.ok()) return status;
  for (codegen::Launch& launch : launches_) {
    Status status = take_in_loops(&launch);
    if (status.ok()) status = prepare(device, graph, launch, &prepared_.emplace_back());
    if (!status.ok()) return status;
  }
  return {};
}

Status GroupCall::prepare(CudaDevice& device, const ir::Graph& graph, const codegen::Launch& launch,
                          Prepared* prepared) {
  if (Status status = device.kernels().get(launch.kernel, &prepared->kernel); !status.ok()) return status;
  bool has_indices = false;
  auto indexed = std::make_shared<std::vector<IndexedOperand>>();
  for (size_t i = 0; i < launch.operands.size(); ++i) {
    const codegen::Binding& binding = launch.operands[i];
    prepared->strides.insert(prepared->strides.end(), binding.strides.begin(), binding.strides.end());
    prepared->bounds.insert(prepared->bounds.end(), binding.bounds.begin(), binding.bounds.end());
    has_indices |= launch.kernel.operands[i].indexed != 0;
    const uint32_t node = launch.nodes[i];
    indexed->push_back({node, ir::op_desc(graph.nodes[node].opcode).name});
  }
  if (has_indices) prepared->indexed = std::move(indexed);
  prepared->scratch = codegen::gpu::scratch_bytes(prepared->kernel->recipe, launch.sizes, launch.rest);
  return {};
}

void GroupCall::set_scalars(std::span<const int64_t> values) {
  for (codegen::Launch& launch : launches_) {
    for (size_t i = 0; i < launch.scalars.size(); ++i) {
      const ir::Sym symbol = launch.scalar_symbols[i];
      if (symbol != ir::kNoSym) launch.scalars[i] = static_cast<uint64_t>(values[symbol]);
    }
  }
}

Status GroupCall::run(CudaDevice& device, std::span<const tr_buffer> buffers, uint64_t run_number) const {
  for (size_t i = 0; i < launches_.size(); ++i) {
    if (Status status = run(device, launches_[i], prepared_[i], buffers, run_number); !status.ok()) return status;
  }
  return {};
}

namespace {

Status no_memory(uint64_t bytes) {
  return {ErrorCode::kOutOfMemory, "remote: the GPU has no " + std::to_string(bytes) + " bytes left for a kernel",
          "OutOfMemoryError"};
}

// To the next place of dims of these sizes, the last one first. False: that was the last place.
bool next_place(std::vector<int64_t>& place, std::span<const int64_t> sizes) {
  for (size_t d = place.size(); d-- > 0;) {
    if (++place[d] < sizes[d]) return true;
    place[d] = 0;
  }
  return false;
}

}  // namespace

Status GroupCall::run(CudaDevice& device, const codegen::Launch& made, const Prepared& prepared,
                      std::span<const tr_buffer> buffers, uint64_t run_number) {
  if (std::ranges::find(made.outer, 0) != made.outer.end()) return {};
  codegen::gpu::Call call{.sizes = made.sizes,
                          .strides = prepared.strides,
                          .bounds = prepared.bounds,
                          .scalars = made.scalars,
                          .rest = made.rest,
                          .processors = device.gpu().processors()};
  // Given back when the launch is queued: who has it next uses it behind that.
  tr_buffer scratch{};
  if (prepared.scratch != 0) {
    if (!device.memory().allocate(prepared.scratch, &scratch, Reach::kOwn)) return no_memory(prepared.scratch);
    call.scratch = reinterpret_cast<uint64_t>(scratch.data);
  }
  bool good = true;
  if (prepared.indexed) {
    call.failure = device.take_failure_record(run_number, prepared.indexed);
    good = call.failure != 0 || device.gpu().is_lost();
  }
  std::vector<uint64_t> data(made.operands.size());
  std::vector<int64_t> place(made.outer.size());
  do {
    for (size_t i = 0; good && i < data.size(); ++i) {
      const codegen::Binding& binding = made.operands[i];
      int64_t offset = binding.offset;
      for (size_t d = 0; d < place.size(); ++d) offset += place[d] * binding.outer[d];
      data[i] = reinterpret_cast<uint64_t>(buffers[binding.buffer].data) +
                static_cast<uint64_t>(offset) * ir::item_size(made.kernel.operands[i].dtype);
    }
    call.data = data;
    if (good && !device.gpu().is_lost()) (void)launch(device.gpu(), *prepared.kernel, call);
  } while (good && next_place(place, made.outer));
  if (scratch.release != nullptr) scratch.release(scratch.owner);
  return good ? Status() : no_memory(sizeof(codegen::gpu::IndexRecord));
}

}  // namespace torch_remote::worker::cuda
