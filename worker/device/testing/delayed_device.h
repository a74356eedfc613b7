#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "worker/device/device.h"

// A device for tests, as separate from this machine's memory as a GPU. Its addresses are mapped without any access, so
// that other code crashes if it uses them. A thread of its own does the work later, after delays that depend on a seed.
// Code that relies on work being done without waiting for it then fails.
namespace torch_remote::worker::testing {

class AddressSpace;

class DelayedDevice final : public Device {
 public:
  struct Options {
    uint64_t seed = 1;
    uint64_t limit = uint64_t{1} << 32;      // Bytes of tensors.
    std::chrono::microseconds longest{200};  // Delay before some of the work.
  };
  explicit DelayedDevice(const Options& options);
  ~DelayedDevice() override;

  std::string description() const override { return "delayed"; }

  void copy_in(void* destination, std::span<const std::byte> source, std::shared_ptr<void> keep) override;
  void copy_out(const StridedBytes& source, std::byte* destination, std::shared_ptr<void> keep) override;
  void copy(void* destination, const void* source, uint64_t nbytes) override;
  void fill(void* destination, std::byte value, uint64_t nbytes) override;

  bool asynchronous() const override { return true; }
  Ticket record() override;
  bool done(Ticket ticket) override;
  Status wait(Ticket ticket) override;
  void notify(Ticket ticket, std::function<void()> then) override;
  std::function<uint64_t()> read_clock() override;
  std::vector<DeferredFailure> take_failures() override;

  // -- For its runners.

  // Queues work, which runs in order with all other work.
  void enqueue(std::function<void()> work);
  void enqueue_and_wait(std::function<void()> work);
  // Reports a failure; called by work.
  void fail(DeferredFailure failure);
  // Converts an address of the device to one that work can access, and back. Null stays null.
  void* reachable(const void* address) const;
  void* address(const void* reachable) const;
  // Memory of the device for work alone: allocated while work runs, at addresses that it can access.
  CachingAllocator& scratch() { return *scratch_; }

 private:
  DelayedDevice(const Options& options, const std::shared_ptr<AddressSpace>& space);
  void work();

  std::shared_ptr<AddressSpace> space_;
  CachingAllocator::Pointer scratch_;
  const std::chrono::microseconds longest_;
  std::mt19937_64 random_;  // Used by thread_.

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t queued_ = 0, done_ = 0;
  std::multimap<Ticket, std::function<void()>> waiting_;
  std::vector<DeferredFailure> failures_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace torch_remote::worker::testing
