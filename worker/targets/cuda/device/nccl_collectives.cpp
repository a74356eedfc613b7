#include "worker/targets/cuda/device/nccl_collectives.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace torch_remote::worker::cuda {
namespace {

using ir::DType;
using nccl::Type;

std::optional<Type> type_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return Type::kInt8;
    case DType::kUInt8:
    case DType::kBool:
      return Type::kUInt8;
    case DType::kInt32:
      return Type::kInt32;
    case DType::kInt64:
      return Type::kInt64;
    case DType::kFloat16:
      return Type::kFloat16;
    case DType::kBFloat16:
      return Type::kBFloat16;
    case DType::kFloat32:
      return Type::kFloat32;
    case DType::kFloat64:
      return Type::kFloat64;
    default:
      return std::nullopt;
  }
}

// Bools are 0 and 1, so the maximum is "or" and the minimum is "and".
std::optional<nccl::Reduction> reduction_of_bools(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kMax:
    case Reduction::kBor:
      return nccl::Reduction::kMax;
    case Reduction::kProduct:
    case Reduction::kMin:
    case Reduction::kBand:
      return nccl::Reduction::kMin;
    default:
      return std::nullopt;
  }
}

std::optional<nccl::Reduction> reduction_of(Reduction reduction, DType dtype) {
  if (dtype == DType::kBool) return reduction_of_bools(reduction);
  const bool is_float = ir::is_float(dtype);
  switch (reduction) {
    case Reduction::kSum:
      return nccl::Reduction::kSum;
    case Reduction::kProduct:
      return nccl::Reduction::kProduct;
    case Reduction::kAvg:
      return is_float ? std::optional(nccl::Reduction::kAverage) : std::nullopt;
    case Reduction::kMin:
      return is_float ? std::nullopt : std::optional(nccl::Reduction::kMin);
    case Reduction::kMax:
      return is_float ? std::nullopt : std::optional(nccl::Reduction::kMax);
    default:
      return std::nullopt;
  }
}

bool reduces(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kReduce || op == CollectiveOp::kReduceScatter;
}

Status to_status(const nccl::Table& table, nccl::Result result, const char* what, nccl::Group group = nullptr) {
  if (result == nccl::Result::kSuccess) return {};
  std::string text = std::string("nccl: ") + what + ": " + table.get_error_string(result);
  const char* const more = table.get_last_text(group);
  if (more != nullptr && *more != 0) text += std::string(": ") + more;
  return {ErrorCode::kInternal, std::move(text)};
}

class NcclGroup final : public DeviceCollectives::Group {
 public:
  NcclGroup(std::shared_ptr<Gpu> gpu, const nccl::Table& table) : gpu_(std::move(gpu)), table_(table) {}
  // No op is running: `run` waits for every op that it starts.
  ~NcclGroup() override {
    abort();
    if (stream_ == nullptr || gpu_->is_lost()) return;
    const ContextGuard current(*gpu_);
    (void)gpu_->driver().stream_destroy(stream_);
  }

  Status join(const DeviceCollectives::Id& id, int rank, int size, const DeviceCollectives::KeepWaiting& keep_waiting) {
    const ContextGuard current(*gpu_);
    nccl::Id name{};
    static_assert(sizeof(name) == sizeof(id));
    std::memcpy(name.bytes, id.data(), sizeof(name));
    nccl::Config config;
    size_ = size;
    if (!gpu_->check(gpu_->driver().stream_create(&stream_, kStreamNonBlocking, 0), "cuStreamCreate")) {
      return {ErrorCode::kLost, "nccl: the GPU is lost"};
    }
    return settle(table_.join(&group_, size, name, rank, &config), "ncclCommInitRankConfig", keep_waiting);
  }

  bool supports(CollectiveOp op, DType dtype, Reduction reduction) const override {
    return !reduces(op) || (type_of(dtype) && reduction_of(reduction, dtype));
  }

  Status run(const DeviceCollectives::Call& call, const DeviceCollectives::KeepWaiting& keep_waiting,
             const std::function<void()>& wake) override {
    if (group_ == nullptr) return {ErrorCode::kInternal, "nccl: the group has ended"};
    const ContextGuard current(*gpu_);
    if (gpu_->is_lost()) return {ErrorCode::kLost, "nccl: the GPU is lost"};
    const Stream stream = stream_;
    if (call.after != nullptr &&
        !gpu_->check(gpu_->driver().stream_wait_event(stream, static_cast<Event>(call.after.get()), 0),
                     "cuStreamWaitEvent")) {
      return {ErrorCode::kLost, "nccl: the GPU is lost"};
    }
    Status status = queue(call, stream, keep_waiting);
    // Set by a host function when the stream reaches it.
    struct Done {
      std::atomic<bool> is{false};
      std::function<void()> wake;
    };
    const auto done = std::make_shared<Done>();
    done->wake = wake;
    if (status.ok()) {
      auto* const mine = new std::shared_ptr<Done>(done);  // Leaks if the GPU is lost before the host function runs.
      const auto told = [](void* data) {
        const std::unique_ptr<std::shared_ptr<Done>> given(static_cast<std::shared_ptr<Done>*>(data));
        (*given)->is = true;
        (*given)->wake();
      };
      if (!gpu_->check(gpu_->driver().launch_host_func(stream, told, mine), "cuLaunchHostFunc")) {
        delete mine;
        status = {ErrorCode::kLost, "nccl: the GPU is lost"};
      }
    }
    while (status.ok() && !done->is) {
      if (!keep_waiting()) status = {ErrorCode::kOpFailed, "nccl: other ranks did not join in time, or are gone"};
      nccl::Result error = nccl::Result::kSuccess;
      if (status.ok()) status = to_status(table_, table_.get_error(group_, &error), "ncclCommGetAsyncError", group_);
      if (status.ok() && error != nccl::Result::kInProgress) status = to_status(table_, error, "an op", group_);
      if (status.ok() && gpu_->is_lost()) status = {ErrorCode::kLost, "nccl: the GPU is lost"};
    }
    if (!status.ok()) abort();
    // After the abort, the queued work ends soon, and its host function may still call `wake`. Wait for that, as the
    // caller's objects must be alive then.
    while (!status.ok() && status.code() != ErrorCode::kLost && !done->is && done.use_count() > 1 && !gpu_->is_lost()) {
      if (gpu_->driver().stream_synchronize(stream) != cuda::Result::kSuccess) break;
    }
    return status;
  }

 private:
  void abort() {
    if (group_ == nullptr) return;
    const ContextGuard current(*gpu_);
    if (!gpu_->is_lost()) (void)table_.abort(group_);
    group_ = nullptr;
  }

  // Waits for a nonblocking NCCL call.
  Status settle(nccl::Result result, const char* what, const DeviceCollectives::KeepWaiting& keep_waiting) {
    while (result == nccl::Result::kInProgress) {
      if (!keep_waiting()) {
        abort();
        return {ErrorCode::kOpFailed, std::string("nccl: ") + what + ": other ranks did not join in time, or are gone"};
      }
      if (table_.get_error(group_, &result) != nccl::Result::kSuccess) break;
    }
    const Status status = to_status(table_, result, what, group_);
    if (!status.ok()) abort();
    return status;
  }

  Status queue(const DeviceCollectives::Call& call, Stream stream, const DeviceCollectives::KeepWaiting& keep_waiting) {
    const uint64_t item = reduces(call.op) ? ir::item_size(call.dtype) : 1;
    const Type type = reduces(call.op) ? *type_of(call.dtype) : Type::kUInt8;
    const auto reduction = reduction_of(call.reduction, call.dtype).value_or(nccl::Reduction::kSum);
    const size_t given = call.input_bytes / item, made = call.output_bytes / item;
    const auto settled = [&](nccl::Result result, const char* what) { return settle(result, what, keep_waiting); };
    switch (call.op) {
      case CollectiveOp::kAllReduce:
        return settled(table_.all_reduce(call.input, call.output, given, type, reduction, group_, stream),
                       "ncclAllReduce");
      case CollectiveOp::kReduce:
        return settled(table_.reduce(call.input, call.output, given, type, reduction, call.root, group_, stream),
                       "ncclReduce");
      case CollectiveOp::kBroadcast:
        return settled(table_.broadcast(call.input, call.output, given, type, call.root, group_, stream),
                       "ncclBroadcast");
      case CollectiveOp::kAllGather:
        return settled(table_.all_gather(call.input, call.output, given, type, group_, stream), "ncclAllGather");
      case CollectiveOp::kReduceScatter:
        return settled(table_.reduce_scatter(call.input, call.output, made, type, reduction, group_, stream),
                       "ncclReduceScatter");
      default:
        break;
    }
    Status status = to_status(table_, table_.begin(), "ncclGroupStart", group_);
    const auto* from = static_cast<const std::byte*>(call.input);
    auto* to = static_cast<std::byte*>(call.output);
    for (int rank = 0; rank < size_ && status.ok(); ++rank) {
      const auto r = static_cast<size_t>(rank);
      // `settle` handles kInProgress after the loop.
      const auto queued = [&](nccl::Result result, const char* what) {
        if (result != nccl::Result::kInProgress) status = to_status(table_, result, what, group_);
      };
      if (call.sends[r] != 0) queued(table_.send(from, call.sends[r], type, rank, group_, stream), "ncclSend");
      if (status.ok() && call.receives[r] != 0) {
        queued(table_.receive(to, call.receives[r], type, rank, group_, stream), "ncclRecv");
      }
      from += call.sends[r];
      to += call.receives[r];
    }
    const nccl::Result ended = table_.end();
    return status.ok() ? settled(ended, "ncclGroupEnd") : status;
  }

  const std::shared_ptr<Gpu> gpu_;
  const nccl::Table& table_;
  nccl::Group group_ = nullptr;
  Stream stream_ = nullptr;
  int size_ = 0;
};

class NcclCollectives final : public DeviceCollectives {
 public:
  NcclCollectives(std::shared_ptr<Gpu> gpu, OpenNccl open) : gpu_(std::move(gpu)), open_(std::move(open)) {}

  Status open() override {
    const std::lock_guard lock(mutex_);
    if (!status_) status_ = open_(&table_);
    return *status_;
  }
  Status make_id(Id* id) override {
    nccl::Id made{};
    const ContextGuard current(*gpu_);
    const Status status = to_status(table_, table_.get_id(&made), "ncclGetUniqueId");
    std::memcpy(id->data(), made.bytes, sizeof(made));
    return status;
  }
  // An event on the work stream. Null if the GPU is lost.
  std::shared_ptr<void> mark() override {
    if (gpu_->is_lost()) return nullptr;
    const ContextGuard current(*gpu_);
    const Driver& driver = gpu_->driver();
    Event made = nullptr;
    if (!gpu_->check(driver.event_create(&made, kEventDisableTiming), "cuEventCreate")) return nullptr;
    std::shared_ptr<void> event(made, [gpu = gpu_](void* recorded) {
      if (gpu->is_lost()) return;
      const ContextGuard there(*gpu);
      (void)gpu->driver().event_destroy(static_cast<Event>(recorded));
    });
    gpu_->check(driver.event_record(made, gpu_->work_stream()), "cuEventRecord");
    return event;
  }
  Status join(const Id& id, int rank, int size, const KeepWaiting& keep_waiting,
              std::shared_ptr<Group>* group) override {
    const auto made = std::make_shared<NcclGroup>(gpu_, table_);
    const Status status = made->join(id, rank, size, keep_waiting);
    if (status.ok()) *group = made;
    return status;
  }

 private:
  const std::shared_ptr<Gpu> gpu_;
  const OpenNccl open_;
  std::mutex mutex_;
  nccl::Table table_;
  std::optional<Status> status_;
};

}  // namespace

std::shared_ptr<DeviceCollectives> make_nccl_collectives(std::shared_ptr<Gpu> gpu, OpenNccl open) {
  return std::make_shared<NcclCollectives>(std::move(gpu), std::move(open));
}

}  // namespace torch_remote::worker::cuda
