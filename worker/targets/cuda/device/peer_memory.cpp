#include "worker/targets/cuda/device/peer_memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "worker/device/no_memory.h"

namespace torch_remote::worker::cuda {
namespace {

// cuMemAlloc's granularity. Smaller allocations could share a driver allocation, and so an IPC handle, with other
// memory.
constexpr uint64_t kGrain = uint64_t{2} << 20;

// NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
std::byte* to_address(DevicePointer pointer) { return reinterpret_cast<std::byte*>(pointer); }

// The content of a PeerMemory::Location.
struct Contents {
  IpcMemoryHandle handle;
  uint64_t offset = 0;
  uint64_t free_after_read = 0;  // 1: freed after it was read, so the reader must close it before.
};
static_assert(sizeof(Contents) <= PeerMemory::kLocationBytes);

// All memory that other processes may have open. Thread safe.
class ExportedMemory : public std::enable_shared_from_this<ExportedMemory> {
 public:
  ExportedMemory(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, uint64_t reuse_limit)
      : gpu_(std::move(gpu)), memory_(memory), reuse_limit_(reuse_limit) {}

  struct Region {
    DevicePointer address = 0;
    uint64_t size = 0;
    IpcMemoryHandle handle;
  };

  // Allocates memory that nothing else shares. kOutOfMemory: there is none.
  Status allocate(uint64_t size, Region* region) {
    size = (size + kGrain - 1) / kGrain * kGrain;
    const ContextGuard current(*gpu_);
    const Driver& driver = gpu_->driver();
    if (!memory_.charge(size)) return none(size);
    Result result = driver.mem_alloc(&region->address, size);
    if (result == Result::kSuccess) {
      region->size = size;
      result = driver.ipc_get_mem_handle(&region->handle, region->address);
      if (result == Result::kSuccess) return {};
      (void)driver.mem_free(region->address);
    }
    memory_.discharge(size);
    if (result == Result::kOutOfMemory) return none(size);
    return to_status(driver, result, "cuIpcGetMemHandle");
  }

  // Frees memory that no other process has open any more.
  void free(const Region& region) {
    const ContextGuard current(*gpu_);
    if (!gpu_->is_lost()) gpu_->check(gpu_->driver().mem_free(region.address), "cuMemFree");
    memory_.discharge(region.size);
  }

  // Queues the region for the next call of free_read().
  void add_read(const Region& region) {
    const std::lock_guard lock(mutex_);
    read_.push_back(region);
  }
  // Frees the queued regions. If there are any, cuMemFree waits for all work of the GPU.
  void free_read() {
    std::vector<Region> read;
    {
      const std::lock_guard lock(mutex_);
      read.swap(read_);
    }
    for (const Region& region : read) free(region);
  }

  // -- Memory that is reused

  Segment take_segment(size_t size) {
    const std::lock_guard lock(mutex_);
    const auto fits = [size](const Region& region) { return region.size >= size; };
    const auto parked = std::ranges::find_if(parked_, fits);
    Region region;
    if (parked != parked_.end()) {
      region = *parked;
      parked_.erase(parked);
    } else if (reused_bytes_ + size > reuse_limit_ || !allocate(size, &region).ok()) {
      return {};
    } else {
      reused_bytes_ += region.size;
      reused_[region.address] = region;
    }
    // A segment that the allocator releases stays open in other processes, so it is parked and reused.
    return {to_address(region.address), size,
            std::shared_ptr<void>(nullptr, [self = shared_from_this(), region](void*) { self->park(region); })};
  }
  // The region of a block in such a segment.
  Region find(const void* address) const {
    const std::lock_guard lock(mutex_);
    return std::prev(reused_.upper_bound(to_pointer(address)))->second;
  }

 private:
  void park(const Region& region) {
    const std::lock_guard lock(mutex_);
    parked_.push_back(region);
  }
  static Status none(uint64_t size) { return no_memory_for("a copy to another device", size); }

  const std::shared_ptr<Gpu> gpu_;
  CachingAllocator& memory_;
  const uint64_t reuse_limit_;
  mutable std::mutex mutex_;
  uint64_t reused_bytes_ = 0;
  std::map<DevicePointer, Region> reused_;  // by address
  std::vector<Region> parked_, read_;
};

// Never returns segments to the driver, as another process may have them open.
class ReusedSegmentSource final : public SegmentSource {
 public:
  explicit ReusedSegmentSource(std::shared_ptr<ExportedMemory> exports) : exports_(std::move(exports)) {}
  Segment allocate(size_t size) override { return exports_->take_segment(size); }

 private:
  const std::shared_ptr<ExportedMemory> exports_;
};

// A block in a reused segment.
class Block final : public PeerMemory::Piece {
 public:
  explicit Block(const tr_buffer& block) : block_(block) {}
  void was_read() override {
    if (block_.release != nullptr) block_.release(std::exchange(block_, {}).owner);
  }

 private:
  tr_buffer block_{};  // Leaks if the reader never reports that it has read the block.
};

// A piece with its own allocation.
class DedicatedAllocation final : public PeerMemory::Piece {
 public:
  DedicatedAllocation(std::shared_ptr<ExportedMemory> exports, const ExportedMemory::Region& region)
      : exports_(std::move(exports)), region_(region) {}
  void was_read() override { exports_->add_read(region_); }

 private:
  const std::shared_ptr<ExportedMemory> exports_;
  const ExportedMemory::Region region_;
};

class CudaReader final : public PeerMemory::Reader, public std::enable_shared_from_this<CudaReader> {
 public:
  CudaReader(std::shared_ptr<Gpu> gpu, std::function<void()> queued)
      : gpu_(std::move(gpu)), queued_(std::move(queued)) {}
  ~CudaReader() override {
    const ContextGuard current(*gpu_);
    for (const Open& open : open_) (void)gpu_->driver().ipc_close_mem_handle(open.address);
  }

  Status read(const PeerMemory::Location& place, void* destination, uint64_t nbytes,
              std::function<void()>* finish) override {
    *finish = [] {};
    if (nbytes == 0) return {};
    Contents contents;
    std::memcpy(&contents, place.data(), sizeof(contents));
    const ContextGuard current(*gpu_);
    DevicePointer begin = 0;
    if (Status status = open(contents, &begin); !status.ok()) return status;
    const Result result =
        gpu_->driver().memcpy_dtod_async(to_pointer(destination), begin + contents.offset, nbytes, gpu_->work_stream());
    gpu_->check(result, "cuMemcpyDtoDAsync");
    queued_();
    if (contents.free_after_read != 0) {
      *finish = [self = shared_from_this(), begin] { self->close(begin); };
    }
    return gpu_->status();
  }

 private:
  struct Open {
    IpcMemoryHandle handle;
    DevicePointer address = 0;
  };

  Status open(const Contents& contents, DevicePointer* begin) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(open_, [&](const Open& open) {
      return std::memcmp(open.handle.bytes, contents.handle.bytes, sizeof(open.handle.bytes)) == 0;
    });
    if (found != open_.end()) {
      *begin = found->address;
      return {};
    }
    const Driver& driver = gpu_->driver();
    const Result result = driver.ipc_open_mem_handle(begin, contents.handle, kIpcLazyPeerAccess);
    if (result != Result::kSuccess) return to_status(driver, result, "cuIpcOpenMemHandle");
    open_.push_back({contents.handle, *begin});
    return {};
  }

  void close(DevicePointer begin) {
    const ContextGuard current(*gpu_);
    const std::lock_guard lock(mutex_);
    std::erase_if(open_, [begin](const Open& open) { return open.address == begin; });
    if (!gpu_->is_lost()) gpu_->check(gpu_->driver().ipc_close_mem_handle(begin), "cuIpcCloseMemHandle");
  }

  const std::shared_ptr<Gpu> gpu_;
  const std::function<void()> queued_;
  std::mutex mutex_;
  std::vector<Open> open_;
};

// A separate stream, for threads other than the device's.
class ScopedStream {
 public:
  explicit ScopedStream(const Driver& driver) : driver_(driver) {
    status_ = to_status(driver, driver.stream_create(&stream_, kStreamNonBlocking, 0), "cuStreamCreate");
  }
  ~ScopedStream() {
    if (stream_ != nullptr) (void)driver_.stream_destroy(stream_);
  }
  ScopedStream(const ScopedStream&) = delete;
  ScopedStream& operator=(const ScopedStream&) = delete;

  // `copy` queues work on the stream; `run` returns when it is done.
  template <typename F>
  Status run(const char* what, F&& copy) {
    if (!status_.ok()) return status_;
    Status status = to_status(driver_, copy(stream_), what);
    if (!status.ok()) return status;
    return to_status(driver_, driver_.stream_synchronize(stream_), "cuStreamSynchronize");
  }

 private:
  const Driver& driver_;
  Stream stream_ = nullptr;
  Status status_;
};

class CudaPeerMemory final : public PeerMemory {
 public:
  CudaPeerMemory(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, uint64_t reuse_limit, std::function<void()> queued)
      : gpu_(std::move(gpu)),
        exports_(std::make_shared<ExportedMemory>(gpu_, memory, reuse_limit)),
        reused_(CachingAllocator::create(std::make_unique<ReusedSegmentSource>(exports_), UINT64_MAX)),
        queued_(std::move(queued)) {}
  ~CudaPeerMemory() override { exports_->free_read(); }

  Status offer(std::span<const std::byte> content, Location* place, PiecePtr* piece) override {
    DevicePointer address = 0;
    if (Status status = allocate(content.size(), place, piece, &address); !status.ok()) return status;
    const ContextGuard current(*gpu_);
    const Driver& driver = gpu_->driver();
    return ScopedStream(driver).run("cuMemcpyHtoDAsync", [&](Stream stream) {
      return driver.memcpy_htod_async(address, content.data(), content.size(), stream);
    });
  }

  // On machines with a misconfigured bus, all calls succeed but copies return wrong bytes. So this reads `content` back
  // and compares.
  Status verify_readable(const Location& place, std::span<const std::byte> content) override {
    Contents contents;
    std::memcpy(&contents, place.data(), sizeof(contents));
    const ContextGuard current(*gpu_);
    const Driver& driver = gpu_->driver();
    DevicePointer begin = 0;
    const Result opened = driver.ipc_open_mem_handle(&begin, contents.handle, kIpcLazyPeerAccess);
    if (opened != Result::kSuccess) return to_status(driver, opened, "cuIpcOpenMemHandle");
    DevicePointer here = 0;
    Status status = to_status(driver, driver.mem_alloc(&here, content.size()), "cuMemAlloc");
    std::vector<std::byte> came(content.size());
    if (status.ok()) {
      ScopedStream stream(driver);
      status = stream.run("cuMemcpyDtoDAsync", [&](Stream on) {
        return driver.memcpy_dtod_async(here, begin + contents.offset, came.size(), on);
      });
      if (status.ok()) {
        status = stream.run("cuMemcpyDtoHAsync",
                            [&](Stream on) { return driver.memcpy_dtoh_async(came.data(), here, came.size(), on); });
      }
    }
    if (here != 0) (void)driver.mem_free(here);
    (void)driver.ipc_close_mem_handle(begin);
    if (status.ok() && !std::ranges::equal(came, content)) {
      status = {ErrorCode::kUnsupported,
                "cuda: a read of the other GPU's memory returned wrong bytes (check that ACS and the IOMMU do not "
                "redirect traffic between GPUs)"};
    }
    return status;
  }

  Status status() const override { return gpu_->status(); }

  Status put(const void* source, uint64_t nbytes, Location* place, PiecePtr* piece) override {
    exports_->free_read();
    DevicePointer address = 0;
    if (Status status = allocate(nbytes, place, piece, &address); !status.ok()) return status;
    const ContextGuard current(*gpu_);
    if (nbytes != 0) {
      gpu_->check(gpu_->driver().memcpy_dtod_async(address, to_pointer(source), nbytes, gpu_->work_stream()),
                  "cuMemcpyDtoDAsync");
      queued_();
    }
    return gpu_->status();
  }

  std::shared_ptr<Reader> make_reader() override { return std::make_shared<CudaReader>(gpu_, queued_); }

 private:
  Status allocate(uint64_t nbytes, Location* place, PiecePtr* piece, DevicePointer* address) {
    Contents contents;
    tr_buffer block{};
    if (reused_->allocate(std::max<uint64_t>(nbytes, 1), &block)) {
      const ExportedMemory::Region region = exports_->find(block.data);
      *address = to_pointer(block.data);
      contents = {region.handle, *address - region.address, 0};
      *piece = std::make_shared<Block>(block);
    } else {
      ExportedMemory::Region region;
      if (Status status = exports_->allocate(nbytes, &region); !status.ok()) return status;
      *address = region.address;
      contents = {region.handle, 0, 1};
      *piece = std::make_shared<DedicatedAllocation>(exports_, region);
    }
    place->fill(std::byte{0});
    std::memcpy(place->data(), &contents, sizeof(contents));
    return {};
  }

  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<ExportedMemory> exports_;
  const CachingAllocator::Pointer reused_;
  const std::function<void()> queued_;
};

}  // namespace

std::unique_ptr<PeerMemory> make_peer_memory(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, uint64_t reuse_limit,
                                             std::function<void()> queued) {
  return std::make_unique<CudaPeerMemory>(std::move(gpu), memory, reuse_limit, std::move(queued));
}

}  // namespace torch_remote::worker::cuda
