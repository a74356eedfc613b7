#include "worker/session/buffers.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "remote/wire/delta.h"
#include "worker/device/no_memory.h"

namespace torch_remote::worker {
namespace {

// The overhead of buffers counts against the limit: kPerBuffer bytes each, charged for kChargedAtOnce buffers at a
// time.
constexpr size_t kChargedAtOnce = 4096;
constexpr uint64_t kPerBuffer = 256;

constexpr uint64_t kPiece = 32u << 20;  // Bytes of a buffer that are filled at a time.

Status no_memory_to_upload(uint64_t nbytes) {
  return no_memory_for("an upload of " + std::to_string(nbytes) + " bytes");
}

}  // namespace

Buffers::Buffers(Device& device, FailureLog& failures, OlderContents& older_contents)
    : device_(device), memory_(device.memory()), failures_(failures), older_contents_(older_contents) {
  memory_.set_reclaim([this] { return reclaim(); });
}

Buffers::~Buffers() {
  memory_.set_reclaim(nullptr);
  memory_.discharge(charged_ * kPerBuffer);
}

void Buffers::charge() {
  while (entries_.size() > charged_ + kChargedAtOnce) {
    charged_ += kChargedAtOnce;
    memory_.charge_unchecked(kChargedAtOnce * kPerBuffer);
  }
}

void Buffers::poison(uint64_t id, const FailurePtr& failure) {
  Entry* const entry = find(id);
  if (entry == nullptr || entry->poisoned()) return;
  older_contents_.drop(id);
  *entry = {std::make_shared<Memory>(entry->memory->nbytes()), failure, nullptr};
}

Status Buffers::upload(uint64_t id, std::span<std::byte> bytes, std::shared_ptr<void> keep) {
  if (id == 0) return Status::invalid("remote: an upload names no buffer");
  MemoryPtr memory;
  if (device_.adopts() && !bytes.empty()) {
    memory = std::make_shared<Memory>(bytes.data(), bytes.size(), std::move(keep), &memory_);
    if (memory_.over_limit()) memory = nullptr;
  } else if (tr_buffer copy{}; memory_.allocate(bytes.size(), &copy)) {
    device_.copy_in(copy.data, bytes, std::move(keep));
    memory = std::make_shared<Memory>(copy);
  }
  if (!memory) return upload_failed(id, bytes.size());
  put(id, {std::move(memory), nullptr, nullptr});
  return {};
}

Status Buffers::upload_failed(uint64_t id, uint64_t nbytes) {
  return put_failed(id, nbytes, no_memory_to_upload(nbytes), 0);
}

Status Buffers::put_failed(uint64_t id, uint64_t nbytes, Status why, uint64_t sequence) {
  put(id, {std::make_shared<Memory>(nbytes), failures_.add({std::move(why), 0, 0, sequence}), nullptr});
  return {};
}

Status Buffers::make(uint64_t id, uint64_t nbytes, uint64_t sequence, const Status& refused, const Fill& fill) {
  if (id == 0) return Status::invalid("remote: what is to be filled names no buffer");
  tr_buffer block{};
  Status status = refused;
  if (status.ok() && !memory_.allocate(nbytes, &block)) status = no_memory_to_upload(nbytes);
  if (!status.ok()) return put_failed(id, nbytes, std::move(status), sequence);
  auto memory = std::make_shared<Memory>(block);
  auto* const data = static_cast<std::byte*>(block.data);
  for (uint64_t offset = 0; offset < nbytes && status.ok(); offset += kPiece) {
    const uint64_t size = std::min(kPiece, nbytes - offset);
    if (device_.is_host_memory()) {
      status = fill(offset, {data + offset, size});
      continue;
    }
    const auto staged = std::make_shared<std::vector<std::byte>>(size);
    status = fill(offset, *staged);
    if (!status.ok()) break;
    device_.copy_in(data + offset, *staged, staged);
    status = device_.wait(device_.record());
  }
  if (!status.ok()) return put_failed(id, nbytes, std::move(status), sequence);
  put(id, {std::move(memory), nullptr, nullptr});
  return {};
}

Status Buffers::free(std::span<const uint8_t> ids) {
  Status status = set_freed(ids);
  if (status.ok()) erase_freed();
  return status;
}

void Buffers::free_range(uint64_t first, uint64_t count) {
  freed_.clear();
  for (uint64_t id = first; id < first + count; ++id) {
    if (find(id)) freed_.push_back(id);
  }
  erase_freed();
}

Status Buffers::set_freed(std::span<const uint8_t> ids) {
  freed_.clear();
  return remote::decode_freed_ids(ids, &freed_);
}

void Buffers::erase_freed() {
  for (const uint64_t id : freed_) erase(id);
  if (older_contents_.empty()) return;
  for (const uint64_t id : freed_) older_contents_.drop(id);
}

void Buffers::set_bound(const std::vector<uint64_t>* ids) {
  bound_ = ids;
  thread_ = std::this_thread::get_id();
}

// Releases the memory of buffers that the client has freed and that the current run does not use. Their entries stay,
// as there are pointers to some of them.
bool Buffers::reclaim() {
  if (bound_ == nullptr || std::this_thread::get_id() != thread_) return false;
  const std::unordered_set<uint64_t> bound(bound_->begin(), bound_->end());
  bool reclaimed = false;
  for (const uint64_t id : freed_) {
    Entry* const entry = bound.contains(id) ? nullptr : find(id);
    if (entry == nullptr || entry->poisoned()) continue;
    entry->memory = std::make_shared<Memory>(entry->memory->nbytes());
    reclaimed = true;
  }
  return reclaimed;
}

void Buffers::make_checkpoint(std::vector<uint64_t>* ids, std::vector<uint64_t>* sizes) {
  entries_.for_each([&](uint64_t id, const Entry& entry) {
    if (entry.poisoned()) return;
    checkpoint_[id] = entry.memory;
    ids->push_back(id);
    sizes->push_back(entry.memory->nbytes());
  });
}

MemoryPtr Buffers::find_in_checkpoint(uint64_t id) const {
  const auto found = checkpoint_.find(id);
  return found == checkpoint_.end() ? nullptr : found->second;
}

}  // namespace torch_remote::worker
