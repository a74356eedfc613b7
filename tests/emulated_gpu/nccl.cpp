#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/emulated_gpu/emulated_nccl.h"
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/objects.h"
#include "worker/collectives/reduction.h"

namespace torch_remote::worker::cuda::emulated {
namespace {

using nccl::Type;
using Status = nccl::Result;

constexpr size_t kPiece = size_t{64} << 10;
constexpr size_t kMostRanks = 16;

// A mailbox from one rank to another, for one piece at a time.
struct Mailbox {
  std::atomic<uint32_t> full{0};
  uint32_t bytes = 0;
  std::array<std::byte, kPiece> data{};
};
struct Shared {
  std::atomic<uint32_t> joined{0};
  uint32_t unused = 0;
};

// One rank's end of the group. It lives as long as anything uses it.
struct RankState {
  int rank = 0, size = 0;
  std::byte* memory = nullptr;
  size_t bytes = 0;
  std::string path;  // unlinked when all ranks have joined
  std::atomic<bool> aborted{false};

  ~RankState() {
    (void)::unlink(path.c_str());
    if (memory != nullptr) (void)::munmap(memory, bytes);
  }
  Shared& shared() const { return *reinterpret_cast<Shared*>(memory); }
  Mailbox& mailbox(int from, int to) const {
    return reinterpret_cast<Mailbox*>(
        memory + sizeof(Shared))[static_cast<size_t>(from) * static_cast<size_t>(size) + static_cast<size_t>(to)];
  }
};

}  // namespace
}  // namespace torch_remote::worker::cuda::emulated

namespace torch_remote::worker::cuda::nccl {

struct GroupState {
  std::shared_ptr<emulated::RankState> state;
};

}  // namespace torch_remote::worker::cuda::nccl

namespace torch_remote::worker::cuda::emulated {
namespace {

int refused_rank = -1;

// --- groups ----------------------------------------------------------------------------------------------------------

std::string path_of(const nccl::Id& id) { return std::string("/dev/shm/torch_remote_nccl_") + id.bytes; }

Status get_id(nccl::Id* id) {
  std::random_device random;
  *id = {};
  (void)std::snprintf(id->bytes, sizeof(id->bytes), "%d_%08x%08x", ::getpid(), random(), random());
  return Status::kSuccess;
}

Status join(nccl::Group* group, int size, nccl::Id id, int rank, nccl::Config* config) {
  if (Call call("ncclCommInitRankConfig"); !call.ready()) return Status::kCudaError;
  if (config->magic != 0xcafebeef || config->blocking != 0) return Status::kInvalidArgument;
  if (size < 1 || rank < 0 || rank >= size || static_cast<size_t>(size) > kMostRanks) return Status::kInvalidArgument;
  if (rank == refused_rank) return Status::kInvalidUsage;
  auto state = std::make_shared<RankState>();
  state->rank = rank;
  state->size = size;
  state->bytes = sizeof(Shared) + static_cast<size_t>(size) * static_cast<size_t>(size) * sizeof(Mailbox);
  const int file = ::open(path_of(id).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) return Status::kSystemError;
  const bool sized = ::ftruncate(file, static_cast<off_t>(state->bytes)) == 0;
  void* const mapped = sized ? ::mmap(nullptr, state->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  (void)::close(file);
  if (mapped == MAP_FAILED) return Status::kSystemError;
  state->memory = static_cast<std::byte*>(mapped);
  state->path = path_of(id);
  // The last rank unlinks the file, because all ranks have it open.
  if (++state->shared().joined == static_cast<uint32_t>(size)) (void)::unlink(path_of(id).c_str());
  *group = create(nccl::GroupState{std::move(state)});
  return Status::kInProgress;
}

Status get_error(nccl::Group group, Status* error) {
  if (!exists(group)) return Status::kInvalidArgument;
  const RankState& state = *group->state;
  *error = state.shared().joined < static_cast<uint32_t>(state.size) ? Status::kInProgress : Status::kSuccess;
  return Status::kSuccess;
}

Status abort(nccl::Group group) {
  if (!exists(group)) return Status::kInvalidArgument;
  group->state->aborted = true;
  (void)destroy(group);
  return Status::kSuccess;
}

// --- ops -------------------------------------------------------------------------------------------------------------

struct Part {
  int peer = 0;
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// Exchanges all parts concurrently, piece by piece. False if the group was aborted.
bool exchange(const RankState& state, std::vector<Part> sends, std::vector<Part> receives) {
  const auto is_done = [](const Part& part) { return part.bytes == 0; };
  while (true) {
    bool moved = false;
    for (Part& part : sends) {
      Mailbox& mailbox = state.mailbox(state.rank, part.peer);
      if (part.bytes == 0 || mailbox.full.load(std::memory_order_acquire) != 0) continue;
      mailbox.bytes = static_cast<uint32_t>(std::min(part.bytes, kPiece));
      std::memcpy(mailbox.data.data(), part.data, mailbox.bytes);
      part.data += mailbox.bytes;
      part.bytes -= mailbox.bytes;
      mailbox.full.store(1, std::memory_order_release);
      moved = true;
    }
    for (Part& part : receives) {
      Mailbox& mailbox = state.mailbox(part.peer, state.rank);
      if (part.bytes == 0 || mailbox.full.load(std::memory_order_acquire) == 0) continue;
      const size_t bytes = std::min<size_t>(part.bytes, mailbox.bytes);
      std::memcpy(part.data, mailbox.data.data(), bytes);
      part.data += bytes;
      part.bytes -= bytes;
      mailbox.full.store(0, std::memory_order_release);
      moved = true;
    }
    if (std::ranges::all_of(sends, is_done) && std::ranges::all_of(receives, is_done)) return true;
    if (state.aborted) return false;
    if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

ir::DType dtype_of(Type type) {
  switch (type) {
    case Type::kInt8:
      return ir::DType::kInt8;
    case Type::kUInt8:
      return ir::DType::kUInt8;
    case Type::kInt32:
      return ir::DType::kInt32;
    case Type::kInt64:
      return ir::DType::kInt64;
    case Type::kFloat16:
      return ir::DType::kFloat16;
    case Type::kFloat64:
      return ir::DType::kFloat64;
    case Type::kBFloat16:
      return ir::DType::kBFloat16;
    default:
      return ir::DType::kFloat32;
  }
}

Reduction reduction_of(nccl::Reduction reduction) {
  switch (reduction) {
    case nccl::Reduction::kProduct:
      return Reduction::kProduct;
    case nccl::Reduction::kMax:
      return Reduction::kMax;
    case nccl::Reduction::kMin:
      return Reduction::kMin;
    case nccl::Reduction::kAverage:
      return Reduction::kAvg;
    default:
      return Reduction::kSum;
  }
}

// Enqueues compute(state, from, to), which works on the call's memory when the stream reaches it.
template <typename F>
Status queue(const char* name, nccl::Group group, Stream stream, const void* from, size_t from_bytes, void* to,
             size_t to_bytes, F&& compute) {
  Call call(name);
  if (!call.ready()) return Status::kCudaError;
  if (!exists(group)) return Status::kInvalidArgument;
  StreamState* const on = call.stream(stream);
  if (on == nullptr || on->capture != nullptr) return Status::kInvalidUsage;
  const auto find = [&](const void* at, size_t bytes) {
    return bytes == 0 ? nullptr : static_cast<std::byte*>(call.memory(reinterpret_cast<DevicePointer>(at), bytes));
  };
  auto* const read = find(from, from_bytes);
  auto* const written = find(to, to_bytes);
  if ((read == nullptr && from_bytes != 0) || (written == nullptr && to_bytes != 0)) return Status::kInvalidArgument;
  auto work = [machine = call.machine, gpu = call.gpu, state = group->state, read, written, to_bytes,
               compute = std::forward<F>(compute)] {
    compute(*state, read, written);
    if (machine->options.checked && to_bytes != 0) (void)gpu->device->memory().written(written, to_bytes);
    return Result::kSuccess;
  };
  return call.submit(*on, {NodeType::kKernel, std::move(work), nullptr}) == Result::kSuccess ? Status::kSuccess
                                                                                             : Status::kCudaError;
}

// Gathers each rank's `bytes` at `from`: on rank `root`, or on all ranks if it is negative. Empty if it was aborted.
std::vector<std::vector<std::byte>> gather(const RankState& state, std::byte* from, size_t bytes, int root) {
  std::vector<std::vector<std::byte>> all(static_cast<size_t>(state.size));
  std::vector<Part> sends, receives;
  for (int rank = 0; rank < state.size; ++rank) {
    if (root < 0 || root == rank) sends.push_back({rank, from, bytes});
    if (root >= 0 && root != state.rank) continue;
    std::vector<std::byte>& place = all[static_cast<size_t>(rank)];
    place.resize(bytes);
    receives.push_back({rank, place.data(), bytes});
  }
  if (!exchange(state, std::move(sends), std::move(receives))) all.clear();
  return all;
}

void combine(const std::vector<std::vector<std::byte>>& all, Type type, nccl::Reduction reduction, std::byte* to,
             size_t count) {
  std::vector<const void*> sources;
  sources.reserve(all.size());
  for (const auto& each : all) sources.push_back(each.data());
  if (!sources.empty())
    worker::reduce(dtype_of(type), reduction_of(reduction), sources, to, static_cast<int64_t>(count));
}

Status all_reduce(const void* from, void* to, size_t count, Type type, nccl::Reduction reduction, nccl::Group group,
                  Stream stream) {
  const size_t bytes = count * ir::item_size(dtype_of(type));
  return queue("ncclAllReduce", group, stream, from, bytes, to, bytes,
               [=](const RankState& state, std::byte* read, std::byte* written) {
                 combine(gather(state, read, bytes, -1), type, reduction, written, count);
               });
}

Status reduce(const void* from, void* to, size_t count, Type type, nccl::Reduction reduction, int root,
              nccl::Group group, Stream stream) {
  const size_t bytes = count * ir::item_size(dtype_of(type));
  return queue("ncclReduce", group, stream, from, bytes, to, bytes,
               [=](const RankState& state, std::byte* read, std::byte* written) {
                 const auto all = gather(state, read, bytes, root);
                 if (state.rank == root) combine(all, type, reduction, written, count);
               });
}

Status broadcast(const void* from, void* to, size_t count, Type type, int root, nccl::Group group, Stream stream) {
  const size_t bytes = count * ir::item_size(dtype_of(type));
  return queue("ncclBroadcast", group, stream, from, bytes, to, bytes,
               [=](const RankState& state, std::byte* read, std::byte* written) {
                 std::vector<Part> sends, receives;
                 for (int rank = 0; rank < state.size && state.rank == root; ++rank) {
                   if (rank != root) sends.push_back({rank, read, bytes});
                 }
                 if (state.rank != root) receives.push_back({root, written, bytes});
                 if (state.rank == root && read != written) std::memmove(written, read, bytes);
                 (void)exchange(state, std::move(sends), std::move(receives));
               });
}

Status all_gather(const void* from, void* to, size_t count, Type type, nccl::Group group, Stream stream) {
  if (!exists(group)) return Status::kInvalidArgument;
  const size_t bytes = count * ir::item_size(dtype_of(type)),
               all_bytes = bytes * static_cast<size_t>(group->state->size);
  return queue("ncclAllGather", group, stream, from, bytes, to, all_bytes,
               [=](const RankState& state, std::byte* read, std::byte* written) {
                 const auto all = gather(state, read, bytes, -1);
                 for (size_t rank = 0; rank < all.size(); ++rank)
                   if (bytes != 0) std::memcpy(written + rank * bytes, all[rank].data(), bytes);
               });
}

Status reduce_scatter(const void* from, void* to, size_t count, Type type, nccl::Reduction reduction, nccl::Group group,
                      Stream stream) {
  if (!exists(group)) return Status::kInvalidArgument;
  const size_t bytes = count * ir::item_size(dtype_of(type)),
               all_bytes = bytes * static_cast<size_t>(group->state->size);
  return queue("ncclReduceScatter", group, stream, from, all_bytes, to, bytes,
               [=](const RankState& state, std::byte* read, std::byte* written) {
                 std::vector<std::vector<std::byte>> all(static_cast<size_t>(state.size));
                 std::vector<Part> sends, receives;
                 for (int rank = 0; rank < state.size; ++rank) {
                   std::vector<std::byte>& place = all[static_cast<size_t>(rank)];
                   place.resize(bytes);
                   sends.push_back({rank, read + static_cast<size_t>(rank) * bytes, bytes});
                   receives.push_back({rank, place.data(), bytes});
                 }
                 if (exchange(state, std::move(sends), std::move(receives)))
                   combine(all, type, reduction, written, count);
               });
}

// -- point-to-point; messages between group start and end are one op

struct Message {
  bool sends = false;
  void* at = nullptr;
  size_t bytes = 0;
  int peer = 0;
  nccl::Group group = nullptr;
  Stream stream = nullptr;
};
thread_local int depth = 0;
thread_local std::vector<Message> messages;

Status begin() {
  ++depth;
  return Status::kSuccess;
}

Status end() {
  if (depth == 0) return Status::kInvalidUsage;
  if (--depth != 0 || messages.empty()) return Status::kSuccess;
  const std::vector<Message> all = std::exchange(messages, {});
  Call call("ncclGroupEnd");
  if (!call.ready()) return Status::kCudaError;
  if (!exists(all[0].group)) return Status::kInvalidArgument;
  StreamState* const on = call.stream(all[0].stream);
  if (on == nullptr || on->capture != nullptr) return Status::kInvalidUsage;
  std::vector<Part> sends, receives;
  for (const Message& each : all) {
    auto* const at = static_cast<std::byte*>(call.memory(reinterpret_cast<DevicePointer>(each.at), each.bytes));
    if (at == nullptr || each.group != all[0].group || each.stream != all[0].stream) return Status::kInvalidArgument;
    (each.sends ? sends : receives).push_back({each.peer, at, each.bytes});
  }
  auto work = [machine = call.machine, gpu = call.gpu, group = all[0].group->state, sends, receives] {
    (void)exchange(*group, sends, receives);
    if (machine->options.checked) {
      for (const Part& part : receives) (void)gpu->device->memory().written(part.data, part.bytes);
    }
    return Result::kSuccess;
  };
  return call.submit(*on, {NodeType::kKernel, std::move(work), nullptr}) == Result::kSuccess ? Status::kSuccess
                                                                                             : Status::kCudaError;
}

Status message(Message message) {
  if (depth == 0) return Status::kInvalidUsage;  // we never send outside of a group
  messages.push_back(message);
  return Status::kSuccess;
}

}  // namespace

nccl::Table nccl(int refused) {
  refused_rank = refused;
  nccl::Table table;
  table.get_version = [](int* version) {
    *version = 23203;
    return Status::kSuccess;
  };
  table.get_id = get_id;
  table.join = join;
  table.abort = abort;
  table.get_error = get_error;
  table.get_error_string = [](Status result) {
    return result == Status::kInvalidUsage ? "invalid usage: two ranks on one GPU" : "an error in software";
  };
  table.get_last_text = [](nccl::Group) { return ""; };
  table.all_reduce = all_reduce;
  table.reduce = reduce;
  table.broadcast = broadcast;
  table.all_gather = all_gather;
  table.reduce_scatter = reduce_scatter;
  table.send = [](const void* from, size_t count, Type type, int peer, nccl::Group group, Stream stream) {
    return message({true, const_cast<void*>(from), count * ir::item_size(dtype_of(type)), peer, group, stream});
  };
  table.receive = [](void* to, size_t count, Type type, int peer, nccl::Group group, Stream stream) {
    return message({false, to, count * ir::item_size(dtype_of(type)), peer, group, stream});
  };
  table.begin = begin;
  table.end = end;
  return table;
}

}  // namespace torch_remote::worker::cuda::emulated
