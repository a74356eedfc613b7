#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ir/status.h"
#include "worker/collectives/label.h"
#include "worker/collectives/mesh.h"
#include "worker/collectives/op_queue.h"
#include "worker/device/device.h"

// Copies between two devices that read each other's memory. The connection between their workers carries only the
// location of a piece, and later the confirmation that it was read.
//
//   sender                                     receiver
//   its device copies to a PeerMemory piece
//   when that is done: kLocation, number ->       its device reads the piece, in the order of the session
//   the piece is free again       <- kReadDone, number     when that is done
//
// For the session's thread, except `test_access`.
namespace torch_remote::worker {

class PeerCopies {
 public:
  // `peer`: rank of the other end. The queue must be connected.
  PeerCopies(Device& device, std::shared_ptr<OpQueue> queue, int peer);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  // Tests whether both devices can read each other's memory. Both ends call it once they are connected. `mine` may be
  // null. *why is empty if both can; otherwise it is the reason, or "-" if neither device has such memory. Errors are
  // those of the connection.
  static Status test_access(Mesh& mesh, int peer, PeerMemory* mine, const OpLimits& limits, std::string* why);

  // Returns kOutOfMemory, and sends nothing, if there is no memory for a copy of the data.
  Status send(const Label& label, const void* data, uint64_t nbytes, const OpLimits& limits);
  // Waits until the other end has the data ready. `look`: see BackgroundWork::wait.
  Status receive(const Label& label, void* data, uint64_t nbytes, const OpLimits& limits,
                 const std::function<void()>& look);
  // Call it instead of receive(): confirms the copy to the sender without reading the data.
  void drop(const Label& label, const OpLimits& limits);

  // Returns when this device has done all its reads, and the other end was notified.
  void finish_reading();

 private:
  struct Reading;  // Reads that are not done yet.

  Device& device_;
  const std::shared_ptr<OpQueue> queue_;
  const int peer_;
  const std::shared_ptr<Reading> reading_;
  std::shared_ptr<PeerMemory::Reader> reader_;
};

}  // namespace torch_remote::worker
