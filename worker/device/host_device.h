#pragma once

#include <memory>
#include <string>

#include "worker/device/device.h"
#include "worker/device/strided_copy.h"

namespace torch_remote::worker {

// This machine's memory. All work is done when its call returns.
class HostDevice final : public Device {
 public:
  struct Options {
    // The transport to the client, which lend() uses. If it shares memory, tensors are in memory that the client can
    // read in place. It must outlive the device and all memory lent. Null: lend() lends nothing.
    remote::Transport* transport = nullptr;
    bool inproc = false;   // The client is in this process, and can read any memory in place.
    bool trusted = false;  // Memory that the client sends may be used in place: the client does not write to it later.
    uint64_t limit = 0;    // Bytes of tensors; 0: machine_memory().
  };
  explicit HostDevice(const Options& options);

  // Sets the threads that copy_out() uses for large copies: those of a runner, so that there is one thread pool.
  void set_threads(ParallelFor parallel) { parallel_ = std::move(parallel); }

  std::string description() const override;

  void copy_in(void* destination, std::span<const std::byte> source, std::shared_ptr<void> keep) override;
  void copy_out(const StridedBytes& source, std::byte* destination, std::shared_ptr<void> keep) override;
  void copy(void* destination, const void* source, uint64_t nbytes) override;
  void fill(void* destination, std::byte value, uint64_t nbytes) override;

  Ticket record() override { return 0; }
  bool done(Ticket) override { return true; }
  Status wait(Ticket) override { return {}; }
  void notify(Ticket, std::function<void()> then) override { then(); }
  std::function<uint64_t()> read_clock() override;

  bool is_host_memory() const override { return true; }
  bool adopts() const override { return trusted_; }
  uint64_t lends_from() const override { return transport_ ? 32u << 10 : UINT64_MAX; }  // Smaller pieces are copied.
  remote::AttachmentPtr lend(const void* data, uint64_t nbytes, std::shared_ptr<void> keep) override;

 private:
  remote::Transport* transport_;
  bool trusted_;
  ParallelFor parallel_;
};

}  // namespace torch_remote::worker
