#include "worker/targets/cuda/device/staging.h"

namespace torch_remote::worker::cuda {

// On a lost GPU nothing is freed: the context's end releases its memory, and the process's end releases pinned memory.
Staging::~Staging() {
  if (slots_.empty() || gpu_->is_lost()) return;
  const ContextGuard current(*gpu_);
  for (const Slot& slot : slots_) remove(slot);
}

Status Staging::open() {
  const ContextGuard current(*gpu_);
  return add();
}

Status Staging::add() {
  const Driver& driver = gpu_->driver();
  Slot slot;
  void* pinned = nullptr;
  Status status = to_status(driver, driver.mem_host_alloc(&pinned, slot_bytes_, 0), "cuMemHostAlloc");
  slot.pinned = static_cast<std::byte*>(pinned);
  if (status.ok()) status = to_status(driver, driver.mem_alloc(&slot.memory, slot_bytes_), "cuMemAlloc");
  for (Event* event : {&slot.filled, &slot.emptied}) {
    if (status.ok()) status = to_status(driver, driver.event_create(event, kEventDisableTiming), "cuEventCreate");
  }
  if (status.ok()) {
    slots_.push_back(slot);
  } else {
    remove(slot);
  }
  return status;
}

void Staging::remove(const Slot& slot) {
  const Driver& driver = gpu_->driver();
  if (slot.filled != nullptr) (void)driver.event_destroy(slot.filled);
  if (slot.emptied != nullptr) (void)driver.event_destroy(slot.emptied);
  if (slot.memory != 0) (void)driver.mem_free(slot.memory);
  if (slot.pinned != nullptr) (void)driver.mem_free_host(slot.pinned);
}

const Staging::Slot& Staging::next() {
  next_ = (next_ + 1) % count_;
  // If there is no memory for another slot, the existing ones are reused.
  if (next_ >= slots_.size() && (gpu_->is_lost() || !add().ok())) next_ = 0;
  return slots_[next_];
}

}  // namespace torch_remote::worker::cuda
