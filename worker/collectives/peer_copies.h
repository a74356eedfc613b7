#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ir/status.h"
#include "worker/collectives/label.h"
#include "worker/collectives/lane.h"
#include "worker/collectives/mesh.h"
#include "worker/device/device.h"

// Copies between two devices that read each other's memory: what goes over the connection between their workers is
// where a piece lies, and then that it was read.
//
//   sender                                     receiver
//   its device copies to memory for others
//   when that is done: kPlace, number ->       its device reads there, when the session's order has come to that
//   the memory is free again      <- kTaken, number     when that is done
//
// For the session's thread, but for `meet`.
namespace torch_remote::worker {

class PeerCopies {
 public:
  // `peer`: the other end's rank. The lane is connected.
  PeerCopies(Device& device, std::shared_ptr<Lane> lane, int peer);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  // Finds out whether both devices read each other's memory, by having them do it. Both ends call it once they are
  // connected. `mine` may be null. *why: empty, they do; else why not ("" of devices that have no such memory is never
  // asked: "-"). Errors are the connection's.
  static Status meet(Mesh& mesh, int peer, PeerMemory* mine, const OpLimits& limits, std::string* why);

  // kOutOfMemory: there is no room for what is sent; then nothing was.
  Status send(const Label& label, const void* data, uint64_t nbytes, const OpLimits& limits);
  // Waits until the other end has it ready. `look`: as of BackgroundWork::wait.
  Status receive(const Label& label, void* data, uint64_t nbytes, const OpLimits& limits,
                 const std::function<void()>& look);
  // Instead of receive.
  void drop(const Label& label, const OpLimits& limits);

  // Returns when this device has read all that it was to, and the other end was told.
  void finish_reading();

 private:
  struct Reading;  // what is not done yet

  Device& device_;
  const std::shared_ptr<Lane> lane_;
  const int peer_;
  const std::shared_ptr<Reading> reading_;
  std::shared_ptr<PeerMemory::Reader> reader_;
};

}  // namespace torch_remote::worker
