#include "worker/targets/cuda/device/pinned_ring.h"

namespace torch_remote::worker::cuda {

Status PinnedRing::open() {
  if (words_ != nullptr) return {};
  void* memory = nullptr;
  Status status =
      to_status(driver_, driver_.mem_host_alloc(&memory, kAreas * kAreaWords * sizeof(uint64_t), 0), "cuMemHostAlloc");
  words_ = static_cast<uint64_t*>(memory);
  for (Event& event : area_done_) {
    if (status.ok()) status = to_status(driver_, driver_.event_create(&event, kEventDisableTiming), "cuEventCreate");
  }
  if (!status.ok()) free();
  return status;
}

Status PinnedRing::take(size_t words, Stream stream, uint64_t** memory) {
  if (used_ + words > kAreaWords) {
    Status status = to_status(driver_, driver_.event_record(area_done_[area_], stream), "cuEventRecord");
    area_ = (area_ + 1) % kAreas;
    used_ = 0;
    // An event that was never recorded counts as done.
    if (status.ok()) status = to_status(driver_, driver_.event_synchronize(area_done_[area_]), "cuEventSynchronize");
    if (!status.ok()) return status;
  }
  *memory = words_ + area_ * kAreaWords + used_;
  used_ += words;
  return {};
}

void PinnedRing::close(Stream stream) {
  if (words_ == nullptr) return;
  (void)driver_.stream_synchronize(stream);
  free();
}

void PinnedRing::free() {
  for (Event& event : area_done_) {
    if (event != nullptr) (void)driver_.event_destroy(event);
    event = nullptr;
  }
  if (words_ != nullptr) (void)driver_.mem_free_host(words_);
  words_ = nullptr;
  area_ = used_ = 0;
}

}  // namespace torch_remote::worker::cuda
