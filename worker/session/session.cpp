#include "worker/session/session.h"

#include <algorithm>
#include <unordered_set>

#include "remote/wire/delta.h"
#include "remote/wire/environment.h"
#include "worker/device/no_memory.h"

namespace torch_remote::worker {
namespace {

// The size of a view, packed. Returns false if it overflows, or if a size is negative.
bool packed_bytes(const ReadRequest& request, uint64_t* bytes) {
  uint64_t product = request.item_size;
  bool empty = false;
  for (const int64_t size : request.sizes) {
    if (size < 0) return false;
    empty |= size == 0;
    if (!empty && __builtin_mul_overflow(product, static_cast<uint64_t>(size), &product)) return false;
  }
  *bytes = empty ? 0 : product;
  return true;
}

// Whether the view's elements lie inside `nbytes`. Torch has no negative strides.
bool inside(const ReadRequest& request, uint64_t nbytes) {
  if (std::ranges::any_of(request.strides, [](int64_t stride) { return stride < 0; })) return false;
  __int128 last = request.offset;
  for (size_t i = 0; i < request.sizes.size(); ++i) {
    if (request.sizes[i] == 0) return true;
    last += static_cast<__int128>(request.sizes[i] - 1) * request.strides[i];
  }
  return request.offset >= 0 && (last + 1) * request.item_size <= static_cast<__int128>(nbytes);
}

bool is_packed(const ReadRequest& request) {
  int64_t expected = 1;
  for (size_t i = request.sizes.size(); i-- > 0;) {
    if (request.sizes[i] == 1) continue;
    if (request.strides[i] != expected) return false;
    expected *= request.sizes[i];  // Cannot overflow: packed_bytes() has checked it.
  }
  return true;
}

bool valid_item_size(uint32_t size) { return size == 1 || size == 2 || size == 4 || size == 8 || size == 16; }

// The overhead of buffers counts against the limit: kPerBuffer bytes each, charged for kChargedAtOnce buffers at a
// time.
constexpr size_t kChargedAtOnce = 4096;
constexpr uint64_t kPerBuffer = 256;

constexpr uint64_t kPiece = 32u << 20;  // Bytes of a buffer that are filled at a time.

Status no_memory_to_upload(uint64_t nbytes) {
  return no_memory_for("an upload of " + std::to_string(nbytes) + " bytes");
}

}  // namespace

Memory::Memory(void* data, uint64_t nbytes, std::shared_ptr<void> keep, CachingAllocator* counted)
    : data_(data), nbytes_(nbytes), keep_(std::move(keep)), counted_(counted) {
  counted_->add_external(nbytes_);
}

Memory::~Memory() {
  contents_change();
  if (buffer_.release) buffer_.release(buffer_.owner);
  if (counted_) counted_->remove_external(nbytes_);
}

Session::Session(Device* device, const Runners* runners)
    : device_(device),
      runners_(runners),
      memory_(&device->memory()),
      waits_for_plans_(remote::is_enabled("TORCH_REMOTE_WAIT_COMPILE")) {
  const auto found = std::ranges::find_if(*runners, [](const auto& r) { return r->works_in_background(); });
  if (found != runners->end()) background_runner_ = static_cast<uint32_t>(found - runners->begin());
  for (const auto& runner : *runners) {
    if (!notify_threads_) notify_threads_ = runner->thread_notifier();
  }
  memory_->set_reclaim([this] { return reclaim(); });
}

Session::~Session() {
  memory_->set_reclaim(nullptr);
  for (const auto& runner : *runners_) runner->end();
  memory_->discharge(counted_ * kPerBuffer);
}

Status Session::within_limit() {
  while (buffers_.size() > counted_ + kChargedAtOnce) {
    counted_ += kChargedAtOnce;
    memory_->charge_unchecked(kChargedAtOnce * kPerBuffer);
  }
  if (!memory_->overcharged()) return {};
  return {ErrorCode::kOutOfMemory, "remote: the client has " + std::to_string(buffers_.size()) + " buffers and " +
                                       std::to_string(programs_.size()) +
                                       " programs, more than the session's limit has room for"};
}

void Session::erase_freed() {
  for (const uint64_t id : frees_) buffers_.erase(id);
  if (older_contents_.empty()) return;
  for (const uint64_t id : frees_) older_contents_.erase(id);
}

// A run message lists the buffers that the client has freed since its last message; they are erased when the run is
// done. If memory runs out earlier, this releases the memory of those that the run does not use. Their entries stay, as
// there are pointers to some of them.
bool Session::reclaim() {
  if (running_ == nullptr || std::this_thread::get_id() != thread_) return false;
  const std::unordered_set<uint64_t> bound(running_->bindings.ids.begin(), running_->bindings.ids.end());
  bool reclaimed = false;
  for (const uint64_t id : frees_) {
    Entry* const entry = bound.contains(id) ? nullptr : buffers_.find(id);
    if (entry == nullptr || entry->memory->data() == nullptr) continue;
    entry->memory = std::make_shared<Memory>(entry->memory->nbytes());
    reclaimed = true;
  }
  return reclaimed;
}

void Session::load_program(uint32_t number, std::span<const std::byte> bytes, bool tune) {
  if (profile_) profile_->forget(number);
  std::shared_ptr<LoadedProgram>& program = programs_[number];
  program = nullptr;  // Frees its memory first.
  program = worker::load_program(number, *runners_, memory_, bytes, tune);
}

void Session::unload_program(uint32_t number) {
  if (profile_) profile_->forget(number);
  programs_.erase(number);  // Work on a device or in the background still holds it.
}

const LoadedProgram* Session::find_program(uint32_t number) const {
  const auto found = programs_.find(number);
  return found != programs_.end() && found->second->decoded ? found->second.get() : nullptr;
}

Status Session::upload(uint64_t id, std::span<std::byte> bytes, std::shared_ptr<void> keep) {
  if (id == 0) return Status::invalid("remote: an upload names no buffer");
  if (device_->adopts() && !bytes.empty()) {
    auto memory = std::make_shared<Memory>(bytes.data(), bytes.size(), std::move(keep), memory_);
    if (memory_->over_limit()) return upload_failed(id, bytes.size());
    put(id, {std::move(memory), nullptr, nullptr});
    return {};
  }
  tr_buffer copy{};
  if (!memory_->allocate(bytes.size(), &copy)) return upload_failed(id, bytes.size());
  device_->copy_in(copy.data, bytes, std::move(keep));
  put(id, {std::make_shared<Memory>(copy), nullptr, nullptr});
  return {};
}

Status Session::upload_failed(uint64_t id, uint64_t nbytes) {
  return put_failed(id, nbytes, no_memory_to_upload(nbytes), 0);
}

Status Session::put_failed(uint64_t id, uint64_t nbytes, Status why, uint64_t sequence) {
  put(id, {std::make_shared<Memory>(nbytes), note({std::move(why), 0, 0, sequence}), nullptr});
  return {};
}

Status Session::make_buffer(uint64_t id, uint64_t nbytes, uint64_t sequence, const Status& refused, const Fill& fill) {
  if (id == 0) return Status::invalid("remote: what is to be filled names no buffer");
  if (!refused.ok()) return put_failed(id, nbytes, refused, sequence);
  tr_buffer made{};
  if (!memory_->allocate(nbytes, &made)) return put_failed(id, nbytes, no_memory_to_upload(nbytes), sequence);
  auto memory = std::make_shared<Memory>(made);
  auto* const data = static_cast<std::byte*>(made.data);
  Status status;
  for (uint64_t offset = 0; offset < nbytes && status.ok(); offset += kPiece) {
    const uint64_t size = std::min(kPiece, nbytes - offset);
    if (device_->is_host_memory()) {
      status = fill(offset, {data + offset, size});
      continue;
    }
    const auto staged = std::make_shared<std::vector<std::byte>>(size);
    status = fill(offset, *staged);
    if (!status.ok()) break;
    device_->copy_in(data + offset, *staged, staged);
    status = device_->wait(device_->record());
  }
  if (!status.ok()) return put_failed(id, nbytes, std::move(status), sequence);
  put(id, {std::move(memory), nullptr, nullptr});
  return {};
}

Status Session::free(std::span<const uint8_t> bytes) {
  frees_.clear();
  Status status = remote::decode_frees(bytes, &frees_);
  if (!status.ok()) return status;
  erase_freed();
  return {};
}

void Session::free_range(uint64_t first, uint64_t count) {
  frees_.clear();
  for (uint64_t id = first; id < first + count; ++id) {
    if (buffers_.find(id)) frees_.push_back(id);
  }
  erase_freed();
}

FailurePtr Session::locate(const ReadRequest& request, uint64_t sequence, Located* located) {
  const auto refuse = [&](std::string message) {
    return std::make_shared<Failure>(Failure{Status::invalid(std::move(message)), 0, 0, sequence});
  };
  const Entry* entry = buffers_.find(request.buffer);
  if (!entry) return no_such_buffer(request.buffer, sequence);
  if (entry->memory->is_being_written()) await_writers(MemoryPtr(entry->memory));
  if (entry->poisoned()) return entry->failure;
  if (const FailurePtr failure = earlier(entry->failure, entry->check); is_unreported(failure)) return failure;
  if (!valid_item_size(request.item_size) || request.sizes.size() != request.strides.size() ||
      request.sizes.size() > ir::kMaxRank || !packed_bytes(request, &located->nbytes)) {
    return refuse("remote: a read has sizes that make no sense");
  }
  if (located->nbytes != 0 && !inside(request, entry->memory->nbytes())) {
    return refuse("remote: a read reaches beyond buffer " + std::to_string(request.buffer) + " of " +
                  std::to_string(entry->memory->nbytes()) + " bytes");
  }
  // After this read the older contents never come back. The client may never use the result of a prefetch, so a
  // prefetch is refused; the client asks again if it needs the value.
  if (older_contents_.contains(request.buffer)) {
    if (request.prefetch) return refuse("remote: a read ahead of a buffer whose older contents may come back");
    older_contents_.erase(request.buffer);
  }
  located->data = static_cast<const std::byte*>(entry->memory->data());
  if (located->nbytes != 0) located->data += request.offset * request.item_size;
  located->packed = located->nbytes == 0 || is_packed(request);
  located->keep = entry->memory;
  return nullptr;
}

void Session::make_checkpoint(std::vector<uint64_t>* buffers, std::vector<uint64_t>* sizes) {
  buffers_.for_each([&](uint64_t id, const Entry& entry) {
    if (entry.poisoned()) return;
    checkpoint_[id] = entry.memory;
    buffers->push_back(id);
    sizes->push_back(entry.memory->nbytes());
  });
}

FailurePtr Session::locate_in_checkpoint(uint64_t buffer, uint64_t sequence, Located* located) const {
  const auto found = checkpoint_.find(buffer);
  if (found == checkpoint_.end()) return no_such_buffer(buffer, sequence);
  *located = {static_cast<const std::byte*>(found->second->data()), found->second->nbytes(), true, found->second};
  return nullptr;
}

std::shared_ptr<QueuedRead> Session::copy_out(const ReadRequest& request, const Located& located,
                                              std::span<std::byte> destination, std::shared_ptr<void> keep) {
  if (located.nbytes != 0) {
    device_->copy_out({located.data, request.item_size, request.sizes, request.strides}, destination.data(),
                      std::move(keep));
  }
  if (!device_->asynchronous()) return nullptr;
  auto read = std::make_shared<QueuedRead>(QueuedRead{request.buffer, nullptr});
  in_flight_.add(device_->record(), read);
  return read;
}

}  // namespace torch_remote::worker
