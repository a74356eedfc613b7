#pragma once

#include <memory>
#include <string>
#include <utility>

#include "remote/transport/transport.h"

namespace torch_remote::remote {

// Forwards every call to another transport, which it owns. Base class of transports that change some calls: to capture,
// to explain, to inject faults.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  AttachmentPtr allocate(size_t size) override { return inner_->allocate(size); }
  AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> owner) override {
    return inner_->share(memory, size, std::move(owner));
  }
  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override {
    return inner_->send(header, control, std::move(attachment));
  }
  Status receive(Frame* frame, std::chrono::nanoseconds timeout) override { return inner_->receive(frame, timeout); }
  void set_spin_time(std::chrono::nanoseconds time) override { inner_->set_spin_time(time); }
  void avoid_busy_cores() override { inner_->avoid_busy_cores(); }
  void wake() override { inner_->wake(); }
  void abandon() override { inner_->abandon(); }
  bool shares_memory() const override { return inner_->shares_memory(); }
  int peer_process() const override { return inner_->peer_process(); }
  bool is_peer(int process) const override { return inner_->is_peer(process); }
  std::string description() const override { return inner_->description(); }

 protected:
  Transport& inner() { return *inner_; }

 private:
  const std::unique_ptr<Transport> inner_;
};

}  // namespace torch_remote::remote
