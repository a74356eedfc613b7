#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "tests/emulated_gpu/cudnn_parts.h"

// Execution of plans.
namespace torch_remote::worker::cuda::emulated {
namespace {

using dnn::Attribute;
using dnn::Descriptor;
using dnn::DescriptorType;
using Status = dnn::Result;

std::array<std::atomic<int64_t>, kEngines>& delays() {
  static std::array<std::atomic<int64_t>, kEngines> delays;
  return delays;
}
std::array<std::atomic<uint64_t>, kEngines>& runs() {
  static std::array<std::atomic<uint64_t>, kEngines> runs;
  return runs;
}

bool is_written(const emulator::DeviceMemory& memory, const std::byte* data, uint64_t bytes, uint32_t item) {
  for (uint64_t at = 0; at < bytes; at += item) {
    if (memory.cells(data + at)->writer == emulator::kUninitialized) return false;
  }
  return true;
}

// A graph, and the host addresses of its tensors.
struct Piece {
  Graph graph;
  std::vector<DnnTensor> reads, writes, of_host;
  std::map<int64_t, std::byte*> addresses;  // by tensor id
  std::map<int64_t, float> numbers;
  std::byte* workspace = nullptr;
  Engine engine = Engine::kFallback;
};

Status read_piece(const dnn::DescriptorState& state, Piece* piece) {
  Graph& graph = piece->graph;
  if (const Status status = read_graph(state, &graph); status != Status::kSuccess) return status;
  const auto add = [&](const DnnTensor& tensor, bool is_made) {
    if (tensor.is_virtual) return;
    (tensor.is_host_scalar ? piece->of_host : is_made ? piece->writes : piece->reads).push_back(tensor);
  };
  if (graph.convolution) {
    for (const DnnTensor* tensor : graph.convolution->operands()) add(*tensor, false);
    add(graph.convolution->result(), true);
  } else if (graph.norm) {
    for (const auto& [attribute, tensor] : graph.norm->tensors) add(tensor, graph.norm->writes(attribute));
  } else {
    for (const auto& [id, tensor] : graph.operations.tensors) add(tensor, graph.operations.computed.contains(id));
  }
  return Status::kSuccess;
}

void compute_piece(const Piece& piece) {
  if (piece.graph.norm) return compute(*piece.graph.norm, piece.addresses, piece.numbers);
  if (!piece.graph.convolution) return compute(piece.graph.operations, piece.addresses, piece.numbers);
  const DnnGraph& graph = *piece.graph.convolution;
  const auto at = [&](const DnnTensor& tensor) -> const std::byte* {
    const auto found = piece.addresses.find(tensor.id);
    return found != piece.addresses.end() ? found->second : nullptr;
  };
  compute(graph, piece.engine,
          {at(graph.image), at(graph.filter), at(graph.output), at(graph.bias), piece.addresses.at(graph.result().id)});
}

Result do_piece(Machine& machine, Gpu& gpu, const Piece& piece) {
  emulator::DeviceMemory& memory = gpu.device->memory();
  if (machine.options.checked) {
    memory.assume_written();
    bool good = true;
    for (const DnnTensor& tensor : piece.reads) {
      for_each_row(tensor, [&](uint64_t at, uint64_t bytes) {
        good = good && is_written(memory, piece.addresses.at(tensor.id) + at, bytes, dnn::item_size(tensor.type));
      });
    }
    if (!good) {
      const std::lock_guard lock(machine.mutex);
      machine.findings.emplace_back("cudnnBackendExecute reads uninitialised memory");
      return Result::kLaunchFailed;
    }
  }
  compute_piece(piece);
  if (machine.options.checked) {
    for (const DnnTensor& tensor : piece.writes) {
      for_each_row(tensor, [&](uint64_t at, uint64_t bytes) {
        (void)memory.written(piece.addresses.at(tensor.id) + at, bytes);
      });
    }
  }
  if (piece.workspace != nullptr) std::memset(piece.workspace, 0xFF, kWorkspaceBytes);
  ++runs()[static_cast<size_t>(piece.engine)];
  const std::chrono::microseconds delay(delays()[static_cast<size_t>(piece.engine)].load());
  if (delay.count() != 0) std::this_thread::sleep_for(delay);
  return Result::kSuccess;
}

// Whether two tensors share a byte. Rows of one may lie between rows of the other.
bool overlap(const DnnTensor& a, const std::byte* at, const DnnTensor& b, const std::byte* other) {
  if (at >= other + b.nbytes() || other >= at + a.nbytes()) return false;
  std::set<std::pair<const std::byte*, const std::byte*>> rows;  // begin and end of each row
  for_each_row(a, [&](uint64_t offset, uint64_t bytes) { rows.emplace(at + offset, at + offset + bytes); });
  bool common = false;
  for_each_row(b, [&](uint64_t offset, uint64_t bytes) {
    const auto behind = rows.lower_bound({other + offset + bytes, nullptr});
    common = common || (behind != rows.begin() && std::prev(behind)->second > other + offset);
  });
  return common;
}

}  // namespace

Status execute(dnn::Handle handle, Descriptor plan, Descriptor pack) {
  std::optional<Call> call = enter("cudnnBackendExecute");
  if (!call) return fail(Status::kExecutionFailed, "no GPU");
  if (!exists(handle)) return fail(Status::kBadParam, "no such handle");
  if (!is_complete(plan) || !is_complete(pack)) return fail(Status::kBadParamNotFinalized, "a descriptor is not whole");
  if (plan->kind != DescriptorType::kPlan || pack->kind != DescriptorType::kVariantPack)
    return fail(Status::kBadParamDescriptorType, "no plan, or no pack");
  const auto& config = *get_scalar<Descriptor>(*plan, Attribute::kPlanConfig);
  Piece piece;
  piece.engine = engine_of(config);
  Status status = read_piece(*get_scalar<Descriptor>(config, kEngineGraph), &piece);
  if (status != Status::kSuccess) return status;
  StreamState* const stream = call->stream(handle->stream);
  if (stream == nullptr) return fail(Status::kBadParamStreamMismatch, "no such stream");
  const auto ids = get_list<int64_t>(*pack, Attribute::kPackIds);
  const auto pointers = get_list<DevicePointer>(*pack, Attribute::kPackPointers);
  const auto pointer_of = [&](const DnnTensor& tensor) {
    const auto place = std::ranges::find(ids, tensor.id);
    if (place == ids.end()) status = fail(Status::kBadParam, "a tensor has no address");
    return place == ids.end() ? 0 : pointers[static_cast<size_t>(place - ids.begin())];
  };
  for (const auto* tensors : {&piece.reads, &piece.writes}) {
    for (const DnnTensor& tensor : *tensors) {
      const DevicePointer pointer = pointer_of(tensor);
      if (pointer % static_cast<uint64_t>(tensor.alignment) != 0)
        status = fail(Status::kBadParamMisalignedPointer, "an address is not aligned");
      auto* const found = static_cast<std::byte*>(call->memory(pointer, tensor.nbytes()));
      if (found == nullptr) status = fail(Status::kBadParamOutOfBound, "an address of no such memory");
      piece.addresses[tensor.id] = found;
    }
  }
  for (const DnnTensor& tensor : piece.of_host) {
    const DevicePointer pointer = pointer_of(tensor);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the host's
    if (pointer != 0) std::memcpy(&piece.numbers[tensor.id], reinterpret_cast<const void*>(pointer), sizeof(float));
  }
  if (status != Status::kSuccess) return status;
  for (const DnnTensor& written : piece.writes) {
    for (const auto* tensors : {&piece.reads, &piece.writes}) {
      for (const DnnTensor& other : *tensors) {
        const std::byte *to = piece.addresses[written.id], *from = piece.addresses[other.id];
        if (written.id == other.id || !overlap(written, to, other, from)) continue;
        call->machine->findings.emplace_back("cudnnBackendExecute: what it writes overlaps what it reads");
        return fail(Status::kBadParam, "what it writes overlaps what it reads");
      }
    }
  }
  if (piece.engine == Engine::kWorkspace) {
    const auto workspace = get_scalar<DevicePointer>(*pack, Attribute::kPackWorkspace);
    piece.workspace = static_cast<std::byte*>(call->memory(workspace, kWorkspaceBytes));
    if (piece.workspace == nullptr || workspace % kWorkspaceAlignment != 0)
      return fail(Status::kBadParam, "no workspace");
  }
  const Result result = call->submit(*stream, {NodeType::kKernel,
                                               [machine = call->machine, gpu = call->gpu, piece = std::move(piece)] {
                                                 return do_piece(*machine, *gpu, piece);
                                               },
                                               nullptr});
  return result == Result::kSuccess ? Status::kSuccess : fail(Status::kExecutionFailed, "the stream refuses");
}

void slow_down(Engine engine, std::chrono::microseconds delay) {
  delays()[static_cast<size_t>(engine)] = delay.count();
}
uint64_t executions_of(Engine engine) { return runs()[static_cast<size_t>(engine)]; }

}  // namespace torch_remote::worker::cuda::emulated
